"""The transaction index of a segment: which transactions were aborted by a marker that stands in it.

A reader of committed data gets with its records the list of aborted transactions among them, and skips their
records. An entry says which producer, from which offset on, up to which marker, and where the last stable
offset was when the marker was written: no transaction that is aborted later has records before that.

The file is Kafka's `.txnindex`: entries of 34 bytes in the order of their markers. There is none for a
segment without aborted transactions. An entry cannot be found out from its segment alone: the transaction may
have begun in an earlier one (`replay` rebuilds an index).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from struct import Struct
from typing import NamedTuple

from ottla.storage.offset_index import CorruptIndex

_ENTRY = Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size
_VERSION = 0


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    """Of its marker."""
    last_stable_offset: int
    """When the marker was written."""


class TransactionIndex:
    """The entries of one segment, in the order of their markers."""

    __slots__ = ("_first", "_last", "_producers", "_stable", "written")

    def __init__(self) -> None:
        self._producers = array("q")
        self._first = array("q")
        self._last = array("q")
        self._stable = array("q")
        self.written = 0  # how many entries stand in the file

    def __len__(self) -> int:
        return len(self._last)

    def add(self, entry: AbortedTransaction) -> None:
        self._producers.append(entry.producer_id)
        self._first.append(entry.first_offset)
        self._last.append(entry.last_offset)
        self._stable.append(entry.last_stable_offset)

    def entries(self) -> list[AbortedTransaction]:
        return [self._entry(slot) for slot in range(len(self._last))]

    def _entry(self, slot: int) -> AbortedTransaction:
        return AbortedTransaction(
            self._producers[slot], self._first[slot], self._last[slot], self._stable[slot]
        )

    def collect(self, start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
        """Those with offsets from `start` to before `end`, and whether later segments can hold no more."""
        found = []
        for slot in range(bisect_left(self._last, start), len(self._last)):
            if self._first[slot] < end:
                found.append(self._entry(slot))
            if self._stable[slot] >= end:
                return found, True
        return found, False

    def truncate(self, offset: int) -> None:
        """Forget markers at or behind `offset`."""
        keep = bisect_left(self._last, offset)
        for column in (self._producers, self._first, self._last, self._stable):
            del column[keep:]
        self.written = min(self.written, keep)

    def encode(self, first: int = 0) -> bytes:
        """The entries from number `first` on, as they stand in the file."""
        return b"".join([_ENTRY.pack(_VERSION, *self._entry(slot)) for slot in range(first, len(self))])

    @classmethod
    def decode(cls, data: bytes, base_offset: int, end_offset: int) -> TransactionIndex:
        """An index from its file. CorruptIndex when it is not that of a segment with such offsets."""
        if len(data) % ENTRY_SIZE:
            raise CorruptIndex(f"{len(data)} bytes are no whole number of {ENTRY_SIZE}-byte entries")
        index = cls()
        previous = base_offset - 1
        for version, *fields in _ENTRY.iter_unpack(data):
            entry = AbortedTransaction(*fields)
            if version != _VERSION:
                raise CorruptIndex(f"version {version} is not {_VERSION}")
            if not previous < entry.last_offset < end_offset:
                raise CorruptIndex(
                    f"a marker at offset {entry.last_offset} is not between {previous} and {end_offset}"
                )
            if not 0 <= entry.first_offset < entry.last_offset or entry.last_stable_offset < 0:
                raise CorruptIndex(f"offsets {entry.first_offset} to {entry.last_offset} are no transaction")
            previous = entry.last_offset
            index.add(entry)
        index.written = len(index)
        return index
