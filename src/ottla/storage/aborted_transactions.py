"""The aborted transactions of a log, from the transaction indexes of its segments.

Most logs have none: then every question is answered without a look at a segment. An index that is damaged or
gone is rebuilt, with the producers as they were where its segment begins.

A part of `SegmentRow`, which says when its segments have changed (`recount`).
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import suppress

from ottla.clock import Clock
from ottla.storage.damaged_segment import blaming
from ottla.storage.offset_index import CorruptIndex
from ottla.storage.replay import transactions_of
from ottla.storage.results import FileSlice
from ottla.storage.segment import Segment
from ottla.storage.snapshots import Snapshots
from ottla.storage.transaction_index import AbortedColumns, AbortedTransaction, TransactionIndex

logger = logging.getLogger(__name__)


class AbortedTransactions:
    """Over `segments`, whose base offsets are `bases`; both lists are the row's own."""

    __slots__ = ("_bases", "_clock", "_name", "_segments", "_snapshots", "_with_aborted")

    def __init__(
        self, name: str, segments: Sequence[Segment], bases: Sequence[int], snapshots: Snapshots, clock: Clock
    ) -> None:
        self._name = name
        self._segments = segments
        self._bases = bases
        self._snapshots = snapshots
        self._clock = clock
        self._with_aborted: list[int] = []  # base offsets of segments that hold such markers
        self.recount()

    def recount(self) -> None:
        """The row holds other segments than before."""
        self._with_aborted = [segment.base_offset for segment in self._segments if segment.has_aborted]

    def __bool__(self) -> bool:
        return bool(self._with_aborted)

    def load_active(self) -> None:
        """Read the index of the active segment while the log is opened, beside the event loop: it may be
        large, and the next marker needs it. Where that fails, whoever needs it next finds out why."""
        if self._segments and self._segments[-1].has_aborted:
            with suppress(CorruptIndex, OSError):
                self._segments[-1].load_transactions()

    # -- growing -------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Before a marker is written: what it adds to must be in memory. DamagedSegment when it cannot be."""
        self.index_of(len(self._segments) - 1)

    def note(self, entry: AbortedTransaction) -> None:
        """A marker, now at the end of the active segment, aborted a transaction."""
        self._segments[-1].note_aborted(entry)
        if self._with_aborted[-1:] != [self._bases[-1]]:
            self._with_aborted.append(self._bases[-1])

    # -- looking -------------------------------------------------------------------------------------

    def between(self, start: int, end: int, *, wait: bool = True) -> AbortedColumns:
        """Those with offsets from `start` to before `end`, in the order of their markers.

        With `wait` False NotInMemory is raised when a large index has to be read: a part of that is done."""
        found = AbortedColumns()
        first = self._bases[max(bisect_right(self._bases, start) - 1, 0)]
        for base in self._with_aborted[bisect_left(self._with_aborted, first) :]:
            some, is_all = self.index_of(bisect_left(self._bases, base), wait=wait).collect(start, end)
            found.extend(some)
            if is_all:
                break
        return found

    def in_slice(self, offset: int, records: FileSlice, log_end: int, *, wait: bool) -> AbortedColumns:
        """Those that a reader from `offset` on may meet in `records`, and perhaps some behind them."""
        return self.between(offset, self._end_of(offset, records, log_end), wait=wait)

    def _end_of(self, offset: int, records: FileSlice, log_end: int) -> int:
        """An offset behind the last record of a slice, from the sparse index."""
        for slot in range(max(bisect_right(self._bases, offset) - 1, 0), len(self._segments)):
            segment = self._segments[slot]
            if segment.is_file(records.file):
                if records.position + records.length < segment.size:
                    with blaming(segment):
                        index = segment.index
                    entry = bisect_left(index.positions, records.position + records.length)
                    if entry < len(index):
                        return segment.base_offset + index.offsets[entry]
                return self._bases[slot + 1] if slot + 1 < len(self._bases) else log_end
        return log_end

    def index_of(self, slot: int, *, wait: bool = True) -> TransactionIndex:
        """The transaction index of one segment, rebuilt when its file is damaged or gone."""
        segment = self._segments[slot]
        try:
            end = self._bases[slot + 1] if slot + 1 < len(self._bases) else None
            load = segment.load_transactions if wait else segment.load_transactions_in_pieces
            return load() if end is None else load(end)
        except CorruptIndex as problem:
            logger.warning("%s: rebuilding the transaction index: %s", segment.path, problem)
        with blaming(segment):
            index = transactions_of(self._segments, slot, self._snapshots, self._name, self._clock.now_ms())
        segment.replace_transactions(index)
        return index
