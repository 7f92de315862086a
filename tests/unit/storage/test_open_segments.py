"""Closing files that were not used for long: nothing is forgotten by it, and it costs little."""

from __future__ import annotations

from ottla.storage.log import Log
from unit.storage.logs import T0, TOPIC_ID, Store, batch

HOUR = 3_600_000


def evict(store: Store, log: Log) -> None:
    """Use so many other logs that the files of `log` are closed."""
    for number in range(40):
        other = store.directory.create(f"other{number}", 0, TOPIC_ID, store.config)
        other.append(batch(), 0)
    assert log._segments[-1]._file is None


def test_a_record_appended_after_an_eviction_counts_for_retention_by_its_own_time() -> None:
    store = Store(retention_ms=HOUR, index_interval_bytes=100)
    log = store.log
    log.append(batch(value=b"x" * 200, timestamp=T0 - 2 * HOUR), 0)
    evict(store, log)
    log.append(batch(value=b"fresh", timestamp=T0), 0)
    assert log.segments[-1].max_timestamp == T0
    assert log.apply_retention(log.end_offset) == []
    assert log.log_start_offset == 0


def test_lookups_by_time_are_right_after_an_eviction() -> None:
    store = Store(index_interval_bytes=100)
    log = store.log
    for number in range(10):
        log.append(batch(value=b"x" * 200, timestamp=T0 + number * 10), 0)
        if number in (0, 4, 7):
            evict(store, log)
    for number in range(10):
        found = log.offset_for_timestamp(T0 + number * 10)
        assert found is not None
        assert found.offset == number
    newest = log.max_timestamp()
    assert newest is not None
    assert newest.offset == 9


def test_batches_appended_in_one_call_after_an_eviction_all_count() -> None:
    store = Store(index_interval_bytes=100)
    log = store.log
    log.append(batch(value=b"x" * 200, timestamp=T0), 0)
    log.flush()
    evict(store, log)
    together = bytearray(batch(value=b"x" * 200, timestamp=T0 + 9)) + bytearray(
        batch(value=b"x" * 200, timestamp=T0 + 5)
    )
    log.append(memoryview(together), 0)
    newest = log.max_timestamp()
    assert newest is not None
    assert (newest.offset, newest.timestamp) == (1, T0 + 9)


def test_an_index_lost_while_its_segment_is_closed_is_made_anew_before_the_next_append() -> None:
    store = Store(index_interval_bytes=100)
    log = store.log
    for number in range(4):
        log.append(batch(value=b"x" * 200, timestamp=T0 + number), 0)
    log._segments[-1].write_indexes()
    evict(store, log)
    for name in store.files("index"):
        store.disk.remove(store.folder / name)
    log.append(batch(value=b"x" * 200, timestamp=T0 + 50), 0)
    assert log.segments[-1].max_timestamp == T0 + 50
    found = log.offset_for_timestamp(T0 + 10)
    assert found is not None
    assert found.offset == 4
