"""The transaction index of a segment: which transactions were aborted by a marker that stands in it.

A reader of committed data gets with its records the list of aborted transactions among them, and skips their
records. An entry says which producer, from which offset on, up to which marker, and where the last stable
offset was when the marker was written: no transaction that is aborted later has records before that.

The file is Kafka's `.txnindex`: entries of 34 bytes in the order of their markers. There is none for a
segment without aborted transactions. An entry cannot be found out from its segment alone: the transaction may
have begun in an earlier one (`replay` rebuilds an index).

A segment may hold hundreds of thousands of entries, so they are columns of integers, and nothing here goes
through all of them one by one: markers and last stable offsets rise, so they are bisected; the transactions
that begin before an offset, among those whose markers come later, are looked for in blocks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import compress
from operator import le, lt
from struct import Struct
from sys import byteorder
from typing import NamedTuple, overload

from ottla.storage.offset_index import CorruptIndex

_ENTRY = Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size
_VERSION = 0
_VERSION_SIZE, _COLUMN_SIZE = 2, 8
_BLOCK = 512
"""Entries whose smallest first offset is kept."""


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    """Of its marker."""
    last_stable_offset: int
    """When the marker was written."""


class AbortedColumns(Sequence[AbortedTransaction]):
    """Aborted transactions in the order of their markers. Only those that are looked at become objects."""

    __slots__ = ("_first", "_last", "_producers", "_stable")

    def __init__(self) -> None:
        self._producers = array("q")
        self._first = array("q")
        self._last = array("q")
        self._stable = array("q")

    @property
    def _columns(self) -> tuple[array[int], ...]:
        """In the order of the file."""
        return self._producers, self._first, self._last, self._stable

    def __len__(self) -> int:
        return len(self._last)

    @overload
    def __getitem__(self, slot: int) -> AbortedTransaction: ...
    @overload
    def __getitem__(self, slot: slice) -> list[AbortedTransaction]: ...
    def __getitem__(self, slot: int | slice) -> AbortedTransaction | list[AbortedTransaction]:
        if isinstance(slot, slice):
            return list(map(AbortedTransaction, *(column[slot] for column in self._columns)))
        return AbortedTransaction(*(column[slot] for column in self._columns))

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return map(AbortedTransaction, *self._columns)

    def extend(self, more: AbortedColumns) -> None:
        """Add those of a later segment."""
        for column, following in zip(self._columns, more._columns, strict=True):
            column.extend(following)


class TransactionIndex(AbortedColumns):
    """The entries of one segment."""

    __slots__ = ("_lowest", "written")

    def __init__(self) -> None:
        super().__init__()
        self._lowest = array("q")  # the smallest first offset of each block
        self.written = 0  # how many entries stand in the file

    def add(self, entry: AbortedTransaction) -> None:
        if len(self._last) % _BLOCK == 0:
            self._lowest.append(entry.first_offset)
        elif entry.first_offset < self._lowest[-1]:
            self._lowest[-1] = entry.first_offset
        for column, value in zip(self._columns, entry, strict=True):
            column.append(value)

    def collect(self, start: int, end: int) -> tuple[AbortedColumns, bool]:
        """Those with offsets from `start` to before `end`, and whether later segments can hold no more."""
        begin, behind = bisect_left(self._last, start), bisect_left(self._last, end)
        settled = bisect_left(self._stable, end)  # nothing that is aborted later began before `end`
        found = AbortedColumns()
        for column, source in zip(found._columns, self._columns, strict=True):
            column.extend(source[begin:behind])
        for block in range(behind // _BLOCK, len(self._lowest)):
            low, high = max(block * _BLOCK, behind, begin), min((block + 1) * _BLOCK, settled + 1)
            if low >= high and block * _BLOCK > settled:
                break
            if low < high and self._lowest[block] < end:
                wanted = [first < end for first in self._first[low:high]]
                for column, source in zip(found._columns, self._columns, strict=True):
                    column.extend(compress(source[low:high], wanted))
        return found, settled < len(self)

    def truncate(self, offset: int) -> None:
        """Forget markers at or behind `offset`."""
        keep = bisect_left(self._last, offset)
        for column in self._columns:
            del column[keep:]
        self._find_lowest(keep // _BLOCK)
        self.written = min(self.written, keep)

    def _find_lowest(self, block: int = 0) -> None:
        """From this block on."""
        del self._lowest[block:]
        for start in range(block * _BLOCK, len(self), _BLOCK):
            self._lowest.append(min(self._first[start : start + _BLOCK]))

    # -- the file ------------------------------------------------------------------------------------

    def encode(self, first: int = 0) -> bytes:
        """The entries from number `first` on, as they stand in the file."""
        data = bytearray((len(self) - first) * ENTRY_SIZE)  # the version is 0
        at = _VERSION_SIZE
        for column in self._columns:
            values = column[first:]
            if byteorder == "little":
                values.byteswap()
            raw = values.tobytes()
            for byte in range(_COLUMN_SIZE):
                data[at + byte :: ENTRY_SIZE] = raw[byte::_COLUMN_SIZE]
            at += _COLUMN_SIZE
        return bytes(data)

    @classmethod
    def decode(cls, data: bytes, base_offset: int, end_offset: int) -> TransactionIndex:
        """An index from its file. CorruptIndex when it is not that of a segment with such offsets."""
        index = cls()
        index.decode_more(data, base_offset, end_offset)
        return index

    def decode_more(self, data: bytes, base_offset: int, end_offset: int) -> None:
        """Add the next entries of a file that is decoded in pieces."""
        if len(data) % ENTRY_SIZE:
            raise CorruptIndex(f"{len(data)} bytes are no whole number of {ENTRY_SIZE}-byte entries")
        if any(data[0::ENTRY_SIZE]) or any(data[1::ENTRY_SIZE]):
            raise CorruptIndex(f"an entry has another version than {_VERSION}")
        known = len(self)
        raw = bytearray(len(data) // ENTRY_SIZE * _COLUMN_SIZE)
        at = _VERSION_SIZE
        for column in self._columns:
            for byte in range(_COLUMN_SIZE):
                raw[byte::_COLUMN_SIZE] = data[at + byte :: ENTRY_SIZE]
            values = array("q")
            values.frombytes(raw)
            if byteorder == "little":
                values.byteswap()
            column.extend(values)
            at += _COLUMN_SIZE
        self._check(max(known - 1, 0), base_offset, end_offset)
        self._find_lowest(known // _BLOCK)
        self.written = len(self)

    def _check(self, start: int, base_offset: int, end_offset: int) -> None:
        """CorruptIndex unless the entries from number `start` on can be those of a segment with such
        offsets."""
        if not len(self):
            return
        last, first, stable = (column[start:] for column in (self._last, self._first, self._stable))
        if last[0] < base_offset or last[-1] >= end_offset or not all(map(lt, last, last[1:])):
            raise CorruptIndex(f"markers do not rise from {base_offset} to before {end_offset}")
        if min(first) < 0 or not all(map(lt, first, last)):
            raise CorruptIndex("a transaction does not begin before its marker")
        if stable[0] < 0 or not all(map(le, stable, stable[1:])):
            raise CorruptIndex("last stable offsets do not rise")
