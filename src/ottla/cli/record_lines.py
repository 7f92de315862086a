"""Lines in, records out: what `ottla produce` makes of its input.

Each line is one record. As text it is the value, or key and value around a separator; as hex or base64 the
same, with both in that coding; as JSON it is an object with `key`, `value`, `headers`, `timestamp` and
`partition`, each optional. JSON is also what `ottla consume --format json` prints, so that a topic can be
copied, or saved and written again, without loss:

    {"key": "k", "value": "text", "headers": {"trace": "1"}, "timestamp": 1700000000000, "partition": 0}

`key_base64` and `value_base64` stand for bytes that are no text. A value that is not a string is written as
compact JSON.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

Headers = list[tuple[str, bytes | None]]


class InputFormat(StrEnum):
    text = "text"
    json = "json"
    hex = "hex"
    base64 = "base64"


class BadLine(ValueError):
    """A line that is no record; the text says why."""


class ParsedRecord(NamedTuple):
    """One record as read; None where the line says nothing."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int | None = None
    partition: int | None = None


class LineReader:
    """Turns lines into records. `parse` gives None for a line that stands for none: a blank one in JSON.

    `key`, `headers` and `partition` are for every record. A JSON line has its own; they count as well, but
    its partition does not when `partition` is given or `any_partition` is asked for.
    """

    def __init__(
        self,
        form: InputFormat = InputFormat.text,
        *,
        key: str | None = None,
        key_separator: str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        any_partition: bool = False,
        empty_as_null: bool = False,
    ) -> None:
        self._key = None if key is None else key.encode()
        self._separator = None if key_separator is None else key_separator.encode()
        self._headers = headers or []
        self._partition = partition
        self._own_partition = partition is None and not any_partition
        self._empty_as_null = empty_as_null
        self._decode: Callable[[bytes], bytes] | None = {
            InputFormat.hex: _from_hex,
            InputFormat.base64: _from_base64,
        }.get(form)
        self.parse = self._json_record if form is InputFormat.json else self._line_record

    def _line_record(self, line: bytes) -> ParsedRecord:
        key, value = self._key, line
        if self._separator is not None:
            key, found, value = line.partition(self._separator)
            if not found:
                raise BadLine(f"no key: the separator {self._separator.decode()!r} is not in the line")
        if self._decode is not None:
            value = self._decode(value)
            if self._separator is not None and key is not None:
                key = self._decode(key)
        if self._empty_as_null and not value:
            return ParsedRecord(key, None, self._headers, None, self._partition)
        return ParsedRecord(key, value, self._headers, None, self._partition)

    def _json_record(self, line: bytes) -> ParsedRecord | None:
        if not line.strip():
            return None
        try:
            document = json.loads(line)
        except ValueError as error:
            raise BadLine(f"not JSON: {error}") from None
        if not isinstance(document, dict):
            raise BadLine('a JSON object is wanted, like {"key": "k", "value": "v"}')
        if not any(name in document for name in ("key", "value", "key_base64", "value_base64")):
            raise BadLine('the object has neither "key" nor "value"')
        key = _bytes_field(document, "key")
        value = _bytes_field(document, "value")
        return ParsedRecord(
            self._key if key is None else key,
            None if self._empty_as_null and not value else value,
            self._headers + _headers_field(document.get("headers")),
            _whole_field(document, "timestamp"),
            _whole_field(document, "partition") if self._own_partition else self._partition,
        )


def _bytes_field(document: dict[str, Any], name: str) -> bytes | None:
    coded = document.get(f"{name}_base64")
    if coded is not None:
        return _from_base64(str(coded).encode())
    return _as_bytes(document.get(name))


def _headers_field(found: Any) -> Headers:
    if found is None:
        return []
    if isinstance(found, dict):
        return [(name, _as_bytes(value)) for name, value in found.items()]
    if isinstance(found, list) and all(isinstance(h, dict) and isinstance(h.get("key"), str) for h in found):
        return [(header["key"], _bytes_field(header, "value")) for header in found]
    raise BadLine('"headers" is wanted as {"name": "value"} or [{"key": "name", "value": "value"}]')


def _whole_field(document: dict[str, Any], name: str) -> int | None:
    value = document.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise BadLine(f'"{name}" is wanted as a whole number, not {value!r}')
    return value


def _as_bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _from_hex(text: bytes) -> bytes:
    try:
        return bytes.fromhex(text.decode("ascii"))
    except ValueError:
        raise BadLine(f"not hexadecimal: {_short(text)}") from None


def _from_base64(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadLine(f"not base64: {_short(text)}") from None


def _short(text: bytes) -> str:
    shown = text[:40].decode("utf-8", "replace")
    return repr(shown + "..." if len(text) > 40 else shown)
