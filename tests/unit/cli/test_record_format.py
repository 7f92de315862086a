"""Records are printed as `ottla consume` promises."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.output_format import OutputFormat
from ottla.cli.record_format import Layout, renderer
from ottla.cli.record_lines import InputFormat, LineReader, ParsedRecord
from ottla.protocol.records import Record

RECORD = Record(7, 1_700_000_000_000, b"k", b"v", [("h", b"1"), ("n", None)])
PLAIN = Layout(topic="t")


def test_text_format_prints_the_value() -> None:
    assert renderer(OutputFormat.text, PLAIN)(0, RECORD) == b"v\n"


def test_a_null_value_is_printed_as_null() -> None:
    nothing = Record(0, -1, None, None, [])
    assert renderer(OutputFormat.text, PLAIN)(0, nothing) == b"null\n"
    assert renderer(OutputFormat.key_value, PLAIN)(0, nothing) == b"null\tnull\n"


def test_columns_come_in_front_of_the_value() -> None:
    layout = Layout(topic="t", keys=True, offsets=True, headers=True, separator="|")
    assert renderer(OutputFormat.text, layout)(3, RECORD) == b"3:7|h=1,n=null|k|v\n"
    assert renderer(OutputFormat.text, layout)(3, RECORD._replace(headers=[])) == b"3:7|-|k|v\n"


def test_a_timestamp_column_is_a_time() -> None:
    line = renderer(OutputFormat.text, Layout(topic="t", timestamps=True))(0, RECORD)
    assert line.startswith(b"2023-11-1")
    assert line.endswith(b"\tv\n")


def test_binary_values_are_escaped_in_text_format_and_unchanged_in_value_format() -> None:
    record = RECORD._replace(value=b"a\xffb")
    assert renderer(OutputFormat.text, PLAIN)(0, record) == b"a\\xffb\n"
    assert renderer(OutputFormat.value, PLAIN)(0, record) == b"a\xffb\n"
    assert renderer(OutputFormat.hex, PLAIN)(0, record) == b"61ff62\n"


def test_terminal_control_characters_in_records_are_escaped() -> None:
    record = RECORD._replace(key=b"\x9b1m\x07", value=b"\x1b[2J\x1b]0;title\x07 tab\there\nline")
    line = renderer(OutputFormat.text, Layout(topic="t", keys=True, terminal=True))(0, record)
    assert b"\x1b[2J" not in line
    assert b"\x07" not in line
    assert b"\\x1b[2J" in line
    assert b"tab\there\nline" in line


def test_json_format_contains_all_fields() -> None:
    line = renderer(OutputFormat.json, PLAIN)(3, RECORD._replace(value=b"\xff"))
    assert json.loads(line) == {
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp": 1_700_000_000_000,
        "key": "k",
        "value_base64": "/w==",
        "headers": [{"key": "h", "value": "1"}, {"key": "n", "value": None}],
    }
    assert line.count(b"\n") == 1


nullable_bytes = st.none() | st.binary(max_size=20) | st.text(max_size=10).map(str.encode)


@given(
    key=nullable_bytes,
    value=nullable_bytes,
    headers=st.lists(st.tuples(st.text(max_size=8), nullable_bytes), max_size=3),
    timestamp=st.integers(min_value=-1, max_value=2**60),
    partition=st.integers(min_value=0, max_value=1000),
)
def test_json_printed_by_consume_is_read_back_by_produce(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    timestamp: int,
    partition: int,
) -> None:
    line = renderer(OutputFormat.json, PLAIN)(partition, Record(0, timestamp, key, value, headers))
    parsed = LineReader(InputFormat.json).parse(line)
    assert parsed == ParsedRecord(key, value, headers, timestamp, partition)


@pytest.mark.parametrize("form", list(OutputFormat))
def test_every_format_ends_a_record_with_a_newline(form: OutputFormat) -> None:
    assert renderer(form, PLAIN)(0, RECORD).endswith(b"\n")
