"""Avro: types, values that are none, the registry prefix, and round trips against fastavro itself."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ottla.pipeline import StageError, stage, topic
from ottla.pipeline.dead_letters import explain_unwritable
from ottla.pipeline.values.avro import decode_array, encode_array, explain_avro, schema_of
from ottla.testing.in_process import InProcessBroker
from pipeline.stage_runs import StageRuns

PLACE = {
    "type": "record",
    "name": "Place",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "int"}],
}
CLICK: dict[str, Any] = {
    "type": "record",
    "name": "Click",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "user", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "exact", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "was", "type": ["null", "Kind"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "place", "type": ["null", PLACE]},
        {"name": "mixed", "type": ["null", "int", "string", "Place"]},
        {"name": "number", "type": ["int", "long"]},
        {"name": "sum", "type": ["float", "double"]},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "raw", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
    ],
}
TEXT = json.dumps(CLICK)
UID = "12345678-1234-1234-1234-123456789012"

ROW = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "user": st.none() | st.text(max_size=9),
        "at": st.integers(-(10**12), 10**13).map(lambda ms: datetime.fromtimestamp(ms // 1000, UTC)),
        "exact": st.none() | st.datetimes(datetime(1, 1, 2), datetime(9999, 1, 1), timezones=st.just(UTC)),
        "day": st.none() | st.dates(),
        "price": st.decimals(-(10**27), 10**27, places=2),
        "kind": st.sampled_from(["NEW", "OLD"]),
        "was": st.none() | st.sampled_from(["NEW", "OLD"]),
        "tags": st.lists(st.text(max_size=4), max_size=3),
        "counts": st.dictionaries(st.text(max_size=4), st.integers(-(2**31), 2**31 - 1), max_size=3),
        "place": st.none() | st.fixed_dictionaries({"x": st.integers(0, 9), "y": st.integers(0, 9)}),
        "mixed": st.none()
        | st.integers(0, 99)
        | st.text(max_size=4)
        | st.just(("shop.Place", {"x": 1, "y": 2})),
        "number": st.integers(-(2**63), 2**63 - 1),
        "sum": st.floats(width=32, allow_nan=False),
        "uid": st.just(UID),
        "raw": st.binary(min_size=4, max_size=4),
        "clock": st.just(datetime(2026, 1, 1, 1, 2, 3).time()),
    }
)


def avro(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def columns(rows: pa.Array) -> pa.Array:
    """Decoded rows without their mark."""
    names = [field.name for field in rows.type if not field.name.startswith("_ottla")]
    return pa.StructArray.from_arrays([rows.field(name) for name in names], names=names)


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, max_size=5))
def test_data_of_fastavro_round_trips_byte_by_byte(rows: list[dict[str, Any]]) -> None:
    values = [avro(CLICK, row) for row in rows]
    found = decode_array(pa.array(values, pa.binary()), TEXT, "plain")
    for decoded, row in zip(found.to_pylist(), rows, strict=True):
        assert decoded.pop("_ottla_corrupt") is None
        mixed = decoded.pop("mixed")
        expected = {**row, "counts": list(row["counts"].items()), "clock": 3723000}
        given = expected.pop("mixed")
        assert decoded == expected
        assert mixed == (None if given is None else {**dict.fromkeys(mixed), member_of(given): plain(given)})
    assert encode_array(columns(found), TEXT, "plain", 0).to_pylist() == values


def member_of(value: Any) -> str:
    return {int: "member0", str: "member1", tuple: "member2"}[type(value)]


def plain(value: Any) -> Any:
    return value[1] if isinstance(value, tuple) else value


def test_types_are_those_of_sparks_own_reader() -> None:
    assert schema_of(topic("a", avro=CLICK)).simpleString() == (
        "struct<id:bigint,user:string,at:timestamp,exact:timestamp,day:date,price:decimal(30,2),kind:string,"
        "was:string,tags:array<string>,counts:map<string,int>,place:struct<x:int,y:int>,"
        "mixed:struct<member0:int,member1:string,member2:struct<x:int,y:int>>,number:bigint,sum:double,"
        "uid:string,raw:binary,clock:int>"
    )
    assert schema_of(topic("a", avro='"string"')).simpleString() == "struct<value:string>"
    local = {"type": "long", "logicalType": "local-timestamp-micros"}
    assert schema_of(topic("a", avro=local)).simpleString() == "struct<value:timestamp_ntz>"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "record", "name": "A"}, "not an Avro schema"),
        ('"strnig"', "not an Avro schema"),
        (
            {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]},
            "record Node holds itself",
        ),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(schema: Any, words: str) -> None:
    with pytest.raises(StageError, match=f"topic a: {words}"):
        schema_of(topic("a", avro=schema))


SMALL = {
    "type": "record",
    "name": "S",
    "fields": [{"name": "id", "type": "long"}, {"name": "s", "type": "string"}],
}
SMALL_TEXT = json.dumps(SMALL)
ONE = avro(SMALL, {"id": 1, "s": "abcdef"})


@pytest.mark.parametrize(
    ("value", "framing", "reason"),
    [
        (ONE[:-1], "plain", "the value ends too early"),
        (b"", "plain", "the value ends too early"),
        (ONE + b"x", "plain", "bytes left after the value: 1"),
        (b"\x02\x02\xff", "plain", "text in it is not UTF-8"),
        (b"\0\0\0\0\x07" + ONE, "plain", 'declare framing="confluent"'),
        (ONE, "confluent", "no registry prefix: the first byte is 0x02, not 0"),
        (b"\0\0", "confluent", "no registry prefix: the value has only 2 bytes"),
        (b"\0\0\0\0\x07" + ONE[:-1], "confluent", "the value ends too early"),
    ],
)
def test_a_bad_value_becomes_a_marked_row_and_has_a_reason(value: bytes, framing: str, reason: str) -> None:
    good = ONE if framing == "plain" else b"\0\0\0\0\x07" + ONE
    rows = decode_array(pa.array([good, value, None, good]), SMALL_TEXT, framing).to_pylist()
    assert rows[0] == rows[3] == {"id": 1, "s": "abcdef", "_ottla_corrupt": None}
    assert rows[1] == {"id": None, "s": None, "_ottla_corrupt": True}
    assert rows[2] is None
    assert reason in explain_avro(value, SMALL_TEXT, framing)


def test_an_out_of_range_number_affects_only_its_own_row() -> None:
    schema = {"type": "long", "logicalType": "timestamp-millis"}
    huge, fine = avro("long", 2**62), avro("long", 1)
    rows = decode_array(pa.array([huge, fine]), json.dumps(schema), "plain").to_pylist()
    assert rows[0]["_ottla_corrupt"] is True
    assert rows[1]["value"] == datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)
    assert "too large" in explain_avro(huge, json.dumps(schema), "plain")


def test_random_bytes_never_raise() -> None:
    @settings(max_examples=300, deadline=None)
    @given(st.binary(max_size=60))
    def check(value: bytes) -> None:
        (row,) = decode_array(pa.array([value]), TEXT, "plain").to_pylist()
        if row["_ottla_corrupt"]:
            assert explain_avro(value, TEXT, "plain").startswith("not Avro of this schema")

    check()


def test_an_unwritable_value_is_an_error_that_names_the_field() -> None:
    rows = pa.array([{"id": None, "s": "x"}], pa.struct([("id", pa.int64()), ("s", pa.string())]))
    with pytest.raises(StageError, match="field id is null, which its schema does not allow"):
        encode_array(rows, SMALL_TEXT, "plain", 0)


def test_an_unwritable_row_is_reported_with_its_source_record(spark: SparkSession) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}

    @stage(topic("in", avro=schema), to=topic("out", avro=schema), name="copy")
    def copy(frame: DataFrame) -> DataFrame:
        return frame

    declared = copy.__stage__  # type: ignore[attr-defined]
    source = "named_struct('topic', 'in', 'partition', 2, 'offset', id) as _source"
    frame = spark.range(3).selectExpr("if(id = 1, null, id) as id", "'x' as other", source)
    error = RuntimeError(
        "... StageError: cannot be written as Avro: field id is null, which its schema does not allow\n"
    )
    told = explain_unwritable(error, frame, declared)
    assert str(told) == (
        "stage copy: a row cannot be written as Avro: field id is null, which its schema does not allow; it"
        ' comes from in, partition 2, offset 1. Leave such rows out in the function: .where("id is not null")'
    )
    assert "offset 1, a record without a value (a deletion" in str(
        explain_unwritable(error, frame.drop("other"), declared)
    )
    assert "it comes from" not in str(explain_unwritable(error, frame.drop("_source"), declared))
    assert explain_unwritable(RuntimeError("something else"), frame, declared) is None


def test_a_stage_reads_and_writes_avro(spark: SparkSession, broker: InProcessBroker, tmp_path: Path) -> None:
    runs = StageRuns(spark, broker, tmp_path)
    source, target = runs.name("in"), runs.name("out")
    written = {
        "type": "record",
        "name": "Out",
        "fields": [
            {"name": "user", "type": ["null", "string"]},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2},
            },
            {"name": "counts", "type": {"type": "map", "values": "int"}},
            {"name": "more", "type": "string", "default": "none"},
        ],
    }

    @stage(
        topic(source, avro=CLICK, framing="confluent"),
        to=topic(target, avro=written, framing="confluent", schema_id=9, key="user"),
    )
    def convert(clicks: DataFrame) -> DataFrame:
        return clicks.withColumn("day", F.to_date("at"))

    row = {
        "id": 1,
        "user": "a",
        "at": datetime(2026, 1, 2, 3, 4, 5, 6000, UTC),
        "exact": None,
        "day": None,
        "price": Decimal("-12.50"),
        "kind": "NEW",
        "was": "OLD",
        "tags": ["x"],
        "counts": {"c": 1},
        "place": {"x": 1, "y": 2},
        "mixed": "text",
        "number": 5,
        "sum": 0.5,
        "uid": UID,
        "raw": b"1234",
        "clock": datetime(2026, 1, 1, 1, 2, 3).time(),
    }
    runs.produce(source, [b"\0\0\0\0\x07" + avro(CLICK, row), b"rubbish"])
    runs.run(convert)
    (got,) = runs.records(target)
    assert got.key == b"a"
    assert (got.value or b"")[:5] == b"\0\0\0\0\x09"
    found = fastavro.schemaless_reader(
        io.BytesIO((got.value or b"")[5:]), fastavro.parse_schema(written), None
    )
    assert found == {
        "user": "a",
        "day": date(2026, 1, 2),
        "at": row["at"],
        "price": Decimal("-12.50"),
        "counts": {"c": 1},
        "more": "none",
    }
    (letter,) = runs.records(f"{runs.prefix}.convert.dead-letters")
    assert letter.value == b"rubbish"
    assert letter.headers["ottla.reason"] == b"no registry prefix: the first byte is 0x72, not 0"
