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

from mmap import mmap

SMALLEST_RECORD = 7  # length, attributes, five varints of one byte: null key, null value, no headers
SMALLEST_HEADER = 2  # an empty key and a null value

LONG = 1 << 63  # timestamps are below this
FAR = 1 << 70  # beyond every timestamp delta and every count

Body = bytes | mmap
"""Decompressed records; large ones lie in a memory map (see `compression.open_body`)."""
Headers = list[tuple[str, bytes | None]]
Row = tuple[int, int, bytes | None, bytes | None, Headers]


class InvalidRecords(ValueError):
    """The records of a batch are not what its header promises, or are no records at all."""


class TooManyHeaders(InvalidRecords):
    """There are more headers than the caller is willing to look at."""


def read_varint(data: Body, position: int) -> tuple[int, int]:
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


def read_varlong(data: Body, position: int) -> tuple[int, int]:
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
                if not -LONG <= timestamp < LONG:  # as Java adds; others have to be able to write it down
                    timestamp = (timestamp + LONG) % (2 * LONG) - LONG
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


class RecordWalk:
    """Goes over the records of one batch without building them, in as many steps as the caller likes.

    Holds when `body[:size]` is exactly `count` records whose offset deltas are 0, 1, 2, ... and whose fields
    add up, as a leader demands of a producer. On the way it notes what only the leader of a topic can judge:
    the smallest and the largest timestamp delta, records without a key, and records whose timestamp delta is
    not between `earliest` and `latest` (`untimed` is the delta that stands for "no timestamp"). The first
    `most_named` of either kind are named by their index, all are counted.
    """

    def __init__(
        self,
        body: Body,
        size: int,
        count: int,
        earliest: int = -FAR,
        latest: int = FAR,
        untimed: int = FAR,
        most_named: int = 1,
        most_headers: int = FAR,
    ) -> None:
        if count < 0 or count * SMALLEST_RECORD > size:
            raise InvalidRecords(f"{count} records cannot stand in {size} bytes")
        self.smallest = 0
        self.largest = 0
        self.headers = 0
        self.keyless_count = 0
        self.keyless: list[int] = []
        self.untimely_count = 0
        self.untimely: list[tuple[int, int]] = []  # index and timestamp delta
        self._body = body
        self._size = size
        self._count = count
        self._earliest = earliest
        self._latest = latest
        self._untimed = untimed
        self._most_named = most_named
        self._most_headers = most_headers
        self._index = 0
        self._position = 0

    def advance(self, most: int) -> bool:
        """Walk `most` records further; True when all have been seen. InvalidRecords when one is none."""
        body, size, position = self._body, self._size, self._position
        first, stop = self._index, min(self._index + most, self._count)
        earliest, latest = self._earliest, self._latest
        smallest, largest = self.smallest, self.largest
        try:
            for index in range(first, stop):
                byte = body[position]
                if byte < 0x80:
                    position += 1
                    length = (byte >> 1) ^ -(byte & 1)
                else:
                    length, position = read_varint(body, position)
                end = position + length
                if length < SMALLEST_RECORD - 1 or end > size:
                    raise InvalidRecords(
                        f"record {index} claims {length} bytes where {size - position} are left"
                    )
                position += 1

                byte = body[position]
                if byte < 0x80:
                    position += 1
                    delta = (byte >> 1) ^ -(byte & 1)
                else:
                    delta, position = read_varlong(body, position)
                if delta > largest:
                    largest = delta
                    if index == 0:
                        smallest = delta
                elif delta < smallest:
                    smallest = delta
                    if index == 0:
                        largest = delta
                if delta < earliest or delta > latest:
                    self._note_untimely(index, delta)

                byte = body[position]
                if byte < 0x80:
                    position += 1
                    delta = (byte >> 1) ^ -(byte & 1)
                else:
                    delta, position = read_varint(body, position)
                if delta != index:
                    raise InvalidRecords(
                        f"record {index} has offset delta {delta}: offsets must be consecutive"
                    )

                byte = body[position]
                if byte < 0x80:
                    position += 1
                    length = (byte >> 1) ^ -(byte & 1)
                else:
                    length, position = read_varint(body, position)
                if length >= 0:
                    position += length
                else:
                    self._note_keyless(index)

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
                    position = self._skip_headers(position, end)
                if position != end:
                    raise InvalidRecords(f"the fields of record {index} do not add up to its length")
        except IndexError:
            raise InvalidRecords("the records are cut off") from None
        self._index, self._position = stop, position
        self.smallest, self.largest = smallest, largest
        if stop < self._count:
            return False
        if position != size:
            raise InvalidRecords(f"{size - position} bytes are left behind the last of {self._count} records")
        return True

    def _note_untimely(self, index: int, delta: int) -> None:
        if delta == self._untimed:
            return
        self.untimely_count += 1
        if len(self.untimely) < self._most_named:
            self.untimely.append((index, delta))

    def _note_keyless(self, index: int) -> None:
        self.keyless_count += 1
        if len(self.keyless) < self._most_named:
            self.keyless.append(index)

    def _skip_headers(self, position: int, end: int) -> int:
        body = self._body
        count, position = read_varint(body, position)
        if count < 0 or count * SMALLEST_HEADER > end - position:
            raise InvalidRecords(f"{count} headers where {end - position} bytes are left")
        self.headers += count
        if self.headers > self._most_headers:
            raise TooManyHeaders(f"the records have more than {self._most_headers} headers")
        for _ in range(count):
            length, position = read_varint(body, position)
            if length < 0:
                raise InvalidRecords("a header without a key")
            position += length
            length, position = read_varint(body, position)
            if length > 0:
                position += length
        return position


class TimeWalk:
    """Looks for the first record with at least this timestamp delta and this offset delta, step by step.

    Only what it needs is looked at: lengths, timestamps and offsets. `found` is the pair of deltas.
    Deltas may be forged: a record with a timestamp delta above `latest` is passed over, and one whose offset
    delta is not between 0 and `last_offset_delta` counts as having the first offset that was asked for.
    """

    def __init__(
        self,
        body: Body,
        size: int,
        count: int,
        timestamp_delta: int,
        offset_delta: int,
        latest: int = FAR,
        last_offset_delta: int = FAR,
    ) -> None:
        if count < 0 or count * SMALLEST_RECORD > size:
            raise InvalidRecords(f"{count} records cannot stand in {size} bytes")
        self.found: tuple[int, int] | None = None
        self._body = body
        self._size = size
        self._left = count
        self._timestamp_delta = timestamp_delta
        self._offset_delta = offset_delta
        self._latest = latest
        self._last_offset_delta = last_offset_delta
        self._position = 0

    def advance(self, most: int) -> bool:
        """Walk `most` records further; True when one is found or there are no more."""
        body, size, position = self._body, self._size, self._position
        wanted_time, wanted_offset = self._timestamp_delta, self._offset_delta
        steps = min(most, self._left)
        try:
            for _ in range(steps):
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
                if timestamp >= wanted_time and timestamp <= self._latest:
                    offset, position = read_varint(body, position)
                    if offset < 0 or offset > self._last_offset_delta:
                        offset = max(wanted_offset, 0)
                    if offset >= wanted_offset:
                        self.found = (timestamp, offset)
                        return True
                position = end
        except IndexError:
            raise InvalidRecords("the records are cut off") from None
        self._left -= steps
        self._position = position
        return self._left == 0


def check_records(body: bytes, count: int, require_keys: bool) -> tuple[int, int]:
    """A whole walk (see `RecordWalk`) in one step; (smallest, largest) timestamp delta."""
    walk = RecordWalk(body, len(body), count)
    walk.advance(count)
    if require_keys and walk.keyless:
        raise InvalidRecords(f"record {walk.keyless[0]} has no key, which a compacted topic needs")
    return walk.smallest, walk.largest


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
