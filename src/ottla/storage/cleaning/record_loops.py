"""The loops over single records that compaction needs: note the keys, find the survivors, move timestamps.

As in `ottla.protocol.varints`, these are plain functions over bytes and ints. A record stands in a batch as

    length | attributes 1 | timestamp delta | offset delta | key length, key | value length, value | headers

and all that is looked at comes before the headers, so a record is known after four to six numbers. What is
wrong raises `InvalidRecords`, whatever the bytes are.
"""

from __future__ import annotations

from ottla.protocol.varints import (
    SMALLEST_RECORD,
    InvalidRecords,
    append_varint,
    read_varint,
    read_varlong,
)
from ottla.storage.cleaning.key_map import KeyMap


def note_keys(body: bytes, count: int, base_offset: int, last_offset: int, keys: KeyMap) -> bool:
    """Put the keys of a batch's records into the map; True when one of them is a tombstone.

    Records without a key cannot be compacted to, and go; so do those before the part that the map is for.
    Offsets must rise from `base_offset` to `last_offset`: one that another record has would make the map say
    of that record what is true of this one.
    """
    size = len(body)
    if count < 0 or count * SMALLEST_RECORD > size:
        raise InvalidRecords(f"{count} records cannot stand in {size} bytes")
    put = keys.put
    start = keys.start
    previous = base_offset - 1
    tombstones = False
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
            position += 1
            while body[position] >= 0x80:  # the timestamp
                position += 1
            position += 1
            byte = body[position]
            if byte < 0x80:
                position += 1
                offset = base_offset + ((byte >> 1) ^ -(byte & 1))
            else:
                offset, position = read_varint(body, position)
                offset += base_offset
            if offset <= previous or offset > last_offset:
                raise InvalidRecords(
                    f"a record with offset {offset} behind offset {previous} in a batch up to {last_offset}"
                )
            previous = offset
            byte = body[position]
            if byte < 0x80:
                position += 1
                length = (byte >> 1) ^ -(byte & 1)
            else:
                length, position = read_varint(body, position)
            if length >= 0:
                value = position + length
                if value >= end:
                    raise InvalidRecords(f"a key of {length} bytes where {end - position} are left")
                if offset >= start:
                    put(body[position:value], offset)
                if body[value] & 1:  # only null has an odd length
                    tombstones = True
            position = end
    except IndexError:
        raise InvalidRecords("the records are cut off") from None
    if position != size:
        raise InvalidRecords(f"{size - position} bytes are left behind the last of {count} records")
    return tombstones


class Survivors:
    """The records of a batch that stay: where they stand, and what is to be known of them."""

    __slots__ = ("count", "latest_timestamp", "pieces", "tombstones")

    def __init__(self) -> None:
        self.count = 0
        self.pieces: list[tuple[int, int]] = []  # from byte to byte; neighbours are joined
        self.tombstones = False
        self.latest_timestamp = 0  # the largest timestamp delta


def find_survivors(
    body: bytes, count: int, base_offset: int, last_offset: int, keys: KeyMap, keep_tombstones: bool
) -> Survivors:
    """The records that are the latest of their keys, as far as the map knows, and those behind its part.

    Offsets must rise from `base_offset` to `last_offset`.
    """
    size = len(body)
    if count < 0 or count * SMALLEST_RECORD > size:
        raise InvalidRecords(f"{count} records cannot stand in {size} bytes")
    survivors = Survivors()
    pieces = survivors.pieces
    start, end_of_part = keys.start, keys.end
    latest, is_latest = keys.latest, keys.is_latest
    piece_start = -1
    previous = base_offset - 1
    position = 0
    try:
        for _ in range(count):
            record_start = position
            byte = body[position]
            if byte < 0x80:
                position += 1
                length = (byte >> 1) ^ -(byte & 1)
            else:
                length, position = read_varint(body, position)
            end = position + length
            if length < SMALLEST_RECORD - 1 or end > size:
                raise InvalidRecords(f"a record of {length} bytes where {size - position} are left")
            position += 1
            byte = body[position]
            if byte < 0x80:
                position += 1
                timestamp = (byte >> 1) ^ -(byte & 1)
            else:
                timestamp, position = read_varlong(body, position)
            byte = body[position]
            if byte < 0x80:
                position += 1
                offset = base_offset + ((byte >> 1) ^ -(byte & 1))
            else:
                offset, position = read_varint(body, position)
                offset += base_offset
            if offset <= previous or offset > last_offset:
                raise InvalidRecords(
                    f"a record with offset {offset} behind offset {previous} in a batch up to {last_offset}"
                )
            previous = offset
            byte = body[position]
            if byte < 0x80:
                position += 1
                length = (byte >> 1) ^ -(byte & 1)
            else:
                length, position = read_varint(body, position)
            tombstone = False
            if length >= 0:
                value = position + length
                if value >= end:
                    raise InvalidRecords(f"a key of {length} bytes where {end - position} are left")
                tombstone = body[value] & 1 != 0
            if offset >= end_of_part:
                stays = True
            elif length < 0 or (tombstone and not keep_tombstones):
                stays = False
            elif offset >= start:
                stays = is_latest(offset)
            else:
                stays = latest(body[position:value]) < 0
            if stays:
                if piece_start < 0:
                    piece_start = record_start
                if survivors.count == 0 or timestamp > survivors.latest_timestamp:
                    survivors.latest_timestamp = timestamp
                survivors.count += 1
                if tombstone:
                    survivors.tombstones = True
            elif piece_start >= 0:
                pieces.append((piece_start, record_start))
                piece_start = -1
            position = end
    except IndexError:
        raise InvalidRecords("the records are cut off") from None
    if position != size:
        raise InvalidRecords(f"{size - position} bytes are left behind the last of {count} records")
    if piece_start >= 0:
        pieces.append((piece_start, size))
    return survivors


def move_timestamps(body: bytes, count: int, shift: int) -> bytearray:
    """The same records for a batch whose base timestamp is smaller by `shift`."""
    out = bytearray()
    record = bytearray()
    position = 0
    try:
        for _ in range(count):
            length, position = read_varint(body, position)
            end = position + length
            timestamp, rest = read_varlong(body, position + 1)
            record.clear()
            record.append(body[position])
            append_varint(record, timestamp + shift)
            record += body[rest:end]
            append_varint(out, len(record))
            out += record
            position = end
    except IndexError:
        raise InvalidRecords("the records are cut off") from None
    return out
