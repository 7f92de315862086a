"""One partition's log: a row of segments that batches are appended to and slices are read from.

Who calls it: the replica of the partition, on the event loop. As a leader it appends what producers send
(`append`), as a follower what the leader sent (`append_replicated`). Consumers and followers read
(`read`), and get a slice of a file, never bytes.

Rules kept here:

* An append is whole or not at all. Checks come first, then one write, then the state (end offset, indexes,
  producers, epochs) is changed. When the write fails the segment is cut back and nothing has changed.
* Offsets have no gaps for a leader: the next batch gets the end offset.
* `flush` may run in another thread beside appends. It captures where the log ends, syncs, and only then
  moves the recovery point: what lies before it has reached the disk.
* A log that turns out to be damaged goes offline: `failure` is set and raised by every call.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path

from ottla.clock import Clock
from ottla.protocol.batches import CONTROL, LENGTH_OVERHEAD, MAGIC, crc_matches, headers
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.storage.checkpoints import COMPACTED, LEADER_EPOCHS, PARTITION_METADATA
from ottla.storage.cleaning.decisions import CleanableSegment
from ottla.storage.doomed_files import DoomedFiles
from ottla.storage.files import Disk, File
from ottla.storage.leader_epochs import LeaderEpochs
from ottla.storage.log_config import FOREVER, LogConfig
from ottla.storage.open_segments import OpenSegments
from ottla.storage.producer_state import BatchRange, ProducerStates
from ottla.storage.replay import restore_producers
from ottla.storage.results import AppendInfo, FileSlice, OffsetAndTime
from ottla.storage.retention import segments_to_delete
from ottla.storage.scan import Damaged, walk
from ottla.storage.segment import DELETED_SUFFIX, SUFFIXES, Segment, SegmentInfo
from ottla.storage.snapshots import Snapshots
from ottla.storage.time_search import first_since, newest
from ottla.storage.transaction_markers import read_control_record
from ottla.storage.validation import StampedBatch, validate_and_stamp

__all__ = ["AppendInfo", "FileSlice", "Log", "OffsetAndTime"]

logger = logging.getLogger(__name__)

_SNAPSHOT_INTERVAL = (
    16 << 20
)  # bytes between two snapshots that a flush takes, which bound what recovery scans


class Log:
    """Made by `LogDirectory`, which opens, recovers and closes the logs of a data folder."""

    def __init__(
        self,
        topic: str,
        partition: int,
        topic_id: bytes,
        folder: Path,
        config: LogConfig,
        *,
        disk: Disk,
        clock: Clock,
        open_segments: OpenSegments,
        segments: list[Segment],
        log_start_offset: int,
        end_offset: int,
        recovery_point: int,
        leader_epochs: LeaderEpochs,
        producers: ProducerStates,
        snapshots: Snapshots,
        failure: ApiError | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.name = f"{topic}-{partition}"
        self.folder = folder
        self.config = config
        self.log_start_offset = log_start_offset
        self.end_offset = end_offset
        self.recovery_point = recovery_point
        self.leader_epochs = leader_epochs
        self.producers = producers
        self.failure = failure
        self._disk = disk
        self._clock = clock
        self._open_segments = open_segments
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._size = sum(segment.size for segment in segments[:-1])  # of the sealed segments
        self._snapshots = snapshots
        self._lock = threading.Lock()  # between appends and the thread that flushes
        self._flushing = threading.Lock()  # one flush at a time
        self._truncations = 0
        self.swapping = False  # cleaned segments are taking their places: nothing may be deleted meanwhile
        self._is_new = recovery_point == 0  # the name of its folder may not be on disk yet
        self._folder_dirty = recovery_point < end_offset or self._is_new
        self._epochs_dirty = False
        self._last_flush = clock.monotonic()  # the wall clock may jump back, and hold up a flush
        self._snapshot_bytes = self.size  # where in the log's growth the last snapshot was taken
        self._doomed = DoomedFiles(disk)
        self._is_marked = False
        self._mark_compacted()
        self.on_lower_recovery_point: Callable[[], None] | None = None  # has it written before a truncation

    def __repr__(self) -> str:
        return f"Log({self.name}, {self.log_start_offset}..{self.end_offset})"

    # -- what it is ----------------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        return self.folder

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._size + (self._segments[-1].size if self._segments else 0)

    @property
    def segments(self) -> list[SegmentInfo]:
        return [SegmentInfo(s.base_offset, s.size, s.load_max_timestamp()) for s in self._segments]

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def truncations(self) -> int:
        """How often the log was cut: what was read of it before need not be what is there now."""
        return self._truncations

    def cleanable_segments(self, *, in_detail: bool = False) -> list[CleanableSegment]:
        """All segments as compaction sees them. `in_detail` looks at files for what only grouping asks."""
        dated = in_detail or self.config.max_compaction_lag_ms < FOREVER
        found = []
        for segment in self._segments:
            first_timestamp = segment.load_first_timestamp() if dated else -1
            sizes = segment.index_file_sizes() if in_detail and segment.sealed else (0, 0)
            found.append(
                CleanableSegment(
                    segment.base_offset, segment.size, first_timestamp, segment.load_max_timestamp(), *sizes
                )
            )
        return found

    @property
    def start_is_moved(self) -> bool:
        """Whether the log starts within its first segment, which no file name tells."""
        return self.log_start_offset > self._bases[0]

    def configure(self, config: LogConfig) -> None:
        """Use `config` from the next append on."""
        self.config = config
        self._mark_compacted()

    def _mark_compacted(self) -> None:
        """Leave word in the folder, before a record is compacted away, that offsets may be missing."""
        if self.config.is_compacted and not self._is_marked:
            try:
                self._disk.replace(self.folder / COMPACTED, b"", sync=False)
            except OSError as problem:
                logger.warning("%s: cannot write %s: %s", self.name, COMPACTED, problem)
                return
            self._is_marked = self._folder_dirty = True

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that wrote nothing for so long; how many they were."""
        with self._lock:  # a flush may be writing them down
            return self.producers.expire(now_ms, expiration_ms)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Up to where a reader of committed data may read."""
        unstable = self.producers.first_unstable_offset(high_watermark)
        return high_watermark if unstable is None else min(unstable, high_watermark)

    def _check_online(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _go_offline(self, segment: Segment, damage: Damaged) -> ApiError:
        message = (
            f"{self.name} is offline: {damage.reason} at byte {damage.position} of {segment.path}. "
            f"`ottla log inspect {segment.path}` shows what is there; restore the file from a replica or a "
            "backup, or delete the partition's folder to start it empty, then restart the broker"
        )
        self.failure = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, message)
        logger.error(message)
        return self.failure

    def _storage_error(self, what: str, problem: OSError) -> ApiError:
        message = (
            f"{self.name}: cannot {what} in {self.folder.parent}: {problem.strerror or problem}. "
            "Nothing was changed; it works again by itself when the disk does (free some space if it is full)"
        )
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, message)

    # -- append --------------------------------------------------------------------------------------

    def append(self, records: memoryview, leader_epoch: int, *, from_client: bool = True) -> AppendInfo:
        """Append a producer's batches as leader. `records` must be writable: offsets are stamped in place.

        `from_client=False` is for what the broker itself writes (transaction markers, a coordinator's
        records): control batches are allowed and sequences are not checked.
        """
        if self.failure is not None:
            raise self.failure
        config = self.config
        now = self._clock.now_ms()
        with self._lock:
            first_offset = self.end_offset
            data, batches, next_offset = validate_and_stamp(
                records, first_offset, leader_epoch, config, now, self.name, from_client=from_client
            )
            known = self.producers.check(batches, from_client=from_client)
            if known is not None:
                return self._duplicate(known)
            self._write(data, batches, next_offset, now)
            if leader_epoch != self.leader_epochs.latest and leader_epoch >= 0:
                self._note_epoch(leader_epoch, first_offset)
            return AppendInfo(
                first_offset,
                next_offset - 1,
                now if config.is_log_append_time else -1,
                self.log_start_offset,
                False,
                len(data),
            )

    def append_replicated(self, records: memoryview) -> AppendInfo:
        """Append batches as follower: offsets and epochs stand in the bytes, which are written unchanged."""
        self._check_online()
        batches: list[StampedBatch] = []
        end = self.end_offset
        size = 0
        for position, header in headers(records):
            if header.magic != MAGIC or not crc_matches(records, position, header):
                raise ApiError(
                    ErrorCode.CORRUPT_MESSAGE, f"{self.name}: the leader sent a damaged batch at offset {end}"
                )
            if header.base_offset < end or header.last_offset_delta < 0:
                raise ApiError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{self.name}: the leader sent offset {header.base_offset} where the log ends at {end}",
                )
            batches.append((position, header.base_offset, header))
            end = header.next_offset
            size = position + header.size
        if not batches:
            return AppendInfo(self.end_offset, self.end_offset - 1, -1, self.log_start_offset, False, 0)
        with self._lock:
            self._write(records[:size], batches, end, self._clock.now_ms())
            for _, base_offset, header in batches:
                if header.leader_epoch > self.leader_epochs.latest:
                    self._note_epoch(header.leader_epoch, base_offset)
        return AppendInfo(batches[0][1], end - 1, -1, self.log_start_offset, False, size)

    def _duplicate(self, known: BatchRange) -> AppendInfo:
        append_time = known.timestamp if self.config.is_log_append_time else -1
        return AppendInfo(known.first_offset, known.last_offset, append_time, self.log_start_offset, True, 0)

    def _write(self, data: memoryview, batches: list[StampedBatch], next_offset: int, now: int) -> None:
        """Bytes to the active segment, then all state. ApiError and no change when the disk refuses."""
        config = self.config
        segment = self._segments[-1]
        size = len(data)
        if size > config.segment_bytes:
            raise ApiError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{self.name}: {size} bytes are larger than segment.bytes={config.segment_bytes}",
            )
        max_timestamp = batches[0][2][8] if len(batches) == 1 else max(batch[2][8] for batch in batches)
        try:
            if segment.should_roll(config, size, next_offset - 1, max_timestamp, now):
                segment = self._roll(batches[0][1])
            segment.append(data, batches, config.index_interval_bytes)
        except OSError as problem:
            raise self._storage_error("write", problem) from problem
        producers = self.producers
        for position, base_offset, header in batches:
            if header[9] >= 0:
                control = None
                if header[5] & CONTROL:
                    control = read_control_record(data[position : position + header[1] + LENGTH_OVERHEAD])
                producers.update(header, base_offset, now, control)
        self.end_offset = next_offset

    def _note_epoch(self, epoch: int, start_offset: int) -> None:
        if self.leader_epochs.assign(epoch, start_offset):
            self.write_epochs()

    def begin_epoch(self, epoch: int) -> None:
        """This replica became leader with `epoch`: its records begin where the log ends now."""
        self._check_online()
        if self.leader_epochs.assign(epoch, self.end_offset):
            if self.size:
                self.write_epochs()
            else:
                self._epochs_dirty = True  # of no use to anybody before there are records

    def write_epochs(self) -> None:
        """Write the epochs' file. It reaches the disk with the next flush; until then, and when the disk is
        full, the batches themselves tell the epochs to a recovery."""
        self._epochs_dirty = True
        try:
            self._disk.replace(self.folder / LEADER_EPOCHS, self.leader_epochs.encode(), sync=False)
        except OSError as problem:
            logger.warning("%s: cannot write %s: %s", self.name, LEADER_EPOCHS, problem)

    # -- roll ----------------------------------------------------------------------------------------

    def roll(self) -> None:
        """Seal the active segment and begin a new one at the end of the log."""
        self._check_online()
        if self._segments[-1].size:
            with self._lock:
                try:
                    self._roll(self.end_offset)
                except OSError as problem:
                    raise self._storage_error("begin a segment", problem) from problem

    def _roll(self, base_offset: int) -> Segment:
        old = self._segments[-1]
        if old.size == 0 and old.base_offset == base_offset:
            return old
        segment = Segment.create(
            self._disk, self.folder, base_offset, self._open_segments, self._clock.now_ms()
        )
        try:
            self._snapshots.write(base_offset, self.producers.encode())
            old.seal()
        except OSError:
            segment.remove_files()  # it may not lie behind an active segment that goes on growing
            raise
        self._segments.append(segment)
        self._bases.append(base_offset)
        self._size += old.size
        self._folder_dirty = True
        self._snapshots.note(base_offset, self._bases)
        self._snapshot_bytes = self.size
        return segment

    # -- read ----------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, limit_offset: int, at_least_one: bool = True
    ) -> FileSlice | None:
        """Batches from the one that holds `offset` on, all below `limit_offset`, about `max_bytes` of them.

        The slice begins with the whole first batch, even when that alone is larger than `max_bytes` (without
        `at_least_one` the answer is then None), and may end within a batch. None when there is nothing at or
        after `offset` below the limit. OFFSET_OUT_OF_RANGE outside of the log.
        """
        if self.failure is not None:
            raise self.failure
        end_offset = self.end_offset
        if offset < self.log_start_offset or offset > end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name}: offset {offset} is not between {self.log_start_offset} and {end_offset}",
            )
        if offset >= limit_offset or offset == end_offset:
            return None
        slot = len(self._bases) - 1
        if offset < self._bases[-1]:
            slot = bisect_right(self._bases, offset) - 1
        while slot < len(self._segments):
            segment = self._segments[slot]
            try:
                place = segment.find(offset)
                if place is None:
                    slot += (
                        1  # the segment's last records are compacted away, or never came: go on in the next
                    )
                    continue
                bound = segment.size
                if limit_offset < end_offset and (
                    slot + 1 == len(self._bases) or limit_offset < self._bases[slot + 1]
                ):
                    limit = segment.find(limit_offset)
                    if limit is not None:
                        bound = limit.position
                position, size = place
                if position + size > bound:
                    return None  # the batch that holds `offset` reaches beyond the limit
                if size <= max_bytes:
                    size = min(bound - position, max_bytes)
                elif not at_least_one:
                    return None
                return FileSlice(segment.file, position, size)
            except Damaged as damage:
                raise self._go_offline(segment, damage) from damage
            except OSError as problem:
                raise self._storage_error("read", problem) from problem
        return None

    def offset_for_timestamp(self, timestamp: int) -> OffsetAndTime | None:
        """The first record at or after the log's start whose timestamp is at least `timestamp`."""
        self._check_online()
        max_size = self.config.max_decompressed_message_bytes
        for segment in self._segments:
            try:
                found = first_since(segment, timestamp, self.log_start_offset, max_size)
            except Damaged as damage:
                raise self._go_offline(segment, damage) from damage
            except OSError as problem:
                raise self._storage_error("read", problem) from problem
            if found is not None:
                return found
        return None

    def max_timestamp(self) -> OffsetAndTime | None:
        """The first record that carries the largest timestamp of the log."""
        self._check_online()
        try:
            return newest(self._segments, self.config.max_decompressed_message_bytes)
        except Damaged as damage:
            raise self._go_offline(self._segments[-1], damage) from damage
        except OSError as problem:
            raise self._storage_error("read", problem) from problem

    # -- removing ------------------------------------------------------------------------------------

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
                self.write_epochs()

    def apply_retention(self, high_watermark: int) -> list[SegmentInfo]:
        """Delete the segments that retention allows; returns them. Files go after file.delete.delay.ms."""
        self._check_online()
        if self.swapping:
            return []
        try:
            now_ms = self._clock.now_ms()
            infos = []
            for segment in self._segments:
                try:
                    timestamp = segment.timestamp_for_retention(now_ms)
                except Damaged as damage:
                    raise self._go_offline(segment, damage) from damage
                infos.append(SegmentInfo(segment.base_offset, segment.size, timestamp))
            count, reason = segments_to_delete(
                infos,
                self.config,
                log_start_offset=self.log_start_offset,
                end_offset=self.end_offset,
                high_watermark=high_watermark,
                now_ms=now_ms,
            )
            if count == 0:
                return []
            with self._lock:
                if count == len(self._segments):
                    self._roll(self.end_offset)
                self._move_start(self._bases[count])
                doomed = self._take_out(0, count)
            self._doom(doomed)
        except OSError as problem:
            raise self._storage_error("delete old segments", problem) from problem
        logger.info(
            "%s: deleted %d segments, offsets %d to %d: %s",
            self.name,
            count,
            infos[0].base_offset,
            self._bases[0] - 1,
            reason,
        )
        return infos[:count]

    def _take_out(self, first: int, last: int) -> list[Segment]:
        """Remove segments from the row; nobody finds them any more."""
        doomed = self._segments[first:last]
        del self._segments[first:last]
        del self._bases[first:last]
        self._size = sum(segment.size for segment in self._segments[:-1])
        return doomed

    def _doom(self, segments: list[Segment]) -> None:
        """Rename the files of segments, so that no start takes them for the log's, and remove them later."""
        due = self._clock.now_ms() + self.config.file_delete_delay_ms
        for segment in segments:
            self._open_segments.forget(segment)
            for suffix in SUFFIXES:
                path = segment.path_of(suffix)
                self._doomed.rename(path, path.with_name(path.name + DELETED_SUFFIX), due)
            self._snapshots.offsets.discard(segment.base_offset)
        self._folder_dirty = True

    def replace_segments(self, replaced: Sequence[int], segment: Segment, truncations: int) -> bool:
        """Put a cleaned segment in the place of those with the base offsets `replaced`.

        False, and no change, when they are not the ones that were there when the log had been cut
        `truncations` times.
        """
        with self._lock:
            first = bisect_left(self._bases, replaced[0])
            last = first + len(replaced)
            if (
                self.failure is not None
                or truncations != self._truncations
                or last >= len(self._bases)
                or self._bases[first:last] != list(replaced)
            ):
                return False
            old = self._segments[first:last]
            self._segments[first:last] = [segment]
            self._bases[first:last] = [segment.base_offset]
            self._size = sum(each.size for each in self._segments[:-1])
        for each in old:
            self._open_segments.forget(each)
            if each.base_offset != segment.base_offset:
                self._snapshots.offsets.discard(each.base_offset)
        return True

    def doom_files(self, names: Sequence[str]) -> None:
        """Rename files of the folder to `.deleted`, to be removed later. OSError when one cannot be."""
        due = self._clock.now_ms() + self.config.file_delete_delay_ms
        for name in names:
            path = self.folder / name
            self._doomed.rename(path, path.with_name(path.name + DELETED_SUFFIX), due, must=True)

    def new_segment(self, base_offset: int, size: int, suffix: str) -> Segment:
        """A closed segment whose files are in the folder already, under names with `suffix`."""
        now_ms = self._clock.now_ms()
        segment = Segment(
            self._disk, self.folder, base_offset, size, self._open_segments, now_ms, suffix=suffix
        )
        segment.sealed = True
        return segment

    def remove_doomed(self, now_ms: int) -> int:
        """Remove the renamed files whose time has come; how many they were."""
        return self._doomed.remove_due(now_ms)

    def truncate_to(self, offset: int) -> bool:
        """Cut the log so that it ends at `offset`, or at the batch that reaches across it; True when it did.

        For a follower whose log parted from its leader's.
        """
        self._check_online()
        if offset >= self.end_offset:
            if self.leader_epochs.truncate_end(self.end_offset):
                self.write_epochs()
            return False
        if offset <= self.log_start_offset:
            self.truncate_fully(offset)
            return True
        slot = bisect_right(self._bases, offset) - 1
        segment = self._segments[slot]
        try:
            place = segment.find(offset)
            position, end_offset = segment.size, offset
            if place is not None:
                position = place.position
                for _, header in walk(segment.file, position, position + place.size):
                    end_offset = min(offset, header.base_offset)
            self._lower_recovery_point(end_offset)
            with self._lock:
                doomed = self._take_out(slot + 1, len(self._segments))
                self._doom(doomed)
                if position < segment.size or doomed:
                    segment.truncate(position)
                self._size = sum(each.size for each in self._segments[:-1])
                self.end_offset = end_offset
                self._truncations += 1
                self._snapshots.remove_after(end_offset)
                restore_producers(
                    self.producers, self._snapshots, self._segments, end_offset, self._clock.now_ms()
                )
        except Damaged as damage:
            raise self._go_offline(segment, damage) from damage
        except OSError as problem:
            raise self._storage_error("truncate", problem) from problem
        if self.leader_epochs.truncate_end(end_offset):
            self.write_epochs()
        return True

    def truncate_fully(self, start_offset: int) -> None:
        """Throw all away and go on, empty, at `start_offset`: the leader's log begins behind our end."""
        self._check_online()
        try:
            self._lower_recovery_point(min(start_offset, self.recovery_point))
            with self._lock:
                self._doom(self._take_out(0, len(self._segments)))
                self._snapshots.remove_after(-1)
                segment = Segment.create(
                    self._disk, self.folder, start_offset, self._open_segments, self._clock.now_ms()
                )
                self._segments.append(segment)
                self._bases.append(start_offset)
                self._size = 0
                self._snapshot_bytes = 0
                self.producers.clear()
                self.log_start_offset = self.end_offset = self.recovery_point = start_offset
                self._truncations += 1
        except OSError as problem:
            raise self._storage_error("truncate", problem) from problem
        self.leader_epochs.clear()
        self.write_epochs()

    def _lower_recovery_point(self, offset: int) -> None:
        """Before anything is cut: a start must never believe that what follows the cut has been synced."""
        if offset < self.recovery_point:
            self.recovery_point = offset
            self._truncations += 1  # a flush under way may not raise it again
            if self.on_lower_recovery_point is not None:
                self.on_lower_recovery_point()

    # -- flush and close -----------------------------------------------------------------------------

    def flush_due(self) -> bool:
        """Whether the topic wants a flush now, by flush.messages or flush.ms."""
        unflushed = self.end_offset - self.recovery_point
        if unflushed <= 0 or self.failure is not None:
            return False
        config = self.config
        if unflushed >= config.flush_messages:
            return True
        return config.flush_ms < FOREVER and self._since_flush_ms() >= config.flush_ms

    def _since_flush_ms(self) -> float:
        return (self._clock.monotonic() - self._last_flush) * 1000

    def flush_worthwhile(self) -> bool:
        """Whether a flush nobody waits for would spare the next recovery a long scan."""
        if self.end_offset == self.recovery_point or self.failure is not None:
            return False
        return self.recovery_point < self._bases[-1] or self.size - self._snapshot_bytes >= _SNAPSHOT_INTERVAL

    def flush(self) -> int:
        """Sync what is in the log now; returns the offset up to which it is safe. Blocks: run it in a thread.

        Every now and then it also brings indexes and a snapshot of the producers to disk: a recovery after a
        crash begins there instead of at the beginning of the segment.
        """
        with self._flushing:
            if self.end_offset > self.recovery_point:
                self._flush(self.size - self._snapshot_bytes >= _SNAPSHOT_INTERVAL, closing=False)
            return self.recovery_point

    def _flush(self, with_state: bool, closing: bool) -> None:
        with self._lock:
            self._check_online()
            end_offset, truncations = self.end_offset, self._truncations
            try:
                files: list[File] = []
                for segment in self._segments[max(bisect_right(self._bases, self.recovery_point) - 1, 0) :]:
                    files += segment.files_to_sync()
                if self._epochs_dirty:
                    self.write_epochs()
                    files.append(self._disk.open(self.folder / LEADER_EPOCHS))
                if self._is_new:
                    files += self._metadata_file()
            except OSError as problem:
                raise self._storage_error("flush", problem) from problem
            if with_state:
                try:
                    files += self._write_state(end_offset, closing)
                except OSError as problem:
                    if closing:
                        raise self._storage_error("close", problem) from problem
                    logger.warning("%s: a recovery will take longer, no snapshot: %s", self.name, problem)
            folder_dirty = self._folder_dirty or self._epochs_dirty or with_state
            is_new, self._is_new = self._is_new, False
            self._folder_dirty = self._epochs_dirty = False
        try:
            for file in files:
                file.sync()
            if folder_dirty:
                self._disk.sync_folder(self.folder)
            if is_new:
                self._disk.sync_folder(self.folder.parent)
        except OSError as problem:
            # What could not be synced may be gone from the page cache as well: only a recovery can tell.
            self.failure = ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.name} is offline: syncing {self.folder} failed ({problem.strerror or problem}), "
                f"so records from offset {self.recovery_point} on may not be on disk. Check the disk, "
                "then restart the broker",
            )
            logger.error(self.failure.message)
            raise self.failure from problem
        with self._lock:
            self._last_flush = self._clock.monotonic()
            if truncations == self._truncations:
                self.recovery_point = max(self.recovery_point, end_offset)

    def _metadata_file(self) -> list[File]:
        try:
            return [self._disk.open(self.folder / PARTITION_METADATA)]
        except FileNotFoundError:
            return []  # a log without a topic id

    def _write_state(self, end_offset: int, closing: bool) -> list[File]:
        """Indexes and producers as they are now, written but not yet synced."""
        files = self._segments[-1].write_indexes(finish=closing)
        files.append(self._snapshots.write(end_offset, self.producers.encode()))
        self._snapshots.note(end_offset, self._bases)
        self._snapshot_bytes = self.size
        return files

    def close(self, clean: bool = True) -> None:
        """Let go of all files. After a clean close the next start finds everything without a scan."""
        if clean and self.failure is None and not self._is_clean():
            with self._flushing:
                self._flush(with_state=True, closing=True)
        for segment in self._segments:
            self._open_segments.forget(segment)
        self.failure = self.failure or ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name} is closed")

    def _is_clean(self) -> bool:
        """Whether the files already say all there is to say."""
        if self.size == 0 and self.end_offset == self.recovery_point:
            return not len(self.producers)
        return (
            self.recovery_point == self.end_offset
            and not self._epochs_dirty
            and self.end_offset in self._snapshots.offsets
        )
