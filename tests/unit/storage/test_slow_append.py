"""An append whose write is done in a thread leaves the log as it was until it is finished."""

from __future__ import annotations

import errno

import pytest

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.storage.log import AppendInfo
from ottla.storage.slow_append import SlowAppend
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.memory_disk import MemoryDisk
from unit.storage.logs import Store, batch, from_producer


def begun(store: Store, records: memoryview) -> SlowAppend:
    slow = store.log.begin_append(records, 0)
    assert isinstance(slow, SlowAppend)
    return slow


def test_a_slow_append_is_visible_when_it_is_finished() -> None:
    store = Store()
    store.log.append(batch(2), 0)
    slow = begun(store, batch(3))
    slow.write()
    assert store.log.end_offset == 2
    assert store.log.read(2, 1 << 20, 10) is None
    info = store.log.finish_append(slow)
    assert (info.first_offset, info.last_offset, store.log.end_offset) == (2, 4, 5)
    store.log.append(batch(1), 0)
    log = store.crash()
    assert log.end_offset == 6


def test_a_log_is_not_rolled_or_deleted_from_while_a_slow_append_writes() -> None:
    store = Store(retention_ms=1)
    store.log.append(batch(2), 0)
    store.clock.advance(10_000)
    slow = begun(store, batch(1))
    segments = store.log.segment_count
    store.log.roll()
    assert store.log.apply_retention(2) == []
    assert store.log.segment_count == segments
    assert store.log.flush() == 2
    slow.write()
    store.log.finish_append(slow)
    assert store.log.apply_retention(3)


def test_retention_deletes_sealed_segments_while_a_slow_append_writes() -> None:
    """On a disk that is always slow there is hardly a moment without one."""
    store = Store(retention_ms=1)
    store.log.append(batch(2), 0)
    store.log.roll()
    store.log.append(batch(2), 0)
    store.clock.advance(10_000)
    slow = begun(store, batch(1))
    assert [segment.base_offset for segment in store.log.apply_retention(4)] == [0]
    assert store.log.log_start_offset == 2
    slow.write()
    assert store.log.finish_append(slow).first_offset == 4
    assert store.crash().end_offset == 5


def test_a_failed_slow_append_changes_nothing_and_its_offsets_are_reused() -> None:
    disk = FaultyDisk(MemoryDisk())
    store = Store(disk)
    store.log.append(from_producer(0), 0)
    slow = begun(store, from_producer(1, 5))
    disk.fail("write", errno.ENOSPC)
    slow.write()
    with pytest.raises(ApiError) as refused:
        store.log.finish_append(slow)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    disk.heal()
    assert store.log.end_offset == 1
    again = begun(store, from_producer(1, 5))
    again.write()
    assert store.log.finish_append(again).first_offset == 1
    assert store.crash().end_offset == 6


def test_a_cancelled_slow_append_leaves_no_bytes_in_the_log() -> None:
    store = Store()
    slow = begun(store, batch(5))
    slow.write()
    store.log.give_up_append(slow)
    assert store.log.append(batch(1), 0).first_offset == 0
    assert store.crash().end_offset == 1


def test_a_batch_that_is_in_the_log_already_is_not_written_again() -> None:
    store = Store()
    slow = begun(store, from_producer(0, 3))
    slow.write()
    store.log.finish_append(slow)
    known = store.log.begin_append(from_producer(0, 3), 0)
    assert isinstance(known, AppendInfo)
    assert (known.duplicate, known.first_offset, store.log.end_offset) == (True, 0, 3)


def test_a_crash_while_a_slow_append_writes_leaves_a_sound_log() -> None:
    store = Store()
    store.log.append(batch(2), 0)
    slow = begun(store, batch(3))
    slow.write()
    log = store.crash()
    assert log.end_offset in (2, 5)
    assert log.append(batch(1), 0).first_offset == log.end_offset - 1
