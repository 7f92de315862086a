"""The vectorised decoder against the plain loop of the protocol package: same rows, same refusals."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.pipeline.topics.arrow_records import BatchBody, InvalidRecords, RecordDecoder, kafka_schema
from ottla.protocol.batches import HEADER_SIZE, read_header
from ottla.protocol.records import Record, decode_batch, encode_batch

calm = settings(deadline=None)
EVERYTHING = (0, 1 << 62)

Batches = list[tuple[list[Record], dict[str, Any]]]

sizes = st.integers(0, 20) | st.sampled_from([63, 64, 127, 128, 8_191, 8_192, 20_000])
contents = st.none() | sizes.map(lambda n: b"x" * n) | st.binary(max_size=40)
header = st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=10), contents)
times = st.integers(0, 2**50) | st.integers(1_700_000_000_000, 1_700_000_100_000)
row = st.tuples(times, contents, contents, st.lists(header, max_size=4) | st.just([]))


@st.composite
def gapped_batches(draw: st.DrawFn) -> Batches:
    """Batches with rising offsets, with gaps in and between them as compaction leaves them."""
    offset = draw(st.integers(0, 2**40))
    batches = []
    for rows in draw(st.lists(st.lists(row, min_size=1, max_size=30), min_size=1, max_size=4)):
        offset += draw(st.sampled_from([0, 1, 70]))
        settings = {"base_offset": offset, "log_append_time": draw(st.booleans())}
        records = []
        for fields in rows:
            offset += draw(st.sampled_from([0, 0, 0, 1, 63, 9_000]))
            records.append(Record(offset, *fields))
            offset += 1
        batches.append((records, settings))
    return batches


def join(encoded: list[bytes]) -> tuple[bytes, list[BatchBody]]:
    bodies, position = [], 0
    for batch in encoded:
        bodies.append(BatchBody(read_header(batch), position + HEADER_SIZE, position + len(batch)))
        position += len(batch)
    return b"".join(encoded), bodies


def rows_of(batch: Any) -> list[tuple[Any, ...]]:
    batch.validate(full=True)
    micros = batch["timestamp"].cast(pa.int64()).to_pylist()
    found = zip(
        batch["offset"].to_pylist(),
        micros,
        batch["key"].to_pylist(),
        batch["value"].to_pylist(),
        batch["headers"].to_pylist() if "headers" in batch.schema.names else [None] * batch.num_rows,
        strict=True,
    )
    return [
        (o, t // 1000, k, v, [(h["key"], h["value"]) for h in headers or []]) for o, t, k, v, headers in found
    ]


@calm
@given(gapped_batches())
def test_arrow_rows_are_those_of_the_plain_decoder(
    batches: Batches,
) -> None:
    encoded = [bytes(encode_batch(records, **settings)) for records, settings in batches]
    data, bodies = join(encoded)
    batch = RecordDecoder("t", 7, include_headers=True).decode(data, bodies, *EVERYTHING)
    assert batch.schema.equals(kafka_schema(include_headers=True))
    expected = [tuple(r) for part in encoded for r in decode_batch(part, max_size=1 << 30)]
    assert rows_of(batch) == expected
    assert set(batch["topic"].to_pylist()) == {"t"}
    assert set(batch["partition"].to_pylist()) == {7}
    types = [int(s["log_append_time"]) for records, s in batches for _ in records]
    assert batch["timestampType"].to_pylist() == types
    bare = RecordDecoder("t", 7).decode(data, bodies, *EVERYTHING)
    assert bare.equals(batch.drop_columns(["headers"]))


@calm
@given(gapped_batches(), st.data())
def test_only_offsets_of_the_range_come_out(batches: Batches, data: st.DataObject) -> None:
    encoded = [bytes(encode_batch(records, **settings)) for records, settings in batches]
    offsets = [r.offset for records, _ in batches for r in records]
    start = data.draw(st.integers(offsets[0] - 2, offsets[-1] + 2))
    end = data.draw(st.integers(start, offsets[-1] + 3))
    batch = RecordDecoder("t", 0).decode(*join(encoded), start, end)
    assert batch["offset"].to_pylist() == [o for o in offsets if start <= o < end]


@calm
@given(st.lists(row, min_size=1, max_size=10), st.data())
def test_damaged_records_are_refused_as_the_plain_decoder_does(rows: list[Any], data: st.DataObject) -> None:
    records = [Record(n, *fields) for n, fields in enumerate(rows)]
    batch = bytearray(encode_batch(records))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(HEADER_SIZE, len(batch) - 1))
        batch[place] = data.draw(st.integers(0, 255))
    decoder = RecordDecoder("t", 0, include_headers=True)
    try:
        expected: list[tuple[Any, ...]] = [tuple(r) for r in decode_batch(batch, max_size=1 << 30)]
    except InvalidRecords:
        with pytest.raises(InvalidRecords):
            decoder.decode(*join([bytes(batch)]), -(1 << 62), 1 << 62)
        return
    found = rows_of(decoder.decode(*join([bytes(batch)]), -(1 << 62), 1 << 62))
    # A damaged time may lie beyond what microseconds in 64 bits can say; all else must be equal.
    assert [(r[0], *r[2:]) for r in found] == [(r[0], *r[2:]) for r in expected]
    limit = (1 << 63) // 1000 - 1
    for ours, theirs in zip(found, expected, strict=True):
        if -limit <= theirs[1] <= limit:
            assert ours[1] == theirs[1]


@calm
@given(st.binary(max_size=400), st.integers(-1, 40))
def test_arbitrary_bytes_never_crash_the_decoder(noise: bytes, count: int) -> None:
    batch = bytes(encode_batch([Record(0, 0, None, None, [])]))[:HEADER_SIZE]
    header = read_header(batch)._replace(record_count=count)
    decoder = RecordDecoder("t", 0, include_headers=True)
    try:
        decoder.decode(noise, [BatchBody(header, 0, len(noise))], *EVERYTHING).validate(full=True)
    except InvalidRecords:
        return


def test_a_batch_that_compaction_emptied_gives_no_rows() -> None:
    header = read_header(bytes(encode_batch([Record(0, 0, None, None, [])])))._replace(record_count=0)
    batch = RecordDecoder("t", 0).decode(b"", [BatchBody(header, 0, 0)], *EVERYTHING)
    assert batch.num_rows == 0
    assert batch.schema.equals(kafka_schema())


def test_a_record_with_an_out_of_range_timestamp_is_kept_in_order() -> None:
    late = Record(0, 2**62, b"k", b"v", [])
    batch = RecordDecoder("t", 0).decode(*join([bytes(encode_batch([late]))]), *EVERYTHING)
    assert batch["value"].to_pylist() == [b"v"]
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [((1 << 63) // 1000 - 1) * 1000]
