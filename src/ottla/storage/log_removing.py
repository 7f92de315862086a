"""Taking records out of a log: at its start by retention and DeleteRecords, at its end by truncation.

A part of `Log`, with the swap of cleaned segments. What leaves is renamed at once and removed later.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.storage.indexed_segment import SegmentInfo
from ottla.storage.log_state import LogState
from ottla.storage.retention import segments_to_delete
from ottla.storage.segment import Segment

logger = logging.getLogger(__name__)


class LogRemoving(LogState):
    """The calls of retention, compaction and followers whose log parted from their leader's."""

    def delete_records_before(self, offset: int) -> None:
        """Move the start of the log; segments that lie before it go with the next retention."""
        self._check_online()
        if offset > self.end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name}: offset {offset} is behind the end of the log, {self.end_offset}",
            )
        self._move_start(offset)

    def _move_start(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            if self.leader_epochs.truncate_start(offset):
                self._flushing.write_epochs()

    def apply_retention(self, high_watermark: int) -> list[SegmentInfo]:
        """Delete the segments that retention allows; returns them. Files go after file.delete.delay.ms."""
        self._check_online()
        if self.swapping:
            return []
        with self._guard("delete old segments"):
            now_ms = self._clock.now_ms()
            infos = self._row.for_retention(now_ms)
            count, reason = segments_to_delete(
                infos,
                self.config,
                log_start_offset=self.log_start_offset,
                end_offset=self.end_offset,
                high_watermark=high_watermark,
                now_ms=now_ms,
            )
            if self._slow is not None:
                count = min(count, len(infos) - 1)  # its bytes are being written to the active segment
            if count == 0:
                return []
            with self._lock:
                if count == len(self._segments):
                    self._row.roll(self.end_offset, self.producers)
                self._move_start(self._bases[count])
                taken = self._row.take_out(0, count)
            self._row.delete(taken, self._removal_ms())
        first, last = infos[0].base_offset, self._bases[0] - 1
        logger.info("%s: deleted %d segments, offsets %d to %d: %s", self.name, count, first, last, reason)
        return infos[:count]

    def _removal_ms(self) -> int:
        """When to remove the files of what is deleted now."""
        return self._clock.now_ms() + self.config.file_delete_delay_ms

    def remove_deleted(self, now_ms: int) -> int:
        """Remove the renamed files whose time has come; how many they were."""
        return self._row.pending_deletions.remove_due(now_ms)

    def replace_segments(self, replaced: Sequence[int], segment: Segment, truncations: int) -> bool:
        """Put a cleaned segment in the place of those with the base offsets `replaced`.

        False, and no change, when they are not the ones that were there when the log had been cut
        `truncations` times.
        """
        with self._lock:
            if self.failure is not None or truncations != self.truncations:
                return False
            old = self._row.replace(replaced, segment)
        self._row.retire(old, segment)
        return bool(old)

    def delete_files(self, names: Sequence[str]) -> None:
        """Rename files of the folder to `.deleted`, to be removed later. OSError when one cannot be."""
        self._row.delete_files(names, self._removal_ms())

    def new_segment(self, base_offset: int, size: int, suffix: str, *, has_aborted: bool = False) -> Segment:
        """A closed segment whose files are in the folder already, under names with `suffix`."""
        return self._row.new_segment(base_offset, size, suffix, has_aborted=has_aborted)

    # -- truncating ----------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Cut the log so that it ends at `offset`, or at the batch that reaches across it; True when it did.

        For a follower whose log parted from its leader's.
        """
        self._check_online()
        assert self._slow is None, "a log is not cut while it is written to"
        if offset >= self.end_offset:
            if self.leader_epochs.truncate_end(self.end_offset):
                self._flushing.write_epochs()
            return False
        if offset <= self.log_start_offset:
            self.truncate_fully(offset)
            return True
        with self._guard("truncate"):
            cut = self._row.find_cut(offset)
        if cut.end_offset < self.log_start_offset:  # the log starts within the batch that goes
            self.truncate_fully(self.log_start_offset)
            return True
        with self._guard("truncate"):
            self._before_cut(cut.end_offset)
            self._lower_recovery_point(cut.end_offset)
            with self._lock:
                self._row.cut(cut, self._removal_ms())
                self.end_offset = cut.end_offset
                self.truncations += 1
                self._row.restore_producers(self.producers, cut.end_offset)
        self._sync_cut()
        if self.leader_epochs.truncate_end(cut.end_offset):
            self._flushing.write_epochs()
        return True

    def truncate_fully(self, start_offset: int) -> None:
        """Throw all away and go on, empty, at `start_offset`: the leader's log begins behind our end."""
        self._check_online()
        assert self._slow is None, "a log is not cut while it is written to"
        with self._guard("truncate"):
            self._before_cut(start_offset)
            self._lower_recovery_point(min(start_offset, self.recovery_point))
            with self._lock:
                self._row.start_empty(start_offset, self._removal_ms())
                self.producers.clear()
                self.log_start_offset = self.end_offset = self.recovery_point = start_offset
                self.truncations += 1
        self._sync_cut()
        self.leader_epochs.clear()
        self._flushing.write_epochs()

    def _sync_cut(self) -> None:
        """Before anything is written behind a cut.

        Otherwise a loss of power may bring back what was cut and keep what was written to later segments: a
        log in which nothing looks wrong, and that is not the leader's.
        """
        try:
            self._row.sync_cut()
        except OSError as problem:
            raise self._sync_failed(self.end_offset, problem) from problem

    def _before_cut(self, end_offset: int) -> None:
        if self.on_cut is not None:
            self.on_cut(end_offset)

    def _lower_recovery_point(self, offset: int) -> None:
        """Before anything is cut: a start must never believe that what follows the cut has been synced."""
        if offset < self.recovery_point:
            self.recovery_point = offset
            self.truncations += 1  # a flush under way may not raise it again
            if self.on_lower_recovery_point is not None:
                self.on_lower_recovery_point()
