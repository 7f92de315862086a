"""The loops over single records: the only place where work is done per record and not per batch.

A record inside a (decompressed) batch is a length and then, mostly as zigzag varints:

    attributes 1 | timestamp delta | offset delta | key length, key | value length, value |
    header count | for each header: key length, key, value length, value

Lengths of -1 stand for null. Everything here is a plain function over bytes and ints, with no import from the
rest of the house, so that the very same file can be compiled (mypyc makes it about seven times faster); it is
right either way. Input is hostile: every loop ends, nothing is allocated on the word of a length field, and
all that can be wrong raises `InvalidRecords`.
"""

from __future__ import annotations

SMALLEST_RECORD = 7  # length, attributes, five varints of one byte: null key, null value, no headers
SMALLEST_HEADER = 2  # an empty key and a null value

Headers = list[tuple[str, bytes | None]]
Row = tuple[int, int, bytes | None, bytes | None, Headers]


class InvalidRecords(ValueError):
    """The records of a batch are not what its header promises, or are no records at all."""


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The zigzag varint (32 bits, at most 5 bytes) at `position`, and the position behind it."""
    value = 0
    shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise InvalidRecords("a varint is longer than 5 bytes")
    value &= 0xFFFFFFFF
    return (value >> 1) ^ -(value & 1), position


def read_varlong(data: bytes, position: int) -> tuple[int, int]:
    """The zigzag varint (64 bits, at most 10 bytes) at `position`, and the position behind it."""
    value = 0
    shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise InvalidRecords("a varint is longer than 10 bytes")
    value &= 0xFFFFFFFFFFFFFFFF
    return (value >> 1) ^ -(value & 1), position


def append_varint(out: bytearray, value: int) -> None:
    """Write `value` (32 or 64 bits, signed) as a zigzag varint."""
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def decode_records(
    body: bytes, count: int, base_offset: int, base_timestamp: int, append_timestamp: int
) -> list[Row]:
    """(offset, timestamp, key, value, headers) of the `count` records that fill `body`.

    With `append_timestamp` >= 0 (LogAppendTime) all records carry that time instead of their own.
    """
    size = len(body)
    if count < 0 or count * SMALLEST_RECORD > size:
        raise InvalidRecords(f"{count} records cannot stand in {size} bytes")
    rows: list[Row] = []
    position = 0
    try:
        for _ in range(count):
            byte = body[position]
            if byte < 0x80:
                position += 1
                length = (byte >> 1) ^ -(byte & 1)
            else:
                length, position = read_varint(body, position)
            end = position + length
            if length < SMALLEST_RECORD - 1 or end > size:
                raise InvalidRecords(f"a record of {length} bytes where {size - position} are left")
            position += 1  # attributes: no bit of them has a meaning

            byte = body[position]
            if byte < 0x80:
                position += 1
                timestamp = base_timestamp + ((byte >> 1) ^ -(byte & 1))
            else:
                timestamp, position = read_varlong(body, position)
                timestamp += base_timestamp
            if append_timestamp >= 0:
                timestamp = append_timestamp

            byte = body[position]
            if byte < 0x80:
                position += 1
                offset = base_offset + ((byte >> 1) ^ -(byte & 1))
            else:
                offset, position = read_varint(body, position)
                offset += base_offset

            byte = body[position]
            if byte < 0x80:
                position += 1
                length = (byte >> 1) ^ -(byte & 1)
            else:
                length, position = read_varint(body, position)
            key: bytes | None = None
            if length >= 0:
                if length > end - position:
                    raise InvalidRecords(f"a key of {length} bytes where {end - position} are left")
                key = body[position : position + length]
                position += length

            byte = body[position]
            if byte < 0x80:
                position += 1
                length = (byte >> 1) ^ -(byte & 1)
            else:
                length, position = read_varint(body, position)
            value: bytes | None = None
            if length >= 0:
                if length > end - position:
                    raise InvalidRecords(f"a value of {length} bytes where {end - position} are left")
                value = body[position : position + length]
                position += length

            headers: Headers = []
            if body[position] == 0:
                position += 1
            else:
                position = _read_headers(body, position, end, headers)
            if position != end:
                raise InvalidRecords("the fields of a record do not add up to its length")
            rows.append((offset, timestamp, key, value, headers))
    except IndexError:
        raise InvalidRecords("the records are cut off") from None
    if position != size:
        raise InvalidRecords(f"{size - position} bytes are left behind the last of {count} records")
    return rows


def _read_headers(body: bytes, position: int, end: int, headers: Headers) -> int:
    count, position = read_varint(body, position)
    if count < 0 or count * SMALLEST_HEADER > end - position:
        raise InvalidRecords(f"{count} headers where {end - position} bytes are left")
    for _ in range(count):
        length, position = read_varint(body, position)
        if length < 0 or length > end - position:
            raise InvalidRecords(f"a header key of {length} bytes where {end - position} are left")
        # Java's readers replace what is not UTF-8 too: a consumer must not stumble over another's bytes.
        key = body[position : position + length].decode("utf-8", "replace")
        position += length
        length, position = read_varint(body, position)
        value: bytes | None = None
        if length >= 0:
            if length > end - position:
                raise InvalidRecords(f"a header value of {length} bytes where {end - position} are left")
            value = body[position : position + length]
            position += length
        headers.append((key, value))
    return position


def check_records(body: bytes, count: int, require_keys: bool) -> tuple[int, int]:
    """Walk the records without building them; (smallest, largest) timestamp delta.

    Holds when `body` is exactly `count` records whose offset deltas are 0, 1, 2, ... and whose fields add up,
    as a leader demands of a producer; with `require_keys` also that each has a key, as compaction needs.
    """
    size = len(body)
    if count < 0 or count * SMALLEST_RECORD > size:
        raise InvalidRecords(f"{count} records cannot stand in {size} bytes")
    smallest = 0
    largest = 0
    position = 0
    try:
        for index in range(count):
            byte = body[position]
            if byte < 0x80:
                position += 1
                length = (byte >> 1) ^ -(byte & 1)
            else:
                length, position = read_varint(body, position)
            end = position + length
            if length < SMALLEST_RECORD - 1 or end > size:
                raise InvalidRecords(f"record {index} claims {length} bytes where {size - position} are left")
            position += 1

            byte = body[position]
            if byte < 0x80:
                position += 1
                delta = (byte >> 1) ^ -(byte & 1)
            else:
                delta, position = read_varlong(body, position)
            if index == 0:
                smallest = largest = delta
            elif delta > largest:
                largest = delta
            elif delta < smallest:
                smallest = delta

            byte = body[position]
            if byte < 0x80:
                position += 1
                delta = (byte >> 1) ^ -(byte & 1)
            else:
                delta, position = read_varint(body, position)
            if delta != index:
                raise InvalidRecords(f"record {index} has offset delta {delta}: offsets must be consecutive")

            byte = body[position]
            if byte < 0x80:
                position += 1
                length = (byte >> 1) ^ -(byte & 1)
            else:
                length, position = read_varint(body, position)
            if length >= 0:
                position += length
            elif require_keys:
                raise InvalidRecords(f"record {index} has no key, which a compacted topic needs")

            byte = body[position]
            if byte < 0x80:
                position += 1
                length = (byte >> 1) ^ -(byte & 1)
            else:
                length, position = read_varint(body, position)
            if length > 0:
                position += length

            if body[position] == 0:
                position += 1
            else:
                position = _skip_headers(body, position, end)
            if position != end:
                raise InvalidRecords(f"the fields of record {index} do not add up to its length")
    except IndexError:
        raise InvalidRecords("the records are cut off") from None
    if position != size:
        raise InvalidRecords(f"{size - position} bytes are left behind the last of {count} records")
    return smallest, largest


def _skip_headers(body: bytes, position: int, end: int) -> int:
    count, position = read_varint(body, position)
    if count < 0 or count * SMALLEST_HEADER > end - position:
        raise InvalidRecords(f"{count} headers where {end - position} bytes are left")
    for _ in range(count):
        length, position = read_varint(body, position)
        if length < 0:
            raise InvalidRecords("a header without a key")
        position += length
        length, position = read_varint(body, position)
        if length > 0:
            position += length
    return position


def encode_records(rows: list[Row], base_offset: int, base_timestamp: int) -> bytearray:
    """The records one after the other as they stand in a batch with that base offset and base timestamp."""
    out = bytearray()
    record = bytearray()
    for offset, timestamp, key, value, headers in rows:
        record.clear()
        record.append(0)
        append_varint(record, timestamp - base_timestamp)
        append_varint(record, offset - base_offset)
        if key is None:
            record.append(1)
        else:
            append_varint(record, len(key))
            record += key
        if value is None:
            record.append(1)
        else:
            append_varint(record, len(value))
            record += value
        append_varint(record, len(headers))
        for name, content in headers:
            encoded = name.encode()
            append_varint(record, len(encoded))
            record += encoded
            if content is None:
                record.append(1)
            else:
                append_varint(record, len(content))
                record += content
        append_varint(out, len(record))
        out += record
    return out
