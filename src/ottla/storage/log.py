"""One partition's log: a row of segments that batches are appended to and slices are read from.

Its caller is the replica of the partition, on the event loop. As a leader it appends what producers send
(`append`), as a follower what the leader sent (`append_replicated`). Appending is here; the rest of a log is
in `log_state` (what it is made of), `log_reading`, `log_removing` and `log_flushing`.

Rules kept here:

* An append is whole or not at all. Checks come first, then one write, then the state (end offset, indexes,
  producers, epochs) is changed. When the write fails the segment is cut back and nothing has changed.
* Offsets have no gaps for a leader: the next batch gets the end offset.
* A write that may take long is done in a thread (`begin_append`, `finish_append`); state changes only here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ottla.protocol.batches import CONTROL, HEADER_SIZE, LENGTH_OVERHEAD, read_header
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.storage.damaged_segment import DamagedSegment
from ottla.storage.failures import segment_damaged
from ottla.storage.log_config import LogConfig
from ottla.storage.log_flushing import LogFlushing
from ottla.storage.log_reading import LogReading
from ottla.storage.log_removing import LogRemoving
from ottla.storage.producer_snapshot import BatchRange
from ottla.storage.results import AppendInfo, FileSlice, OffsetAndTime
from ottla.storage.rolling import should_roll
from ottla.storage.scan import Damaged
from ottla.storage.segment import Segment
from ottla.storage.slow_append import SlowAppend
from ottla.storage.slow_writes import SLOW, SLOW_WRITES
from ottla.storage.transaction_markers import encode_marker, read_control_record
from ottla.storage.validation import (
    LARGEST_EPOCH,
    StampedBatch,
    Validated,
    check_replicated,
    validate_and_stamp,
)
from ottla.storage.verification import UNCHECKED, VerificationGuard

__all__ = ["AppendInfo", "FileSlice", "Log", "OffsetAndTime"]


class Log(LogReading, LogRemoving, LogFlushing):
    """Made by `LogDirectory`, which opens, recovers and closes the logs of a data folder."""

    # -- append --------------------------------------------------------------------------------------

    def append(
        self,
        records: memoryview,
        leader_epoch: int,
        *,
        from_client: bool = True,
        prepared_under: LogConfig | None = None,
        only_small: bool = False,
        verification: VerificationGuard | None = UNCHECKED,
    ) -> AppendInfo:
        """Append a producer's batches as leader. `records` must be writable: offsets are stamped in place.

        `from_client=False` is for what the broker itself writes (transaction markers, a coordinator's
        records): control batches are allowed and sequences are not checked. `prepared_under` and `only_small`
        are for batches whose opening takes long, see `validate_and_stamp`; `verification` is for the batches
        of transactions, see `ProducerStates.check`.
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
            known = self.producers.check(batches, from_client=from_client, verification=verification)
            if known is not None:
                return self._duplicate(known)
            self._write(data, batches, next_offset, now)
            return self._appended(first_offset, leader_epoch, now, len(data))

    def _appended(self, first_offset: int, leader_epoch: int, now: int, size: int) -> AppendInfo:
        if leader_epoch != self.leader_epochs.latest and leader_epoch >= 0:
            self._note_epoch(leader_epoch, first_offset)
        append_time = now if self.config.is_log_append_time else -1
        return AppendInfo(first_offset, self.end_offset - 1, append_time, self.log_start_offset, False, size)

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        leader_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int = 0,
    ) -> AppendInfo:
        """Append the marker that ends a producer's transaction, also where none is open. ApiError when it
        comes late, or from a coordinator that was replaced."""
        self._check_online()
        self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch, transaction_version)
        marker = encode_marker(
            producer_id,
            producer_epoch,
            commit=commit,
            coordinator_epoch=coordinator_epoch,
            timestamp=self._clock.now_ms(),
        )
        return self.append(memoryview(marker), leader_epoch, from_client=False)

    def begin_append(
        self,
        records: memoryview,
        leader_epoch: int,
        *,
        prepared_under: LogConfig | None = None,
        verification: VerificationGuard | None = UNCHECKED,
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
            known = self.producers.check(validated.batches, from_client=True, verification=verification)
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
            raise self._refused("write", problem) from problem
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
        max_timestamp, attributes = first.max_timestamp, first.attributes
        if len(batches) > 1:
            max_timestamp = max(header.max_timestamp for _, _, header in batches)
            for _, _, header in batches:
                attributes |= header.attributes
        if should_roll(segment, config, size, next_offset - 1, max_timestamp, now):
            segment = self._row.roll(first_offset, self.producers)
        if attributes & CONTROL:
            self._row.aborted.prepare()
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
                ended = producers.update(header, base_offset, now, control)
                if ended is not None and ended.is_aborted:
                    self._row.aborted.note(ended.as_aborted)
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
