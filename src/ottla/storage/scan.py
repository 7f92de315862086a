"""Walking through the batches of a segment file.

Two ways. `walk` reads headers only: it finds a batch from the place an index points to. It checks what costs
a comparison (a header is there, the batch lies within the file, offsets rise and stay within the segment):
base offset and length are not covered by the CRC, so no other check would notice that they are wrong.
`verify` reads every byte and trusts nothing: it is what recovery uses to find out where a log that was not
closed properly ends. Both go batch by batch and never look at a record.

`is_unfinished` tells the two reasons for a wrong batch at the end of a log apart: behind an unfinished write
there is nothing, behind a damaged batch the log goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from crc32c import crc32c

from ottla.protocol.batches import (
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    BatchHeader,
)
from ottla.storage.files import File

_HEADER_CHUNK = 4096  # one read serves the headers of many small batches
_SCAN_CHUNK = 1 << 20
LARGEST_OFFSET = 2**63 - 1
MAX_RELATIVE_OFFSET = 2**31 - 1
"""Between the base offset of a segment and an offset in it; an index cannot express more."""


class Damaged(Exception):
    """The bytes at `position` are no whole, valid batch. `cut_off`: they may be the beginning of one."""

    def __init__(self, position: int, reason: str, *, cut_off: bool = False) -> None:
        super().__init__(f"{reason} at byte {position}")
        self.position = position
        self.reason = reason
        self.cut_off = cut_off


def walk(
    file: File, position: int, end: int, lowest: int = 0, highest: int = LARGEST_OFFSET
) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch from `position`, where one begins, to `end`. Damaged on nonsense.

    All offsets are from `lowest` to `highest`.
    """
    chunk, chunk_start = b"", position
    make, unpack, minimum = BatchHeader._make, HEADER.unpack_from, HEADER_SIZE - LENGTH_OVERHEAD
    while position < end:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_start, at = file.read_at(position, _HEADER_CHUNK), position, 0
            if len(chunk) < HEADER_SIZE:
                raise Damaged(position, "the file ends within a batch header")
        header = make(unpack(chunk, at))
        length, base_offset, offset_delta = header.batch_length, header.base_offset, header.last_offset_delta
        if length < minimum or header.magic != MAGIC:
            raise Damaged(position, "there is no batch header")
        following = position + length + LENGTH_OVERHEAD
        if following > end:
            raise Damaged(position, "a batch is longer than its file")
        last = base_offset + offset_delta
        if base_offset < lowest or offset_delta < 0 or last > highest:
            raise Damaged(position, _out_of_order(header, lowest, highest))
        yield position, header
        position, lowest = following, last + 1


def _out_of_order(header: BatchHeader, lowest: int, highest: int) -> str:
    """Says why the offsets of a batch cannot be right."""
    if header.last_offset_delta < 0:
        return f"a batch has the last offset delta {header.last_offset_delta}"
    if header.base_offset < lowest:
        return f"a batch with offset {header.base_offset} follows offset {lowest - 1}"
    return f"a batch ends with offset {header.last_offset}, but the last offset here can be {highest}"


def verify(
    file: File,
    position: int,
    end: int,
    next_offset: int,
    *,
    highest: int = LARGEST_OFFSET,
    gaps_to: int = LARGEST_OFFSET,
) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch from `position` to `end`, each checked: structure, CRC, offsets.

    `next_offset` is the smallest offset that the first batch may have, `highest` the largest of the last one.
    Below `gaps_to` offsets may be missing; from there on each batch follows the one before it. Raises Damaged
    at the first batch that is cut off or wrong.
    """
    buffer = bytearray(min(_SCAN_CHUNK, max(end - position, HEADER_SIZE)))
    view = memoryview(buffer)
    start, filled = position, 0  # what part of the file is in the buffer
    make, unpack = BatchHeader._make, HEADER.unpack_from
    while position < end:
        at = position - start
        if filled - at < HEADER_SIZE:
            if end - position < HEADER_SIZE:
                raise Damaged(position, "a batch header is cut off", cut_off=True)
            start, at = position, 0
            filled = file.read_into(position, view)
            if filled < HEADER_SIZE:
                raise Damaged(position, "a batch header is cut off", cut_off=True)
        header = make(unpack(buffer, at))
        size = header.batch_length + LENGTH_OVERHEAD
        if header.magic != MAGIC or size < HEADER_SIZE:
            raise Damaged(position, "there is no batch header")
        if size > end - position:
            reason = f"a batch of {size} bytes is cut off after {end - position}"
            raise Damaged(position, reason, cut_off=True)
        base_offset, last_offset = header.base_offset, header.base_offset + header.last_offset_delta
        if base_offset < next_offset or last_offset < base_offset or last_offset > highest:
            raise Damaged(position, _out_of_order(header, next_offset, highest))
        if base_offset > next_offset and base_offset > gaps_to:
            raise Damaged(position, _gap(next_offset, base_offset))
        if filled - at < size:
            if size > len(buffer):
                view.release()
                buffer = bytearray(size)
                view = memoryview(buffer)
            start, at = position, 0
            filled = file.read_into(position, view)
            if filled < size:
                raise Damaged(position, f"a batch of {size} bytes is cut off after {filled}")
        with view[at + CRC_START : at + size] as covered:
            if crc32c(covered) != header.crc:
                raise Damaged(position, "a batch has a wrong CRC")
        yield position, header
        next_offset = last_offset + 1
        position += size


def _gap(next_offset: int, found: int) -> str:
    return f"offset {next_offset} is missing, a batch with offset {found} stands in its place"


def is_unfinished(file: File, end: int, damage: Damaged, next_offset: int) -> bool:
    """Whether the damage is what a process leaves that is killed while it writes the last batch of a file.

    Such a batch, which has `next_offset`, is cut off, and no other one is behind it. (A loss of power can
    leave anything.)
    """
    return damage.cut_off and _valid_batch_behind(file, damage.position + 1, end, next_offset) is None


def _valid_batch_behind(file: File, position: int, end: int, next_offset: int) -> int | None:
    """Where the first whole batch with a good CRC and a plausible offset begins, at or behind `position`.

    None when there is none. A header is searched by the upper half of its base offset and its magic byte.
    """
    upper = sorted({(next_offset >> 32) + step for step in (0, 1)})
    pattern = re.compile(
        b"(?=(?:%s).{12}%s)"
        % (b"|".join(re.escape(half.to_bytes(4, "big")) for half in upper), re.escape(bytes([MAGIC]))),
        re.DOTALL,
    )
    while position < end:
        chunk = file.read_at(position, min(_SCAN_CHUNK, end - position))
        if len(chunk) < HEADER_SIZE:
            return None
        for match in pattern.finditer(chunk):
            at = position + match.start()
            if _is_batch(file, at, end, next_offset):
                return at
        if position + len(chunk) >= end:
            return None
        position += len(chunk) - HEADER_SIZE
    return None


def _is_batch(file: File, position: int, end: int, next_offset: int) -> bool:
    """Whether a whole batch with a good CRC, and an offset at or behind `next_offset`, begins here."""
    head = file.read_at(position, HEADER_SIZE)
    if len(head) < HEADER_SIZE:
        return False
    header = BatchHeader._make(HEADER.unpack(head))
    size = header.batch_length + LENGTH_OVERHEAD
    if header.magic != MAGIC or not HEADER_SIZE <= size <= end - position or header.last_offset_delta < 0:
        return False
    if header.base_offset < next_offset:
        return False
    data = file.read_at(position, size)
    return len(data) == size and bool(crc32c(memoryview(data)[CRC_START:]) == header.crc)
