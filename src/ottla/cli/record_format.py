"""Records in, lines out: how `ottla consume` shows them.

`text` is for reading: the value as text, with what the options ask for in front of it, bytes that are no text
written as \\xNN, and on a terminal also the control characters, so that no record can repaint the screen.
`value` and `key-value` are for pipes: the very bytes, untouched. `hex` is for eyes that look for bytes.
`json` is one object per line with everything in it, and `ottla produce --format json` reads it back.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ottla.cli.moments import time_text
from ottla.cli.output import json_text
from ottla.cli.output_format import OutputFormat
from ottla.protocol.records import Record

_NULL = b"null"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DIM, _KEY, _PLAIN = "\x1b[2m", "\x1b[36m", "\x1b[0m"

Render = Callable[[int, Record], bytes]


@dataclass(frozen=True, slots=True)
class Layout:
    """What a line shows besides the value, and whether a person looks at it."""

    topic: str
    keys: bool = False
    offsets: bool = False
    timestamps: bool = False
    headers: bool = False
    separator: str = "\t"
    terminal: bool = False


def renderer(form: OutputFormat, layout: Layout) -> Render:
    """The function that turns (partition, record) into a line, newline included."""
    if form is OutputFormat.json:
        return _json(layout)
    if form in (OutputFormat.value, OutputFormat.key_value):
        return _columns(layout, _raw, keys=layout.keys or form is OutputFormat.key_value, color=False)
    if form is OutputFormat.hex:
        return _columns(layout, _hex, keys=layout.keys, color=layout.terminal)
    show = _safe_text if layout.terminal else _text
    return _columns(layout, show, keys=layout.keys, color=layout.terminal)


def _columns(layout: Layout, show: Callable[[bytes], bytes], *, keys: bool, color: bool) -> Render:
    separator = layout.separator.encode()
    dim, key_color, plain = (_DIM.encode(), _KEY.encode(), _PLAIN.encode()) if color else (b"", b"", b"")

    if not (keys or layout.timestamps or layout.offsets or layout.headers):
        null = dim + _NULL + plain + b"\n"
        return lambda partition, record: null if record.value is None else show(record.value) + b"\n"

    def line(partition: int, record: Record) -> bytes:
        cells = []
        if layout.timestamps:
            cells.append(dim + time_text(record.timestamp).encode() + plain)
        if layout.offsets:
            cells.append(dim + b"%d:%d" % (partition, record.offset) + plain)
        if layout.headers:
            cells.append(dim + _headers(record, show) + plain)
        if keys:
            cells.append(key_color + (_NULL if record.key is None else show(record.key)) + plain)
        cells.append(dim + _NULL + plain if record.value is None else show(record.value))
        return separator.join(cells) + b"\n"

    return line


def _headers(record: Record, show: Callable[[bytes], bytes]) -> bytes:
    if not record.headers:
        return b"-"
    return b",".join(
        show(name.encode()) + b"=" + (_NULL if value is None else show(value))
        for name, value in record.headers
    )


def _raw(data: bytes) -> bytes:
    return data


def _hex(data: bytes) -> bytes:
    return data.hex().encode()


def _text(data: bytes) -> bytes:
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "backslashreplace").encode()
    return data


def _safe_text(data: bytes) -> bytes:
    shown = data.decode("utf-8", "backslashreplace")
    return _CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", shown).encode()


def _json(layout: Layout) -> Render:
    def line(partition: int, record: Record) -> bytes:
        document = {"topic": layout.topic, "partition": partition, **document_of(record)}
        return write(document).encode() + b"\n"

    write = json_text if layout.terminal else partial(json.dumps, ensure_ascii=False)
    return line


def document_of(record: Record) -> dict[str, Any]:
    """A record as JSON shows it; headers only where there are some."""
    document: dict[str, Any] = {"offset": record.offset, "timestamp": record.timestamp}
    _put(document, "key", record.key)
    _put(document, "value", record.value)
    if record.headers:
        document["headers"] = [_put({"key": name}, "value", value) for name, value in record.headers]
    return document


def _put(document: dict[str, Any], name: str, data: bytes | None) -> dict[str, Any]:
    """The bytes as text under `name`, or as base64 under `name_base64` when they are no text."""
    if data is None:
        document[name] = None
    else:
        try:
            document[name] = data.decode()
        except UnicodeDecodeError:
            document[f"{name}_base64"] = base64.b64encode(data).decode()
    return document
