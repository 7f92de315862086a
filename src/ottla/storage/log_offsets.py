"""The offsets that a data folder remembers of its logs, in Kafka's checkpoint files.

Up to where each log is on the disk (recovery points), where it starts, up to where it is committed (high
watermarks) and up to where it is compacted. `LogDirectory` reads them when it opens the logs, and has them
written by chores, deletions, truncations and at its end. What a log that is gone had must not be inherited by
one that is made again under its name.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.storage.checkpoints import (
    CLEANED_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    TopicPartition,
)
from ottla.storage.directory_checkpoints import DirectoryCheckpoints
from ottla.storage.log import Log


class LogOffsets:
    """Of `logs`, which others fill. All methods block on the disk."""

    def __init__(self, checkpoints: DirectoryCheckpoints, logs: Mapping[TopicPartition, Log]) -> None:
        self._checkpoints = checkpoints
        self._logs = logs
        self.recovery_points: dict[TopicPartition, int] = {}  # these two as they were read, until `opened`
        self.log_starts: dict[TopicPartition, int] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}  # as they were read, of logs that are there
        self.cleaned: dict[TopicPartition, int] = {}
        self._marks: Mapping[TopicPartition, int] = {}  # high watermarks, as they were written last

    def read(self) -> None:
        self.recovery_points = self._checkpoints.read_offsets(RECOVERY_POINTS)
        self.log_starts = self._checkpoints.read_offsets(LOG_STARTS)
        self.cleaned = self._checkpoints.read_offsets(CLEANED_OFFSETS)
        self.high_watermarks = self._checkpoints.read_offsets(HIGH_WATERMARKS)
        self._marks = dict(self.high_watermarks)

    def opened(self) -> dict[TopicPartition, int]:
        """All logs are open: high watermarks of those that have become shorter are lowered. Returns the
        partitions that have offsets here but no log, with their recovery points."""
        self._lower_high_watermarks()
        points, starts = self.recovery_points, self.log_starts
        self.recovery_points, self.log_starts = {}, {}
        return {key: points.get(key, 0) for key in {**points, **starts} if key not in self._logs}

    def write_recovery_points(self) -> None:
        self._checkpoints.write_offsets(
            RECOVERY_POINTS, lambda: {key: log.recovery_point for key, log in list(self._logs.items())}
        )

    def write_log_starts(self) -> None:
        self._checkpoints.write_offsets(
            LOG_STARTS, lambda: {key: log.log_start_offset for key, log in list(self._logs.items())}
        )

    def write_cleaned(self) -> None:
        self._checkpoints.write_offsets(
            CLEANED_OFFSETS,
            lambda: {key: offset for key, offset in list(self.cleaned.items()) if key in self._logs},
        )

    def write_high_watermarks(self, marks: Mapping[TopicPartition, int]) -> None:
        """A log may have been deleted and made again since the marks were taken."""
        self._checkpoints.write_offsets(
            HIGH_WATERMARKS,
            lambda: {
                key: min(mark, log.end_offset if log.failure is None else mark)
                for key, mark in marks.items()
                if (log := self._logs.get(key)) is not None
            },
        )
        self._marks = marks

    def write_changed_high_watermarks(self, marks: Mapping[TopicPartition, int]) -> None:
        """Unless that is what was written last."""
        if marks != self._marks:
            self.write_high_watermarks(marks)

    def _lower_high_watermarks(self) -> None:
        """Of logs that lost records with the power: no later start may miss those records again."""
        marks = self.high_watermarks
        if any(marks.get(key, 0) > log.end_offset for key, log in self._logs.items() if log.failure is None):
            self.write_high_watermarks(marks)

    def lower_high_watermark(self, key: TopicPartition, end_offset: int) -> None:
        """Before a log is cut below it, by an unclean election: a start would miss what was cut."""
        if self._marks.get(key, 0) > end_offset:
            self.write_high_watermarks({**self._marks, key: end_offset})

    def forget(self, logs: list[Log]) -> None:
        """These logs are taken out: write the files again that hold an offset of one of them."""
        were_cleaned = had_offsets = had_moved = had_marks = False
        for log in logs:
            key = log.topic, log.partition
            were_cleaned |= self.cleaned.pop(key, None) is not None
            had_offsets |= log.recovery_point > 0
            had_moved |= log.log_start_offset > 0
            self.high_watermarks.pop(key, None)
            had_marks |= self._marks.get(key, 0) > 0
        if were_cleaned:
            self.write_cleaned()
        if had_offsets:
            self.write_recovery_points()
        if had_moved:
            self.write_log_starts()
        if had_marks:
            self.write_high_watermarks(self._marks)
