"""Opening a partition's folder: in no time after a clean stop, with a scan after anything else.

After a clean stop the files say all there is to say; only the last few batches of the active segment are
looked at, to learn where the log ends, and to notice when the files are not those that were left.

After a crash nothing behind the recovery point is believed. The scan begins at the newest snapshot of the
producers that is not behind the recovery point (indexes are known to be good up to there) and reads every
byte from it to the end: structure, CRC, offsets. What it finds, it notes in indexes, producers and epochs.

* A batch that is cut off or wrong at the end of the log was being written when the process or the machine
  died. Nobody was told that it is safe. It is cut off.
* The same in the middle, before the recovery point or with more segments behind it, is no crash but damage.
  To cut there would lose what was acknowledged, so the partition goes offline and says which byte is wrong.
* Only when the machine itself was off may the middle be torn too, behind the recovery point: it forgets
  unsynced bytes in any order. Then the log ends at the first tear.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from ottla.clock import Clock
from ottla.protocol.batches import LENGTH_OVERHEAD
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.storage.checkpoints import COMPACTED, LEADER_EPOCHS
from ottla.storage.cleaning.swap import finish_swaps
from ottla.storage.files import TEMPORARY_SUFFIX, Disk
from ottla.storage.leader_epochs import CorruptCheckpoint, LeaderEpochs
from ottla.storage.log_config import LogConfig
from ottla.storage.offset_index import CorruptIndex
from ottla.storage.open_segments import OpenSegments
from ottla.storage.producer_state import ProducerStates
from ottla.storage.recovery_report import RecoveryReport
from ottla.storage.replay import control_record_at, replay, restore_producers
from ottla.storage.scan import Damaged, verify, walk
from ottla.storage.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    file_name,
)
from ottla.storage.snapshots import Snapshots

logger = logging.getLogger(__name__)

_STRAY_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, TEMPORARY_SUFFIX)


@dataclass
class Loaded:
    """A partition's folder, opened."""

    segments: list[Segment]
    log_start_offset: int
    end_offset: int
    recovery_point: int
    leader_epochs: LeaderEpochs
    producers: ProducerStates
    snapshots: Snapshots
    report: RecoveryReport
    failure: ApiError | None = None


class Offline(Exception):
    """The folder holds damage that no crash explains."""


class Loader:
    """Opens one folder. `load` does it all; the rest are its steps."""

    def __init__(
        self,
        name: str,
        folder: Path,
        config: LogConfig,
        *,
        disk: Disk,
        clock: Clock,
        open_segments: OpenSegments,
        clean: bool,
        power_lost: bool,
        may_have_gaps: bool,
        recovery_point: int,
        log_start_offset: int,
    ) -> None:
        self._name = name
        self._folder = folder
        self._config = config
        self._disk = disk
        self._clock = clock
        self._open_segments = open_segments
        self._power_lost = power_lost
        self._may_have_gaps = may_have_gaps or config.is_compacted
        self._recovery_point = recovery_point
        self._log_start = log_start_offset
        self._now = clock.now_ms()
        self._segments: list[Segment] = []
        self._snapshots = Snapshots(disk, folder)
        self._names: set[str] = set()
        self._epochs = LeaderEpochs()
        self._producers = ProducerStates(name)
        self._report = RecoveryReport(name, clean)

    def load(self) -> Loaded:
        started = self._clock.monotonic()
        failure: ApiError | None = None
        end_offset = self._log_start
        try:
            self._list_files()
            epochs_are_whole = self._load_epochs()
            if self._report.clean:
                end_offset = self._open_clean(epochs_are_whole)
            else:
                end_offset = self._recover(epochs_are_whole)
            self._log_start = max(self._log_start, self._segments[0].base_offset)
            if end_offset < self._log_start:
                end_offset = self._start_anew()
            self._settle_epochs(end_offset)
        except (Offline, OSError) as problem:
            message = f"{self._name} is offline: {problem}"
            failure = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, message)
            self._report.failure = message
            if not self._segments:
                self._segments = [Segment(self._disk, self._folder, 0, 0, self._open_segments, self._now)]
        self._report.seconds = self._clock.monotonic() - started
        return Loaded(
            self._segments,
            self._log_start,
            end_offset,
            self._recovery_point if failure else min(self._recovery_point, end_offset),
            self._epochs,
            self._producers,
            self._snapshots,
            self._report,
            failure,
        )

    # -- files ---------------------------------------------------------------------------------------

    def _list_files(self) -> None:
        """Segments and snapshots that are there; what an interrupted deletion or write left is removed."""
        names = self._names = set(self._disk.list(self._folder))
        try:
            finished = finish_swaps(self._disk, self._folder, names)
        except Damaged as damage:
            raise self._offline_somewhere(damage) from damage
        if finished:
            names = self._names = set(self._disk.list(self._folder))
            self._report.removed_files += finished
        for name in [each for each in names if each.endswith(_STRAY_SUFFIXES)]:
            self._remove(name)
        self._may_have_gaps = self._may_have_gaps or COMPACTED in names
        bases = sorted(_offset_of(name) for name in names if name.endswith(LOG_SUFFIX) and _is_offset(name))
        for base in bases:
            size = self._disk.size(self._folder / file_name(base, LOG_SUFFIX))
            segment = Segment(self._disk, self._folder, base, size, self._open_segments, self._now)
            segment.sealed = base != bases[-1]
            self._segments.append(segment)
        known = set(bases)
        for name in names:
            if name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX)) and _is_offset(name):
                if _offset_of(name) not in known:
                    self._remove(name)
            elif name.endswith(SNAPSHOT_SUFFIX) and _is_offset(name):
                self._snapshots.offsets.add(_offset_of(name))
        if not self._segments:
            self._segments.append(
                Segment.create(self._disk, self._folder, self._log_start, self._open_segments, self._now)
            )
            return
        self._remove_failed_rolls()
        if self._report.clean:
            for segment in self._segments:
                self._rebuild_missing_indexes(segment)

    def _remove_failed_rolls(self) -> None:
        """An empty segment that begins within the one before it comes of a roll that the disk cut short.

        Who looks for an offset behind its beginning would look into it, and miss what the other one holds.
        """
        for number in range(len(self._segments) - 2, 0, -1):
            empty = self._segments[number]
            if empty.size:
                continue
            before = next((each for each in reversed(self._segments[:number]) if each.size), None)
            try:
                if before is not None and self._end_of(before) > empty.base_offset:
                    self._remove_segment(empty)
            except Damaged as damage:
                raise _offline(before or empty, damage) from damage

    def _rebuild_missing_indexes(self, segment: Segment) -> None:
        wanted = [file_name(segment.base_offset, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
        missing = [name for name in wanted if name not in self._names]
        if missing and segment.size:
            self._rebuild_indexes(segment, missing)

    def _rebuild_indexes(self, segment: Segment, files: list[str]) -> None:
        try:
            segment.rebuild_indexes(self._config.index_interval_bytes)
        except Damaged as damage:
            raise _offline(segment, damage) from damage
        self._report.rebuilt_indexes += files
        self._report.scanned_bytes += segment.size

    def _remove(self, name: str) -> None:
        self._disk.remove(self._folder / name)
        self._report.removed_files.append(name)

    # -- a clean stop --------------------------------------------------------------------------------

    def _open_clean(self, epochs_are_whole: bool) -> int:
        active = self._segments[-1]
        try:
            end_offset = self._end_of(active)
        except Damaged:
            end_offset = -1
        if end_offset != self._recovery_point or not epochs_are_whole:
            # Not what a clean stop leaves: the log was offline then, or the files have changed since.
            logger.warning("%s: not as a clean stop leaves it; scanning it", self._name)
            self._report.clean = False
            return self._recover(epochs_are_whole)
        active.found_finished()
        self._restore_producers(end_offset)
        self._open_segments.forget(active)
        return end_offset

    def _end_of(self, segment: Segment) -> int:
        """Where a segment ends, from the last entry of its index and the few batches behind it."""
        end_offset = segment.base_offset
        if segment.size == 0:
            return end_offset
        try:
            position = segment.last_indexed_position()
        except CorruptIndex:
            self._rebuild_indexes(segment, [file_name(segment.base_offset, INDEX_SUFFIX)])
            position = segment.last_indexed_position()
        for _, header in walk(segment.file, position, segment.size):
            end_offset = header[0] + header[6] + 1
        return end_offset

    def _restore_producers(self, end_offset: int) -> None:
        try:
            self._report.replayed_batches = restore_producers(
                self._producers, self._snapshots, self._segments, end_offset, self._now
            )
        except Damaged as damage:
            raise self._offline_somewhere(damage) from damage

    def _offline_somewhere(self, damage: Damaged) -> Offline:
        return Offline(f"{damage.reason} at byte {damage.position} of a segment in {self._folder}")

    # -- a crash -------------------------------------------------------------------------------------

    def _recover(self, epochs_are_whole: bool) -> int:
        # What lies before the first segment was deleted, not lost; the snapshot there counts.
        self._recovery_point = max(self._recovery_point, self._segments[0].base_offset)
        first = self._first_to_scan()
        self._check_flushed(first)
        start_offset, position = self._restart_point(first)
        if not epochs_are_whole:
            self._epochs_from_batches(first, position)
        end_offset = start_offset
        number = first
        while number < len(self._segments):
            segment = self._segments[number]
            if number > first:
                position, end_offset = 0, segment.base_offset
            end_offset, damage = self._scan(segment, position, end_offset)
            damage = damage or self._gap_behind(number, end_offset)
            if damage is not None:
                self._cut(number, damage, end_offset)
            number += 1
        if end_offset < self._recovery_point:
            raise Offline(
                f"the log in {self._folder} ends at offset {end_offset}, but records up to "
                f"{self._recovery_point} had been synced to disk. Restore the files from a replica or a "
                "backup, or delete the folder to start the partition empty, then restart the broker"
            )
        self._segments[-1].sealed = False
        self._snapshots.remove_after(end_offset)
        return end_offset

    def _first_to_scan(self) -> int:
        """The number of the segment that holds the recovery point."""
        first = 0
        for number, segment in enumerate(self._segments):
            if segment.base_offset <= self._recovery_point:
                first = number
        return first

    def _check_flushed(self, first: int) -> None:
        """Segments before the recovery point are not scanned; each must reach to where the next begins."""
        for segment, following in zip(self._segments[:first], self._segments[1 : first + 1], strict=True):
            self._rebuild_missing_indexes(segment)
            try:
                end_offset = self._end_of(segment)
            except Damaged as damage:
                raise _offline(segment, damage) from damage
            if end_offset > following.base_offset or (
                end_offset < following.base_offset and not self._may_have_gaps
            ):
                raise Offline(
                    f"{segment.path} ends at offset {end_offset}, but the next segment begins at "
                    f"{following.base_offset}. Restore the missing file from a replica or a backup"
                )

    def _restart_point(self, first: int) -> tuple[int, int]:
        """Offset and position, in segment number `first`, from which every byte is read.

        The producers are made what they were there, and the indexes are kept up to there.
        """
        segment = self._segments[first]
        base = segment.base_offset
        try:
            snapshot = self._snapshots.load(self._producers, self._recovery_point, self._now)
            if snapshot is not None and snapshot > base:
                place = self._batch_at(segment, snapshot)
                if place is not None:
                    return snapshot, place
                snapshot = self._snapshots.load(self._producers, base, self._now)
            start = self._segments[0].base_offset if snapshot is None else snapshot
            if start < base:
                self._report.replayed_batches = replay(
                    self._producers, self._segments[:first], start, base, self._now
                )
        except Damaged as damage:
            raise self._offline_somewhere(damage) from damage
        return base, 0

    def _batch_at(self, segment: Segment, offset: int) -> int | None:
        """Where the batch with base offset `offset` begins (or would, at the end), by the index on disk.

        None when the index is no good: then all of the segment is read.
        """
        try:
            if not segment.load_indexes():
                return None
            position = segment.index.floor(offset - 1 - segment.base_offset)
            for at, header in walk(segment.file, position, segment.size):
                if header[0] == offset:
                    segment.keep_indexes_to(at, offset)
                    return at
                if header[0] > offset:
                    return None
                position, reached = at + header[1] + LENGTH_OVERHEAD, header[0] + header[6] + 1
                if reached == offset and position == segment.size:
                    segment.keep_indexes_to(position, offset)
                    return position
        except Damaged:
            return None
        return None

    def _scan(self, segment: Segment, position: int, next_offset: int) -> tuple[int, Damaged | None]:
        """Read and check a segment from `position` on; where it ends, and what is wrong there."""
        if position == 0:
            segment.start_empty_indexes()
            segment.max_timestamp = -1
            segment.max_timestamp_offset = segment.base_offset
        interval = self._config.index_interval_bytes
        epochs, producers = self._epochs, self._producers
        latest = epochs.latest
        damage: Damaged | None = None
        end = position
        try:
            for at, header in verify(segment.file, position, segment.size, next_offset):
                next_offset = header[0] + header[6] + 1
                end = at + header[1] + LENGTH_OVERHEAD
                segment.note_batch(at, next_offset - 1, header[8], header[1] + LENGTH_OVERHEAD, interval)
                if header[2] > latest:
                    epochs.assign(header[2], header[0])
                    latest = header[2]
                if header[9] >= 0:
                    producers.update(
                        header, header[0], self._now, control_record_at(segment.file, at, header)
                    )
                self._report.scanned_batches += 1
        except Damaged as found:
            damage = found
        self._report.scanned_bytes += end - position
        if damage is None:
            if segment.sealed:
                segment.seal()
            else:
                segment.write_indexes()
        return next_offset, damage

    def _gap_behind(self, number: int, end_offset: int) -> Damaged | None:
        """What is wrong where one segment ends and the next begins. Only compaction leaves gaps."""
        if number + 1 == len(self._segments):
            return None
        segment, following = self._segments[number], self._segments[number + 1]
        if end_offset > following.base_offset and following.size == 0 and number + 2 == len(self._segments):
            self._remove_segment(following)  # a roll that failed half way, before it counted
            segment.sealed = False
            return None
        if end_offset > following.base_offset or (
            end_offset < following.base_offset and not self._may_have_gaps
        ):
            reason = f"offset {following.base_offset} of the next segment does not follow {end_offset - 1}"
            return Damaged(segment.size, reason)
        return None

    def _cut(self, number: int, damage: Damaged, end_offset: int) -> None:
        """The log ends here, if nothing that counts lies at or behind the damage."""
        segment = self._segments[number]
        behind = self._segments[number + 1 :]
        unsynced = sum(each.size for each in behind)
        if end_offset < self._recovery_point or (unsynced and not self._power_lost):
            raise _offline(segment, damage)
        self._report.truncated_bytes += segment.size - damage.position + unsynced
        segment.file.truncate(damage.position)
        segment.size = damage.position
        segment.sealed = False
        segment.write_indexes()
        for each in behind:
            self._remove_segment(each)

    def _remove_segment(self, segment: Segment) -> None:
        self._segments.remove(segment)
        self._open_segments.forget(segment)
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            self._remove(file_name(segment.base_offset, suffix))

    # -- epochs --------------------------------------------------------------------------------------

    def _load_epochs(self) -> bool:
        """Read the epochs' file; False when it is missing although there are records, or damaged."""
        try:
            self._epochs = LeaderEpochs.decode(self._disk.read(self._folder / LEADER_EPOCHS))
        except FileNotFoundError:
            return not any(segment.size for segment in self._segments)
        except CorruptCheckpoint as damage:
            logger.warning(
                "%s: %s is damaged (%s); reading epochs from the log", self._name, LEADER_EPOCHS, damage
            )
            return False
        return True

    def _epochs_from_batches(self, last: int, position: int) -> None:
        """The epochs of all batches before the point from which they are scanned anyway."""
        self._epochs.clear()
        for number, segment in enumerate(self._segments[: last + 1]):
            end = segment.size if number < last else position
            try:
                for _, header in walk(segment.file, 0, end):
                    if header[2] > self._epochs.latest:
                        self._epochs.assign(header[2], header[0])
            except Damaged as damage:
                raise _offline(segment, damage) from damage

    def _settle_epochs(self, end_offset: int) -> None:
        before = self._epochs.entries
        self._epochs.truncate_end(end_offset)
        self._epochs.truncate_start(self._log_start)
        if not self._report.clean or self._epochs.entries != before:
            self._disk.replace(self._folder / LEADER_EPOCHS, self._epochs.encode(), sync=False)

    def _start_anew(self) -> int:
        """All that is left lies before the start of the log: begin an empty segment there."""
        logger.warning(
            "%s: the log ends before its start offset %d; starting empty", self._name, self._log_start
        )
        for segment in list(self._segments):
            self._remove_segment(segment)
        self._snapshots.remove_after(-1)
        self._producers.clear()
        self._segments = [
            Segment.create(self._disk, self._folder, self._log_start, self._open_segments, self._now)
        ]
        return self._log_start


def _is_offset(name: str) -> bool:
    return name.split(".", 1)[0].isdigit() and name.count(".") == 1


def _offset_of(name: str) -> int:
    return int(name.split(".", 1)[0])


def _offline(segment: Segment, damage: Damaged) -> Offline:
    return Offline(
        f"{damage.reason} at byte {damage.position} of {segment.path}. `ottla log inspect {segment.path}` "
        "shows what is there; restore the file from a replica or a backup, or delete the partition's folder "
        "to start it empty, then restart the broker"
    )
