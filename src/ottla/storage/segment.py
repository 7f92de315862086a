"""One segment of a log: a file of batches, and two sparse indexes that find a place in it.

A log is a row of segments. The last one, the active one, is appended to; the others are sealed and only
read, until retention deletes them whole. The name of a segment is its base offset in twenty digits.

How it is read is in `indexed_segment`; here is how it is made, written to, sealed and cut.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from pathlib import Path

from ottla.protocol.batches import LENGTH_OVERHEAD
from ottla.storage.files import Disk, File
from ottla.storage.indexed_segment import IndexedSegment
from ottla.storage.log_config import LogConfig
from ottla.storage.offset_index import ENTRY_SIZE as OFFSET_ENTRY_SIZE
from ottla.storage.offset_index import OffsetIndex
from ottla.storage.open_segments import OpenSegments
from ottla.storage.scan import walk
from ottla.storage.segment_list import SegmentFiles
from ottla.storage.time_index import ENTRY_SIZE as TIME_ENTRY_SIZE
from ottla.storage.transaction_index import AbortedTransaction
from ottla.storage.validation import StampedBatch

logger = logging.getLogger(__name__)

_TAIL_LONGEST = 128  # batches whose position is kept in memory; two numbers each, on every partition in use
_TAIL_SHORTEST = 64
_RESERVES_FROM = 16 * 1024 * 1024  # a segment of this size goes on growing, and has space reserved for it
_RESERVED_AHEAD = 4 * 1024 * 1024


class Segment(IndexedSegment):
    """A segment with its files. `size` is where the next batch goes; nothing is read behind it."""

    __slots__ = ()

    @classmethod
    def create(
        cls,
        disk: Disk,
        folder: Path,
        base_offset: int,
        open_segments: OpenSegments,
        now_ms: int,
        suffix: str = "",
    ) -> Segment:
        """A new, empty segment. Its index files come with the first entries that are written to them: with
        thousands of partitions, making files is the most expensive work of a disk."""
        segment = cls(disk, folder, base_offset, 0, open_segments, now_ms, suffix)
        disk.open(segment.path, create=True).truncate(0)
        segment.start_empty_indexes()
        segment.max_timestamp = -1
        return segment

    @classmethod
    def as_closed(
        cls,
        disk: Disk,
        folder: Path,
        files: SegmentFiles,
        open_segments: OpenSegments,
        now_ms: int,
        *,
        sealed: bool,
    ) -> Segment:
        """A segment whose files are as a clean stop left them. Nothing is read."""
        segment = cls(disk, folder, files.base_offset, files.size, open_segments, now_ms)
        segment.sealed = sealed
        segment.max_timestamp = files.max_timestamp
        segment.max_timestamp_offset = files.max_timestamp_offset
        segment.found_transactions(files.transaction_index_size > 0)
        if not sealed:
            segment._finished_size = files.size
            if not files.index_size and not files.time_index_size:
                segment.start_empty_indexes()
                segment._since_index = files.size
        return segment

    # -- writing -------------------------------------------------------------------------------------

    def note_batch(self, position: int, last_offset: int, timestamp: int, size: int, interval: int) -> None:
        """Bring indexes and largest timestamp up to date with a batch at the end of the segment."""
        if self.max_timestamp is None:
            self.load_max_timestamp()
        assert self.max_timestamp is not None
        if timestamp > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = timestamp, last_offset
        if self._since_index > interval:
            self.index.add(last_offset - self.base_offset, position)
            self.time_index.add(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
            self._since_index = 0
        self._since_index += size

    def keep_indexes_to(self, position: int, offset: int) -> None:
        """Forget what the indexes say about batches from `position`, where `offset` begins, on."""
        index, time_index = self.index, self.time_index
        index.truncate(position)
        time_index.truncate(offset - self.base_offset)
        self._keep_transactions_to(offset)
        self._time_index = time_index
        self._since_index = position - (index.positions[-1] if index.positions else 0)
        self.max_timestamp = None
        self.load_max_timestamp()
        start = index.floor(self.max_timestamp_offset - self.base_offset)
        for _, header in walk(self.file, start, position, self.base_offset):
            if header.max_timestamp > (self.max_timestamp or -1):
                self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, header.last_offset

    def seal(self) -> None:
        """The segment will not be written to any more."""
        self.write_indexes(finish=True)
        self.give_back_space()
        self.sealed = True
        self._time_index = None
        self._tail_last = self._tail_positions = None
        if self._file is None:
            self._index = None
            self._transactions = None

    def indexes_are_full(self, config: LogConfig) -> bool:
        """Whether another entry would make one of the indexes larger than the topic allows."""
        index, time_index = self._index, self._time_index
        return (index is not None and (len(index) + 1) * OFFSET_ENTRY_SIZE > config.segment_index_bytes) or (
            time_index is not None and (len(time_index) + 2) * TIME_ENTRY_SIZE > config.segment_index_bytes
        )

    def append(self, data: memoryview, batches: list[StampedBatch], interval: int) -> None:
        """Write the bytes of whole batches in one go. On OSError the segment is as it was before."""
        file = self.file_to_write(len(data), interval)
        try:
            file.write_at(self.size, data)
        except OSError:
            self.write_failed()
            raise
        self.written(len(data), batches, interval)

    def file_to_write(self, size: int, interval: int) -> File:
        """The file, ready for so many bytes at `size`. `written` or `write_failed` has to follow."""
        file = self._file
        if file is None:
            file = self.file
        self._load_indexes_if_due(size, interval)
        end = self.size + size
        if self.size >= _RESERVES_FROM and end > self._reserved:
            self._reserve(file, end + _RESERVED_AHEAD)
        return file

    def _load_indexes_if_due(self, size: int, interval: int) -> None:
        """An index that cannot be read is rebuilt, from the batches before those that are written now."""
        if (self._index is None or self._time_index is None) and self._since_index + size > interval:
            _ = self.index, self.time_index

    def write_failed(self) -> None:
        """A write behind the end failed, or is not wanted any more."""
        self._remains = True
        self.cut_remains()

    def written(self, size: int, batches: list[StampedBatch], interval: int) -> None:
        """These batches have been written behind the end: they belong to the segment now."""
        start = self.size
        if self._index is None or self._time_index is None:
            self._load_indexes_if_due(size, interval)  # closed since `file_to_write`
        self.in_use = True
        tail_last, tail_positions = self._tail_last, self._tail_positions
        if tail_last is None or tail_positions is None:
            tail_last = self._tail_last = array("q")
            tail_positions = self._tail_positions = array("q")
            _, self._tail_start, _ = batches[0]
        for position, base_offset, header in batches:
            last_offset = base_offset + header.last_offset_delta
            position += start
            batch_size = header.batch_length + LENGTH_OVERHEAD
            self.note_batch(position, last_offset, header.max_timestamp, batch_size, interval)
            tail_last.append(last_offset)
            tail_positions.append(position)
        if start == 0:
            _, _, first = batches[0]
            self.first_timestamp = first.max_timestamp
        self.size = start + size
        if len(tail_last) > _TAIL_LONGEST:
            surplus = len(tail_last) - _TAIL_SHORTEST
            self._tail_start = tail_last[surplus - 1] + 1
            del tail_last[:surplus]
            del tail_positions[:surplus]
        if self._remains:
            self.cut_remains()

    def note_aborted(self, entry: AbortedTransaction) -> None:
        """A marker at the end of the segment aborted a transaction."""
        transactions = self._transactions
        if transactions is None:
            transactions = self._transactions = self.load_transactions()
        transactions.add(entry)

    def _keep_transactions_to(self, offset: int) -> None:
        if self._transactions_on_disk or self._transactions is not None:
            transactions = self._transactions = self.load_transactions()
            transactions.truncate(offset)

    def _reserve(self, file: File, end: int) -> None:
        """Reserve space on the disk: a file system finds it for many blocks at once much more cheaply than
        for each block that is written, which is a quarter of what a write costs on ext4."""
        try:
            file.reserve(self.size, end - self.size)
        except OSError as problem:
            logger.debug("no space reserved for %s: %s", self.path, problem)
            self.cut_remains()  # a disk that runs full may have reserved a part of it, which others need
        self._reserved = end  # also when it failed: tried once for each step, and a write tells what is wrong

    def cut_remains(self) -> None:
        """Cut off what a failed write left, and reserved space. When the disk refuses that too, the next
        append tries again: until then the bytes lie behind the end of the log, where nothing is read, and are
        overwritten."""
        try:
            self.file.truncate(self.size)
        except OSError:
            return
        self._remains = False
        self._reserved = 0

    def give_back_space(self) -> None:
        """Nothing more is going to be written: what was reserved for it is free for others."""
        if self._reserved:
            self.cut_remains()

    def truncate(self, position: int) -> None:
        """Cut the segment at a batch that begins at `position`; the segment is active afterwards."""
        index = self.index
        time_index = self.time_index
        self.sealed = index.refined = False
        self._time_index = time_index
        end_offset = self.base_offset
        for _, header in walk(self.file, _floor_position(index, position), position):
            end_offset = header.next_offset
        self.file.truncate(position)
        self.size = position
        self._reserved = 0
        self._tail_last = self._tail_positions = None
        self.keep_indexes_to(position, end_offset)
        self.write_indexes()


def _floor_position(index: OffsetIndex, position: int) -> int:
    """Where the last batch in the index begins that begins before `position`."""
    slot = bisect_left(index.positions, position)
    return index.positions[slot - 1] if slot else 0
