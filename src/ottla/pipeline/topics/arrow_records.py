"""From the bytes of record batches to Arrow columns, without a Python object per record.

A record is a chain of variable-length numbers, so a decoder written as a loop spends some two microseconds
on each, most of it making ints and bytes that are thrown away. Here only one thing is done record by record:
`_record_starts` hops from length to length to find where each record starts. All else is done for thousands
of records at once with Arrow's own kernels: `_varints` gathers the bytes at all positions and puts the
numbers together, and `_gather` lets one array of offsets point at all keys (or values) inside the opened
bytes and copies them out in one call. That is about ten times as fast as the loop, and gets faster the more
records come together, so bodies of many batches are decoded as one (`RecordDecoder.decode` takes a list).

The rows are those of Spark's Kafka source: key, value, topic, partition, offset, timestamp, timestampType
and, when asked for, headers. Input is hostile: every position is checked to lie inside its record before
anything is copied, and whatever is wrong raises `InvalidRecords`. `tests/pipeline` holds this decoder
against the loop of the protocol package.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import Struct
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ottla.protocol.batches import BatchHeader
from ottla.protocol.varints import SMALLEST_HEADER, SMALLEST_RECORD, InvalidRecords, read_varint

__all__ = ["BatchBody", "InvalidRecords", "RecordDecoder", "kafka_schema"]

Array = Any
"""A pyarrow Array; pyarrow ships no types."""

_HEADERS = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
_FIELDS = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
]

_INT64 = Struct("=q")
_INT32 = Struct("=i")
_MOST_MILLISECONDS = (1 << 63) // 1000 - 1

_ZERO, _ONE, _LOW_BITS, _CONTINUED = (pa.scalar(n, pa.int64()) for n in (0, 1, 0x7F, 0x80))
_THOUSAND, _HALF_WORD, _32_BITS = (pa.scalar(n, pa.int64()) for n in (1000, 32, 0xFFFFFFFF))
_ONE_UNSIGNED = pa.scalar(1, pa.uint64())
_SHIFTS = [pa.scalar(7 * n, pa.int64()) for n in range(10)]


def kafka_schema(include_headers: bool = False) -> Any:
    """The Arrow schema of Spark's Kafka source."""
    return pa.schema([*_FIELDS, pa.field("headers", _HEADERS)] if include_headers else _FIELDS)


class BatchBody(NamedTuple):
    """An opened batch: its header, and where in a buffer its decompressed records stand."""

    header: BatchHeader
    start: int
    end: int


class RecordDecoder:
    """Makes Arrow batches of the records of one partition. Keeps the columns that never change."""

    def __init__(self, topic: str, partition: int, include_headers: bool = False) -> None:
        self.schema = kafka_schema(include_headers)
        self._include_headers = include_headers
        self._topic = pa.scalar(topic, pa.string())
        self._partition = pa.scalar(partition, pa.int32())
        self._topics = pa.array([], pa.string())
        self._partitions = pa.array([], pa.int32())
        self._evens = pa.array([], pa.int64())

    def decode(self, data: bytes | bytearray, bodies: Sequence[BatchBody], start: int, end: int) -> Any:
        """One RecordBatch of the records in `bodies` (parts of `data`) with offsets from `start` to `end`.

        `end` is not included. Offsets rise within the batch as they do in the log.
        """
        starts: list[int] = []
        for header, body_start, body_end in bodies:
            _record_starts(data, body_start, body_end, header.record_count, starts)
        count = len(starts)
        if not count:
            return pa.RecordBatch.from_pylist([], self.schema)
        self._grow(count)
        ends = _of_int64(array("q", _record_ends(starts, bodies)))
        positions = _of_int64(array("q", starts))
        buffer = pa.py_buffer(data)
        raw = pa.Array.from_buffers(pa.uint8(), len(data), [None, buffer])

        # The lengths were followed by _record_starts; only their sign, the lowest bit, is not looked at yet.
        sizes, positions = _varints(raw, positions, 5)
        _demand(pc.equal(pc.add(positions, sizes), ends), "a record has an impossible length")
        timestamp_deltas, positions = _varints(raw, pc.add(positions, _ONE), 10)
        offset_deltas, positions = _varints(raw, positions, 5)
        key_sizes, positions = _varints(raw, positions, 5)
        keys, positions = self._field(buffer, positions, key_sizes, ends)
        value_sizes, positions = _varints(raw, positions, 5)
        values, positions = self._field(buffer, positions, value_sizes, ends)
        header_counts, after = _varints(raw, positions, 5)
        bare = pc.equal(header_counts, _ZERO)
        _demand(
            pc.if_else(bare, pc.equal(after, ends), pc.less(after, ends)),
            "the fields of a record do not add up to its length",
        )

        offsets = pc.add(_spread(bodies, [b.header.base_offset for b in bodies]), offset_deltas)
        columns = [
            keys,
            values,
            self._topics.slice(0, count),
            self._partitions.slice(0, count),
            offsets,
            _timestamps(bodies, timestamp_deltas),
            _spread_int32(bodies, [int(b.header.is_log_append_time) for b in bodies]),
        ]
        if self._include_headers:
            columns.append(_headers(bytes(data), positions, ends, bare))
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if bodies[0].header.base_offset >= start and bodies[-1].header.next_offset <= end:
            return batch
        wanted = pc.and_(pc.greater_equal(offsets, pa.scalar(start)), pc.less(offsets, pa.scalar(end)))
        return batch.filter(wanted)

    def _field(self, buffer: Any, positions: Array, sizes: Array, ends: Array) -> tuple[Array, Array]:
        """Keys or values of those sizes, null where negative, and the positions behind them."""
        count = len(positions)
        smallest, largest = _range(sizes)
        if largest < 0:
            return pa.nulls(count, pa.binary()), positions
        behind = pc.add(positions, sizes if smallest >= 0 else pc.max_element_wise(sizes, _ZERO))
        _demand(pc.less(behind, ends), "a key or value is longer than its record")
        chosen = self._evens.slice(0, count)
        if smallest < 0:
            chosen = pc.if_else(pc.less(sizes, _ZERO), pa.scalar(None, pa.int64()), chosen)
        return _gather(buffer, positions, behind, chosen), behind

    def _grow(self, count: int) -> None:
        if len(self._evens) < count:
            self._evens = _of_int64(array("q", range(0, 2 * count, 2)))
            self._topics = pa.repeat(self._topic, count)
            self._partitions = pa.repeat(self._partition, count)


def _record_starts(data: bytes | bytearray, position: int, end: int, count: int, starts: list[int]) -> None:
    """Hop over `count` records that must fill `data` from `position` to `end`.

    This loop is the only work per record, so it does nothing but follow the lengths. A negative length is
    read as some positive one, which is found out later; it always moves forward, so the loop ends.
    """
    if count < 0 or count * SMALLEST_RECORD > end - position:
        raise InvalidRecords(f"{count} records cannot stand in {end - position} bytes")
    add = starts.append
    try:
        for _ in range(count):
            add(position)
            byte = data[position]
            if byte < 0x80:
                position += (byte >> 1) + 1
            else:
                second = data[position + 1]
                if second < 0x80:
                    position += ((byte & 0x7F | second << 7) >> 1) + 2
                else:
                    length, width = read_varint(bytes(data[position : position + 5]), 0)
                    position += width + max(length, 0)
    except IndexError:
        raise InvalidRecords("the records are cut off") from None
    if position != end:
        raise InvalidRecords(f"the {count} records of a batch end {end - position} bytes before its end")


def _record_ends(starts: list[int], bodies: Sequence[BatchBody]) -> list[int]:
    """A record ends where the next starts, the last of a batch where its body ends."""
    ends = starts[1:]
    ends.append(0)
    last = -1
    for header, _, body_end in bodies:
        last += header.record_count
        if header.record_count:
            ends[last] = body_end
    return ends


def _varints(raw: Array, positions: Array, longest: int) -> tuple[Array, Array]:
    """The zigzag varints (of at most `longest` bytes) at all `positions`, and the positions behind them.

    A position behind the data reads its last byte instead: the record is damaged, which the caller finds by
    comparing the positions with the record's end, and must not make us read elsewhere.
    """
    last = pa.scalar(len(raw) - 1, pa.int64())
    value = _bytes_at(raw, pc.min_element_wise(positions, last))
    positions = pc.add(positions, _ONE)
    if len(raw) and _range(value)[1] >= 0x80:
        more = pc.greater_equal(value, _CONTINUED)
        value = pc.bit_wise_and(value, _LOW_BITS)
        for step in range(1, longest + 1):
            if not pc.any(more).as_py():
                break
            if step == longest:
                raise InvalidRecords(f"a varint is longer than {longest} bytes")
            byte = _bytes_at(raw, pc.min_element_wise(positions, last))
            part = pc.shift_left(pc.bit_wise_and(byte, _LOW_BITS), _SHIFTS[step])
            value = pc.if_else(more, pc.bit_wise_or(value, part), value)
            positions = pc.add(positions, more.cast(pa.int64()))
            more = pc.and_(more, pc.greater_equal(byte, _CONTINUED))
    if longest == 5:
        value = pc.bit_wise_and(value, _32_BITS)
    # Zigzag: the lowest bit is the sign. Unsigned, since a 64-bit number may fill the word.
    halves = pc.shift_right(value.view(pa.uint64()), _ONE_UNSIGNED).view(pa.int64())
    return pc.bit_wise_xor(halves, pc.negate(pc.bit_wise_and(value, _ONE))), positions


def _bytes_at(raw: Array, positions: Array) -> Array:
    return pc.array_take(raw, positions, boundscheck=False).cast(pa.int64())


def _gather(buffer: Any, starts: Array, ends: Array, chosen: Array) -> Array:
    """The byte strings from `starts` to `ends` in `buffer`, as one binary array.

    Start and end put into one 64-bit word each are, as 32-bit words, start, end, start, end, ...: the offsets
    of a binary array in which every even element is wanted and every odd one is what lies between. `chosen`
    are the even numbers, null where the result shall be null.
    """
    pairs = pc.bit_wise_or(starts, pc.shift_left(ends, _HALF_WORD))
    everything = pa.Array.from_buffers(
        pa.binary(), 2 * len(starts) - 1, [None, pairs.buffers()[1].slice(8 * pairs.offset), buffer]
    )
    return pc.array_take(everything, chosen, boundscheck=False)


def _timestamps(bodies: Sequence[BatchBody], deltas: Array) -> Array:
    """Each record's time: its own, or for batches marked with the time of appending, that."""
    stamped = [b.header.is_log_append_time and b.header.max_timestamp >= 0 for b in bodies]
    bases = [
        b.header.max_timestamp if s else b.header.base_timestamp for b, s in zip(bodies, stamped, strict=True)
    ]
    times = _spread(bodies, bases)
    if not all(stamped):
        if any(stamped):
            deltas = pc.multiply(deltas, _spread(bodies, [int(not s) for s in stamped]))
        times = pc.add(times, deltas)
    smallest, largest = _range(times)
    if smallest < -_MOST_MILLISECONDS or largest > _MOST_MILLISECONDS:
        # Times that no calendar knows; the nearest that Arrow's microseconds can say.
        times = pc.max_element_wise(times, pa.scalar(-_MOST_MILLISECONDS))
        times = pc.min_element_wise(times, pa.scalar(_MOST_MILLISECONDS))
    return pc.multiply(times, _THOUSAND).view(pa.timestamp("us", tz="UTC"))


def _headers(data: bytes, positions: Array, ends: Array, bare: Array) -> Array:
    """The headers column: null for a record without headers, as Spark's connector has it."""
    if pc.all(bare).as_py():
        return pa.nulls(len(bare), _HEADERS)
    names: list[str] = []
    contents: list[bytes | None] = []
    offsets: list[int | None] = []
    for without, position, end in zip(bare.to_pylist(), positions.to_pylist(), ends.to_pylist(), strict=True):
        if without:
            offsets.append(None)
        else:
            offsets.append(len(names))
            _read_headers(data, position, end, names, contents)
    offsets.append(len(names))
    pairs = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()), pa.array(contents, pa.binary())], fields=list(_HEADERS.value_type)
    )
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pairs, type=_HEADERS)


def _read_headers(
    data: bytes, position: int, end: int, names: list[str], contents: list[bytes | None]
) -> None:
    try:
        count, position = read_varint(data, position)
        if count < 0 or count * SMALLEST_HEADER > end - position:
            raise InvalidRecords(f"{count} headers where {end - position} bytes are left")
        for _ in range(count):
            length, position = read_varint(data, position)
            if length < 0 or length > end - position:
                raise InvalidRecords(f"a header key of {length} bytes where {end - position} are left")
            # Java's readers replace what is not UTF-8 too.
            names.append(data[position : position + length].decode("utf-8", "replace"))
            position += length
            length, position = read_varint(data, position)
            if length > end - position:
                raise InvalidRecords(f"a header value of {length} bytes where {end - position} are left")
            contents.append(data[position : position + length] if length >= 0 else None)
            position += max(length, 0)
    except IndexError:
        raise InvalidRecords("the headers of a record are cut off") from None
    if position != end:
        raise InvalidRecords("the headers of a record do not add up to its length")


def _spread(bodies: Sequence[BatchBody], numbers: Sequence[int]) -> Array:
    """An int64 column with the number of each batch for all its records."""
    parts = [_INT64.pack(n) * b.header.record_count for b, n in zip(bodies, numbers, strict=True)]
    return _from_bytes(pa.int64(), b"".join(parts), 8)


def _spread_int32(bodies: Sequence[BatchBody], numbers: Sequence[int]) -> Array:
    parts = [_INT32.pack(n) * b.header.record_count for b, n in zip(bodies, numbers, strict=True)]
    return _from_bytes(pa.int32(), b"".join(parts), 4)


def _of_int64(numbers: array[int]) -> Array:
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _from_bytes(kind: Any, raw: bytes, width: int) -> Array:
    return pa.Array.from_buffers(kind, len(raw) // width, [None, pa.py_buffer(raw)])


def _range(numbers: Array) -> tuple[int, int]:
    found = pc.min_max(numbers)
    return (found["min"].as_py(), found["max"].as_py()) if len(numbers) else (0, 0)


def _demand(holds: Array, otherwise: str) -> None:
    if not pc.all(holds).as_py():
        raise InvalidRecords(otherwise)
