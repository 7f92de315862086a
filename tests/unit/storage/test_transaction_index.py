"""The transaction index: its bytes, its files over restarts, and what happens when a file is damaged."""

from __future__ import annotations

import random
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from typer.testing import CliRunner

from ottla.cli.main import app
from ottla.storage import stored_segment
from ottla.storage.files import RealDisk
from ottla.storage.log import Log
from ottla.storage.offset_index import CorruptIndex
from ottla.storage.results import NotInMemory
from ottla.storage.transaction_index import AbortedTransaction, TransactionIndex
from unit.storage.committed import read_committed
from unit.storage.logs import Store, batch, from_producer

FIRST = "00000000000000000000.txnindex"


def aborted_transaction(store: Store, number: int, *, producer: int = 7, roll: bool = False) -> None:
    store.log.append(from_producer(number, producer=producer, value=b"aborted", transactional=True), 0)
    if roll:
        store.log.roll()
    store.log.append_marker(producer, 0, 0, commit=False, coordinator_epoch=1)


def in_three_segments(**config: Any) -> Store:
    """Aborted transactions at offsets 0 and 1, 3 and 4 (over two segments), 6 and 7, values between them."""
    store = Store(**config)
    for number in range(3):
        aborted_transaction(store, number, roll=number == 1)
        store.log.append(batch(value=b"%d" % number), 0)
    store.log.roll()
    store.log.append(batch(value=b"last"), 0)
    return store


def test_entries_are_kafkas() -> None:
    index = TransactionIndex()
    index.add(AbortedTransaction(7, 100, 120, 90))
    assert index.encode() == pack(">hqqqq", 0, 7, 100, 120, 90)
    assert list(TransactionIndex.decode(index.encode(), 110, 121)) == list(index)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(bytes(33), id="half an entry"),
        pytest.param(pack(">hqqqq", 1, 7, 100, 120, 90), id="another version"),
        pytest.param(pack(">hqqqq", 0, 7, 100, 109, 90), id="a marker before the segment"),
        pytest.param(pack(">hqqqq", 0, 7, 100, 130, 90), id="a marker behind the segment"),
        pytest.param(pack(">hqqqq", 0, 7, 120, 120, 90), id="no records"),
        pytest.param(pack(">hqqqq", 0, 7, 100, 120, 90) * 2, id="the same marker twice"),
        pytest.param(bytes(34), id="zeros"),
        pytest.param(
            pack(">hqqqq", 0, 7, 100, 120, 110) + pack(">hqqqq", 0, 7, 121, 122, 90),
            id="a last stable offset that falls",
        ),
    ],
)
def test_an_index_that_cannot_be_right_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptIndex):
        TransactionIndex.decode(data, 110, 130)


@pytest.mark.parametrize("following", [(121, 120, 110), (121, 122, 90)], ids=["marker", "last stable offset"])
def test_a_piece_that_does_not_follow_on_the_one_before_is_refused(following: tuple[int, int, int]) -> None:
    index = TransactionIndex()
    index.decode_more(pack(">hqqqq", 0, 7, 100, 121, 110), 110, 130)
    first, last, stable = following
    with pytest.raises(CorruptIndex):
        index.decode_more(pack(">hqqqq", 0, 8, first - 10, last, stable), 110, 130)


def test_only_transactions_that_overlap_are_found() -> None:
    index = TransactionIndex()
    index.add(AbortedTransaction(1, 0, 10, 5))
    index.add(AbortedTransaction(2, 5, 20, 15))
    index.add(AbortedTransaction(3, 15, 30, 31))

    def found(start: int, end: int) -> tuple[list[int], bool]:
        entries, is_all = index.collect(start, end)
        return [entry.producer_id for entry in entries], is_all

    assert found(0, 5) == ([1], True)
    assert found(11, 16) == ([2, 3], True)
    assert found(21, 40) == ([3], False)
    assert found(31, 40) == ([], False)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_found_among_thousands_is_what_a_look_at_each_finds(seed: int) -> None:
    """Some transactions stay open for long, and hold the last stable offset back for thousands of others."""
    rng = random.Random(seed)
    index, entries = _random_index(rng, rng.choice([1, 511, 512, 513, 3000]))
    for _ in range(60):
        start = rng.randrange(entries[-1].last_offset + 2)
        end = start + rng.choice([1, 10, 1000, 10_000])
        found, is_all = index.collect(start, end)
        assert list(found) == [
            each for each in entries if each.last_offset >= start and each.first_offset < end
        ]
        assert is_all == any(entry.last_stable_offset >= end for entry in entries)
    limits = entries[0].last_offset, entries[-1].last_offset + 1
    copy = TransactionIndex.decode(index.encode(), *limits)
    in_pieces, at = TransactionIndex(), 0
    while at < len(entries):
        count = rng.choice([1, 500, 512, 1000])
        in_pieces.decode_more(index.encode()[at * 34 : (at + count) * 34], *limits)
        at += count
    cut = rng.randrange(len(entries))
    for each in (index, copy, in_pieces):
        each.truncate(entries[cut].last_offset)
        assert list(each) == entries[:cut]
        each.add(entries[cut])
        assert list(each.collect(0, entries[cut].last_offset)[0]) == entries[: cut + 1]
    assert copy.encode(cut) == index.encode()[cut * 34 :]


def _random_index(rng: random.Random, count: int) -> tuple[TransactionIndex, list[AbortedTransaction]]:
    index = TransactionIndex()
    entries: list[AbortedTransaction] = []
    open_since: dict[int, int] = {}
    offset = producer = 0
    while len(entries) < count:
        if len(open_since) < 40 and rng.random() < 0.6:
            producer += 1
            open_since[producer] = offset
        elif open_since:
            oldest = next(iter(open_since))
            others = list(open_since)[1:]
            ended = rng.choice(others) if others and rng.random() < 0.99 else oldest
            first = open_since.pop(ended)
            stable = next(iter(open_since.values()), offset + 1)
            entries.append(AbortedTransaction(ended, first, offset, stable))
            index.add(entries[-1])
        offset += 1
    return index, entries


def test_entries_found_stay_when_the_index_is_cut() -> None:
    index = TransactionIndex()
    index.add(AbortedTransaction(1, 0, 1, 2))
    found, _ = index.collect(0, 10)
    index.truncate(0)
    assert found[0] == AbortedTransaction(1, 0, 1, 2)
    assert found[:] == list(found) and len(index) == 0


def test_a_log_without_aborted_transactions_has_no_index_files() -> None:
    store = Store()
    store.log.append(from_producer(0, transactional=True), 0)
    store.log.append_marker(7, 0, 0, commit=True, coordinator_epoch=1)
    store.log.roll()
    store.reopen()
    assert store.files(".txnindex") == {}
    assert not store.log._row.aborted


def test_an_index_file_is_in_the_segment_of_the_marker() -> None:
    store = in_three_segments()
    store.log.flush()
    assert {name: len(data) for name, data in store.files(".txnindex").items()} == {
        FIRST: 34,
        "00000000000000000004.txnindex": 68,
    }
    assert store.log.aborted_transactions(3, 5) == [AbortedTransaction(7, 3, 4, 5)]


def test_a_clean_stop_leaves_all_entries_also_of_a_short_segment() -> None:
    store = Store()
    aborted_transaction(store, 0)
    store.reopen()
    assert store.report.clean and not store.report.scanned_bytes
    store.log.append(batch(value=b"a"), 0)
    aborted_transaction(store, 1)
    assert read_committed(store.log) == [b"a"]
    store.reopen()
    assert len(store.files(".txnindex")[FIRST]) == 68
    assert read_committed(store.log) == [b"a"]


@pytest.mark.parametrize("damage", ["missing", "shorter", "longer"])
def test_an_index_file_that_changed_while_the_broker_was_down_is_rebuilt(damage: str) -> None:
    store = in_three_segments()
    store.directory.close()
    name = "00000000000000000004.txnindex"
    before = store.files(".txnindex")[name]
    path = store.folder / name
    if damage == "missing":
        store.disk.remove(path)
    else:
        store.disk.replace(path, before[:34] if damage == "shorter" else before * 2, sync=True)
    store._start()
    assert store.report.rebuilt_indexes == [name]
    assert store.files(".txnindex")[name] == before
    assert read_committed(store.log) == [b"0", b"1", b"2", b"last"]


def test_an_index_file_with_other_content_is_rebuilt_when_it_is_used() -> None:
    store = in_three_segments()
    store.directory.close()
    name = "00000000000000000004.txnindex"
    before = store.files(".txnindex")[name]
    store.damage(name, 2, b"\xff" * 40)
    store._start()
    assert read_committed(store.log) == [b"0", b"1", b"2", b"last"]
    assert store.files(".txnindex")[name] == before


def in_pieces(log: Log) -> tuple[list[AbortedTransaction], int]:
    """The aborted transactions of the whole log, and how often a reader let others have the event loop."""
    found: dict[int, AbortedTransaction] = {}
    offset, pauses = 0, 0
    while (records := log.read(offset, 1, log.end_offset)) is not None:
        while True:
            try:
                found |= {each.last_offset: each for each in log.aborted_in(offset, records, wait=False)}
                break
            except NotInMemory as missing:
                assert missing.file.path.suffix == ".txnindex"
                pauses += 1
                assert pauses < 100
        offset += 1
    return list(found.values()), pauses


@pytest.mark.parametrize("damaged", [False, True])
def test_a_large_index_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch, damaged: bool) -> None:
    monkeypatch.setattr(stored_segment, "_TRANSACTIONS_AT_ONCE", 34)
    store = in_three_segments()
    whole = store.log.aborted_transactions(0, 100)
    store.directory.close()
    if damaged:
        store.damage("00000000000000000004.txnindex", 2, b"\xff" * 40)
    store._start()
    found, pauses = in_pieces(store.log)
    assert found == whole and len(whole) == 3
    assert pauses == (1 if damaged else 2), "two entries of the second segment, the first one is damaged"
    assert in_pieces(store.log) == (whole, 0)


def test_the_index_of_the_active_segment_is_read_when_the_log_is_opened() -> None:
    store = Store()
    aborted_transaction(store, 0)
    store.reopen()
    store.disk.remove(store.folder / FIRST)
    assert len(store.log.aborted_transactions(0, 100)) == 1
    assert FIRST not in store.files(".txnindex"), "it was read again, and rebuilt"


def test_index_files_go_with_their_segments() -> None:
    store = in_three_segments(file_delete_delay_ms=1000)
    store.log.delete_records_before(5)
    store.log.apply_retention(store.log.end_offset)
    assert FIRST not in store.files(".txnindex")
    assert store.log.aborted_transactions(0, 100)[0].first_offset == 3
    store.clock.advance(1001)
    store.log.remove_deleted(store.clock.now_ms())
    assert not [name for name in store.files() if FIRST in name]


def test_a_truncation_takes_markers_back() -> None:
    store = in_three_segments()
    store.log.truncate_to(7)
    assert store.log.last_stable_offset(7) == 6
    assert [entry.last_offset for entry in store.log.aborted_transactions(0, 7)] == [1, 4]
    store.log.append_marker(7, 0, 0, commit=True, coordinator_epoch=1)
    assert read_committed(store.log) == [b"0", b"1", b"aborted"]
    store.crash()
    assert read_committed(store.log) == [b"0", b"1", b"aborted"]


def test_inspect_shows_aborted_transactions(tmp_path: Path) -> None:
    store = Store(RealDisk(), tmp_path)
    aborted_transaction(store, 0)
    store.directory.close()
    shown = CliRunner().invoke(app, ["log", "inspect", str(store.folder / FIRST)])
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[1].split() == ["7", "0", "1", "2"]
    (store.folder / FIRST).write_bytes(bytes(33))
    assert CliRunner().invoke(app, ["log", "inspect", str(store.folder / FIRST)]).exit_code == 1
