"""Opening a partition's folder: in no time after a clean stop, with a scan after anything else.

After a clean stop the files say all there is to say: they are compared with the list that the stop left
(`segment_list`), and the last few batches of the active segment are looked at, to learn where the log ends.
When that does not fit, or there is no list, more is checked.

After a crash nothing behind the recovery point is believed. The scan begins at the newest snapshot of the
producers that is not behind the recovery point (indexes are known to be good up to there) and reads every
byte from it to the end: structure, CRC, offsets. What it finds, it notes in indexes, producers and epochs.

* A batch that is cut off at the end of the log was being written when the process died. It was never
  acknowledged. It is cut off.
* Anything else that is wrong (a batch that is whole and wrong, one with more batches or segments behind it,
  one before the recovery point, a segment that is missing) is no crash but damage. To cut there would lose
  what was acknowledged, so the partition goes offline and says which byte of which file is wrong.
* Only when the machine itself was off may all behind the recovery point be torn: it forgets unsynced bytes
  and file names in any order. Then the log ends at the first tear, which may be its very start.
"""

from __future__ import annotations

import logging
from pathlib import Path

from ottla.clock import Clock
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.storage.checkpoints import (
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    RECOVERY_POINTS,
)
from ottla.storage.epoch_recovery import epochs_fit, epochs_from_batches, slot_of
from ottla.storage.file_names import (
    SNAPSHOT_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_name,
)
from ottla.storage.files import Disk
from ottla.storage.leader_epochs import CorruptCheckpoint, LeaderEpochs
from ottla.storage.loaded import REMEDY, Loaded, Offline, offline_at, offline_in
from ottla.storage.log_config import LogConfig
from ottla.storage.open_segments import OpenSegments
from ottla.storage.partition_folder import PartitionFolder
from ottla.storage.producer_state import ProducerStates
from ottla.storage.recovery_report import RecoveryReport
from ottla.storage.replay import control_record_at, replay, restore_producers, transactions_of
from ottla.storage.scan import LARGEST_OFFSET, MAX_RELATIVE_OFFSET, Damaged, is_unfinished, verify, walk
from ottla.storage.segment import Segment
from ottla.storage.segment_list import LogFiles

logger = logging.getLogger(__name__)


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
        cleaned_to: int | None,
        recovery_point: int,
        log_start_offset: int | None,
        high_watermark: int = 0,
        closed_as: LogFiles | None = None,
    ) -> None:
        """`cleaned_to`: compacted up to there at least once. `log_start_offset`: None when it is not known.

        `closed_as`: what the log held when it was closed, and holds now unless it was damaged since.
        """
        self._name = name
        self._folder = folder
        self._config = config
        self._disk = disk
        self._clock = clock
        self._open_segments = open_segments
        self._power_lost = power_lost
        self._may_have_gaps = cleaned_to is not None or config.is_compacted
        self._cleaned_to = cleaned_to or 0
        self._closed_as = closed_as
        self._high_watermark = high_watermark if closed_as is None else 0
        if closed_as is not None:
            recovery_point, log_start_offset = closed_as.end_offset, closed_as.log_start_offset
        self._recovery_point = recovery_point
        self._log_start = log_start_offset or 0
        self._now = clock.now_ms()
        self._epochs = LeaderEpochs()
        self._epochs_file: bytes | None = None
        self._producers = ProducerStates(name, config.producer_id_max_per_partition)
        self._report = RecoveryReport(name, clean)
        self._files = PartitionFolder(
            folder,
            config,
            self._report,
            disk=disk,
            open_segments=open_segments,
            now_ms=self._now,
            power_lost=power_lost,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            closed_as=closed_as,
        )
        self._segments = self._files.segments
        self._snapshots = self._files.snapshots

    def load(self) -> Loaded:
        started = self._clock.monotonic()
        failure: ApiError | None = None
        end_offset = self._log_start
        try:
            self._files.open()
            self._may_have_gaps = self._may_have_gaps or self._files.may_have_gaps
            epochs_are_whole = self._load_epochs()
            if self._report.clean:
                end_offset = self._open_clean(epochs_are_whole)
            else:
                end_offset = self._recover(epochs_are_whole)
            self._rebuild_transactions()
            self._log_start = max(self._log_start, self._segments[0].base_offset)
            if end_offset < self._log_start:
                end_offset = self._start_empty()
            self._settle_epochs(end_offset)
        except (Offline, OSError) as problem:
            failure = self._failed(str(problem))
        except Exception as problem:
            logger.exception("%s: an unexpected error keeps it from being opened", self._name)
            failure = self._failed(f"the files in {self._folder} cannot be opened: {problem!r}")
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
            self._may_have_gaps,
            self._files.deleted_files,
            self._epochs_file is None,
            failure,
        )

    def _failed(self, reason: str) -> ApiError:
        message = f"{self._name} is offline: {reason}"
        self._report.failure = message
        if not self._segments:
            empty = Segment(self._disk, self._folder, 0, 0, self._open_segments, self._now)
            self._segments.append(empty)
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, message)

    # -- a clean stop --------------------------------------------------------------------------------

    def _open_clean(self, epochs_are_whole: bool) -> int:
        active = self._segments[-1]
        if self._closed_as is None:
            self._check_flushed(len(self._segments) - 1)
        try:
            end_offset = self._files.end_of(active)
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

    def _restore_producers(self, end_offset: int) -> None:
        try:
            self._report.replayed_batches = restore_producers(
                self._producers, self._snapshots, self._segments, end_offset, self._now
            )
        except Damaged as damage:
            raise offline_in(self._folder, damage) from damage

    def _rebuild_transactions(self) -> None:
        """The transaction indexes that are not as the log was closed with."""
        for segment in self._files.without_transactions:
            if segment not in self._segments:
                continue
            slot = self._segments.index(segment)
            try:
                found = transactions_of(self._segments, slot, self._snapshots, self._name, self._now)
            except Damaged as damage:
                raise offline_at(segment, damage) from damage
            segment.replace_transactions(found)
            self._report.rebuilt_indexes.append(segment.path_of(TRANSACTION_INDEX_SUFFIX).name)

    # -- a crash -------------------------------------------------------------------------------------

    def _recover(self, epochs_are_whole: bool) -> int:
        # What lies before the first segment was deleted, not lost; the snapshot there counts.
        self._recovery_point = max(self._recovery_point, self._segments[0].base_offset)
        first = self._first_to_scan()
        self._check_flushed(first)
        start_offset, position = self._restart_point(first)
        self._epochs.truncate_end(start_offset)  # the scan finds those behind it
        if not (epochs_are_whole and self._epochs_fit(start_offset)):
            epochs_from_batches(self._epochs, self._segments, first, position)
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
                f"{self._recovery_point} had been synced ({self._folder.parent / RECOVERY_POINTS}). {REMEDY}"
            )
        if end_offset < self._high_watermark and not self._power_lost:
            raise Offline(
                f"the log in {self._folder} ends at offset {end_offset}, but records up to "
                f"{self._high_watermark} had been acknowledged ({self._folder.parent / HIGH_WATERMARKS}). "
                f"{REMEDY}"
            )
        later = [offset for offset in self._snapshots.offsets if offset > end_offset]
        if later and not self._power_lost:
            raise Offline(
                f"the log in {self._folder} ends at offset {end_offset}, but had reached offset {max(later)} "
                f"when {file_name(max(later), SNAPSHOT_SUFFIX)} was written. {REMEDY}"
            )
        self._segments[-1].sealed = False
        self._snapshots.remove_after(end_offset)
        return end_offset

    def _first_to_scan(self) -> int:
        """The number of the segment that holds the recovery point."""
        return max(slot_of(self._segments, self._recovery_point), 0)

    def _check_flushed(self, first: int) -> None:
        """Segments before the recovery point are not scanned; each must reach to where the next begins."""
        for segment, following in zip(self._segments[:first], self._segments[1 : first + 1], strict=True):
            self._files.rebuild_missing_indexes(segment)
            if segment.size == 0 and any(segment.index_file_sizes()):
                raise Offline(f"{segment.path} is empty, but its indexes are not. {REMEDY}")
            try:
                end_offset = self._files.end_of(segment)
            except Damaged as damage:
                raise offline_at(segment, damage) from damage
            if end_offset > following.base_offset or (
                end_offset < following.base_offset and not self._may_have_gaps
            ):
                raise Offline(
                    f"{segment.path} ends at offset {end_offset}, but the next segment begins at "
                    f"{following.base_offset}: a file is missing, or an offset is wrong. {REMEDY}"
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
            raise offline_in(self._folder, damage) from damage
        return base, 0

    def _batch_at(self, segment: Segment, offset: int) -> int | None:
        """Where the batch with base offset `offset` begins (or would, at the end), by the index on disk.

        None when the index is no good: then all of the segment is read.
        """
        try:
            if not segment.load_indexes():
                return None
            position = segment.index.floor(offset - 1 - segment.base_offset)
            for at, header in walk(segment.file, position, segment.size, segment.base_offset):
                if header.base_offset == offset:
                    segment.keep_indexes_to(at, offset)
                    return at
                if header.base_offset > offset:
                    return None
                position = at + header.size
                if header.next_offset == offset and position == segment.size:
                    segment.keep_indexes_to(position, offset)
                    return position
        except Damaged:
            return None
        return None

    def _scan(self, segment: Segment, position: int, next_offset: int) -> tuple[int, Damaged | None]:
        """Read and check a segment from `position` on; where it ends, and what is wrong there."""
        if position == 0:
            segment.start_empty_indexes()
            segment.forget_transactions()
            segment.max_timestamp = -1
            segment.max_timestamp_offset = segment.base_offset
        interval = self._config.index_interval
        epochs, producers = self._epochs, self._producers
        latest = epochs.latest
        damage: Damaged | None = None
        end = position
        highest, gaps_to = self._limits_of(segment)
        batches = verify(segment.file, position, segment.size, next_offset, highest=highest, gaps_to=gaps_to)
        try:
            for at, header in batches:
                size, epoch = header.size, header.leader_epoch
                if 0 <= epoch < latest:  # the log ends before it
                    raise Damaged(at, f"a batch with leader epoch {epoch} follows leader epoch {latest}")
                next_offset = header.next_offset
                end = at + size
                segment.note_batch(at, next_offset - 1, header.max_timestamp, size, interval)
                if epoch > latest:
                    epochs.assign(epoch, header.base_offset)
                    latest = epoch
                if header.producer_id >= 0:
                    ended = producers.update(
                        header, header.base_offset, self._now, control_record_at(segment.file, at, header)
                    )
                    if ended is not None and ended.is_aborted:
                        segment.note_aborted(ended.as_aborted)
                self._report.scanned_batches += 1
        except Damaged as found:
            damage = found
        self._report.scanned_bytes += end - position
        if damage is None:
            if segment.sealed:
                segment.seal()
            else:
                segment.write_indexes(spare=True)
        return next_offset, damage

    def _limits_of(self, segment: Segment) -> tuple[int, int]:
        """The largest offset that a batch of the segment may have, and up to where offsets may be missing.

        Base offsets are not covered by the CRC, so this is all that tells whether one is right.
        """
        behind = [s.base_offset for s in self._segments if s.base_offset > segment.base_offset and s.size]
        highest = min([segment.base_offset + MAX_RELATIVE_OFFSET, *(base - 1 for base in behind[:1])])
        if not self._may_have_gaps:
            return highest, -1
        if behind or self._files.has_replicated_gaps or self._power_lost:
            return highest, LARGEST_OFFSET
        return highest, self._cleaned_to  # the active segment holds all that was appended

    def _gap_behind(self, number: int, end_offset: int) -> Damaged | None:
        """What is wrong where one segment ends and the next begins. Only compaction leaves gaps."""
        if number + 1 == len(self._segments):
            return None
        segment, following = self._segments[number], self._segments[number + 1]
        if end_offset > following.base_offset and following.size == 0 and number + 2 == len(self._segments):
            self._files.remove_segment(following)  # a roll that failed half way, before it counted
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
        if end_offset < self._recovery_point:
            raise offline_at(segment, damage)
        # What a killed process leaves is one batch that is cut off, and nothing behind it.
        unfinished = not unsynced and is_unfinished(segment.file, segment.size, damage, end_offset)
        if not self._power_lost and not unfinished:
            raise offline_at(segment, damage)
        self._report.truncated_bytes += segment.size - damage.position + unsynced
        segment.file.truncate(damage.position)
        segment.size = damage.position
        segment.sealed = False
        segment.write_indexes()
        for each in behind:
            self._files.remove_segment(each)
        segment.file.sync()  # see `Log._sync_cut`
        self._disk.sync_folder(self._folder)

    # -- epochs --------------------------------------------------------------------------------------

    def _load_epochs(self) -> bool:
        """Read the epochs' file; False when it is missing although there are records, or damaged."""
        try:
            data = self._epochs_file = self._disk.read(self._folder / LEADER_EPOCHS)
            if not self._epochs_are_as_closed(data):
                raise CorruptCheckpoint("it has changed since the log was closed")
            self._epochs = LeaderEpochs.decode(data)
        except FileNotFoundError:
            return not any(segment.size for segment in self._segments) or self._epochs_were_spared()
        except CorruptCheckpoint as damage:
            logger.warning(
                "%s: %s is damaged (%s); reading epochs from the log", self._name, LEADER_EPOCHS, damage
            )
            return False
        return True

    def _epochs_were_spared(self) -> bool:
        """Read the epochs from the batches where a clean stop makes no file: of a log that is so short."""
        if not self._report.clean or len(self._segments) > 1 or not self._segments[0].has_no_index_entries():
            return False
        epochs_from_batches(self._epochs, self._segments, 0, self._segments[0].size)
        return self._epochs_are_as_closed(self._epochs.encode())

    def _epochs_are_as_closed(self, data: bytes) -> bool:
        """Whether an epochs' file with this content is what the log was closed with, as far as is known."""
        closed_as = self._closed_as
        if closed_as is None or not any(segment.size for segment in closed_as.segments):
            return True
        return data == LeaderEpochs(list(closed_as.epochs)).encode()

    def _epochs_fit(self, end_offset: int) -> bool:
        if epochs_fit(self._epochs, self._segments, self._log_start, end_offset):
            return True
        logger.warning("%s: %s does not fit the log and is rebuilt", self._name, LEADER_EPOCHS)
        return False

    def _settle_epochs(self, end_offset: int) -> None:
        """Write the epochs' file where it says something else than the log.

        One that is missing is left to the next flush or to the stop: until then the batches tell the same to
        the next recovery, and to make a file costs more than all else that opening a short log takes.
        """
        before = self._epochs.entries
        self._epochs.truncate_end(end_offset)
        self._epochs.truncate_start(self._log_start)
        if not self._report.clean or self._epochs.entries != before:
            encoded = self._epochs.encode()
            if self._epochs_file is not None and encoded != self._epochs_file:
                self._disk.replace(self._folder / LEADER_EPOCHS, encoded, sync=False)
                self._epochs_file = encoded

    def _start_empty(self) -> int:
        """All that is left lies before the start of the log: create an empty segment there."""
        logger.warning(
            "%s: the log ends before its start offset %d; starting empty", self._name, self._log_start
        )
        for segment in list(self._segments):
            self._files.remove_segment(segment)
        self._snapshots.remove_after(-1)
        self._producers.clear()
        self._segments.append(self._files.create_segment(self._log_start))
        return self._log_start
