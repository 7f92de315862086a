"""When an append has to go to a new segment, by the rules of Kafka and one of ours."""

from __future__ import annotations

from zlib import crc32

from ottla.storage.log_config import LogConfig
from ottla.storage.scan import MAX_RELATIVE_OFFSET
from ottla.storage.segment import Segment

_YOUNGEST_ROLLED_MS = 10_000
_SMALLEST_ROLLED = 1024 * 1024


def should_roll(
    segment: Segment, config: LogConfig, size: int, last_offset: int, max_timestamp: int, now_ms: int
) -> bool:
    """Whether an append of `size` bytes has to go to a new segment."""
    if last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
        return True
    if segment.size + size > config.segment_bytes:
        return segment.size > 0
    if segment.size == 0:
        return False
    first_timestamp = segment.load_first_timestamp()
    if 0 <= first_timestamp <= now_ms:
        waited = max_timestamp - first_timestamp
    else:
        waited = now_ms - segment.created_ms
    if waited > config.longest_segment_ms - _jitter(segment, config) and not _is_fresh(
        segment, config, now_ms
    ):
        return True
    return segment.indexes_are_full(config)


def _is_fresh(segment: Segment, config: LogConfig, now_ms: int) -> bool:
    """Too young and too small to be rolled for the times of its records: a producer that writes them
    weeks apart would make a segment, with all its files, of each batch. Not where segments of a few
    seconds are asked for."""
    if config.longest_segment_ms <= _YOUNGEST_ROLLED_MS or segment.size >= _SMALLEST_ROLLED:
        return False
    return 0 <= now_ms - segment.created_ms < _YOUNGEST_ROLLED_MS


def _jitter(segment: Segment, config: LogConfig) -> int:
    """Keeps many partitions from rolling at one moment; the same for a segment after a restart."""
    if config.segment_jitter_ms <= 0:
        return 0
    return crc32(str(segment.path).encode()) % min(config.segment_jitter_ms, config.segment_ms)
