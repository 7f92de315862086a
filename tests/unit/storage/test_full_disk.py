"""A disk that runs full or fails: an append is whole or not at all, and all is well when the disk is."""

import errno

import pytest

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.memory_disk import MemoryDisk
from unit.storage.logs import Store, batch, from_producer, offsets


def refused(store: Store, data: memoryview) -> ApiError:
    with pytest.raises(ApiError) as refusal:
        store.log.append(data, 0)
    assert refusal.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    return refusal.value


def test_a_write_that_fails_half_way_leaves_the_log_unchanged() -> None:
    size = len(from_producer(0, 2))
    for free in range(size):
        disk = FaultyDisk(MemoryDisk())
        store = Store(disk)
        store.log.append(from_producer(0, 2), 0)
        before = store.files(".log")
        disk.free_bytes = free
        problem = refused(store, from_producer(2, 2))
        assert "No space left" in problem.message and str(store.path) in problem.message
        assert store.files(".log") == before
        assert (store.log.end_offset, store.log.size) == (2, size)
        assert offsets(store.log) == [0, 1], "reading goes on"
        disk.free_bytes = None
        assert store.log.append(from_producer(2, 2), 0).first_offset == 2
        assert store.crash().end_offset == 4


def test_remains_of_a_failed_write_that_cannot_be_truncated_are_overwritten() -> None:
    disk = FaultyDisk(MemoryDisk())
    store = Store(disk)
    store.log.append(batch(2), 0)
    disk.free_bytes = 50
    disk.fail("truncate")
    refused(store, batch(9))
    refused(store, batch(9))
    assert offsets(store.log) == [0, 1]
    disk.heal()
    store.log.append(batch(1), 0)
    assert offsets(store.log) == [0, 1, 2]
    assert len(store.files(".log")["00000000000000000000.log"]) == store.log.size
    assert store.crash().end_offset == 3


def test_remains_of_a_failed_write_are_truncated_at_the_next_start() -> None:
    disk = FaultyDisk(MemoryDisk())
    store = Store(disk)
    store.log.append(batch(2), 0)
    disk.free_bytes = 50
    disk.fail("truncate")
    refused(store, batch(9))
    disk.heal()
    assert store.crash().end_offset == 2
    assert store.report.truncated_bytes == 50


@pytest.mark.parametrize("free", range(0, 1200, 7))
def test_a_disk_that_runs_full_at_any_byte_while_segments_roll_loses_nothing(free: int) -> None:
    disk = FaultyDisk(MemoryDisk())
    store = Store(disk, segment_bytes=350, index_interval_bytes=0)
    disk.free_bytes = free
    sequence = taken = 0
    for _ in range(20):
        try:
            store.log.append(from_producer(sequence), sequence // 4)
        except ApiError as problem:
            assert problem.code == ErrorCode.KAFKA_STORAGE_ERROR
        else:
            sequence += 1
            taken += 1
    assert offsets(store.log) == list(range(taken))
    disk.heal()
    for _ in range(5):
        assert store.log.append(from_producer(sequence), 9).first_offset == sequence
        sequence += 1
    assert offsets(store.log) == list(range(sequence))
    log = store.crash()
    assert log.failure is None
    assert offsets(log) == list(range(sequence))
    assert store.reopen().append(from_producer(sequence), 9).first_offset == sequence


@pytest.mark.parametrize("operation", ["open", "write", "rename"])
def test_retention_on_a_failing_disk_is_an_error_and_can_be_repeated(operation: str) -> None:
    disk = FaultyDisk(MemoryDisk())
    store = Store(disk, segment_bytes=300, retention_ms=1000)
    for sequence in range(10):
        store.log.append(from_producer(sequence), 0)
    store.clock.advance(10**6)
    disk.fail(operation, errno.EIO)
    try:
        store.log.apply_retention(10)
    except ApiError as problem:
        assert problem.code == ErrorCode.KAFKA_STORAGE_ERROR
    disk.heal()
    store.log.apply_retention(10)
    assert store.log.log_start_offset == store.log.end_offset == 10
    assert store.crash().append(from_producer(10), 0).first_offset == 10


def test_a_read_error_is_a_storage_error_and_the_next_read_succeeds() -> None:
    disk = FaultyDisk(MemoryDisk())
    store = Store(disk)
    for _ in range(300):
        store.log.append(batch(1), 0)
    disk.fail("read")
    with pytest.raises(ApiError) as refusal:
        store.log.read(0, 100, 300)
    assert refusal.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    disk.heal()
    assert len(offsets(store.log)) == 300


def test_reading_without_free_descriptors_is_a_clear_temporary_error() -> None:
    disk = FaultyDisk(MemoryDisk())
    store = Store(disk)
    store.log.append(batch(3), 0)
    store.log._segments[
        -1
    ].close_file()  # others needed the descriptor; the place of the batch is still known
    disk.fail("open", errno.EMFILE)
    with pytest.raises(ApiError) as refused:
        store.log.read(0, 1000, 3)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    disk.heal()
    assert offsets(store.log) == [0, 1, 2]


def test_too_many_open_files_are_not_reported_as_a_full_disk() -> None:
    disk = FaultyDisk(MemoryDisk())
    store = Store(disk)
    disk.fail("open", errno.EMFILE)
    problem = refused(store, batch(1))
    assert "ulimit -n" in problem.message
    assert "space" not in problem.message
    disk.heal()
    assert store.log.append(batch(1), 0).first_offset == 0
