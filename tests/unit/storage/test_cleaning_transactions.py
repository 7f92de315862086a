"""Compaction of a log with transactions, batch by batch."""

from __future__ import annotations

from struct import iter_unpack

from ottla.protocol.batches import DELETE_HORIZON, BatchHeader
from ottla.storage.cleaning.cleaner import clean_now
from unit.storage.committed import read_committed
from unit.storage.compacted import Compacted
from unit.storage.logs import values

RETENTION_MS = 1000


def transactional(store: Compacted, key: bytes, value: bytes, *, producer: int = 7, epoch: int = 0) -> None:
    known = store.log.producers.get(producer)
    sequence = known.last_sequence + 1 if known is not None and known.epoch == epoch else 0
    store.write(
        (key, value), producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=True
    )


def end(store: Compacted, *, commit: bool, producer: int = 7, epoch: int = 0) -> None:
    store.log.append_marker(producer, epoch, 0, commit=commit, coordinator_epoch=3)


def markers(store: Compacted) -> list[BatchHeader]:
    return [header for header in store.batches() if header.is_control]


def index(store: Compacted) -> list[tuple[int, ...]]:
    """All entries in the files of transaction indexes, without their version."""
    return [entry[1:] for data in store.files(".txnindex").values() for entry in iter_unpack(">hqqqq", data)]


def test_aborted_records_are_removed_and_do_not_count_as_the_latest() -> None:
    store = Compacted()
    store.write((b"a", b"old"))
    transactional(store, b"a", b"aborted")
    end(store, commit=False)
    store.write((b"b", b"1"))
    assert store.clean()
    assert b"aborted" not in values(store.log)
    assert read_committed(store.log) == [b"old", b"1"]


def test_a_committed_record_is_the_latest_of_its_key() -> None:
    store = Compacted()
    store.write((b"a", b"old"))
    transactional(store, b"a", b"new")
    end(store, commit=True)
    store.write((b"b", b"1"))
    assert store.clean()
    assert read_committed(store.log) == [b"new", b"1"]


def test_a_marker_goes_in_the_pass_after_the_horizon_of_an_emptied_transaction() -> None:
    store = Compacted(delete_retention_ms=RETENTION_MS)
    transactional(store, b"a", b"1")
    end(store, commit=True)
    transactional(store, b"b", b"2")  # the batch of which the producer's sequence is known
    end(store, commit=True)
    store.write((b"a", b"3"))
    assert store.clean()
    assert [m.base_offset for m in markers(store)] == [1, 3]
    assert not markers(store)[0].attributes & DELETE_HORIZON, "its transaction was there to be seen"
    store.write((b"c", b"4"))
    assert store.clean()
    first, second = markers(store)
    assert first.attributes & DELETE_HORIZON
    assert first.base_timestamp == store.clock.now_ms() + RETENTION_MS
    assert not second.attributes & DELETE_HORIZON
    store.clock.advance(RETENTION_MS - 1)
    store.write((b"c", b"5"))
    assert store.clean()
    assert [m.base_offset for m in markers(store)] == [1, 3]
    store.clock.advance(1)
    store.write((b"c", b"6"))
    assert store.clean()
    assert [m.base_offset for m in markers(store)] == [3]


def test_an_aborted_transaction_is_in_the_index_while_a_batch_of_it_was_there() -> None:
    store = Compacted()
    transactional(store, b"a", b"1", producer=8)
    end(store, commit=False, producer=8)
    store.log.roll()
    transactional(store, b"a", b"1")
    end(store, commit=False)
    transactional(store, b"a", b"2")
    transactional(store, b"a", b"2", producer=8)
    end(store, commit=True, producer=8)
    end(store, commit=True)
    store.write((b"z", b"1"))
    assert store.clean()
    assert len(store.files(".txnindex")) == 1, "the segments were merged"
    assert index(store) == [(8, 0, 1, 2), (7, 2, 3, 4)]
    store.write((b"z", b"2"))
    assert store.clean()
    assert index(store) == []
    store.reopen()
    assert read_committed(store.log) == [b"2", b"2"]


def test_the_last_marker_of_a_producer_keeps_its_epoch() -> None:
    """With an epoch for each transaction the marker has a newer one than the records."""
    store = Compacted(delete_retention_ms=RETENTION_MS)
    transactional(store, b"a", b"1")
    end(store, commit=True, epoch=1)
    for number in range(4):
        store.write((b"a", b"%d" % number))
        assert store.clean()
        store.clock.advance(RETENTION_MS + 1)
    (marker,) = markers(store)
    assert (marker.producer_epoch, marker.record_count) == (1, 0)


def test_records_of_an_open_transaction_are_left_alone() -> None:
    store = Compacted()
    store.write((b"a", b"1"))
    transactional(store, b"a", b"open")
    store.write((b"a", b"2"))
    store.log.roll()
    clean_now(store.cleaner, store.log, store.log.last_stable_offset(store.log.end_offset))
    assert values(store.log) == [b"1", b"open", b"2"]
