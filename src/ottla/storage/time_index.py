"""The time index of a segment: up to which offset all records are older than a given time.

On disk (`.timeindex`) an entry is twelve bytes, big-endian: a timestamp, and the last offset, relative to
the segment's base offset, of the batch that carried it. An entry (t, o) says: t is the largest timestamp up
to the batch that ends at o. Timestamps rise strictly, so a search is one bisect. The last entry of a closed
segment is its largest timestamp of all, which is what retention by time asks for.

The index of an active segment is in memory. That of a sealed one may have hundreds of thousands of entries; a
search reads the few it needs from the file (`floor_in_file`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from struct import Struct

from ottla.storage.files import File
from ottla.storage.offset_index import CorruptIndex

ENTRY = Struct(">qi")
ENTRY_SIZE = ENTRY.size  # 12


class TimeIndex:
    """`timestamps` and `offsets` (relative to the segment's base offset) both rise."""

    __slots__ = ("offsets", "timestamps", "written")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("i")
        self.written = 0  # how many entries stand in the file

    def __len__(self) -> int:
        return len(self.timestamps)

    @property
    def last(self) -> tuple[int, int] | None:
        """Largest timestamp and the relative offset of its batch."""
        if not self.timestamps:
            return None
        return self.timestamps[-1], self.offsets[-1]

    def add(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry, unless it says nothing new."""
        if timestamp >= 0 and (not self.timestamps or timestamp > self.timestamps[-1]):
            self.timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    def floor(self, timestamp: int) -> int:
        """A relative offset such that every batch that ends before it has only smaller timestamps."""
        slot = bisect_right(self.timestamps, timestamp)
        return self.offsets[slot - 1] if slot else 0

    def truncate(self, relative_offset: int) -> None:
        """Forget entries of batches that end at or behind the offset."""
        keep = len(self.offsets)
        while keep and self.offsets[keep - 1] >= relative_offset:
            keep -= 1
        del self.offsets[keep:]
        del self.timestamps[keep:]
        self.written = min(self.written, keep)

    def encode(self, first: int = 0) -> bytes:
        """The entries from number `first` on, as they stand in the file."""
        pack = ENTRY.pack
        pairs = zip(self.timestamps[first:], self.offsets[first:], strict=True)
        return b"".join([pack(timestamp, offset) for timestamp, offset in pairs])

    @classmethod
    def decode(cls, data: bytes) -> TimeIndex:
        """An index from its file. CorruptIndex when its size is odd or its entries do not rise."""
        if len(data) % ENTRY_SIZE:
            raise CorruptIndex(f"{len(data)} bytes are no whole number of {ENTRY_SIZE}-byte entries")
        index = cls()
        previous_timestamp, previous_offset = -1, -1
        for timestamp, offset in ENTRY.iter_unpack(data):
            if timestamp <= previous_timestamp or offset < max(previous_offset, 0):
                raise CorruptIndex("entries do not rise")
            previous_timestamp, previous_offset = timestamp, offset
            index.timestamps.append(timestamp)
            index.offsets.append(offset)
        index.written = len(index)
        return index


def floor_in_file(file: File, timestamp: int) -> int:
    """What `TimeIndex.floor` would answer for the index in `file`. CorruptIndex when it does not rise."""
    size = file.size
    if size % ENTRY_SIZE:
        raise CorruptIndex(f"{size} bytes are no whole number of {ENTRY_SIZE}-byte entries")
    low, high = 0, size // ENTRY_SIZE  # the first entry that is later than `timestamp` is one of these
    before, behind = (-1, 0), (1 << 63, 1 << 31)  # entries that are known: all others lie between them
    while low < high:
        middle = (low + high) // 2
        entry = _entry_at(file, middle)
        if not _lies_between(before, entry, behind):
            raise CorruptIndex("entries do not rise")
        if entry[0] <= timestamp:
            low, before = middle + 1, entry
        else:
            high, behind = middle, entry
    # One whose time is too small by damage would lead too far; its neighbour gives it away.
    if low > 1 and not _lies_between((-1, 0), _entry_at(file, low - 2), before):
        raise CorruptIndex("entries do not rise")
    return before[1]


def _entry_at(file: File, number: int) -> tuple[int, int]:
    data = file.read_at(number * ENTRY_SIZE, ENTRY_SIZE)
    if len(data) < ENTRY_SIZE:
        raise CorruptIndex("the file ends within an entry")
    timestamp, offset = ENTRY.unpack(data)
    return timestamp, offset


def _lies_between(before: tuple[int, int], entry: tuple[int, int], behind: tuple[int, int]) -> bool:
    return before[0] < entry[0] < behind[0] and before[1] <= entry[1] <= behind[1]
