"""Lines become records as `ottla produce` promises."""

from __future__ import annotations

import pytest

from ottla.cli.record_lines import BadLine, InputFormat, LineReader, ParsedRecord


def test_a_line_of_text_is_a_value_without_a_key() -> None:
    assert LineReader().parse(b"hello world") == ParsedRecord(None, b"hello world", [])


def test_an_empty_line_is_an_empty_value_or_null_by_option() -> None:
    assert LineReader().parse(b"") == ParsedRecord(None, b"", [])
    assert LineReader(empty_as_null=True).parse(b"") == ParsedRecord(None, None, [])


def test_binary_lines_pass_unchanged() -> None:
    assert LineReader().parse(b"\xff\x00\xfe") == ParsedRecord(None, b"\xff\x00\xfe", [])


def test_one_key_and_headers_can_be_set_for_all_lines() -> None:
    reader = LineReader(key="k", headers=[("a", b"1"), ("a", b"2")])
    assert reader.parse(b"v") == ParsedRecord(b"k", b"v", [("a", b"1"), ("a", b"2")])


def test_the_first_separator_splits_key_and_value() -> None:
    reader = LineReader(key_separator="::")
    assert reader.parse(b"k::v::w") == ParsedRecord(b"k", b"v::w", [])
    assert reader.parse(b"::v") == ParsedRecord(b"", b"v", [])
    with pytest.raises(BadLine, match="no key"):
        reader.parse(b"no separator")


def test_a_key_without_a_value_can_be_a_tombstone() -> None:
    assert LineReader(key_separator=":", empty_as_null=True).parse(b"k:") == ParsedRecord(b"k", None, [])


def test_hex_and_base64_decode_key_and_value() -> None:
    reader = LineReader(InputFormat.hex, key_separator=":")
    assert reader.parse(b"6b:00ff") == ParsedRecord(b"k", b"\x00\xff", [])
    assert LineReader(InputFormat.base64).parse(b"AP8=") == ParsedRecord(None, b"\x00\xff", [])
    with pytest.raises(BadLine, match="not hexadecimal: 'xyz'"):
        LineReader(InputFormat.hex).parse(b"xyz")
    with pytest.raises(BadLine, match="not base64"):
        LineReader(InputFormat.base64).parse(b"A")


def test_one_key_for_all_is_text_also_when_values_are_coded() -> None:
    assert LineReader(InputFormat.hex, key="zz").parse(b"00") == ParsedRecord(b"zz", b"\x00", [])


def test_json_lines_can_contain_all_fields() -> None:
    line = b'{"key": "k", "value": "v", "headers": {"h": "1", "n": null}, "timestamp": 17, "partition": 2}'
    assert LineReader(InputFormat.json).parse(line) == ParsedRecord(
        b"k", b"v", [("h", b"1"), ("n", None)], 17, 2
    )


def test_json_headers_keep_their_order_and_repeat() -> None:
    line = b'{"value": "v", "headers": [{"key": "a", "value": "1"}, {"key": "a", "value_base64": "AP8="}]}'
    assert LineReader(InputFormat.json).parse(line) == ParsedRecord(
        None, b"v", [("a", b"1"), ("a", b"\x00\xff")]
    )


def test_json_base64_fields_and_nulls() -> None:
    line = b'{"key_base64": "AA==", "value": null}'
    assert LineReader(InputFormat.json).parse(line) == ParsedRecord(b"\x00", None, [])


def test_a_json_value_that_is_no_string_is_written_as_json() -> None:
    line = '{"value": {"amount": 12, "who": "Tomáš"}}'.encode()
    record = LineReader(InputFormat.json).parse(line)
    assert record is not None
    assert record.value == '{"amount":12,"who":"Tomáš"}'.encode()


def test_the_partition_of_a_json_line_can_be_overruled_or_ignored() -> None:
    line = b'{"value": "v", "partition": 2}'
    assert LineReader(InputFormat.json, partition=1).parse(line) == ParsedRecord(None, b"v", [], None, 1)
    assert LineReader(InputFormat.json, any_partition=True).parse(line) == ParsedRecord(None, b"v", [])
    assert LineReader(partition=1).parse(b"v") == ParsedRecord(None, b"v", [], None, 1)


def test_a_blank_line_in_json_is_skipped() -> None:
    assert LineReader(InputFormat.json).parse(b"  ") is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b"[1]", "object is wanted"),
        (b'{"vlaue": 1}', 'neither "key" nor "value"'),
        (b'{"value": "v", "headers": "x"}', '"headers" is wanted'),
        (b'{"value": "v", "headers": [["a", "b"]]}', '"headers" is wanted'),
        (b'{"value": "v", "partition": "1"}', '"partition" is wanted as a whole number'),
        (b'{"value": "v", "timestamp": true}', '"timestamp" is wanted as a whole number'),
        (b"\xff", "not JSON"),
    ],
)
def test_a_bad_json_line_says_why(line: bytes, reason: str) -> None:
    with pytest.raises(BadLine, match=reason):
        LineReader(InputFormat.json).parse(line)
