"""Flushing: what is promised to survive a loss of power, and that it does not disturb appends."""

import errno
import threading
from random import Random

import pytest

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.storage import flushing
from ottla.storage.log import Log
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.memory_disk import MemoryDisk
from unit.storage.logs import T0, Store, batch, from_producer, offsets, values


def test_a_flush_is_due_by_messages() -> None:
    store = Store(flush_messages=3)
    store.log.append(batch(2), 0)
    assert not store.log.flush_due()
    store.log.append(batch(1), 0)
    assert store.log.flush_due()
    assert store.log.flush() == 3
    assert not store.log.flush_due()


def test_a_flush_is_due_by_time() -> None:
    store = Store(flush_ms=1000)
    store.log.append(batch(1), 0)
    assert not store.log.flush_due()
    store.clock.advance(1000)
    assert store.log.flush_due()
    store.log.flush()
    store.clock.advance(5000)
    assert not store.log.flush_due()


def test_by_default_no_answer_waits_for_a_flush() -> None:
    store = Store()
    store.log.append(batch(1), 0)
    store.clock.advance(10**9)
    assert not store.log.flush_due()


def test_flushed_records_survive_power_loss(seed_count: int = 100) -> None:
    for seed in range(seed_count):
        rng = Random(seed)
        disk = MemoryDisk()
        store = Store(disk, segment_bytes=20_000)
        flushed = 0
        sequence = 0
        for _ in range(rng.randrange(1, 60)):
            count = rng.randrange(1, 5)
            store.log.append(from_producer(sequence, count, value=b"%04d" % sequence * 100), sequence // 50)
            sequence += count
            if rng.random() < 0.2:
                flushed = store.log.flush()
            if rng.random() < 0.1:
                store.directory.checkpoint()
        disk.lose_power(rng)
        log = store.crash()
        assert log.failure is None, f"seed {seed}: {log.failure}"
        assert log.end_offset >= flushed, f"seed {seed}"
        assert offsets(log) == list(range(log.end_offset)), f"seed {seed}"
        assert values(log) == [b"%04d" % first * 100 for first in firsts(log)], f"seed {seed}"


def firsts(log: Log) -> list[int]:
    """The base offset of each record's batch: its value was made of it."""
    from ottla.protocol.batches import headers

    found = log.read(0, 10**9, log.end_offset) if log.end_offset else None
    result: list[int] = []
    while found is not None:
        for _, header in headers(found.read()):
            result += [header.base_offset] * header.record_count
        found = log.read(len(result), 10**9, log.end_offset)
    return result


def test_a_failed_sync_takes_the_log_offline_until_it_is_opened_again() -> None:
    disk = FaultyDisk(MemoryDisk())
    store = Store(disk)
    store.log.append(batch(1), 0)
    disk.fail("sync", errno.EIO, name=".log")
    with pytest.raises(ApiError) as failure:
        store.log.flush()
    assert failure.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(ApiError):
        store.log.append(batch(1), 0)
    assert store.log.recovery_point == 0
    disk.heal()
    assert store.crash().append(batch(1), 0).first_offset == 1


def test_appends_go_on_while_a_flush_waits_for_the_disk() -> None:
    class SlowSync(FaultyDisk):
        def check(self, operation: str, path: object) -> None:
            if operation == "sync" and str(path).endswith(".log"):
                syncing.set()
                assert proceed.wait(10)

    syncing, proceed = threading.Event(), threading.Event()
    store = Store(SlowSync(MemoryDisk()))
    store.log.append(batch(2), 0)
    flush = threading.Thread(target=store.log.flush)
    flush.start()
    try:
        assert syncing.wait(10)
        assert store.log.append(batch(3), 0).last_offset == 4
    finally:
        proceed.set()
        flush.join(10)
    assert store.log.recovery_point == 2, "what came after the flush began is not promised"


def test_a_truncation_during_a_flush_lowers_the_recovery_point() -> None:
    class Truncating(FaultyDisk):
        def check(self, operation: str, path: object) -> None:
            if operation == "sync" and str(path).endswith(".log") and store.log.end_offset == 5:
                store.log.truncate_to(2)

    store = Store(Truncating(MemoryDisk()))
    store.log.append(batch(2), 0)
    store.log.append(batch(3), 0)
    store.log.flush()
    assert store.log.recovery_point <= 2


def test_a_checkpoint_flushes_what_a_recovery_would_have_to_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushing, "SNAPSHOT_INTERVAL", 3000)
    store = Store()
    sequence = 0
    while store.log.size < 10_000:
        store.log.append(from_producer(sequence, value=b"x" * 100), 0)
        sequence += 1
    store.directory.checkpoint()
    assert store.log.recovery_point == sequence
    for _ in range(3):
        store.log.append(from_producer(sequence), 0)
        sequence += 1
    log = store.crash()
    assert store.report.scanned_batches == 3
    assert log.end_offset == sequence
    assert log.append(from_producer(sequence - 4), 0).duplicate
    assert log.append(from_producer(sequence), 0).first_offset == sequence
    assert offsets(log) == list(range(sequence + 1))


def test_a_flush_by_time_does_not_wait_for_a_wall_clock_that_was_set_back() -> None:
    store = Store(flush_ms=1000)
    store.log.append(batch(1), 0)
    store.clock.set_wall(T0 - 3_600_000)
    store.clock.advance(1000)
    assert store.log.flush_due()


def grow(store: Store, size: int) -> None:
    """Append until the log has grown by `size` bytes, whatever leaves it meanwhile."""
    for number in range(size // 1000):
        store.log.append(batch(value=b"%d" % number + b"x" * 1000), 0)


def test_a_log_that_retention_has_cut_is_flushed_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushing, "SNAPSHOT_INTERVAL", 5_000)
    store = Store(segment_bytes=50_000, retention_bytes=60_000)
    grow(store, 300_000)
    store.directory.checkpoint()
    assert store.log.apply_retention(store.log.end_offset)
    grow(store, 10_000)
    assert store.log.flush_worthwhile()
    store.directory.checkpoint()
    assert store.log.recovery_point == store.log.end_offset


def test_a_log_that_was_truncated_is_flushed_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushing, "SNAPSHOT_INTERVAL", 5_000)
    store = Store(segment_bytes=100_000)
    grow(store, 60_000)
    store.directory.checkpoint()
    store.log.truncate_to(10)
    grow(store, 10_000)
    assert store.log.flush_worthwhile()


def test_lookups_by_time_are_right_after_a_flush_and_a_clean_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushing, "SNAPSHOT_INTERVAL", 500)
    store = Store(index_interval_bytes=400)
    for number in range(10):
        store.log.append(batch(value=b"x" * 200, timestamp=T0 + number * 10), 0)
    store.directory.checkpoint()  # with a snapshot; nothing is appended behind it
    assert store.log.recovery_point == 10
    log = store.reopen()
    assert store.report.clean
    newest = log.max_timestamp()
    assert newest is not None
    assert (newest.offset, newest.timestamp) == (9, T0 + 90)
    found = log.offset_for_timestamp(T0 + 90)
    assert found is not None
    assert found.offset == 9


def test_a_log_that_was_only_opened_is_closed_without_a_write() -> None:
    disk = FaultyDisk(MemoryDisk())
    store = Store(disk)
    store.log.append(batch(), 0)
    store.reopen()
    disk.before_write = lambda path: pytest.fail(f"{path} was written")
    store.log.close()
