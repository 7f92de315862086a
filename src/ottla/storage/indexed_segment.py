"""A segment as far as it is read: its files, its two sparse indexes, and finding a place by them.

Files are opened when they are needed and may be closed again behind the segment's back (`OpenSegments`),
since a broker has many more segments than descriptors. The indexes of the active segment live in memory and
reach their files when the log is flushed, rolled or closed. The position of the newest batches is also
known exactly (the tail): a read at the end of the log, where most consumers are, causes no read of any file.

An index that is missing or does not fit the batches is rebuilt from them. `Segment` adds what writes.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from ottla.protocol.batches import LENGTH_OVERHEAD
from ottla.storage.file_names import (
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)
from ottla.storage.files import File
from ottla.storage.index_files import build_indexes, last_entry, size_if_there, write_entries
from ottla.storage.offset_index import ENTRY_SIZE as OFFSET_ENTRY_SIZE
from ottla.storage.offset_index import CorruptIndex, OffsetIndex
from ottla.storage.results import NotInMemory
from ottla.storage.scan import LARGEST_OFFSET, MAX_RELATIVE_OFFSET, Damaged, walk
from ottla.storage.segment_list import SegmentFiles
from ottla.storage.stored_segment import StoredSegment
from ottla.storage.time_index import ENTRY_SIZE as TIME_ENTRY_SIZE
from ottla.storage.time_index import TimeIndex, floor_in_file

logger = logging.getLogger(__name__)

_LOOKED_THROUGH = 64 * 1024
"""Bytes read at once where a batch is looked for."""

_WALKED_AT_ONCE = 2048  # batches; more than stand between two entries of an index that is not too sparse
REBUILD_INTERVAL = 4096  # of an index that turns out to be damaged when it is first used


class SegmentInfo(NamedTuple):
    """What others may know of a segment."""

    base_offset: int
    size: int
    max_timestamp: int


class Place(NamedTuple):
    """Where a batch stands in its segment."""

    position: int
    size: int
    gap: bool = False  # no batch holds the offset that was looked for; this is the next one


class IndexedSegment(StoredSegment):
    """A segment that can be searched by offset and by time."""

    __slots__ = ()

    # -- indexes -------------------------------------------------------------------------------------

    @property
    def index(self) -> OffsetIndex:
        """The offset index, read from its file when not in memory, rebuilt when the file is damaged."""
        index = self._index  # another thread that opens files may evict it at any moment
        return self._load_index() if index is None else index

    def _load_index(self) -> OffsetIndex:
        _ = self.file  # so that one eviction lets go of both
        try:
            index = OffsetIndex.decode(self._disk.read(self.path_of(INDEX_SUFFIX)), self.size)
        except (FileNotFoundError, CorruptIndex) as problem:
            logger.warning("%s: rebuilding the index: %s", self.path, problem)
            index, _ = self.rebuild_indexes(REBUILD_INTERVAL)
        self._index = index
        if index.positions:
            self._since_index = self.size - index.positions[-1]
        self._open_segments.index_loaded(self)
        return index

    @property
    def time_index(self) -> TimeIndex:
        """The time index; that of a sealed segment is read for each use, which is rare."""
        time_index = self._time_index
        if time_index is not None:
            return time_index
        try:
            time_index = TimeIndex.decode(self._disk.read(self.path_of(TIME_INDEX_SUFFIX)))
        except (FileNotFoundError, CorruptIndex) as problem:
            logger.warning("%s: rebuilding the time index: %s", self.path, problem)
            _, time_index = self.rebuild_indexes(REBUILD_INTERVAL)
        self._time_index = None if self.sealed else time_index
        return time_index

    def time_floor(self, timestamp: int) -> int:
        """An offset such that every batch that ends before it has only smaller timestamps."""
        time_index = self._time_index
        if time_index is not None:
            return self.base_offset + time_index.floor(timestamp)
        try:
            file = self._disk.open(self.path_of(TIME_INDEX_SUFFIX))
            offset = self.base_offset + floor_in_file(file, timestamp)
            if offset > self.base_offset and not -1 <= self._time_at(offset) <= timestamp:
                raise CorruptIndex(f"the batch that ends with offset {offset} is younger than it says")
            return offset
        except (FileNotFoundError, CorruptIndex) as problem:
            logger.warning("%s: rebuilding the time index: %s", self.path, problem)
            _, time_index = self.rebuild_indexes(REBUILD_INTERVAL)
            return self.base_offset + time_index.floor(timestamp)

    def _time_at(self, offset: int) -> int:
        """The largest timestamp of the batch that ends with `offset`. CorruptIndex when none does."""
        place = self.find(offset)
        if place is not None:
            _, header = next(walk(self.file, place.position, self.size, self.base_offset))
            if header.last_offset == offset:
                return header.max_timestamp
        raise CorruptIndex(f"no batch ends with offset {offset}")

    def start_empty_indexes(self) -> None:
        self._index, self._time_index = OffsetIndex(), TimeIndex()
        self._since_index = 0

    def load_indexes(self) -> bool:
        """Read the indexes from their files; False when one is missing or damaged."""
        try:
            index = OffsetIndex.decode(self._disk.read(self.path_of(INDEX_SUFFIX)), self.size)
            time_index = TimeIndex.decode(self._disk.read(self.path_of(TIME_INDEX_SUFFIX)))
            self.load_transactions()
        except (FileNotFoundError, CorruptIndex):
            return False
        self._index, self._time_index = index, time_index
        return True

    def last_indexed_position(self) -> int:
        """Where the last batch in the index begins; reads only the end of the file. CorruptIndex if so."""
        if self._index is not None:
            return self._index.positions[-1] if self._index.positions else 0
        tail = last_entry(self._disk, self.path_of(INDEX_SUFFIX), OFFSET_ENTRY_SIZE)
        if not tail:
            return 0
        return OffsetIndex.decode(tail, self.size).positions[0]

    def rebuild_indexes(self, interval: int) -> tuple[OffsetIndex, TimeIndex]:
        """Both indexes, in memory and on disk, from the batches in the file. Damaged when the file is."""
        built = build_indexes(self.file, self.size, self.base_offset, interval)
        index, time_index = built.offset_index, built.time_index
        self._index, self._time_index = index, time_index
        self.max_timestamp, self.max_timestamp_offset = built.max_timestamp, built.max_timestamp_offset
        self._since_index = built.since_index
        self.write_indexes(finish=self.sealed, spare=True)
        if self.sealed:
            self._time_index = None
        return index, time_index

    def load_max_timestamp(self) -> int:
        """The largest timestamp of the segment, -1 when no record has one."""
        if self.max_timestamp is None:
            if self._time_index is not None:
                last = self._time_index.last
            else:
                try:
                    entry = last_entry(self._disk, self.path_of(TIME_INDEX_SUFFIX), TIME_ENTRY_SIZE)
                    last = TimeIndex.decode(entry).last
                except CorruptIndex:
                    self.rebuild_indexes(REBUILD_INTERVAL)
                    assert self.max_timestamp is not None
                    return self.max_timestamp
            timestamp, offset = last if last else (-1, 0)
            self.max_timestamp, self.max_timestamp_offset = timestamp, self.base_offset + offset
            if last and self.size:
                self._check_max_timestamp()
        return self.max_timestamp

    def _check_max_timestamp(self) -> None:
        """Retention goes by it, so what the time index says must be what the batch says."""
        try:
            if self._time_at(self.max_timestamp_offset) == self.max_timestamp:
                return
            problem = f"offset {self.max_timestamp_offset} does not have the time {self.max_timestamp}"
        except CorruptIndex as wrong:
            problem = str(wrong)
        logger.warning("%s: rebuilding the time index: %s", self.path, problem)
        self.rebuild_indexes(REBUILD_INTERVAL)

    def load_first_timestamp(self) -> int:
        """The largest timestamp of the first batch, -1 when there is none."""
        if self.first_timestamp is None:
            if self.size == 0:
                return -1
            _, header = next(walk(self.file, 0, self.size, self.base_offset))
            self.first_timestamp = header.max_timestamp
        return self.first_timestamp

    def timestamp_for_retention(self, now_ms: int) -> int:
        """The time of the newest record, if one can believe it.

        When no record has a time, or one lies in the future, it is the time of the last write: otherwise a
        wrong clock somewhere would have the segment deleted at once, or kept for ever.
        """
        newest = self.load_max_timestamp()
        return newest if 0 <= newest <= now_ms else self._disk.modified_ms(self.path)

    # -- the files of the indexes --------------------------------------------------------------------

    def index_file_sizes(self) -> tuple[int, int]:
        """Bytes of the files of both indexes; 0 for one that is missing, which is rebuilt on use."""
        index, time_index = self.path_of(INDEX_SUFFIX), self.path_of(TIME_INDEX_SUFFIX)
        return size_if_there(self._disk, index) or 0, size_if_there(self._disk, time_index) or 0

    def as_files(self) -> SegmentFiles:
        """What the next start finds of the segment. Only for one that is closed."""
        return SegmentFiles(
            self.base_offset,
            self.size,
            *self.index_file_sizes(),
            self.max_timestamp,
            self.max_timestamp_offset,
            size_if_there(self._disk, self.path_of(TRANSACTION_INDEX_SUFFIX)) or 0
            if self._transactions_on_disk
            else 0,
        )

    def _finish_time_index(self) -> None:
        timestamp = self.load_max_timestamp()
        self.time_index.add(timestamp, self.max_timestamp_offset - self.base_offset)

    def write_indexes(self, *, finish: bool = False, spare: bool = False) -> list[File]:
        """Bring the index files up to date; returns the files written, for syncing.

        Entries are written at the place where they belong, so writing them twice does no harm. With `finish`
        the time index also gets the largest timestamp so far, as the last entry of a closed file must be.
        With `spare` no files are made for a segment that `has_no_index_entries`.
        """
        written = self._write_transactions()
        if (
            spare
            and self.has_no_index_entries()
            and size_if_there(self._disk, self.path_of(INDEX_SUFFIX)) is None
        ):
            self._finished_size = self.size if finish else -1
            return written
        if finish:
            self._finish_time_index()
        index, time_index = self._index, self._time_index
        if index is not None:
            written.append(write_entries(self._disk, self.path_of(INDEX_SUFFIX), index, OFFSET_ENTRY_SIZE))
            if self._file is not None:
                self._open_segments.index_loaded(self)
        if time_index is not None:
            path = self.path_of(TIME_INDEX_SUFFIX)
            written.append(write_entries(self._disk, path, time_index, TIME_ENTRY_SIZE))
        self._finished_size = self.size if finish else -1
        return written

    def has_no_index_entries(self) -> bool:
        """Whether the active segment is so short that its offset index is empty.

        A start finds out all that its indexes say from the few batch headers it reads anyway. With thousands
        of partitions, to make files for them would be most of the work of a stop.
        """
        return not self.sealed and self._index is not None and not len(self._index)

    @property
    def indexes_are_finished(self) -> bool:
        """Whether the files of the indexes hold all they have to hold when the log is closed."""
        return self._finished_size == self.size

    def found_finished(self) -> None:
        """The index files are those of a clean stop."""
        self._finished_size = self.size

    # -- finding -------------------------------------------------------------------------------------

    def find(self, offset: int, end_offset: int = LARGEST_OFFSET, *, wait: bool = True) -> Place | None:
        """The first batch that ends at or behind `offset`, None when there is none. Damaged on nonsense.

        All offsets of the segment are below `end_offset`. With `wait` False NotInMemory is raised when the
        disk would have to be waited for, or when the index is so sparse that there is a long way to walk:
        then a part of it is done, and the next call goes on from there.
        """
        tail_last, tail_positions = self._tail_last, self._tail_positions
        if tail_last is not None and tail_positions is not None and offset >= self._tail_start:
            slot = bisect_left(tail_last, offset)
            if slot == len(tail_last):
                return None
            position = tail_positions[slot]
            following = tail_positions[slot + 1] if slot + 1 < len(tail_positions) else self.size
            return Place(position, following - position)
        if not wait:
            self._check_in_memory(offset)
        try:
            return self._search(offset, end_offset, wait)
        except (Damaged, CorruptIndex) as problem:
            self._distrust_index(problem)
        try:
            return self._search(offset, end_offset, wait)
        except CorruptIndex as problem:
            raise Damaged(0, str(problem)) from problem

    def _check_in_memory(self, offset: int) -> None:
        """NotInMemory when `_search` would wait for the disk, as far as can be told cheaply."""
        look = bytearray(1)
        if self._index is None:
            try:
                file = self._disk.open(self.path_of(INDEX_SUFFIX))
            except FileNotFoundError:
                return  # it is rebuilt
            size = file.size
            if size and not (file.read_cached(0, look) and file.read_cached(size - 1, look)):
                raise NotInMemory(file, 0, size)
        index = self.index
        slot = bisect_right(index.offsets, offset - self.base_offset)
        start = index.positions[slot - 1] if slot else 0
        if start < self.size and not self.file.read_cached(start, look):
            raise NotInMemory(self.file, start, min(_LOOKED_THROUGH, self.size - start))

    def _search(self, offset: int, end_offset: int, wait: bool) -> Place | None:
        """`find` by the index. CorruptIndex when the entry used does not fit the log."""
        base, index = self.base_offset, self.index
        slot = bisect_right(index.offsets, offset - base)
        start = index.positions[slot - 1] if slot else 0
        highest = min(end_offset - 1, base + MAX_RELATIVE_OFFSET)
        batches = walk(self.file, start, self.size, base, highest)
        for walked, (position, header) in enumerate(batches):
            last = header.base_offset + header.last_offset_delta
            if slot and position == start and last - base != index.offsets[slot - 1]:
                raise CorruptIndex(f"the batch at byte {position} does not end where the index says")
            if last >= offset:
                gap = header.base_offset > offset
                if gap:
                    next(batches, None)  # a base offset that is wrong shows at the batch behind it
                return Place(position, header.batch_length + LENGTH_OVERHEAD, gap)
            if walked == _WALKED_AT_ONCE and not wait:
                self._refine_index(index, last, position)
                length = min(_LOOKED_THROUGH, self.size - position)
                raise NotInMemory(self.file, position, length, gets_on=True)
        return None

    def _refine_index(self, index: OffsetIndex, last_offset: int, position: int) -> None:
        """Add an entry to an index that is too sparse: an earlier release wrote it, or Kafka, for a topic
        with a very large index.interval.bytes. On the event loop only, as appends are. The index of a sealed
        segment is not written again, and may be forgotten."""
        refined = index.with_entry(last_offset - self.base_offset, position)
        refined.refined = self.sealed and (index.refined or index.written == len(index))
        self._index = refined
        self._open_segments.index_loaded(self)

    def position_before(self, offset: int) -> int:
        """Where a batch begins that holds `offset` or lies before it, by the index. Damaged on nonsense."""
        base, index = self.base_offset, self.index
        slot = bisect_right(index.offsets, offset - base)
        if not slot:
            return 0
        position = index.positions[slot - 1]
        try:
            _, header = next(walk(self.file, position, self.size, base))
            if header.last_offset - base == index.offsets[slot - 1]:
                return position
            problem = "a batch does not end where the index says"
        except Damaged as damage:
            problem = damage.reason
        self._distrust_index(CorruptIndex(f"{problem} at byte {position}"))
        return self.index.floor(offset - base)

    def check_batch_at(self, position: int) -> None:
        """Damaged when no batch begins at `position`, which is not the end of the segment."""
        if position != self.size:
            next(walk(self.file, position, self.size, self.base_offset))

    def _distrust_index(self, problem: Exception) -> None:
        """The indexes or the log are wrong: rebuild the indexes. Damaged when it is the log."""
        logger.warning("%s: rebuilding the index: %s", self.path_of(INDEX_SUFFIX), problem)
        self.rebuild_indexes(REBUILD_INTERVAL)
