"""Walking through the batches of a segment file.

Two ways. `walk` reads headers only and trusts them: it finds a batch from the place an index points to.
`verify` reads every byte and trusts nothing: it is what recovery uses to find out where a log that was not
closed properly ends. Both go batch by batch and never look at a record.
"""

from __future__ import annotations

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


class Damaged(Exception):
    """The bytes at `position` are no whole, valid batch."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"{reason} at byte {position}")
        self.position = position
        self.reason = reason


def walk(file: File, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch from `position`, where one begins, to `end`. Damaged on nonsense."""
    chunk, chunk_start = b"", position
    make, unpack, minimum = BatchHeader._make, HEADER.unpack_from, HEADER_SIZE - LENGTH_OVERHEAD
    while position < end:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_start, at = file.read_at(position, _HEADER_CHUNK), position, 0
            if len(chunk) < HEADER_SIZE:
                raise Damaged(position, "the file ends within a batch header")
        header = make(unpack(chunk, at))
        if header[1] < minimum or header[3] != MAGIC:
            raise Damaged(position, "there is no batch header")
        yield position, header
        position += header[1] + LENGTH_OVERHEAD
    if position > end:
        raise Damaged(position, "a batch is longer than its file")


def verify(file: File, position: int, end: int, next_offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch from `position` to `end`, each checked: structure, CRC, offsets.

    `next_offset` is the smallest offset that the first batch may have. Raises Damaged at the first batch that
    is cut off or wrong.
    """
    buffer = bytearray(min(_SCAN_CHUNK, max(end - position, HEADER_SIZE)))
    view = memoryview(buffer)
    start, filled = position, 0  # what part of the file is in the buffer
    make, unpack = BatchHeader._make, HEADER.unpack_from
    while position < end:
        at = position - start
        if filled - at < HEADER_SIZE:
            if end - position < HEADER_SIZE:
                raise Damaged(position, "a batch header is cut off")
            start, at = position, 0
            filled = file.read_into(position, view)
            if filled < HEADER_SIZE:
                raise Damaged(position, "a batch header is cut off")
        header = make(unpack(buffer, at))
        size = header[1] + LENGTH_OVERHEAD
        if header[3] != MAGIC or size < HEADER_SIZE:
            raise Damaged(position, "there is no batch header")
        if size > end - position:
            raise Damaged(position, f"a batch of {size} bytes is cut off after {end - position}")
        if header[0] < next_offset or header[6] < 0:
            raise Damaged(position, f"a batch with offset {header[0]} follows offset {next_offset - 1}")
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
            if crc32c(covered) != header[4]:
                raise Damaged(position, "a batch has a wrong CRC")
        yield position, header
        next_offset = header[0] + header[6] + 1
        position += size
