"""The sparse offset index of a segment: which file position is a good place to start looking for an offset.

On disk (`.index`) an entry is eight bytes, big-endian: the last offset of a batch relative to the segment's
base offset, and the position where that batch begins. There is one entry for about every
`index.interval.bytes` of log. In memory the two columns are arrays, so that a search is one bisect in C.

A short index is a slow index, never a wrong one: entries that were not yet written when the process died
are found again by the scan at the next start.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import islice
from operator import lt

ENTRY_SIZE = 8


class CorruptIndex(Exception):
    """An index file that does not hold what an index can hold."""


class OffsetIndex:
    """`offsets` (relative to the segment's base offset) and `positions` of batches, both rising."""

    __slots__ = ("offsets", "positions", "refined", "written")

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")
        self.written = 0  # how many entries stand in the file
        self.refined = False  # has entries that the file of a sealed segment does without

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, relative_offset: int, position: int) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def floor(self, relative_offset: int) -> int:
        """A position at or before the batch that holds the offset: where to start walking batch headers."""
        slot = bisect_right(self.offsets, relative_offset)
        return self.positions[slot - 1] if slot else 0

    def truncate(self, position: int) -> None:
        """Forget batches that begin at or behind `position`."""
        keep = bisect_left(self.positions, position)
        del self.offsets[keep:]
        del self.positions[keep:]
        self.written = min(self.written, keep)

    def with_entry(self, relative_offset: int, position: int) -> OffsetIndex:
        """A copy with an entry more in between. The original stays as it is for a thread that writes it."""
        slot = bisect_left(self.positions, position)
        copy = OffsetIndex()
        copy.offsets, copy.positions = self.offsets[:], self.positions[:]
        copy.offsets.insert(slot, relative_offset)
        copy.positions.insert(slot, position)
        return copy

    def encode(self, first: int = 0) -> bytes:
        """The entries from number `first` on, as they stand in the file."""
        count = len(self.offsets) - first
        columns = array("i", bytes(count * ENTRY_SIZE))
        columns[0::2] = self.offsets[first:]
        columns[1::2] = self.positions[first:]
        if sys.byteorder == "little":
            columns.byteswap()
        return columns.tobytes()

    @classmethod
    def decode(cls, data: bytes, log_size: int) -> OffsetIndex:
        """An index from its file. CorruptIndex when its size is odd, its entries do not rise or point outside
        the log."""
        if len(data) % ENTRY_SIZE:
            raise CorruptIndex(f"{len(data)} bytes are no whole number of {ENTRY_SIZE}-byte entries")
        columns = array("i")
        columns.frombytes(data)
        if sys.byteorder == "little":
            columns.byteswap()
        index = cls()
        index.offsets, index.positions = columns[0::2], columns[1::2]
        index.written = len(index.offsets)
        if index.written:
            if index.offsets[0] < 0 or index.positions[0] < 0 or index.positions[-1] >= log_size:
                raise CorruptIndex(f"an entry points outside the {log_size} bytes of the log")
            if not (_rises(index.offsets) and _rises(index.positions)):
                raise CorruptIndex("entries do not rise")
        return index


def _rises(values: array[int]) -> bool:
    return all(map(lt, values, islice(values, 1, None)))
