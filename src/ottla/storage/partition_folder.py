"""The files in a partition's folder, as a start finds them: segments, snapshots, and what does not belong.

Before a log is recovered, its folder is put in order: a swap of cleaned segments that was interrupted is
finished, leftovers of deletions and writes are removed, and what is there is compared with what must be
there: the list of a clean stop (`segment_list`), or at least the first segment. `Offline` when something is
missing that no crash explains.
"""

from __future__ import annotations

from pathlib import Path

from ottla.storage.checkpoints import COMPACTED, LOG_STARTS, REPLICATED_GAPS
from ottla.storage.cleaning.swap import finish_swaps
from ottla.storage.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_name,
)
from ottla.storage.files import TEMPORARY_SUFFIX, Disk
from ottla.storage.loaded import REMEDY, Offline, offline_at, offline_in
from ottla.storage.log_config import LogConfig
from ottla.storage.offset_index import CorruptIndex
from ottla.storage.open_segments import OpenSegments
from ottla.storage.recovery_report import RecoveryReport
from ottla.storage.scan import MAX_RELATIVE_OFFSET, Damaged, walk
from ottla.storage.segment import Segment
from ottla.storage.segment_list import LogFiles
from ottla.storage.snapshots import Snapshots

_INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
_STRAY_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, TEMPORARY_SUFFIX)


class PartitionFolder:
    """`open` puts the folder in order and fills `segments` and `snapshots`."""

    def __init__(
        self,
        folder: Path,
        config: LogConfig,
        report: RecoveryReport,
        *,
        disk: Disk,
        open_segments: OpenSegments,
        now_ms: int,
        power_lost: bool,
        recovery_point: int,
        log_start_offset: int | None,
        closed_as: LogFiles | None,
    ) -> None:
        self.segments: list[Segment] = []
        self.snapshots = Snapshots(disk, folder)
        self.deleted_files: list[Path] = []  # to be removed when the start of the log has been written down
        self.may_have_gaps = False  # marked as compacted
        self.has_replicated_gaps = False
        self.without_transactions: list[Segment] = []  # their transaction indexes have to be rebuilt
        self._folder = folder
        self._config = config
        self._report = report
        self._disk = disk
        self._open_segments = open_segments
        self._now = now_ms
        self._power_lost = power_lost
        self._recovery_point = recovery_point
        self._known_start = log_start_offset
        self._closed_as = closed_as
        self._names: set[str] = set()
        self._torn_at_start = False

    def create_segment(self, base_offset: int) -> Segment:
        """A new, empty segment in this folder."""
        return Segment.create(self._disk, self._folder, base_offset, self._open_segments, self._now)

    def open(self) -> None:
        """Segments and snapshots that are there; what an interrupted deletion or write left is removed."""
        names = self._names = set(self._disk.list(self._folder))
        try:
            finished = finish_swaps(self._disk, self._folder, names)
        except Damaged as damage:
            raise offline_in(self._folder, damage) from damage
        if finished:
            names = self._names = set(self._disk.list(self._folder))
            self._report.removed_files += finished
        bases = sorted(_offset_of(name) for name in names if name.endswith(LOG_SUFFIX) and _is_offset(name))
        if self._closed_as is None:
            self._check_first(bases)
        for name in [each for each in names if each.endswith(_STRAY_SUFFIXES)]:
            if name.endswith(DELETED_SUFFIX) and self._known_start is not None:
                self.deleted_files.append(self._folder / name)
            else:
                self._remove(name)
        if COMPACTED in names:
            self.may_have_gaps = True
            self.has_replicated_gaps = self._disk.read(self._folder / COMPACTED) == REPLICATED_GAPS
        for base in bases:
            size = self._disk.size(self._folder / file_name(base, LOG_SUFFIX))
            segment = Segment(self._disk, self._folder, base, size, self._open_segments, self._now)
            segment.sealed = base != bases[-1]
            segment.found_transactions(file_name(base, TRANSACTION_INDEX_SUFFIX) in names)
            if not size and not segment.sealed:
                segment.start_empty_indexes()
                segment.max_timestamp = -1
            self.segments.append(segment)
        if self._torn_at_start:
            for segment in list(self.segments):
                self._report.truncated_bytes += segment.size
                self.remove_segment(segment)
            bases.clear()
        if self._closed_as is not None:
            self._compare(self._closed_as)
        known = set(bases)
        for name in names:
            if name.endswith(_INDEX_SUFFIXES) and _is_offset(name):
                if _offset_of(name) not in known:
                    self._remove(name)
            elif name.endswith(SNAPSHOT_SUFFIX) and _is_offset(name):
                self.snapshots.offsets.add(_offset_of(name))
        if not self.segments:
            self.segments.append(self.create_segment(self._known_start or 0))
            return
        self._remove_failed_rolls()
        if self._report.clean:
            for segment in self.segments:
                self.rebuild_missing_indexes(segment)

    def _check_first(self, bases: list[int]) -> None:
        """Offline when the segment is missing in which the log starts. Retention renames before it removes,
        and what it renamed is removed when the new start has been written down."""
        start = self._known_start
        if start is None or (bases and bases[0] <= start):
            return
        deleted = [name for name in self._names if name.endswith(LOG_SUFFIX + DELETED_SUFFIX)]
        if any(_offset_of(name) <= start for name in deleted if name.split(".", 1)[0].isdigit()):
            return
        if not bases and start == self._recovery_point == 0:
            return  # nothing was ever synced
        if self._power_lost and self._recovery_point <= start:
            self._torn_at_start = True  # the name of the first segment never reached the disk
            return
        found = f"the first segment is {file_name(bases[0], LOG_SUFFIX)}" if bases else "there is no segment"
        raise Offline(
            f"the segment that holds offset {start} is missing in {self._folder}: {found}, but the log "
            f"starts at offset {start} ({self._folder.parent / LOG_STARTS}). {REMEDY}"
        )

    def _compare(self, closed_as: LogFiles) -> None:
        """Compare the files with those that were there when the log was closed. Offline when one is missing
        or has changed, and more is checked when there are more than there were."""
        found = {segment.base_offset: segment for segment in self.segments}
        for listed in closed_as.segments:
            base, size, index_size, time_index_size, *_ = listed
            path = self._folder / file_name(base, LOG_SUFFIX)
            segment = found.pop(base, None)
            if segment is None:
                raise Offline(f"{path} is missing, which was there when the log was closed. {REMEDY}")
            if segment.size < size or (segment.size > size and segment.sealed):
                raise Offline(
                    f"{path} has {segment.size} bytes, but had {size} when the log was closed. {REMEDY}"
                )
            if segment.size > size:
                self._report.clean = False  # a disk that failed may have left more than was appended
            elif self._index_file_sizes(base) != (index_size, time_index_size):
                suffixes = (INDEX_SUFFIX, TIME_INDEX_SUFFIX)
                self._rebuild_indexes(segment, [file_name(base, suffix) for suffix in suffixes])
                self._names.update(file_name(base, suffix) for suffix in suffixes)
            if self._size_of(base, TRANSACTION_INDEX_SUFFIX) != listed.transaction_index_size:
                self.without_transactions.append(segment)
        if any(segment.size for segment in found.values()):
            self._report.clean = False

    def _index_file_sizes(self, base: int) -> tuple[int, int]:
        """Bytes of the files of both indexes of a segment; 0 for one that is missing."""
        return self._size_of(base, INDEX_SUFFIX), self._size_of(base, TIME_INDEX_SUFFIX)

    def _size_of(self, base: int, suffix: str) -> int:
        name = file_name(base, suffix)
        return self._disk.size(self._folder / name) if name in self._names else 0

    def _remove_failed_rolls(self) -> None:
        """An empty segment that begins within the one before it comes of a roll that the disk cut short.

        A search for an offset behind its beginning would look into it, and miss what the other one holds.
        """
        for number in range(len(self.segments) - 2, 0, -1):
            empty = self.segments[number]
            if empty.size:
                continue
            before = next((each for each in reversed(self.segments[:number]) if each.size), None)
            try:
                if before is not None and self.end_of(before) > empty.base_offset:
                    self.remove_segment(empty)
            except (Damaged, Offline) as problem:
                if self._power_lost:
                    continue  # what was not synced may be anything; recovery cuts the log there
                if isinstance(problem, Damaged):
                    raise offline_at(before or empty, problem) from problem
                raise

    def rebuild_missing_indexes(self, segment: Segment) -> None:
        wanted = [file_name(segment.base_offset, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
        missing = [name for name in wanted if name not in self._names]
        if missing and segment.size:
            self._rebuild_indexes(segment, missing)

    def _rebuild_indexes(self, segment: Segment, files: list[str]) -> None:
        """Rebuild indexes. A clean stop writes none for an active segment that is too short to need any."""
        try:
            segment.rebuild_indexes(self._config.index_interval)
        except Damaged as damage:
            raise offline_at(segment, damage) from damage
        if not segment.has_no_index_entries():
            self._report.rebuilt_indexes += files
            self._report.scanned_bytes += segment.size

    def _remove(self, name: str) -> None:
        self._disk.remove(self._folder / name)
        self._report.removed_files.append(name)

    def end_of(self, segment: Segment) -> int:
        """Where a segment ends, from the last entry of its index and the few batches behind it."""
        end_offset = segment.base_offset
        if segment.size == 0:
            return end_offset
        try:
            return self._end_by_index(segment)
        except (Damaged, CorruptIndex):
            self._rebuild_indexes(segment, [file_name(segment.base_offset, INDEX_SUFFIX)])
        return self._end_by_index(segment)

    def _end_by_index(self, segment: Segment) -> int:
        position = segment.last_indexed_position()
        end_offset, newest = segment.base_offset, -1
        highest = segment.base_offset + MAX_RELATIVE_OFFSET
        for _, header in walk(segment.file, position, segment.size, segment.base_offset, highest):
            end_offset = header.next_offset
            newest = max(newest, header.max_timestamp)
        if segment.sealed and segment.load_max_timestamp() < newest:
            raise CorruptIndex(f"{segment.path_of(TIME_INDEX_SUFFIX)} ends before its segment does")
        return end_offset

    def remove_segment(self, segment: Segment) -> None:
        self.segments.remove(segment)
        self._open_segments.forget(segment)
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, LOG_SUFFIX):
            self._remove(file_name(segment.base_offset, suffix))
        if (transactions := file_name(segment.base_offset, TRANSACTION_INDEX_SUFFIX)) in self._names:
            self._remove(transactions)


def _is_offset(name: str) -> bool:
    return name.split(".", 1)[0].isdigit() and name.count(".") == 1


def _offset_of(name: str) -> int:
    return int(name.split(".", 1)[0])
