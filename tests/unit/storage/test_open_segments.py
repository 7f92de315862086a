"""Closing files that were not used for long: nothing is forgotten by it, and it costs little."""

from __future__ import annotations

import time
from typing import Any, cast

from ottla.storage.log import Log
from ottla.storage.open_segments import OpenSegments
from ottla.storage.segment import Segment
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


def test_an_index_lost_while_its_segment_is_closed_is_rebuilt_before_the_next_append() -> None:
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


class CountedSegment:
    """As much of a segment as `OpenSegments` sees, and how often it looks."""

    looks = 0

    def __init__(self, index_bytes: int = 0) -> None:
        self._in_use = False
        self._index_bytes = index_bytes
        self.is_closed = False

    @property
    def in_use(self) -> bool:
        CountedSegment.looks += 1
        return self._in_use

    @in_use.setter
    def in_use(self, value: bool) -> None:
        self._in_use = value

    @property
    def index_bytes(self) -> int:
        CountedSegment.looks += 1
        return 0 if self.is_closed else self._index_bytes

    def close_file(self) -> None:
        self.is_closed = True


def many_open(count: int, limit: int) -> tuple[Any, list[Any]]:
    open_segments = OpenSegments(limit)
    segments = [CountedSegment(index_bytes=8) for _ in range(count)]
    for segment in segments:
        segment.in_use = True
        open_segments.opened(cast(Segment, segment))
    CountedSegment.looks = 0
    return open_segments, segments


def test_one_eviction_pass_examines_few_of_many_open_files() -> None:
    limit = 32_768
    open_segments, segments = many_open(limit, limit)
    began = time.process_time()
    open_segments.opened(cast(Segment, CountedSegment()))
    assert time.process_time() - began < 1.0  # milliseconds on a quiet machine, 28 s when it was quadratic
    assert CountedSegment.looks < 4096
    assert 1 <= sum(segment.is_closed for segment in segments) <= 200
    assert len(open_segments) <= limit


def test_eviction_passes_after_the_first_are_short() -> None:
    limit = 8_192
    open_segments, _ = many_open(limit, limit)
    open_segments.opened(cast(Segment, CountedSegment()))
    CountedSegment.looks = 0
    for _ in range(limit):
        open_segments.opened(cast(Segment, CountedSegment()))
    assert CountedSegment.looks < 10 * limit


def test_forgetting_a_segment_examines_no_other_segment() -> None:
    count = 10_000
    open_segments, segments = many_open(count, count)
    for segment in segments:
        open_segments.forget(segment)
    assert CountedSegment.looks <= count
    assert len(open_segments) == 0
    assert open_segments.index_bytes == 0


def test_indexes_are_evicted_when_they_take_too_much_memory() -> None:
    store = Store(index_interval_bytes=100, segment_bytes=20_000)
    log = store.log
    open_segments = store.directory._opening._open_segments
    open_segments.max_index_bytes = 1000
    for number in range(400):
        log.append(batch(value=b"x" * 200, timestamp=T0 + number), 0)
    for offset in range(0, 400, 20):
        assert log.read(offset, 1000, 400) is not None
        held = sum(segment.index_bytes for segment in log._segments if segment._file is not None)
        assert open_segments.index_bytes == held
        assert held <= 1000 + 20_000 // 100 * 8
