"""Lookups by time: how much they read, and what they make of batches that are too large to be opened."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from attacks import forged
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ApiError
from ottla.protocol.varints import InvalidRecords, TimeWalk, encode_records
from ottla.storage.log_config import LogConfig
from ottla.storage.offset_index import CorruptIndex
from ottla.storage.time_index import ENTRY, TimeIndex, floor_in_file
from ottla.storage.time_search import TooLong
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.memory_disk import MemoryDisk
from unit.storage.logs import T0, Store, batch

ENTRIES = 262_144


class CountingDisk(FaultyDisk):
    """Counts reads of files with a given ending."""

    def __init__(self, ending: str) -> None:
        super().__init__(MemoryDisk())
        self._ending = ending
        self.reads = 0

    def check(self, operation: str, path: Path) -> None:
        if operation == "read" and path.name.endswith(self._ending):
            self.reads += 1
        super().check(operation, path)


def index_file(entries: list[tuple[int, int]]) -> tuple[Any, CountingDisk]:
    disk = CountingDisk(".timeindex")
    disk.make_folder(Path("/f"))
    disk.replace(Path("/f/0.timeindex"), b"".join(ENTRY.pack(*each) for each in entries), sync=False)
    return disk.open(Path("/f/0.timeindex")), disk


def test_a_search_in_a_long_time_index_reads_few_entries() -> None:
    entries = [(T0 + 10 * n, 3 * n) for n in range(ENTRIES)]
    file, disk = index_file(entries)
    for slot in (0, 1, 77_777, ENTRIES - 1):
        disk.reads = 0
        assert floor_in_file(file, T0 + 10 * slot) == 3 * slot
        assert floor_in_file(file, T0 + 10 * slot + 9) == 3 * slot
        assert disk.reads <= 2 * 20
    assert floor_in_file(file, T0 - 1) == 0
    assert floor_in_file(file, 2**62) == 3 * (ENTRIES - 1)


def test_a_search_in_the_file_finds_what_one_in_memory_finds() -> None:
    for count in range(20):
        entries = [(T0 + 5 * n, 2 * n) for n in range(count)]
        index = TimeIndex()
        for timestamp, offset in entries:
            index.add(timestamp, offset)
        file, _ = index_file(entries)
        for timestamp in range(T0 - 2, T0 + 5 * count + 2):
            assert floor_in_file(file, timestamp) == index.floor(timestamp)


@pytest.mark.parametrize("wrong", [(T0 + 3, 500), (-5, 500), (T0 + 500, -1), (T0 + 500, 10**9)])
def test_out_of_order_index_entries_are_detected_when_read(wrong: tuple[int, int]) -> None:
    entries = [(T0 + n, n) for n in range(1001)]
    entries[500] = wrong  # in the middle, which every search reads
    file, _ = index_file(entries)
    with pytest.raises(CorruptIndex):  # by one of them; the others are led right all the same
        for timestamp in (T0 + 10, T0 + 499, T0 + 501, T0 + 900):
            floor_in_file(file, timestamp)


def test_a_lookup_in_a_sealed_segment_reads_little_of_its_time_index() -> None:
    disk = CountingDisk(".timeindex")
    store = Store(disk, index_interval_bytes=1)
    for number in range(1000):
        store.log.append(batch(timestamp=T0 + number), 0)
    store.log.roll()
    disk.reads = 0
    found = store.log.offset_for_timestamp(T0 + 777)
    assert found is not None
    assert found.offset == 777
    assert disk.reads <= 20


@pytest.mark.parametrize("codec", list(Codec))
def test_a_record_deep_in_a_large_batch_is_found(codec: Codec) -> None:
    store = Store()
    store.log.append(batch(20_000, codec=codec, step=1), 0)
    found = store.log.offset_for_timestamp(T0 + 19_000)
    assert found == (19_000, T0 + 19_000, 0)
    store.log.delete_records_before(19_500)
    assert store.log.offset_for_timestamp(T0 + 19_000) == (19_500, T0 + 19_500, 0)
    assert store.log.max_timestamp() == (19_999, T0 + 19_999, 0)


def test_a_search_limited_to_small_work_does_not_open_a_large_batch() -> None:
    store = Store()
    store.log.append(batch(20_000, codec=Codec.ZSTD), 0)
    search = next(store.log.searches_since(T0 + 5))
    assert search is not None
    with pytest.raises(TooLong):
        store.log.run_search(search, only_small=True)
    pauses: list[int] = []
    found = store.log.run_search(search, pause=lambda: pauses.append(1))
    assert found is not None
    assert found.offset == 5
    search = next(store.log.searches_since(T0 + 19_999))
    assert search is not None
    store.log.run_search(search, pause=lambda: pauses.append(1))
    assert len(pauses) >= 20_000 // 250 - 1


def test_a_search_limited_to_small_work_does_not_walk_many_batches() -> None:
    """Times that fall leave nothing in the time index to jump by."""
    store = Store()
    store.log.append(batch(timestamp=T0), 0)
    for number in range(300):
        store.log.append(batch(timestamp=T0 - number), 0)
    store.log.append(batch(timestamp=T0 + 1), 0)
    search = next(store.log.searches_since(T0 + 1))
    assert search is not None
    with pytest.raises(TooLong):
        store.log.run_search(search, only_small=True)
    found = store.log.run_search(search)
    assert found is not None
    assert found.offset == 301


def test_a_search_limited_to_small_work_does_not_open_many_small_batches() -> None:
    """Headers that promise a younger record than there is have batch after batch opened."""
    store = Store()
    for _ in range(50):
        lying = forged.batch(forged.record(), now=T0, max_timestamp=T0 + 60_000)
        store.log.append(memoryview(lying), 0)
    store.log.append(batch(timestamp=T0 + 30_000), 0)
    search = next(store.log.searches_since(T0 + 30_000))
    assert search is not None
    opened: list[int] = []

    def is_late() -> bool:
        opened.append(1)
        return len(opened) == 3

    with pytest.raises(TooLong):
        store.log.run_search(search, only_small=True, is_late=is_late)
    assert len(opened) == 3
    pauses: list[int] = []
    assert store.log.run_search(search, pause=lambda: pauses.append(1)) == (50, T0 + 30_000, 0)
    assert len(pauses) == 50, "others get the interpreter after each batch that was opened"
    assert store.log.run_search(search, only_small=True, is_late=lambda: False) == (50, T0 + 30_000, 0)


def test_a_stored_batch_with_more_records_than_are_allowed_counts_as_one_record() -> None:
    store = Store(max_records_per_batch=1_000_000)
    store.log.append(batch(5000, codec=Codec.ZSTD), 0)
    store.log.configure(LogConfig(max_records_per_batch=100))
    assert store.log.offset_for_timestamp(T0 + 4000) == (0, T0 + 4999, 0)
    store.log.delete_records_before(10)
    assert store.log.offset_for_timestamp(T0 + 4000) == (10, T0 + 4999, 0)


@pytest.mark.parametrize("offset_delta", [1, 100_000, -1, -2, 2**31 - 1, -(2**31)])
def test_a_forged_offset_delta_gives_no_offset_outside_of_its_batch(offset_delta: int) -> None:
    store = Store()
    for number in range(5):
        store.log.append(batch(timestamp=T0 + number), 0)
    store.log.append(memoryview(forged.batch(forged.record(offset_delta), now=T0 + 10)), 0)
    store.log.append(batch(timestamp=T0 + 20), 0)
    assert store.log.offset_for_timestamp(T0 + 3) == (3, T0 + 3, 0)
    assert store.log.offset_for_timestamp(T0 + 5) == (5, T0 + 10, 0)
    assert store.log.offset_for_timestamp(T0 + 11) == (6, T0 + 20, 0)
    assert store.log.max_timestamp() == (6, T0 + 20, 0)


def test_a_forged_offset_delta_gives_no_offset_before_the_start_of_the_log() -> None:
    store = Store()
    records = b"".join(forged.record(delta) for delta in (0, 99, -7, 3))
    store.log.append(memoryview(forged.batch(records, count=4, now=T0)), 0)
    store.log.delete_records_before(2)
    assert store.log.offset_for_timestamp(T0) == (2, T0, 0)


@pytest.mark.parametrize("timestamp_delta", [2**63 - 1, 2**63 - T0, -(2**63)])
def test_a_record_whose_timestamp_exceeds_64_bits_is_skipped(timestamp_delta: int) -> None:
    store = Store()
    store.log.append(memoryview(forged.batch(forged.record(0, timestamp_delta), now=T0)), 0)
    store.log.append(batch(timestamp=T0 + 5), 0)
    assert store.log.offset_for_timestamp(T0 - 5) == (1, T0 + 5, 0)
    assert store.log.offset_for_timestamp(T0) == (1, T0 + 5, 0)


def test_the_largest_timestamp_that_64_bits_hold_is_found() -> None:
    store = Store()
    store.log.append(memoryview(forged.batch(forged.record(0, 2**63 - 1 - T0), now=T0)), 0)
    assert store.log.offset_for_timestamp(T0) == (0, 2**63 - 1, 0)


def test_a_search_continues_when_segments_are_deleted_between_its_steps() -> None:
    store = Store(segment_bytes=200, retention_bytes=500)
    for number in range(20):
        store.log.append(batch(timestamp=T0 + number), 0)
    searches = store.log.searches_since(T0 + 19)
    assert next(searches) is None
    assert store.log.apply_retention(store.log.end_offset)
    found = [store.log.run_search(search) for search in searches if search is not None]
    assert [each and each.offset for each in found] == [19]


def test_a_log_truncated_during_a_search_is_not_reported_as_damaged() -> None:
    store = Store()
    for number in range(10):
        store.log.append(batch(timestamp=T0 + number), 0)
    search = next(store.log.searches_since(T0 + 9))
    assert search is not None
    store.log.truncate_to(2)
    with pytest.raises(ApiError, match="truncated"):
        store.log.run_search(search)
    assert store.log.failure is None
    assert store.log.offset_for_timestamp(T0 + 1) is not None


def test_a_search_in_a_thread_beside_appends_finds_its_record() -> None:
    store = Store(index_interval_bytes=1)
    store.log.append(batch(5000, codec=Codec.ZSTD), 0)
    search = next(store.log.searches_since(T0 + 4999))
    assert search is not None
    searching, proceed, found = threading.Event(), threading.Event(), []

    def pause() -> None:
        searching.set()
        assert proceed.wait(30)

    thread = threading.Thread(target=lambda: found.append(store.log.run_search(search, pause=pause)))
    thread.start()
    try:
        assert searching.wait(30)
        for number in range(100):
            store.log.append(batch(timestamp=T0 + 10_000 + number), 0)
        store.log.roll()
    finally:
        proceed.set()
        thread.join(30)
    assert [each and each.offset for each in found] == [4999]


def test_a_walk_over_invalid_records_ends() -> None:
    body = bytes(encode_records([(n, T0 + n, b"k", b"v", []) for n in range(50)], 0, T0))
    for cut in range(len(body)):
        try:
            walk = TimeWalk(body[:cut], cut, 50, 100, 0)
            while not walk.advance(7):
                pass
        except InvalidRecords:
            continue
        raise AssertionError(f"a body cut at {cut} passed for whole")
