"""Batches that no client would send: made field by field, with any field wrong and the CRC still right.

The encoder of ottla.protocol.records can only make good batches. Here each header field and each byte of a
record may be set, so that scenarios can ask a broker what it thinks of a batch that lies.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from crc32c import crc32c

from ottla.protocol.batches import CRC_START, HEADER, HEADER_SIZE, LENGTH_OVERHEAD, BatchHeader


def varint(number: int) -> bytes:
    """A zigzag varint as records use it."""
    raw = (number << 1) ^ (number >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def record(
    offset_delta: int = 0,
    timestamp_delta: int = 0,
    key: bytes | None = b"key",
    value: bytes | None = b"value",
    *,
    attributes: int = 0,
    headers: Sequence[tuple[bytes, bytes | None]] = (),
    header_count: int | None = None,
    claimed_length: int | None = None,
) -> bytes:
    """One record of a batch's body."""
    body = struct.pack(">B", attributes) + varint(timestamp_delta) + varint(offset_delta)
    body += _sized(key) + _sized(value)
    body += varint(len(headers) if header_count is None else header_count)
    body += b"".join(varint(len(name)) + name + _sized(content) for name, content in headers)
    return varint(len(body) if claimed_length is None else claimed_length) + body


def _sized(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


def batch(body: bytes, *, count: int = 1, now: int = 0, crc_off_by: int = 0, **fields: int) -> bytearray:
    """A batch around `body`. Any header field may be given; batch length and CRC are right unless said
    otherwise.
    """
    header = BatchHeader(
        base_offset=0,
        batch_length=HEADER_SIZE - LENGTH_OVERHEAD + len(body),
        leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=0,
        last_offset_delta=count - 1,
        base_timestamp=now,
        max_timestamp=now,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=count,
    )._replace(**fields)
    return sign(bytearray(HEADER.pack(*header)) + body, crc_off_by)


def altered(original: bytes | bytearray, **fields: int) -> bytearray:
    """A good batch with some header fields replaced and its CRC made right again."""
    header = BatchHeader._make(HEADER.unpack_from(original, 0))._replace(**fields)
    return sign(bytearray(HEADER.pack(*header)) + original[HEADER_SIZE:])


def sign(data: bytearray, off_by: int = 0) -> bytearray:
    """Write the CRC of what stands behind it, or a wrong one on purpose."""
    struct.pack_into(">I", data, CRC_START - 4, (crc32c(bytes(data[CRC_START:])) + off_by) & 0xFFFFFFFF)
    return data


def legacy_message(magic: int, value: bytes = b"value") -> bytes:
    """A message set of the formats before batches (magic 0 or 1) with one message."""
    tail = struct.pack(">bb", magic, 0) + (struct.pack(">q", 0) if magic else b"")
    tail += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    message = struct.pack(">I", zlib.crc32(tail)) + tail
    return struct.pack(">qi", 0, len(message)) + message
