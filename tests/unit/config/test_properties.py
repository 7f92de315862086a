"""The properties format, as java.util.Properties reads it."""

from __future__ import annotations

import pytest

from ottla.config.properties import PropertiesError, decode_properties, parse_properties


def read(text: str) -> dict[str, str]:
    return {key: value for key, value, _ in parse_properties(text)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a\tb", {"a": "b"}),
        ("  a  =  b  ", {"a": "b  "}),
        ("a = : b", {"a": ": b"}),
        ("a=b=c:d", {"a": "b=c:d"}),
        ("listeners=PLAINTEXT://:9092", {"listeners": "PLAINTEXT://:9092"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=b", {"": "b"}),
        ("# a=b\n! c=d\n  # e=f\ng=h", {"g": "h"}),
        ("a=b # no comment", {"a": "b # no comment"}),
        ("a=b\r\nc=d\re=f\n", {"a": "b", "c": "d", "e": "f"}),
        ("a=one,\\\n   two,\\\n   three\nb=c", {"a": "one,two,three", "b": "c"}),
        ("a=b\\\n# c", {"a": "b# c"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\", {"a": "b"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a\\ b=c", {"a b": "c"}),
        ("a=\\t\\n\\r\\f\\x", {"a": "\t\n\r\fx"}),
        ("a=C:\\\\data", {"a": "C:\\data"}),
        ("a=gr\\u00fcn", {"a": "grün"}),
        ("a=\\ud83d\\ude00", {"a": "\N{GRINNING FACE}"}),
        ("a=b\na=c", {"a": "c"}),
        ("", {}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert read(text) == expected


def test_the_line_of_a_property_is_where_it_begins() -> None:
    lines = {key: line for key, _, line in parse_properties("# one\n\na=b\\\n  c\n\nd=e\n")}
    assert lines == {"a": 3, "d": 6}


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\u12x4", "a=\\uzzzz"])
def test_a_broken_escape_is_reported_with_its_line(text: str) -> None:
    with pytest.raises(PropertiesError, match=r"line 2: .*four hex digits"):
        parse_properties("ok=1\n" + text)


def test_files_are_read_as_utf8_and_else_as_latin1() -> None:
    assert decode_properties("grün".encode()) == "grün"
    assert decode_properties("\ufeffgrün".encode()) == "grün"
    assert decode_properties("grün".encode("latin-1")) == "grün"
