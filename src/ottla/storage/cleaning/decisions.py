"""Which log to compact next, up to where, and how its segments are put together. Pure: time is handed in.

A log that is compacted has a clean part, a dirty part and a part that may not be touched yet:

    |  clean: one record a key  |  dirty: anything  |  uncleanable: active segment, too young, undecided  |
    log start            first dirty         first uncleanable                                     log end

The dirtiest log goes first, unless one has waited longer than its `max.compaction.lag.ms`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from ottla.storage.log_config import FOREVER, LogConfig

MAX_RELATIVE_OFFSET = 2**31 - 1


class CleanableSegment(NamedTuple):
    """What the decisions know of a segment; the last one of a log is the active one."""

    base_offset: int
    size: int
    first_timestamp: int  # of the first batch; -1 when it has none
    max_timestamp: int
    index_size: int = 0
    time_index_size: int = 0


class Cleanability(NamedTuple):
    """Where a log stands."""

    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool  # a record has waited longer than max.compaction.lag.ms

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


class Candidate(NamedTuple):
    """A log that might be compacted."""

    name: str
    cleanability: Cleanability
    min_dirty_ratio: float
    asked_for: bool = False  # it is wanted now, whatever the ratio

    @property
    def is_due(self) -> bool:
        where = self.cleanability
        if self.asked_for:
            return True  # with nothing to do too: the request is answered
        return where.dirty_bytes > 0 and (where.overdue or where.dirty_ratio > self.min_dirty_ratio)


def first_dirty_offset(checkpoint: int | None, log_start: int, log_end: int) -> int:
    """Where the last compaction ended, unless the log was cut since."""
    if checkpoint is None or not log_start <= checkpoint <= log_end:
        return log_start
    return checkpoint


def measure(
    segments: Sequence[CleanableSegment],
    config: LogConfig,
    *,
    first_dirty: int,
    stable_offset: int,
    now_ms: int,
    ignore_lag: bool = False,
) -> Cleanability:
    """Clean, dirty and untouchable parts of a log. `stable_offset`: all before it is decided and replicated.

    `min.compaction.lag.ms` holds for whole segments: the first one with a record that is too young, and all
    behind it, stay.
    """
    active = segments[-1]
    uncleanable = min(active.base_offset, stable_offset)
    lag = 0 if ignore_lag else config.min_compaction_lag_ms
    if lag > 0:
        for segment in segments:
            if segment.base_offset >= first_dirty and segment.max_timestamp > now_ms - lag:
                uncleanable = min(uncleanable, segment.base_offset)
                break
    uncleanable = max(uncleanable, first_dirty)
    clean = sum(segment.size for segment in segments[:-1] if segment.base_offset < first_dirty)
    dirty = [s for s in segments[:-1] if first_dirty <= s.base_offset < uncleanable]
    # A cleaning that stopped for want of memory ended within a segment, which then counts for the dirty part.
    straddling = [
        s
        for s, following in pairwise(segments)
        if s.base_offset < first_dirty < min(following.base_offset, uncleanable)
    ]
    clean -= sum(segment.size for segment in straddling)
    dirty_bytes = sum(segment.size for segment in [*straddling, *dirty])
    overdue = False
    if config.max_compaction_lag_ms < FOREVER:
        first_times = [s.first_timestamp for s in [*straddling, *dirty] if s.size and s.first_timestamp >= 0]
        overdue = bool(first_times) and min(first_times) < now_ms - config.max_compaction_lag_ms
    return Cleanability(first_dirty, uncleanable, clean, dirty_bytes, overdue)


def choose(candidates: Iterable[Candidate]) -> Candidate | None:
    """The log to compact next, None when none is due."""
    due = [candidate for candidate in candidates if candidate.is_due]
    if not due:
        return None
    return max(
        due,
        key=lambda each: (each.asked_for, each.cleanability.overdue, each.cleanability.dirty_ratio),
    )


class Written(NamedTuple):
    """A new segment so far."""

    base_offset: int
    size: int
    index_size: int
    time_index_size: int


def joins(written: Written, segment: CleanableSegment, end_offset: int, config: LogConfig) -> bool:
    """Whether the survivors of a segment, which ends at `end_offset`, go to the new one with those before it.

    They do if all of it would fit, so that a segment stays within segment.bytes and what an index can express
    whatever survives. What has been written counts with what it has become, so a log of which little is left
    becomes one segment in one pass.
    """
    return (
        written.size + segment.size <= config.segment_bytes
        and written.index_size + segment.index_size <= config.segment_index_bytes
        and written.time_index_size + segment.time_index_size <= config.segment_index_bytes
        and end_offset - 1 - written.base_offset <= MAX_RELATIVE_OFFSET
    )
