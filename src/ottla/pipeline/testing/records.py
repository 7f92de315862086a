"""Records of the test driver: what a test feeds, and what it finds in a topic afterwards.

A value is given in the form that is easiest to write: a dict for JSON and Avro, text, bytes as they are, or
None for a deletion. It is encoded as the topic is declared. Bytes and text are never changed, so a test can
feed a value that the stage cannot read.
"""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from ottla.pipeline.declarations import StageError, Topic

Moment = datetime | str | int | float
"""A point in time: a datetime (UTC if it has no zone), ISO text, or seconds since 1970."""
Span = timedelta | str | int | float
"""A length of time: a timedelta, text such as "10 minutes", or seconds."""
Headers = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]

_SPAN = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>ms|milli|sec|s\b|min|m\b|hour|h\b|day|d\b)\w*", re.I)
_UNITS = {
    "ms": 0.001, "milli": 0.001, "sec": 1, "s": 1, "min": 60, "m": 60, "hour": 3600, "h": 3600, "day": 86400,
    "d": 86400,
}  # fmt: skip
_PREFIX = struct.Struct(">bI")


@dataclass(frozen=True)
class Given:
    """A record to feed. Made by `record`."""

    value: Any
    key: str | bytes | None = None
    headers: Headers | None = None
    at: Moment | None = None
    partition: int | None = None


def record(
    value: Any,
    *,
    key: str | bytes | None = None,
    headers: Headers | None = None,
    at: Moment | None = None,
    partition: int | None = None,
) -> Given:
    """A record to feed, with what is its own: key, headers, the time it carries, partition."""
    return Given(value, key, headers, at, partition)


@dataclass(frozen=True)
class Record:
    """A record in a topic of the test driver."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    data: Any = None
    """The value decoded as the topic is declared: JSON and Avro as Python values, text, or the bytes."""

    def header(self, name: str) -> str | None:
        """The last header of this name as text; None without one."""
        found = [value for key, value in self.headers if key == name]
        return None if not found or found[-1] is None else found[-1].decode("utf-8", "replace")


def encode_value(value: Any, declared: Topic | None) -> bytes | None:
    """The bytes of a value that is fed to a topic declared so."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if declared is not None and declared.format == "avro":
        return _write_avro(value, declared)
    return json.dumps(value, default=_json_default).encode()


def decode_value(value: bytes | None, declared: Topic | None) -> Any:
    """What a person reads in a value of a topic declared so; the bytes themselves if they are not that."""
    if value is None or declared is None or declared.format == "bytes":
        return value
    try:
        if declared.format == "avro":
            return _read_avro(value, declared)
        return json.loads(value) if declared.format == "json" else value.decode()
    except (ValueError, EOFError, IndexError, struct.error):
        return value


def header_pairs(headers: Headers | None) -> tuple[tuple[str, bytes | None], ...]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)


def as_moment(at: Moment) -> datetime:
    if isinstance(at, str):
        at = datetime.fromisoformat(at)
    if isinstance(at, int | float):
        return datetime.fromtimestamp(at, UTC)
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def as_span(span: Span) -> timedelta:
    if isinstance(span, timedelta):
        return span
    if isinstance(span, int | float):
        return timedelta(seconds=span)
    found = _SPAN.fullmatch(span.strip())
    if found is None:
        raise ValueError(f'{span!r} is no length of time; write "10 minutes", a timedelta or seconds')
    return timedelta(seconds=float(found["number"]) * _UNITS[found["unit"].lower()])


def _json_default(value: Any) -> Any:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"{value!r} has no form in JSON; give text or bytes")


def _write_avro(value: Any, declared: Topic) -> bytes:
    import fastavro

    assert declared.schema is not None
    stream = io.BytesIO()
    if declared.framing == "confluent":
        stream.write(_PREFIX.pack(0, declared.schema_id))
    try:
        fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(declared.schema)), value)
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        raise StageError(f"{declared.title}: {value!r} is no value of its Avro schema: {problem}") from None
    return stream.getvalue()


def _read_avro(value: bytes, declared: Topic) -> Any:
    import fastavro

    assert declared.schema is not None
    stream = io.BytesIO(value)
    stream.seek(_PREFIX.size if declared.framing == "confluent" else 0)
    return fastavro.schemaless_reader(stream, fastavro.parse_schema(json.loads(declared.schema)), None)
