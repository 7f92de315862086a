"""One pass of compaction over a log: from its closed segments to new ones beside them, named `.cleaned`.

The pass has two halves. First the dirty part is read and the latest offset of each of its keys noted, until
the memory for keys is used up; then the log is read from its start to that point and written again without
the records that are not the latest of their keys. What is left over is the next pass's business.

Nothing of the log itself is touched: the job is told which files to read and leaves new ones, synced. It may
therefore run anywhere, in another process for choice, and be abandoned at any moment. `swap` does the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from crc32c import crc32c

from ottla.protocol.batches import (
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    BatchHeader,
)
from ottla.protocol.compression import CompressionError
from ottla.protocol.varints import InvalidRecords
from ottla.storage.cleaning.decisions import CleanableSegment, Written, joins
from ottla.storage.cleaning.key_map import KeyMap
from ottla.storage.cleaning.record_loops import find_survivors, note_keys
from ottla.storage.cleaning.rewrite import open_body, with_horizon, with_survivors, without_records
from ottla.storage.cleaning.rules import (
    TransactionRules,
    Verdict,
    delete_horizon,
    keeps_tombstones,
    must_leave_header,
)
from ottla.storage.cleaning.throttle import Throttle
from ottla.storage.file_names import CLEANED_SUFFIX, LOG_SUFFIX, file_name
from ottla.storage.files import Disk
from ottla.storage.log_config import LogConfig
from ottla.storage.offset_index import ENTRY_SIZE as OFFSET_ENTRY_SIZE
from ottla.storage.open_segments import OpenSegments
from ottla.storage.segment import Segment
from ottla.storage.time_index import ENTRY_SIZE as TIME_ENTRY_SIZE
from ottla.storage.transaction_index import AbortedTransaction
from ottla.storage.validation import StampedBatch

READ_SIZE = 1 << 20
_WRITE_SIZE = 1 << 20
_LONGEST_PART = 1 << 26  # offsets with bits in memory: 16 MiB at most
_LARGEST_FILE = 2**31 - 1


class Uncleanable(Exception):
    """The log holds something that compaction cannot read."""


@dataclass(frozen=True)
class CleaningJob:
    """All that the pass needs to know. Can be sent to another process as text."""

    name: str
    folder: str
    segments: list[CleanableSegment]  # the closed ones, up to the first uncleanable offset
    segments_end: int  # where the last of them ends
    first_dirty: int
    first_uncleanable: int
    now_ms: int
    config: LogConfig
    delete_retention_ms: int
    last_of_producer: dict[int, int]  # the last offset of each producer that is still known
    memory: int
    epoch_of_marker: dict[int, int] = field(default_factory=dict)  # of those of which a marker came last
    aborted: list[AbortedTransaction] = field(default_factory=list)  # transactions with records here
    load_factor: float = 0.9
    bytes_per_second: float = float("inf")

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> CleaningJob:
        values: dict[str, Any] = json.loads(text)
        settings = {each.name: values["config"][each.name] for each in fields(LogConfig) if each.init}
        settings["cleanup_policy"] = tuple(settings["cleanup_policy"])
        values["config"] = LogConfig(**settings)
        values["segments"] = [CleanableSegment(*segment) for segment in values["segments"]]
        for name in ("last_of_producer", "epoch_of_marker"):
            values[name] = {int(key): value for key, value in values[name].items()}
        values["aborted"] = [AbortedTransaction(*each) for each in values["aborted"]]
        return cls(**values)


@dataclass
class CleanedSegment:
    """A new segment and those whose place it takes."""

    base_offset: int
    size: int
    replaces: list[int]
    has_aborted: bool = False  # it has a transaction index


@dataclass
class CleaningResult:
    """What the pass did."""

    cleaned_to: int  # the first offset that is dirty now
    segments: list[CleanedSegment] = field(default_factory=list)
    keys: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> CleaningResult:
        values: dict[str, Any] = json.loads(text)
        values["segments"] = [CleanedSegment(**segment) for segment in values["segments"]]
        return cls(**values)


Progress = Callable[[int, int], None]
"""Bytes read so far, and in all."""

Outcomes = Generator[CleanedSegment | CleaningResult, None, None]
"""Each new segment when it is whole, and the result at the end."""


def run(
    job: CleaningJob,
    disk: Disk,
    *,
    throttle: Throttle | None = None,
    progress: Progress | None = None,
) -> Outcomes:
    """Do the pass as far as the caller goes along: a new segment may be swapped in before the next is begun.

    Uncleanable when a batch cannot be read, OSError when the disk fails.
    """
    yield from _Pass(job, disk, throttle or Throttle(job.bytes_per_second), progress).run()


class _NewSegment:
    """A segment named `.cleaned`, written in large pieces."""

    def __init__(self, job: CleaningJob, disk: Disk, throttle: Throttle, base_offset: int) -> None:
        self._folder = Path(job.folder)
        self._interval = job.config.index_interval
        self._disk = disk
        self._throttle = throttle
        self._segment = Segment.create(
            disk, self._folder, base_offset, OpenSegments(), job.now_ms, suffix=CLEANED_SUFFIX
        )
        self.note_aborted = self._segment.note_aborted
        self._pending = bytearray()
        self._batches: list[StampedBatch] = []
        self._replaces: list[int] = []
        self._modified_ms = 0

    @property
    def size(self) -> int:
        return self._segment.size + len(self._pending)

    @property
    def written(self) -> Written:
        self._write()
        index, time_index = self._segment.index, self._segment.time_index
        return Written(
            self._segment.base_offset,
            self.size,
            len(index) * OFFSET_ENTRY_SIZE,
            (len(time_index) + 1) * TIME_ENTRY_SIZE,
        )

    def add(self, batch: bytes | memoryview) -> int:
        """Add a batch; the number of its records."""
        header = BatchHeader._make(HEADER.unpack_from(batch))
        self._batches.append((len(self._pending), header.base_offset, header))
        self._pending += batch
        if len(self._pending) >= _WRITE_SIZE:
            self._write()
        return header.record_count

    def note_replaced(self, segment: CleanableSegment) -> None:
        """All survivors of an old segment are in this one, which is as old as the youngest of them."""
        self._replaces.append(segment.base_offset)
        path = self._folder / file_name(segment.base_offset, LOG_SUFFIX)
        self._modified_ms = max(self._modified_ms, self._disk.modified_ms(path))

    def _write(self) -> None:
        if self._batches:
            self._throttle.spent(len(self._pending))
            self._segment.append(memoryview(bytes(self._pending)), self._batches, self._interval)
            self._pending.clear()
            self._batches.clear()

    def finish(self) -> CleanedSegment:
        """All of it to the disk."""
        self._write()
        files = [self._segment.file, *self._segment.write_indexes(finish=True)]
        self._disk.set_modified(self._segment.path, self._modified_ms)
        for file in files:
            file.sync()
        segment = self._segment
        return CleanedSegment(segment.base_offset, segment.size, self._replaces, segment.has_aborted)


class _Pass:
    def __init__(
        self,
        job: CleaningJob,
        disk: Disk,
        throttle: Throttle,
        progress: Progress | None,
    ) -> None:
        self._job = job
        self._disk = disk
        self._throttle = throttle
        self._progress = progress
        self._folder = Path(job.folder)
        self._keys = KeyMap(job.memory, job.load_factor, job.first_dirty)
        self._result = CleaningResult(job.first_dirty)
        self._read = 0
        ends = [segment.base_offset for segment in job.segments[1:]] + [job.segments_end]
        self._ends = {segment.base_offset: end for segment, end in zip(job.segments, ends, strict=True)}
        self._dirty = [
            segment for segment, end in zip(job.segments, ends, strict=True) if end > job.first_dirty
        ]
        self._to_read = sum(segment.size for segment in [*job.segments, *self._dirty])

    def run(self) -> Outcomes:
        result, keys = self._result, self._keys
        self._note_keys()
        result.cleaned_to, result.keys = keys.end, keys.size
        wanted = [s for s in self._job.segments if s.base_offset < keys.end]
        self._to_read = self._read + sum(segment.size for segment in wanted)
        rules = TransactionRules(self._job.aborted)
        ends = [segment.base_offset for segment in self._job.segments[1:]] + [self._job.segments_end]
        new: _NewSegment | None = None
        for segment, end in zip(wanted, ends, strict=False):
            if new is not None and not joins(new.written, segment, end, self._job.config):
                result.segments.append(new.finish())
                yield result.segments[-1]
                new = None
            if new is None:
                new = _NewSegment(self._job, self._disk, self._throttle, segment.base_offset)
            self._clean(segment, new, rules)
        if new is not None:
            result.segments.append(new.finish())
            yield result.segments[-1]
        result.bytes_before = sum(segment.size for segment in wanted)
        result.bytes_after = sum(segment.size for segment in result.segments)
        yield result

    # -- the first half: keys ------------------------------------------------------------------------

    def _note_keys(self) -> None:
        keys, rules = self._keys, TransactionRules(self._job.aborted)
        max_size = self._job.config.max_decompressed_message_bytes
        for segment in self._dirty:
            for position, header, batch in self._batches(segment):
                last_offset = header.last_offset
                if last_offset < keys.start:
                    continue
                if header.next_offset > self._job.first_uncleanable:
                    return
                if last_offset - keys.start >= _LONGEST_PART:
                    if keys.end > keys.start:
                        return
                    keys.start = keys.end = header.base_offset  # no record lies before it
                    if header.last_offset_delta >= _LONGEST_PART:
                        raise self._uncleanable(segment, position, "its offsets are too far apart")
                keys.extend(last_offset + 1)
                if rules.judge(header, batch) is Verdict.COMPACT:
                    if header.record_count > keys.free_slots:
                        if keys.size:
                            return
                        raise self._uncleanable(
                            segment,
                            position,
                            f"{header.record_count} records in one batch are more than the {keys.capacity} "
                            "keys that log.cleaner.dedupe.buffer.size can hold",
                        )
                    try:
                        body = open_body(header, batch, max_size)
                        if note_keys(body, header.record_count, header.base_offset, last_offset, keys):
                            keys.note_tombstones(last_offset)
                    except (InvalidRecords, CompressionError) as problem:
                        raise self._unreadable(segment, position, header, problem) from problem
                keys.end = last_offset + 1
        # The round also covers offsets that no record has any more.
        keys.end = max(keys.end, min(self._job.first_uncleanable, self._job.segments_end))
        keys.extend(min(keys.end, keys.start + _LONGEST_PART))

    # -- the second half: records --------------------------------------------------------------------

    def _clean(self, segment: CleanableSegment, new: _NewSegment, rules: TransactionRules) -> None:
        """Write the survivors of a segment to a new one."""
        for position, header, batch in self._batches(segment):
            self._result.records_before += header.record_count
            left = self._survivors(segment, position, header, batch, rules)
            if left is not None:
                self._result.records_after += new.add(left)
                if new.size > _LARGEST_FILE:
                    raise self._uncleanable(segment, position, "the new segment would be larger than 2 GiB")
            if (aborted := rules.take_ended()) is not None:
                new.note_aborted(aborted)
        new.note_replaced(segment)

    def _survivors(
        self,
        segment: CleanableSegment,
        position: int,
        header: BatchHeader,
        batch: memoryview,
        rules: TransactionRules,
    ) -> bytes | memoryview | None:
        """The batch as it will be, None when nothing of it stays."""
        job, keys = self._job, self._keys
        verdict = rules.judge(header, batch)
        if verdict is Verdict.KEEP or header.base_offset >= keys.end:
            return batch
        if verdict is Verdict.EXPIRE and keeps_tombstones(header, job.now_ms):
            if delete_horizon(header) is not None:
                return batch
            body = open_body(header, batch, job.config.max_decompressed_message_bytes)
            return with_horizon(header, body, job.now_ms + job.delete_retention_ms, job.config)
        count = 0
        if verdict is Verdict.COMPACT and header.record_count:
            if header.base_offset >= keys.start:
                last = header.last_offset
                count = keys.count_latest(header.base_offset, last)
                if count == header.record_count and not keys.has_tombstones(last):
                    return batch
                if count == 0:
                    return self._emptied(header)
            try:
                body = open_body(header, batch, job.config.max_decompressed_message_bytes)
                survivors = find_survivors(
                    body,
                    header.record_count,
                    header.base_offset,
                    header.last_offset,
                    keys,
                    keeps_tombstones(header, job.now_ms),
                )
                count = survivors.count
                if count:
                    needs_horizon = survivors.tombstones and delete_horizon(header) is None
                    if count == header.record_count and not needs_horizon:
                        return batch
                    horizon = job.now_ms + job.delete_retention_ms if needs_horizon else None
                    return with_survivors(header, body, survivors, horizon, job.config)
            except (InvalidRecords, CompressionError) as problem:
                raise self._unreadable(segment, position, header, problem) from problem
        return self._emptied(header)

    def _emptied(self, header: BatchHeader) -> bytes | None:
        job = self._job
        if must_leave_header(header, job.last_of_producer, job.epoch_of_marker, self._keys.end):
            return without_records(header)
        return None

    # -- reading -------------------------------------------------------------------------------------

    def _batches(self, segment: CleanableSegment) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        """Position, header and bytes of each batch, checked. The bytes are good until the next one.

        Offsets are checked too, which no CRC covers: a wrong one would have other records taken for older.
        """
        following, end_offset = segment.base_offset, self._ends[segment.base_offset]
        file = self._disk.open(self._folder / file_name(segment.base_offset, LOG_SUFFIX))
        buffer = bytearray(min(READ_SIZE, max(segment.size, HEADER_SIZE)))
        start = filled = position = 0
        while position < segment.size:
            at = position - start
            size = HEADER_SIZE
            if filled - at >= HEADER_SIZE:
                size = int.from_bytes(buffer[at + 8 : at + 12], "big", signed=True) + LENGTH_OVERHEAD
            if filled - at < max(size, HEADER_SIZE):
                if size > segment.size - position:
                    raise self._uncleanable(segment, position, "a batch is longer than its file")
                if size > len(buffer):
                    buffer = bytearray(size)
                wanted = min(len(buffer), segment.size - position)
                with memoryview(buffer)[:wanted] as view:
                    filled = file.read_into(position, view)
                start, at = position, 0
                self._note_read(filled)
                if filled < size:
                    raise self._uncleanable(segment, position, "the file ends within a batch")
                if size == HEADER_SIZE and filled > HEADER_SIZE:
                    continue  # only now is its size known
            header = BatchHeader._make(HEADER.unpack_from(buffer, at))
            size = header.batch_length + LENGTH_OVERHEAD
            if header.magic != MAGIC or size < HEADER_SIZE:
                raise self._uncleanable(segment, position, "there is no batch header")
            first, last = header.base_offset, header.base_offset + header.last_offset_delta
            if first < following or last < first or last >= end_offset:
                reason = f"a batch with offsets {first} to {last} stands between offsets "
                raise self._uncleanable(segment, position, f"{reason}{following} and {end_offset}")
            following = last + 1
            with memoryview(buffer)[at : at + size] as batch:
                if len(batch) < size or crc32c(batch[CRC_START:]) != header.crc:
                    raise self._uncleanable(segment, position, "a batch has a wrong CRC")
                yield position, header, batch
            position += size

    def _note_read(self, size: int) -> None:
        self._throttle.spent(size)
        self._read += size
        if self._progress is not None:
            self._progress(min(self._read, self._to_read), self._to_read)

    def _unreadable(
        self, segment: CleanableSegment, position: int, header: BatchHeader, problem: Exception
    ) -> Uncleanable:
        reason = f"the records of the batch with offset {header.base_offset} cannot be read ({problem})"
        return self._uncleanable(segment, position, reason)

    def _uncleanable(self, segment: CleanableSegment, position: int, reason: str) -> Uncleanable:
        path = self._folder / file_name(segment.base_offset, LOG_SUFFIX)
        return Uncleanable(f"{reason} at byte {position} of {path}")
