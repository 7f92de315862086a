"""Why a value was not taken as JSON of a schema, in words for the person who finds it among the dead letters.

Spark judges which values are bad, in its own parser and at its speed; it does not say why. Only the bad ones
come here, where the value is looked at again with Python's parser. What this module says is an explanation,
never a verdict: where it finds nothing wrong it says that the value does not fit, and no more.
"""

from __future__ import annotations

import json
import re
from datetime import date, datetime
from typing import Any

from pyspark.sql import types as T

_WHOLE = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
_NOT_FINITE = {"NaN", "Infinity", "-Infinity", "+Infinity", "INF", "+INF", "-INF"}
_SHOWN = 40
_OFFSET_WITHOUT_COLON = re.compile(r"([+-]\d\d)(\d\d)$")


def explain_json(value: bytes | None, schema: T.StructType, own_formats: bool = False) -> str:
    """The first thing found wrong with a value that Spark could not read as JSON of this schema.

    With `own_formats` the text of dates and times is not judged: the formats are Java's.
    """
    if value is None:
        required = [field.name for field in schema.fields if not field.nullable]
        return f"no value, but field {required[0]} is required" if required else "no value"
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as problem:
        return f"not UTF-8 text: byte 0x{value[problem.start]:02x} at position {problem.start}"
    if not text.strip():
        return "empty value"
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as problem:
        return f"not JSON: {_parser_words(problem)}"
    if not isinstance(document, dict):
        return f"{_kind(document)} where a JSON object is expected"
    wrong = _wrong_fields(document, schema, "", own_formats)
    if wrong is None and own_formats:
        return "does not fit the schema, or a date or time is not in its format"
    return wrong or "does not fit the schema"


def _parser_words(problem: Exception) -> str:
    if isinstance(problem, json.JSONDecodeError):
        return f"{problem.msg[:1].lower()}{problem.msg[1:]} at character {problem.pos}"
    return "nested too deeply" if isinstance(problem, RecursionError) else str(problem)


def _wrong_fields(document: dict[str, Any], schema: T.StructType, path: str, own_formats: bool) -> str | None:
    for field in schema.fields:
        name = f"{path}{field.name}"
        if field.name not in document:
            if not field.nullable:
                return f"missing required field {name}"
            continue
        value = document[field.name]
        if value is None:
            if not field.nullable:
                return f"required field {name} is null"
            continue
        wrong = _wrong(value, field.dataType, name, own_formats)
        if wrong is not None:
            return wrong
    return None


def _wrong(value: Any, type: T.DataType, path: str, own_formats: bool) -> str | None:
    if value is None:
        return None
    if isinstance(type, T.StructType):
        return (
            _wrong_fields(value, type, f"{path}.", own_formats)
            if isinstance(value, dict)
            else _mismatch(value, type, path)
        )
    if isinstance(type, T.ArrayType):
        if not isinstance(value, list):
            return _mismatch(value, type, path)
        return _first(
            _wrong(item, type.elementType, f"{path}[{place}]", own_formats)
            for place, item in enumerate(value)
        )
    if isinstance(type, T.MapType):
        if not isinstance(value, dict):
            return _mismatch(value, type, path)
        return _first(
            _wrong(item, type.valueType, f"{path}[{key!r}]", own_formats) for key, item in value.items()
        )
    if own_formats and isinstance(value, str) and isinstance(type, T.DatetimeType):
        return None
    return None if _fits(value, type) else _mismatch(value, type, path)


def _first(findings: Any) -> str | None:
    return next((finding for finding in findings if finding is not None), None)


def _fits(value: Any, type: T.DataType) -> bool:
    for whole, bits in _WHOLE.items():
        if isinstance(type, whole):
            return (
                isinstance(value, int)
                and not isinstance(value, bool)
                and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)
            )
    if isinstance(type, T.FloatType | T.DoubleType):
        return (isinstance(value, int | float) and not isinstance(value, bool)) or value in _NOT_FINITE
    if isinstance(type, T.DecimalType):
        return isinstance(value, int | float | str) and not isinstance(value, bool)
    if isinstance(type, T.BooleanType):
        return isinstance(value, bool)
    if isinstance(type, T.DateType):
        return isinstance(value, str) and _parses(date.fromisoformat, value[:10])
    if isinstance(type, T.TimestampType | T.TimestampNTZType):
        if isinstance(value, str):
            return _parses(datetime.fromisoformat, _OFFSET_WITHOUT_COLON.sub(r"\1:\2", value.strip()))
        return isinstance(value, int) and isinstance(type, T.TimestampType)
    if isinstance(type, T.BinaryType):
        return isinstance(value, str)
    return True


def _parses(parse: Any, text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _mismatch(value: Any, type: T.DataType, path: str) -> str:
    return f"wrong type for field {path}: {_kind(value)} where {type.simpleString()} is expected"


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, bool):
        return str(value).lower()
    shown = json.dumps(value, ensure_ascii=False)
    shown = shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 1]}…"
    return f"text {shown}" if isinstance(value, str) else f"number {shown}"
