"""One partition's log: a row of segments that batches are appended to and slices are read from.

Its caller is the replica of the partition, on the event loop. As a leader it appends what producers send
(`append`), as a follower what the leader sent (`append_replicated`). Consumers and followers read
(`read`), and get a slice of a file, never bytes.

Rules kept here:

* An append is whole or not at all. Checks come first, then one write, then the state (end offset, indexes,
  producers, epochs) is changed. When the write fails the segment is cut back and nothing has changed.
* Offsets have no gaps for a leader: the next batch gets the end offset.
* A write that may take long is done in a thread (`begin_append`, `finish_append`); state changes only here.
* `flush` may run in another thread beside appends. It captures where the log ends, syncs, and only then
  moves the recovery point: what lies before it has reached the disk.
* A log that turns out to be damaged goes offline: `failure` is set and raised by every call.

Two parts of it are objects of their own, which decide nothing about offsets: the segments and their files
(`segment_row`), and what a flush captures and syncs (`flushing`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ottla.clock import Clock
from ottla.metrics import SharedHistogram
from ottla.protocol.batches import CONTROL, HEADER_SIZE, LENGTH_OVERHEAD, read_header
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.storage.cleaning.decisions import CleanableSegment
from ottla.storage.failures import disk_refused, segment_damaged, sync_failed
from ottla.storage.files import Disk
from ottla.storage.flushing import Flushing
from ottla.storage.leader_epochs import LeaderEpochs
from ottla.storage.log_config import FOREVER, LogConfig
from ottla.storage.open_segments import OpenSegments
from ottla.storage.producer_state import BatchRange, ProducerStates
from ottla.storage.results import AppendInfo, FileSlice, OffsetAndTime
from ottla.storage.retention import segments_to_delete
from ottla.storage.rolling import should_roll
from ottla.storage.scan import Damaged
from ottla.storage.segment import Segment, SegmentInfo
from ottla.storage.segment_list import LogFiles
from ottla.storage.segment_row import DamagedSegment, SegmentRow
from ottla.storage.slow_append import SlowAppend
from ottla.storage.slow_writes import SLOW, SLOW_WRITES
from ottla.storage.snapshots import Snapshots
from ottla.storage.time_search import TimeSearch
from ottla.storage.transaction_markers import read_control_record
from ottla.storage.validation import (
    LARGEST_EPOCH,
    StampedBatch,
    Validated,
    check_replicated,
    validate_and_stamp,
)

__all__ = ["AppendInfo", "FileSlice", "Log", "OffsetAndTime"]

logger = logging.getLogger(__name__)


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
        may_have_gaps: bool = False,
        failure: ApiError | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.name = f"{topic}-{partition}"
        self.folder = folder
        self.log_start_offset = log_start_offset
        self.end_offset = end_offset
        self.recovery_point = recovery_point
        self.leader_epochs = leader_epochs
        self.producers = producers
        self.failure = failure
        self.may_have_gaps = may_have_gaps  # offsets may be missing without anything being wrong
        self.write_seconds = 0.0  # how long the last write on the event loop took
        self.truncations = 0  # what was read before the log was cut need not be what is there now
        self.swapping = False  # cleaned segments are taking their places: nothing may be deleted meanwhile
        self.on_lower_recovery_point: Callable[[], None] | None = None  # has it written before a truncation
        self.on_cut: Callable[[int], None] | None = None  # is told of the new end before a truncation
        self.flush_seconds: SharedHistogram | None = None  # takes how long each flush spent on syncing
        is_new = recovery_point == 0
        self._clock = clock
        self._slow: SlowAppend | None = None  # its bytes are being written in a thread
        self._gap_seen = (-1, -1)  # from and to which offset a leader left some out, not yet believed
        self._row = SegmentRow(
            folder, segments, snapshots, disk=disk, clock=clock, open_segments=open_segments
        )
        self._row.folder_dirty = recovery_point < end_offset or is_new
        self._segments = self._row.segments
        self._bases = self._row.bases
        self._lock = threading.Lock()  # between appends and the thread that flushes
        self._flushing = Flushing(
            self.name, folder, self._row, leader_epochs, producers, disk=disk, clock=clock, is_new=is_new
        )
        self.configure(config)

    def __repr__(self) -> str:
        return f"Log({self.name}, {self.log_start_offset}..{self.end_offset})"

    # -- what it is ----------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._row.size

    @property
    def segments(self) -> list[SegmentInfo]:
        return [SegmentInfo(s.base_offset, s.size, s.load_max_timestamp()) for s in self._segments]

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    def cleanable_segments(self, *, in_detail: bool = False) -> list[CleanableSegment]:
        """All segments as compaction sees them. `in_detail` looks at files for what only grouping asks."""
        dated = in_detail or self.config.max_compaction_lag_ms < FOREVER
        with self._guard("read"):
            return self._row.cleanable(dated=dated, in_detail=in_detail)

    def files(self) -> LogFiles:
        """What the log consists of, for the next start to compare with. Only for a log that is closed."""
        return LogFiles(
            self.topic_id,
            self.log_start_offset,
            self.end_offset,
            self._row.has_snapshot_at(self.end_offset) or len(self.producers) > 0,
            self._flushing.has_epochs_file,
            tuple(self.leader_epochs.entries),
            tuple([segment.as_files() for segment in self._segments]),
        )

    def configure(self, config: LogConfig) -> None:
        """Use `config` from the next append on."""
        self.config = config
        self.producers.limit = config.producer_id_max_per_partition
        if config.is_compacted:
            self.may_have_gaps = True
            self._flushing.mark_compacted()

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that wrote nothing for so long; how many they were."""
        with self._lock:  # a flush may be writing them down
            return self.producers.expire(now_ms, expiration_ms)

    def forget_idle_producers(self, keep: int) -> int:
        """Forget the producers that were silent for longest until `keep` are left; how many they were."""
        with self._lock:
            return self.producers.forget_idle(keep)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Up to where a reader of committed data may read."""
        unstable = self.producers.first_unstable_offset(high_watermark)
        return high_watermark if unstable is None else min(unstable, high_watermark)

    def _check_online(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _go_offline(self, failure: ApiError) -> ApiError:
        self.failure = failure
        logger.error(failure.message)
        return failure

    @contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        """Raise as the log's own error what keeps it from doing `what`. (A fast path has its own.)"""
        try:
            yield
        except DamagedSegment as found:
            raise self._go_offline(segment_damaged(self.name, found.path, found.damage)) from found
        except OSError as problem:
            raise disk_refused(self.name, self.folder, what, problem) from problem

    def monotonic(self) -> float:
        """The time on the clock by which `write_seconds` is measured."""
        return self._clock.monotonic()

    # -- append --------------------------------------------------------------------------------------

    def append(
        self,
        records: memoryview,
        leader_epoch: int,
        *,
        from_client: bool = True,
        prepared_under: LogConfig | None = None,
        only_small: bool = False,
    ) -> AppendInfo:
        """Append a producer's batches as leader. `records` must be writable: offsets are stamped in place.

        `from_client=False` is for what the broker itself writes (transaction markers, a coordinator's
        records): control batches are allowed and sequences are not checked. `prepared_under` and `only_small`
        are for batches whose opening takes long, see `validate_and_stamp`.
        """
        if self.failure is not None:
            raise self.failure
        if self._slow is not None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name}: another write is under way")
        config = self.config
        now = self._clock.now_ms()
        with self._lock:
            first_offset = self.end_offset
            data, batches, next_offset = validate_and_stamp(
                records,
                first_offset,
                leader_epoch,
                config,
                now,
                self.name,
                from_client=from_client,
                prepared_under=prepared_under,
                only_small=only_small,
            )
            known = self.producers.check(batches, from_client=from_client)
            if known is not None:
                return self._duplicate(known)
            self._write(data, batches, next_offset, now)
            return self._appended(first_offset, leader_epoch, now, len(data))

    def _appended(self, first_offset: int, leader_epoch: int, now: int, size: int) -> AppendInfo:
        if leader_epoch != self.leader_epochs.latest and leader_epoch >= 0:
            self._note_epoch(leader_epoch, first_offset)
        append_time = now if self.config.is_log_append_time else -1
        return AppendInfo(first_offset, self.end_offset - 1, append_time, self.log_start_offset, False, size)

    def begin_append(
        self, records: memoryview, leader_epoch: int, *, prepared_under: LogConfig | None = None
    ) -> AppendInfo | SlowAppend:
        """The part of `append` before the write, for a disk that is slow. Then `SlowAppend.write` is called,
        in any thread, and `finish_append` or `give_up_append`, here.

        Until then the log is as it was, and nothing else may be appended. It is not rolled, cut or deleted
        from its end meanwhile. AppendInfo when the batch is in the log already.
        """
        self._check_online()
        assert self._slow is None, "one slow append at a time"
        now = self._clock.now_ms()
        with self._lock:
            validated = validate_and_stamp(
                records,
                self.end_offset,
                leader_epoch,
                self.config,
                now,
                self.name,
                prepared_under=prepared_under,
                only_small=True,
            )
            known = self.producers.check(validated.batches, from_client=True)
            if known is not None:
                return self._duplicate(known)
            with self._writing():
                segment = self._segment_for(validated.data, validated.batches, validated.next_offset, now)
                file = segment.file_to_write(len(validated.data), self.config.index_interval)
            self._slow = SlowAppend(validated, leader_epoch, now, segment, file, self._clock)
            return self._slow

    def finish_append(self, slow: SlowAppend) -> AppendInfo:
        """The write has ended. ApiError, and no change, when it failed."""
        assert slow is self._slow, "a slow append is finished once"
        self._slow = None
        self._check_online()
        with self._lock:
            with self._writing():
                if slow.problem is not None:
                    slow.segment.write_failed()
                    raise slow.problem
                data, batches, next_offset = slow.validated
                slow.segment.written(len(data), batches, self.config.index_interval)
            first_offset = self.end_offset
            self._take_over(data, batches, next_offset, slow.now)
            if slow.seconds > SLOW:
                SLOW_WRITES.note(self.name, slow.seconds, len(data), self._clock.monotonic(), in_thread=True)
            if slow.leader_epoch < 0:
                return self._replicated(batches, first_offset, len(data))
            return self._appended(first_offset, slow.leader_epoch, slow.now, len(data))

    def give_up_append(self, slow: SlowAppend) -> None:
        """The write has ended, but the batch is not wanted any more: this replica has another role now."""
        assert slow is self._slow, "a slow append is finished once"
        self._slow = None
        if self.failure is None:
            slow.segment.write_failed()

    # -- append as follower --------------------------------------------------------------------------

    def append_replicated(self, records: memoryview, leader_epoch: int = LARGEST_EPOCH) -> AppendInfo:
        """Append batches as follower: offsets and epochs stand in the bytes, which are written unchanged.

        `leader_epoch` is the one in which their leader leads.
        """
        infos = [self.append_portion(portion) for portion in self.check_replicated(records, leader_epoch)]
        return AppendInfo(
            infos[0].first_offset,
            infos[-1].last_offset,
            -1,
            self.log_start_offset,
            False,
            sum(info.size for info in infos),
        )

    def check_replicated(self, records: memoryview, leader_epoch: int) -> list[Validated]:
        """The batches that a leader sent, in portions to be appended one after the other.

        ApiError when the first one is damaged or does not fit behind the end of the log. The CRC does not
        cover offsets. So where none should be missing, a gap is believed when the leader sends it twice: its
        log may have been compacted earlier.
        """
        self._check_online()
        end = self.end_offset
        gaps = self.may_have_gaps
        if not gaps and len(records) >= HEADER_SIZE and (base := read_header(records).base_offset) > end:
            gaps = self._gap_seen == (end, base)
            self._gap_seen = end, base
        return check_replicated(
            records,
            end,
            self.name,
            epochs=(self.leader_epochs.epoch_for(end - 1), leader_epoch),
            portion_bytes=self.config.segment_bytes,
            gaps=gaps,
        )

    def append_portion(self, portion: Validated) -> AppendInfo:
        """Write one portion of what a leader sent; the log has not changed since it was checked."""
        self._check_online()
        assert self._slow is None, "appends wait for a slow one"
        data, batches, next_offset = portion
        with self._lock:
            end_before = self.end_offset
            self._note_gaps(batches)
            self._write(data, batches, next_offset, self._clock.now_ms(), replicated=True)
            return self._replicated(batches, end_before, len(data))

    def begin_replicated(self, portion: Validated) -> SlowAppend:
        """As `begin_append`, for one portion of what a leader sent."""
        self._check_online()
        assert self._slow is None, "one slow append at a time"
        now = self._clock.now_ms()
        with self._lock:
            self._note_gaps(portion.batches)
            with self._writing():
                segment = self._segment_for(*portion, now, replicated=True)
                file = segment.file_to_write(len(portion.data), self.config.index_interval)
            self._slow = SlowAppend(portion, -1, now, segment, file, self._clock)
            return self._slow

    def _note_gaps(self, batches: list[StampedBatch]) -> None:
        """Before such batches are written: offsets may be missing, since the leader's log was compacted."""
        expected = self.end_offset
        for _, base_offset, header in batches:
            if base_offset > expected:
                self.may_have_gaps = True
                self._flushing.mark_replicated_gaps()
                return
            expected = base_offset + header.last_offset_delta + 1

    def _replicated(self, batches: list[StampedBatch], end_before: int, size: int) -> AppendInfo:
        """Take over the epochs of batches that are in the log now."""
        _, first_offset, first = batches[0]
        if first.leader_epoch < self.leader_epochs.latest and self.leader_epochs.truncate_end(end_before):
            self._flushing.write_epochs()  # without one in which this replica led and wrote nothing
        for _, base_offset, header in batches:
            if header.leader_epoch > self.leader_epochs.latest:
                self._note_epoch(header.leader_epoch, base_offset)
        return AppendInfo(first_offset, self.end_offset - 1, -1, self.log_start_offset, False, size)

    def _duplicate(self, known: BatchRange) -> AppendInfo:
        append_time = known.timestamp if self.config.is_log_append_time else -1
        return AppendInfo(known.first_offset, known.last_offset, append_time, self.log_start_offset, True, 0)

    def _write(
        self,
        data: memoryview,
        batches: list[StampedBatch],
        next_offset: int,
        now: int,
        replicated: bool = False,
    ) -> None:
        """Bytes to the active segment, then all state. ApiError and no change when the disk refuses."""
        try:
            segment = self._segment_for(data, batches, next_offset, now, replicated)
            began = self._clock.monotonic()
            segment.append(data, batches, self.config.index_interval)
            ended = self._clock.monotonic()
            self.write_seconds = ended - began
            if ended - began > SLOW:
                SLOW_WRITES.note(self.name, ended - began, len(data), ended)
        except Damaged as damage:  # met when an index has to be rebuilt
            raise self._go_offline(segment_damaged(self.name, self._segments[-1].path, damage)) from damage
        except DamagedSegment as found:
            raise self._go_offline(segment_damaged(self.name, found.path, found.damage)) from found
        except OSError as problem:
            raise disk_refused(self.name, self.folder, "write", problem) from problem
        self._take_over(data, batches, next_offset, now)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """As in `_write`, where it is written out because it is the fast path."""
        try:
            with self._guard("write"):
                yield
        except Damaged as damage:
            raise self._go_offline(segment_damaged(self.name, self._segments[-1].path, damage)) from damage

    def _segment_for(
        self,
        data: memoryview,
        batches: list[StampedBatch],
        next_offset: int,
        now: int,
        replicated: bool = False,
    ) -> Segment:
        """The active segment, after a roll where these batches need one.

        A follower takes what its leader has, also where segments have become smaller since.
        """
        config = self.config
        size = len(data)
        if size > config.segment_bytes and not replicated:
            raise ApiError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{self.name}: {size} bytes are larger than segment.bytes={config.segment_bytes}",
            )
        segment = self._segments[-1]
        _, first_offset, first = batches[0]
        max_timestamp = first.max_timestamp
        if len(batches) > 1:
            max_timestamp = max(header.max_timestamp for _, _, header in batches)
        if should_roll(segment, config, size, next_offset - 1, max_timestamp, now):
            segment = self._row.roll(first_offset, self.producers)
        return segment

    def _take_over(self, data: memoryview, batches: list[StampedBatch], next_offset: int, now: int) -> None:
        """The batches are written: now they count."""
        producers = self.producers
        for position, base_offset, header in batches:
            if header.producer_id >= 0:
                control = None
                if header.attributes & CONTROL:
                    control = read_control_record(
                        data[position : position + header.batch_length + LENGTH_OVERHEAD]
                    )
                producers.update(header, base_offset, now, control)
        self.end_offset = next_offset

    def _note_epoch(self, epoch: int, start_offset: int) -> None:
        if self.leader_epochs.assign(epoch, start_offset):
            self._flushing.write_epochs()

    def epochs_file_is_missing(self) -> None:
        """There is no epochs' file: the next flush makes it, or a close, if it is of use."""
        self._flushing.epochs_file_is_missing()

    def begin_epoch(self, epoch: int) -> None:
        """This replica became leader with `epoch`: its records begin where the log ends now."""
        self._check_online()
        if self.leader_epochs.assign(epoch, self.end_offset):
            if self.size:
                self._flushing.write_epochs()
            else:
                self._flushing.epochs_changed()  # of no use before there are records

    # -- roll ----------------------------------------------------------------------------------------

    def roll(self) -> None:
        """Seal the active segment and begin a new one at the end of the log."""
        self._check_online()
        if self._segments[-1].size and self._slow is None:
            with self._lock, self._guard("begin a segment"):
                self._row.roll(self.end_offset, self.producers)

    # -- read ----------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, limit_offset: int, at_least_one: bool = True, *, wait: bool = True
    ) -> FileSlice | None:
        """Batches from the one that holds `offset` on, all below `limit_offset`, about `max_bytes` of them.

        The slice begins with the whole first batch, even when that alone is larger than `max_bytes` (without
        `at_least_one` the answer is then None), and may end within a batch. None when there is nothing at or
        after `offset` below the limit. OFFSET_OUT_OF_RANGE outside of the log. NotInMemory when the disk
        would have to be waited for and `wait` is False.
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
        try:
            return self._row.slice(
                offset, max_bytes, limit_offset, end_offset, at_least_one, wait, self.may_have_gaps
            )
        except DamagedSegment as found:
            raise self._go_offline(segment_damaged(self.name, found.path, found.damage)) from found
        except OSError as problem:
            raise disk_refused(self.name, self.folder, "read", problem) from problem

    def offset_for_timestamp(self, timestamp: int) -> OffsetAndTime | None:
        """The first record at or after the log's start whose timestamp is at least `timestamp`. May block
        for long: on the event loop, take `searches_since` and run them one by one."""
        return self._first(self.searches_since(timestamp))

    def max_timestamp(self) -> OffsetAndTime | None:
        """The first record that carries the largest timestamp of the log. May block for long, too."""
        return self._first(self.searches_newest())

    def _first(self, searches: Iterator[TimeSearch | None]) -> OffsetAndTime | None:
        for search in searches:
            found = None if search is None else self.run_search(search)
            if found is not None:
                return found
        return None

    def searches_since(self, timestamp: int) -> Iterator[TimeSearch | None]:
        """Where to look for the first record with at least that timestamp, one place after the other.

        None stands for a place that need not be looked at. Each step takes a moment, on the event loop.
        """
        return self._guarded(self._row.searches_since(timestamp, self.log_start_offset, self.config))

    def searches_newest(self) -> Iterator[TimeSearch | None]:
        """Where to look for the record with the largest timestamp."""
        return self._guarded(self._row.searches_newest(self.config))

    def _guarded(self, searches: Iterator[TimeSearch | None]) -> Iterator[TimeSearch | None]:
        while True:
            self._check_online()
            with self._guard("read"):
                try:
                    search = next(searches)
                except StopIteration:
                    return
            yield search if search is None else search._replace(truncations=self.truncations)

    def run_search(
        self,
        search: TimeSearch,
        *,
        pause: Callable[[], object] | None = None,
        only_small: bool = False,
        is_late: Callable[[], bool] | None = None,
    ) -> OffsetAndTime | None:
        """What is found there, if anything. In any thread; see `TimeSearch.run`."""
        try:
            return search.run(pause=pause, only_small=only_small, is_late=is_late)
        except Damaged as damage:
            if search.truncations != self.truncations:
                raise ApiError(
                    ErrorCode.OFFSET_NOT_AVAILABLE, f"{self.name} was truncated while it was searched"
                ) from damage
            raise self._go_offline(segment_damaged(self.name, search.path, damage)) from damage
        except OSError as problem:
            raise disk_refused(self.name, self.folder, "read", problem) from problem

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

    def new_segment(self, base_offset: int, size: int, suffix: str) -> Segment:
        """A closed segment whose files are in the folder already, under names with `suffix`."""
        return self._row.new_segment(base_offset, size, suffix)

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
            failure = sync_failed(self.name, self.folder, self.end_offset, problem)
            raise self._go_offline(failure) from problem

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

    # -- flush and close -----------------------------------------------------------------------------

    def flush_due(self) -> bool:
        """Whether the topic wants a flush now, by flush.messages or flush.ms."""
        unflushed = self.end_offset - self.recovery_point
        if unflushed <= 0 or self.failure is not None:
            return False
        config = self.config
        if unflushed >= config.flush_messages:
            return True
        return config.flush_ms < FOREVER and self._flushing.since_last_ms() >= config.flush_ms

    def flush_worthwhile(self) -> bool:
        """Whether a flush that no request waits for would spare the next recovery a long scan."""
        if self.end_offset == self.recovery_point or self.failure is not None:
            return False
        return self._flushing.is_worthwhile(self.recovery_point)

    def flush(self) -> int:
        """Sync what is in the log now; returns the offset up to which it is safe. Blocks: for a thread."""
        with self._flushing.one_at_a_time:
            if self.end_offset > self.recovery_point:
                self._flush(with_state=self._flushing.state_is_due())
            return self.recovery_point

    def _flush(self, *, with_state: bool, closing: bool = False) -> None:
        with self._lock, self._guard("flush"):
            self._check_online()
            end_offset, truncations = self.end_offset, self.truncations
            captured = self._flushing.capture(
                self.recovery_point, end_offset, with_state=with_state, closing=closing
            )
        began = self._clock.monotonic()
        try:
            self._flushing.sync(captured)
        except OSError as problem:
            failure = sync_failed(self.name, self.folder, self.recovery_point, problem)
            raise self._go_offline(failure) from problem
        if self.flush_seconds is not None:
            self.flush_seconds.add(self._clock.monotonic() - began)
        with self._lock:
            if truncations == self.truncations:
                self.recovery_point = max(self.recovery_point, end_offset)

    @property
    def is_settled(self) -> bool:
        """Whether a clean close has nothing to write or sync, as of a log that is offline."""
        return self.failure is not None or self._flushing.nothing_to_do(self.recovery_point, self.end_offset)

    def write_all(self) -> None:
        """Write all that a clean close leaves. One sync of the file system follows, for many logs at once."""
        with self._lock:
            self._check_online()
            self._flushing.write_all(self.end_offset)

    def all_is_synced(self) -> None:
        """The whole file system has been synced since `write_all`, and nothing was appended meanwhile."""
        with self._lock:
            self._flushing.all_is_synced()
            self.recovery_point = self.end_offset

    def close(self, clean: bool = True) -> None:
        """Let go of all files. After a clean close the next start finds everything without a scan."""
        if clean and not self.is_settled:
            with self._flushing.one_at_a_time:
                self._flush(with_state=True, closing=True)
        self._row.let_go()
        self.failure = self.failure or ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name} is closed")
