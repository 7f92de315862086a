"""Which segments may go: pure decisions of retention by time, by size and by the log's start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla.storage.indexed_segment import SegmentInfo
from ottla.storage.log_config import LogConfig


class Decision(NamedTuple):
    """How many of the oldest segments go, and why."""

    segments: int
    reason: str


def segments_to_delete(
    segments: Sequence[SegmentInfo],
    config: LogConfig,
    *,
    log_start_offset: int,
    end_offset: int,
    high_watermark: int,
    now_ms: int,
) -> Decision:
    """The longest row of oldest segments that one of the rules allows to delete.

    Whatever the rule, a segment stays as long as the high watermark has not passed it, and an empty active
    segment stays: there must always be one. When even the active segment is too old it goes as well, and the
    caller puts a new one in its place first.
    """
    uppers = [segment.base_offset for segment in segments[1:]] + [end_offset]
    allowed = 0
    for segment, upper in zip(segments, uppers, strict=True):
        if upper > high_watermark or (upper == end_offset and segment is segments[-1] and segment.size == 0):
            break
        allowed += 1

    below_start = 0
    while below_start < min(allowed, len(segments) - 1) and uppers[below_start] <= log_start_offset:
        below_start += 1
    best = Decision(below_start, f"they lie before the log start offset {log_start_offset}")
    if not config.is_deleted:
        return best

    if config.retention_bytes >= 0:
        excess = sum(segment.size for segment in segments) - config.retention_bytes
        count = 0
        while count < allowed and excess - segments[count].size >= 0:
            excess -= segments[count].size
            count += 1
        if count > best.segments:
            best = Decision(count, f"the log is larger than retention.bytes={config.retention_bytes}")

    if config.retention_ms >= 0:
        count = 0
        while count < allowed and now_ms - segments[count].max_timestamp > config.retention_ms:
            count += 1
        if count > best.segments:
            best = Decision(count, f"their records are older than retention.ms={config.retention_ms}")
    return best
