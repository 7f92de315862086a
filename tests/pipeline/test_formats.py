"""Values as columns and back: what is read, what is bad and why, what is written."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ottla.pipeline import topic
from ottla.pipeline.stages import Topic
from ottla.pipeline.values.encoding import encoded
from ottla.pipeline.values.formats import BAD, columns_of, decoded, explained, reader_of

RAW = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp,"
    " timestampType int, headers array<struct<key string, value binary>>"
)
SCHEMA = (
    "id long NOT NULL, user string, tags array<string>, at timestamp, n struct<a int NOT NULL, b string>,"
    " m map<string,int>"
)


def raw(spark: SparkSession, values: list[bytes | None]) -> DataFrame:
    when = datetime(2026, 1, 1)
    rows = [(b"k", value, "clicks", 0, offset, when, 0, [("h", b"1")]) for offset, value in enumerate(values)]
    return spark.createDataFrame(rows, RAW)


def read(spark: SparkSession, source: Topic, values: list[bytes | None]) -> tuple[list[Any], dict[int, str]]:
    """The good rows, and the reasons of the bad ones by their offset."""
    reader = reader_of(source)
    frame = decoded(raw(spark, values), reader)
    good = columns_of(frame.where(~F.col(BAD)), reader).drop("_source").collect()
    bad = (
        frame.where(BAD).select("_source.offset", explained(F.col("value"), reader).alias("reason")).collect()
    )
    return [tuple(row) for row in good], {row.offset: row.reason for row in bad}


BAD_JSON = [
    (b"nope", "not JSON: expecting value at character 0"),
    (b'{"id": 1', "not JSON: expecting ',' delimiter at character 8"),
    (b"{'id': 1}", "not JSON: expecting property name enclosed in double quotes at character 1"),
    (b"", "empty value"),
    (b"  ", "empty value"),
    (b"[1]", "an array where a JSON object is expected"),
    (b"7", "number 7 where a JSON object is expected"),
    (b'{"id": 1, "user": "\xff"}', "not UTF-8 text: byte 0xff at position 19"),
    (b'{"id": "x"}', 'wrong type for field id: text "x" where bigint is expected'),
    (b'{"id": 1.5}', "wrong type for field id: number 1.5 where bigint is expected"),
    (b'{"id": true}', "wrong type for field id: true where bigint is expected"),
    (
        b'{"id": 92233720368547758080}',
        "wrong type for field id: number 92233720368547758080 where bigint is expected",
    ),
    (b'{"id": 1, "tags": "a"}', 'wrong type for field tags: text "a" where array<string> is expected'),
    (b'{"id": 1, "at": "soon"}', 'wrong type for field at: text "soon" where timestamp is expected'),
    (b'{"id": 1, "n": {"a": "x"}}', 'wrong type for field n.a: text "x" where int is expected'),
    (b'{"id": 1, "m": {"k": []}}', "wrong type for field m['k']: an array where int is expected"),
    (b'{"user": "a"}', "missing required field id"),
    (b'{"id": null}', "required field id is null"),
    (b'{"id": 1, "n": {"b": "x"}}', "missing required field n.a"),
    (None, "no value, but field id is required"),
]
GOOD_JSON: list[tuple[bytes, tuple[Any, ...]]] = [
    (b'{"id": 1}', (1, None, None, None, None, None)),
    (b' {"id": 2, "user": 5, "more": {}} ', (2, "5", None, None, None, None)),
    (b'{"id": 3, "tags": ["a", null]}', (3, None, ["a", None], None, None, None)),
    (b'{"id": 4, "n": {"a": 1}}', (4, None, None, None, (1, None), None)),
    (b'{"id": 5, "m": {"k": 1}}', (5, None, None, None, None, {"k": 1})),
]


def test_bad_json_is_marked_with_a_reason(spark: SparkSession) -> None:
    values = [*(value for value, _ in BAD_JSON), *(value for value, _ in GOOD_JSON)]
    good, bad = read(spark, topic("clicks", json=SCHEMA), values)
    assert good == [row for _, row in GOOD_JSON]
    assert bad == {offset: reason for offset, (_, reason) in enumerate(BAD_JSON)}


def test_a_record_without_value_is_a_row_of_nulls(spark: SparkSession) -> None:
    assert read(spark, topic("a", json="id long"), [None]) == ([(None,)], {})
    assert read(spark, topic("a", string=True), [None]) == ([(None,)], {})
    assert read(spark, topic("a", bytes=True), [None]) == ([(None,)], {})


def test_text_must_be_utf8_and_bytes_are_taken_as_they_are(spark: SparkSession) -> None:
    values: list[bytes | None] = ["grün".encode(), b"a\xfe"]
    assert read(spark, topic("a", string=True), values) == (
        [("grün",)],
        {1: "not UTF-8 text: byte 0xfe at position 1"},
    )
    assert read(spark, topic("a", bytes=True), values) == (
        [(bytearray(value),) for value in values if value],
        {},
    )


def test_the_source_column_contains_topic_partition_and_offset(spark: SparkSession) -> None:
    reader = reader_of(topic("a", string=True))
    (row,) = columns_of(decoded(raw(spark, [b"x"]), reader), reader).collect()
    source = row["_source"].asDict()
    assert (source["topic"], source["partition"], source["offset"], source["timestampType"]) == (
        "clicks",
        0,
        0,
        0,
    )
    assert (bytes(source["key"]), [tuple(each) for each in source["headers"]]) == (
        b"k",
        [("h", bytearray(b"1"))],
    )


def test_a_source_without_headers_has_none_of_them(spark: SparkSession) -> None:
    reader = reader_of(topic("a", string=True))
    (row,) = columns_of(decoded(raw(spark, [b"x"]).drop("headers"), reader), reader).collect()
    assert row["_source"].headers is None


def test_json_keeps_microseconds_and_leaves_nulls_out(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [(1, None, datetime(2026, 1, 1, 0, 0, 0, 1))], "id long, user string, at timestamp"
    )
    (row,) = encoded(rows, topic("b"), "stage x").collect()
    assert json.loads(row.value) == {"id": 1, "at": "2026-01-01T00:00:00.000001Z"}


def test_a_written_schema_is_enforced(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1, "a", 2.5)], "id int, user string, more double")
    target = topic("b", json="user string, id long")
    (row,) = encoded(rows, target, "stage x").collect()
    assert row.value == '{"user":"a","id":1}'


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ROW = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "l": st.none() | st.integers(-(2**63), 2**63 - 1),
        "d": st.none() | st.floats(),
        "b": st.none() | st.booleans(),
        "s": st.none() | TEXT,
        "x": st.none() | st.binary(max_size=20),
        "at": st.none() | st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),
        "day": st.none() | st.dates(date(1600, 1, 1), date(9000, 1, 1)),
        "n": st.none() | st.decimals(-(10**9), 10**9, places=2, allow_nan=False),
        "a": st.none() | st.lists(st.none() | TEXT, max_size=4),
        "m": st.none() | st.dictionaries(TEXT, st.integers(0, 9), max_size=4),
        "r": st.none() | st.fixed_dictionaries({"u": st.none() | TEXT, "v": st.integers(0, 9)}),
    }
)
NAMES = ["i", "l", "d", "b", "s", "x", "at", "day", "n", "a", "m", "r"]
TYPES = (
    "i int, l long, d double, b boolean, s string, x binary, at timestamp, day date, n decimal(12,2),"
    " a array<string>, m map<string,int>, r struct<u string, v int>"
)


# Every example is several jobs of Spark, so a failing one is shown as it is and not made smaller.
@settings(max_examples=3, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.lists(ROW, min_size=30, max_size=60))
def test_json_reads_back_what_it_wrote(spark: SparkSession, rows: list[dict[str, Any]]) -> None:
    written = encoded(spark.createDataFrame(rows, TYPES), topic("b"), "stage x").collect()
    good, bad = read(spark, topic("b", json=TYPES), [row.value.encode() for row in written])
    assert bad == {}
    for row, expected in zip(good, rows, strict=True):
        found = dict(zip(NAMES, row, strict=True))
        assert {name: plain(value) for name, value in found.items()} == {
            name: plain(value) for name, value in expected.items()
        }


def plain(value: Any) -> Any:
    """The same for what Spark gives and what it was given."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, Decimal):
        return value.normalize()
    if isinstance(value, bytearray):
        return bytes(value)
    return value.asDict() if hasattr(value, "asDict") else value


@pytest.mark.parametrize("target", [topic("b", string=True), topic("b", bytes=True)])
def test_text_and_bytes_are_written_from_one_column(spark: SparkSession, target: Topic) -> None:
    for column in ("value", "text"):
        (row,) = encoded(spark.createDataFrame([("x",)], f"{column} string"), target, "stage x").collect()
        assert row.value in ("x", bytearray(b"x"))
