"""The row of segments that one log is made of: beginning one, finding one, taking some out.

All but the last are sealed; the last, the active one, grows. The row keeps the files of its folder in step
with what it holds: a new segment comes with a snapshot of the producers, segments that leave are renamed at
once and removed later, and `folder_dirty` tells the next flush that names have changed.

The log decides when something happens here, holds its lock where that changes the row, and turns an OSError
into its own error. Only the row can tell which segment a `Damaged` was about: it raises `DamagedSegment`.
`segments` and `bases` (their base offsets) are changed in place and never replaced by other lists: the log
appends to and reads from them without asking the row.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ottla.clock import Clock
from ottla.storage.aborted_transactions import AbortedTransactions
from ottla.storage.cleaning.decisions import CleanableSegment
from ottla.storage.damaged_segment import DamagedSegment, blaming
from ottla.storage.file_names import DELETED_SUFFIX, REPLACED_SUFFIX, SUFFIXES
from ottla.storage.files import Disk, File
from ottla.storage.indexed_segment import SegmentInfo
from ottla.storage.log_config import LogConfig
from ottla.storage.open_segments import OpenSegments
from ottla.storage.pending_deletions import PendingDeletions
from ottla.storage.producer_state import ProducerStates
from ottla.storage.replay import restore_producers
from ottla.storage.results import FileSlice
from ottla.storage.scan import Damaged, walk
from ottla.storage.segment import Segment
from ottla.storage.snapshots import Snapshots
from ottla.storage.time_search import TimeSearch, search_newest, search_since


class Cut(NamedTuple):
    """Where a row is to end: in which segment, at which of its bytes, and what the end offset is then."""

    slot: int
    position: int
    end_offset: int


class SegmentRow:
    """Never empty, except for the moment in which `start_empty` has taken all out."""

    __slots__ = (
        "_clock",
        "_disk",
        "_folder",
        "_open_segments",
        "_replacements",
        "_sealed_size",
        "_snapshot_position",
        "aborted",
        "bases",
        "folder_dirty",
        "pending_deletions",
        "segments",
        "snapshots",
    )

    def __init__(
        self,
        folder: Path,
        segments: list[Segment],
        snapshots: Snapshots,
        *,
        disk: Disk,
        clock: Clock,
        open_segments: OpenSegments,
    ) -> None:
        self._folder = folder
        self._disk = disk
        self._clock = clock
        self._open_segments = open_segments
        self.segments = segments
        self.bases = [segment.base_offset for segment in segments]
        self.snapshots = snapshots
        self.aborted = AbortedTransactions(folder.name, segments, self.bases, snapshots, clock)
        self.pending_deletions = PendingDeletions(disk)
        self.folder_dirty = False
        self._replacements = 0  # by compaction
        self._sealed_size = sum(segment.size for segment in segments[:-1])
        # Where the active segment ended when the last snapshot was taken; there is one at its beginning.
        self._snapshot_position = segments[-1].size if segments else 0

    def _recount(self) -> None:
        """The row holds other segments than before."""
        self._sealed_size = sum(segment.size for segment in self.segments[:-1])
        self.aborted.recount()

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._sealed_size + (self.segments[-1].size if self.segments else 0)

    @property
    def grown_since_snapshot(self) -> int:
        """Bytes. Not what the whole log has grown by: segments leave it as well."""
        return self.segments[-1].size - self._snapshot_position

    def slot_of(self, offset: int) -> int:
        """Which of the segments would hold `offset`; -1 when it lies before all of them."""
        return bisect_right(self.bases, offset) - 1

    def cleanable(self, *, dated: bool, in_detail: bool) -> list[CleanableSegment]:
        """All segments as compaction sees them; files are looked at only for what is asked."""
        found = []
        for segment in self.segments:
            with blaming(segment):
                first_timestamp = segment.load_first_timestamp() if dated else -1
                sizes = segment.index_file_sizes() if in_detail and segment.sealed else (0, 0)
                found.append(
                    CleanableSegment(
                        segment.base_offset,
                        segment.size,
                        first_timestamp,
                        segment.load_max_timestamp(),
                        *sizes,
                    )
                )
        return found

    # -- looking -------------------------------------------------------------------------------------

    def for_retention(self, now_ms: int) -> list[SegmentInfo]:
        """All segments, each with the time that its age is counted from."""
        infos = []
        for segment in self.segments:
            with blaming(segment):
                timestamp = segment.timestamp_for_retention(now_ms)
            infos.append(SegmentInfo(segment.base_offset, segment.size, timestamp))
        return infos

    def _one_by_one(self) -> Iterator[Segment]:
        """All segments, for a caller that pauses between them: retention may take some out meanwhile.

        When compaction replaces some, it goes on from the first segment: what was to come may be in there.
        """
        last, replacements = -1, self._replacements
        while True:
            if replacements != self._replacements:
                last, replacements = -1, self._replacements
            slot = self.slot_of(last) + 1
            if slot >= len(self.segments):
                return
            last = self.bases[slot]
            yield self.segments[slot]

    def searches_since(
        self, timestamp: int, log_start: int, config: LogConfig
    ) -> Iterator[TimeSearch | None]:
        """Where to look for the first record since then: for each segment a search, or None."""
        for segment in self._one_by_one():
            with blaming(segment):
                search = search_since(segment, timestamp, log_start, config)
            yield search

    def searches_newest(self, config: LogConfig) -> Iterator[TimeSearch | None]:
        """Where to look for the first record that carries the largest timestamp of all: the last of these."""
        for segment in self._one_by_one():
            with blaming(segment):
                segment.load_max_timestamp()
            yield None
        with blaming(self.segments[-1]):
            yield search_newest(self.segments, config)

    # -- reading -------------------------------------------------------------------------------------

    def slice(
        self,
        offset: int,
        max_bytes: int,
        limit_offset: int,
        end_offset: int,
        at_least_one: bool,
        wait: bool,
        may_have_gaps: bool,
    ) -> FileSlice | None:
        """What `Log.read` answers for an offset within the log, which ends at `end_offset`."""
        segments, bases = self.segments, self.bases
        slot = len(bases) - 1
        if offset < bases[-1]:
            slot = bisect_right(bases, offset) - 1
        while slot < len(segments):
            segment = segments[slot]
            segment_end = bases[slot + 1] if slot + 1 < len(bases) else end_offset
            try:
                place = segment.find(offset, segment_end, wait=wait)
                if place is None:
                    # Compaction removes records at the end of closed segments. The active one holds all that
                    # was appended.
                    if not may_have_gaps or (segment is segments[-1] and segment.size):
                        reason = f"the batches end before offset {offset}, but the segment ends at offset "
                        raise Damaged(segment.size, f"{reason}{segment_end}")
                    slot += 1
                    continue
                position, size, gap = place
                if gap and not may_have_gaps:
                    raise Damaged(position, f"offset {offset} is missing, a later batch stands in its place")
                bound = segment.size
                if limit_offset < segment_end:
                    limit = segment.find(limit_offset, segment_end, wait=wait)
                    if limit is not None:
                        bound = limit.position
                if position + size > bound:
                    if position < bound:
                        raise Damaged(position, "a batch is longer than the place it has")
                    return None  # the batch that holds `offset` reaches beyond the limit
                if size <= max_bytes:
                    size = min(bound - position, max_bytes)
                elif not at_least_one:
                    return None
                else:
                    segment.check_batch_at(position + size)  # before a length that is wrong makes it huge
                return FileSlice(segment.file, position, size)
            except Damaged as damage:
                raise DamagedSegment(segment.path, damage) from damage
        return None

    # -- growing -------------------------------------------------------------------------------------

    def roll(self, base_offset: int, producers: ProducerStates) -> Segment:
        """Seal the active segment and begin one at `base_offset`. OSError and no change when it cannot be."""
        old = self.segments[-1]
        if old.size == 0 and old.base_offset == base_offset:
            return old
        segment = self._create(base_offset)
        try:
            self.snapshots.write(base_offset, producers.encode())
            with blaming(old):
                old.seal()
        except (OSError, DamagedSegment):
            segment.remove_files()  # it may not lie behind an active segment that goes on growing
            raise
        self.segments.append(segment)
        self.bases.append(base_offset)
        self._sealed_size += old.size
        self.folder_dirty = True
        self.snapshots.note(base_offset, self.bases)
        self._snapshot_position = 0
        return segment

    def _create(self, base_offset: int) -> Segment:
        return Segment.create(
            self._disk, self._folder, base_offset, self._open_segments, self._clock.now_ms()
        )

    def write_state(self, end_offset: int, producers: ProducerStates, *, closing: bool) -> list[File]:
        """Indexes and producers as they are now, written but not yet synced."""
        with blaming(self.segments[-1]):
            files = self.segments[-1].write_indexes(finish=closing, spare=closing)
        if not (closing and self.needs_no_snapshot(producers)):
            files.append(self.snapshots.write(end_offset, producers.encode()))
            self.snapshots.note(end_offset, self.bases)
        self._snapshot_position = self.segments[-1].size
        return files

    def has_snapshot_at(self, offset: int) -> bool:
        return offset in self.snapshots.offsets

    def needs_no_snapshot(self, producers: ProducerStates) -> bool:
        """True if a start is as fast without a snapshot: there are no producers and the scan is short."""
        return not len(producers) and self.segments[-1].has_no_index_entries()

    # -- removing ------------------------------------------------------------------------------------

    def take_out(self, first: int, last: int) -> list[Segment]:
        """Remove segments from the row; no reader finds them any more. To be handed to `delete`."""
        taken = self.segments[first:last]
        del self.segments[first:last]
        del self.bases[first:last]
        self._recount()
        return taken

    def delete(self, segments: list[Segment], due_ms: int) -> None:
        """Rename the files of segments, so that no start takes them for the log's, and remove them later."""
        for segment in segments:
            self._open_segments.forget(segment)
            for suffix in SUFFIXES:
                path = segment.path_of(suffix)
                self.pending_deletions.rename(path, path.with_name(path.name + DELETED_SUFFIX), due_ms)
            self.snapshots.offsets.discard(segment.base_offset)
        self.folder_dirty = True

    def find_cut(self, offset: int) -> Cut:
        """Where to cut so that the log ends at `offset`, or at the batch that reaches across it."""
        slot = self.slot_of(offset)
        segment = self.segments[slot]
        with blaming(segment):
            place = segment.find(offset)
            if place is None:
                return Cut(slot, segment.size, offset)
            end_offset = offset
            for _, header in walk(segment.file, place.position, place.position + place.size):
                end_offset = min(offset, header.base_offset)
            return Cut(slot, place.position, end_offset)

    def cut(self, cut: Cut, due_ms: int) -> None:
        """End the row there. Then the producers have to be restored."""
        segment = self.segments[cut.slot]
        self.aborted.index_of(cut.slot)  # it is shortened too
        self.snapshots.remove_after(cut.end_offset)  # first: one behind the end of a log is a sign of damage
        taken = self.take_out(cut.slot + 1, len(self.segments))
        self.delete(taken[::-1], due_ms)  # the last one first: a crash in between may not leave a gap
        if cut.position < segment.size or taken:
            with blaming(segment):
                segment.truncate(cut.position)
        self._snapshot_position = 0 if taken else min(self._snapshot_position, segment.size)
        self._recount()

    def sync_cut(self) -> None:
        """Sync the end of the row and which segments there are. Blocks."""
        self.segments[-1].file.sync()
        self._disk.sync_folder(self._folder)

    def restore_producers(self, producers: ProducerStates, end_offset: int) -> None:
        """Make them what they were when the log ended there, as it does again. Later snapshots go."""
        self.snapshots.remove_after(end_offset)
        with blaming(self.segments[-1]):
            restore_producers(producers, self.snapshots, self.segments, end_offset, self._clock.now_ms())

    def start_empty(self, start_offset: int, due_ms: int) -> None:
        """Throw all segments and snapshots away, and begin an empty segment at `start_offset`."""
        self.snapshots.remove_after(-1)
        self.delete(self.take_out(0, len(self.segments)), due_ms)
        self.segments.append(self._create(start_offset))
        self.bases.append(start_offset)
        self._sealed_size = self._snapshot_position = 0

    def let_go(self) -> None:
        """Close all files; the row stays as it is."""
        if self.segments:
            self.segments[-1].give_back_space()
        for segment in self.segments:
            self._open_segments.forget(segment)

    # -- what compaction puts in place of others (see `cleaning.swap`) --------------------------------

    def new_segment(self, base_offset: int, size: int, suffix: str, *, has_aborted: bool) -> Segment:
        """A closed segment, not of the row, whose files are there already, under names with `suffix`."""
        now_ms = self._clock.now_ms()
        segment = Segment(
            self._disk, self._folder, base_offset, size, self._open_segments, now_ms, suffix=suffix
        )
        segment.sealed = True
        segment.found_transactions(has_aborted)
        return segment

    def replace(self, replaced: Sequence[int], segment: Segment) -> list[Segment]:
        """Put `segment` in the place of those with these base offsets, which are returned for `retire`.

        None of them, and no change, when they are not in the row as they stand in `replaced`, or when one of
        them is the active segment.
        """
        first = bisect_left(self.bases, replaced[0])
        last = first + len(replaced)
        if last >= len(self.bases) or self.bases[first:last] != list(replaced):
            return []
        old = self.segments[first:last]
        self.segments[first:last] = [segment]
        self.bases[first:last] = [segment.base_offset]
        self._replacements += 1
        self._recount()
        return old

    def retire(self, old: list[Segment], successor: Segment) -> None:
        """Let go of segments that were replaced. The snapshot at the successor's base is still of use."""
        for each in old:
            self._open_segments.forget(each)
            if each.base_offset != successor.base_offset:
                self.snapshots.offsets.discard(each.base_offset)

    def delete_files(self, names: Sequence[str], due_ms: int) -> None:
        """Rename files of the folder to `.deleted`, to be removed later. OSError when one cannot be."""
        for name in names:
            path = self._folder / name
            new_path = path.with_name(path.name + REPLACED_SUFFIX + DELETED_SUFFIX)
            self.pending_deletions.rename(path, new_path, due_ms, must=True)
