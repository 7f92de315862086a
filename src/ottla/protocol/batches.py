"""Record batches as the broker sees them: a header of 61 bytes and a body it does not open.

A magic-2 batch is the unit of everything: of appending, of indexing, of sending. The header says how many
offsets, which times, which producer and which compression; the records behind it are the clients' business.

    base offset 8 | batch length 4 | leader epoch 4 | magic 1 | CRC-32C 4 |
    attributes 2 | last offset delta 4 | base timestamp 8 | max timestamp 8 |
    producer id 8 | producer epoch 2 | base sequence 4 | record count 4 | records

The CRC covers all from the attributes on. Base offset and leader epoch stand before it, which is why the
leader may stamp them into a batch without touching a byte that the producer has signed.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

HEADER = Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size  # 61
LENGTH_OVERHEAD = 12  # base offset and batch length, which the batch length does not count
CRC_START = 21
MAGIC = 2

NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

_OUTLINE = Struct(">8xi4xb4xh")
_LENGTH = Struct(">8xi")
_STAMP_OFFSET = Struct(">q")
_STAMP_EPOCH = Struct(">i")


class BatchHeader(NamedTuple):
    """The fixed part of a batch, field by field as it stands in the bytes."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header and length field included."""
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def has_producer(self) -> bool:
        return self.producer_id >= 0

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; sequences wrap from 2^31-1 to 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


read_outline = _OUTLINE.unpack_from
"""(buffer, position=0) -> batch length, magic and attributes, by which Produce admits a batch: cheaper than
the whole header. struct.error when fewer than 23 bytes are left."""


def batch_follows(buffer: bytes | bytearray | memoryview, position: int) -> bool:
    """Whether the bytes from `position` on hold as many as the batch that begins there claims to have."""
    left = len(buffer) - position
    if left <= LENGTH_OVERHEAD:
        return False
    (length,) = _LENGTH.unpack_from(buffer, position)
    return bool(length + LENGTH_OVERHEAD <= left)


def read_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """The header at `position`; struct.error when fewer than 61 bytes are left."""
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def crc_matches(buffer: bytes | bytearray | memoryview, position: int, header: BatchHeader) -> bool:
    """True when the CRC-32C of the batch at `position` is the one its header claims. Copies nothing."""
    with memoryview(buffer)[position + CRC_START : position + header.size] as covered:
        return bool(crc32c(covered) == header.crc)


def stamp(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Write the offset and epoch that the leader gives the batch at `position`, in place."""
    _STAMP_OFFSET.pack_into(buffer, position, base_offset)
    _STAMP_EPOCH.pack_into(buffer, position + LENGTH_OVERHEAD, leader_epoch)


def headers(buffer: bytes | bytearray | memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch in `buffer`; stops before a batch that is cut off.

    Checks nothing but that a batch is at least as long as its header, so that the walk always ends.
    """
    position, end = 0, len(buffer)
    while end - position >= HEADER_SIZE:
        header = read_header(buffer, position)
        if header.batch_length < HEADER_SIZE - LENGTH_OVERHEAD or header.size > end - position:
            return
        yield position, header
        position += header.size
