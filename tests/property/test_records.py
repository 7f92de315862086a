"""Record batches over random records and hostile bytes.

The oracles are kafka-python's and aiokafka's own builders and readers: uncompressed batches must be equal
byte for byte, compressed ones must be readable both ways.
"""

from __future__ import annotations

import time
import tracemalloc

import aiokafka.record.default_records as aiokafka_records
import kafka.record.default_records as kafka_python_records
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ottla.protocol.batches import HEADER_SIZE, crc_matches, read_header
from ottla.protocol.compression import Codec, CompressionError
from ottla.protocol.records import (
    InvalidRecords,
    Record,
    decode_batch,
    encode_batch,
    recompress,
    validate_records,
)
from ottla.protocol.varints import append_varint, read_varint, read_varlong

LIMIT = 8 << 20
calm = settings(deadline=None)  # a busy machine is no failure

nullable = st.none() | st.binary(max_size=200)
header = st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=10), nullable)
timestamps = st.integers(0, 2**53) | st.integers(1_700_000_000_000, 1_700_000_100_000)


@st.composite
def numbered_records(draw: st.DrawFn) -> list[Record]:
    rows = draw(
        st.lists(
            st.tuples(timestamps, nullable, nullable, st.lists(header, max_size=4)), min_size=1, max_size=40
        )
    )
    return [Record(n, *row) for n, row in enumerate(rows)]


@calm
@given(st.integers(-(2**31), 2**31 - 1))
@example(-1)
@example(63)
@example(64)
def test_varints_of_32_bits_round_trip(value: int) -> None:
    out = bytearray()
    append_varint(out, value)
    assert len(out) <= 5
    assert read_varint(bytes(out), 0) == (value, len(out))


@calm
@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_of_64_bits_round_trip(value: int) -> None:
    out = bytearray()
    append_varint(out, value)
    assert len(out) <= 10
    assert read_varlong(bytes(out), 0) == (value, len(out))


@calm
@given(numbered_records(), st.sampled_from(Codec), st.sampled_from(Codec))
def test_records_round_trip_with_every_codec(records: list[Record], codec: Codec, other: Codec) -> None:
    batch = encode_batch(records, codec=codec)
    assert crc_matches(batch, 0, read_header(batch))
    assert decode_batch(batch, max_size=LIMIT) == records
    times = [r.timestamp for r in records]
    assert validate_records(batch, LIMIT) == (min(times), max(times))
    again = recompress(batch, other, max_size=LIMIT)
    assert crc_matches(again, 0, read_header(again))
    assert decode_batch(again, max_size=LIMIT) == records


@calm
@given(numbered_records())
def test_uncompressed_bytes_are_those_of_kafka_python(records: list[Record]) -> None:
    builder = kafka_python_records.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=5,
        producer_epoch=2,
        base_sequence=1,
        batch_size=1 << 30,
    )
    for r in records:
        assert builder.append(r.offset, r.timestamp, r.key, r.value, r.headers) is not None
    assert encode_batch(records, producer_id=5, producer_epoch=2, base_sequence=1, leader_epoch=0) == bytes(
        builder.build()
    )


@calm
@given(numbered_records(), st.sampled_from(Codec))
def test_batches_of_aiokafka_are_read(records: list[Record], codec: Codec) -> None:
    builder = aiokafka_records.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=int(codec),
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for r in records:
        builder.append(r.offset, r.timestamp, r.key, r.value, list(r.headers))
    assert decode_batch(bytes(builder.build()), max_size=LIMIT) == records


@calm
@given(numbered_records(), st.sampled_from(Codec))
def test_our_batches_are_read_by_aiokafka(records: list[Record], codec: Codec) -> None:
    theirs = aiokafka_records.DefaultRecordBatch(bytes(encode_batch(records, codec=codec)))
    assert theirs.validate_crc()
    assert [
        Record(r.offset, r.timestamp, r.key, r.value, [(name, value) for name, value in r.headers])
        for r in theirs
    ] == records


@calm
@given(numbered_records(), st.sampled_from([Codec.NONE, Codec.GZIP]))
def test_our_batches_are_read_by_kafka_python(records: list[Record], codec: Codec) -> None:
    theirs = kafka_python_records.DefaultRecordBatch(bytes(encode_batch(records, codec=codec)))
    assert theirs.validate_crc()
    assert [
        Record(r.offset, r.timestamp, r.key, r.value, [(name, value) for name, value in r.headers])
        for r in theirs
    ] == records


def _survives(batch: bytes | bytearray) -> None:
    for attempt in (
        lambda: decode_batch(batch, max_size=LIMIT),
        lambda: validate_records(batch, LIMIT),
        lambda: recompress(batch, Codec.LZ4, max_size=LIMIT),
    ):
        try:
            attempt()
        except (InvalidRecords, CompressionError):
            continue


@calm
@given(
    numbered_records(),
    st.sampled_from(Codec),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_damaged_batches_give_an_error_or_records(
    records: list[Record], codec: Codec, damage: list[tuple[int, int]]
) -> None:
    batch = encode_batch(records, codec=codec)
    for place, byte in damage:
        batch[place % len(batch)] = byte
    _survives(batch)


@calm
@given(st.binary(max_size=400), st.integers(-10, 1000), st.integers(0, 7))
def test_random_bytes_behind_a_good_header_give_an_error_or_records(
    body: bytes, count: int, attributes: int
) -> None:
    batch = encode_batch([Record(0, 0, None, None, [])])[:HEADER_SIZE] + body
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[22] = attributes
    batch[23:27] = (count - 1).to_bytes(4, "big", signed=True)
    batch[57:61] = count.to_bytes(4, "big", signed=True)
    _survives(batch)


@calm
@given(st.binary(max_size=200))
def test_random_bytes_give_an_error(data: bytes) -> None:
    _survives(data)


@pytest.mark.parametrize(
    "body",
    [
        b"\x80" * 500_000,
        b"\xff" * 500_000,
        b"\x0c\x00\x00\x00\x01\x01\xfe\xff\xff\xff\x0f" * 50_000,
        b"\x7f" * 500_000,
        bytes(500_000),
    ],
    ids=["endless varint", "all ones", "absurd header counts", "long records", "zeros"],
)
@calm
@given(count=st.sampled_from([1, 1000, 70_000, 2**31 - 1]))
def test_decoding_a_hostile_batch_has_bounded_time_and_memory(body: bytes, count: int) -> None:
    batch = encode_batch([Record(0, 0, None, None, [])])[:HEADER_SIZE] + body
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[23:27] = (count - 1).to_bytes(4, "big")
    batch[57:61] = count.to_bytes(4, "big")
    began = time.perf_counter()
    tracemalloc.start()
    try:
        _survives(batch)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(batch)
    assert time.perf_counter() - began < 10
