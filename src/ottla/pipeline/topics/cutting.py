"""Making a record smaller until the broker takes it, for writers that must not fail on size: dead letters.

A dead letter is the bad record plus headers that say what is wrong with it, so a record near the limit of its
topic does not fit any more. `smaller` takes away part of the largest thing that can be spared: the value is
cut, first by about as much as was added and then by half; headers that are not ours, and the key, are left
out. The header `ottla.cut` says what was done. The limit itself is not asked for: it depends on the topic,
the broker and the compression, and the broker knows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from ottla.protocol.varints import append_varint, read_varint

OURS = "ottla."
CUT = "ottla.cut"
_SLACK = 1024
"""Bytes beyond our own headers that the first cut takes away: lengths, and the header that says so."""

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Letter:
    """One record on its way, and what it was."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    value_size: int
    """Bytes of the value before anything was cut."""
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, key: bytes | None, value: bytes | None, headers: Headers) -> Letter:
        return cls(key, value, headers, len(value or b""))

    @property
    def marked(self) -> Headers:
        """The headers with the one that says what is missing."""
        told = list(self.left_out)
        if len(self.value or b"") < self.value_size:
            told.insert(0, f"value cut to {len(self.value or b'')} of {self.value_size} bytes")
        return (*self.headers, (CUT, "; ".join(told).encode()))


def smaller(letter: Letter) -> Letter | None:
    """A smaller one; None when nothing is left that can be spared."""
    foreign = [each for each in letter.headers if not each[0].startswith(OURS)]
    sizes = {
        "value": len(letter.value or b""),
        "headers": sum(len(name.encode()) + len(content or b"") for name, content in foreign),
        "key": len(letter.key or b""),
    }
    part = max(sizes, key=lambda name: sizes[name])
    if not sizes[part]:
        return None
    if part == "value":
        assert letter.value is not None
        added = sum(len(name) + len(content or b"") for name, content in letter.headers) - sizes["headers"]
        whole = len(letter.value) == letter.value_size
        half = len(letter.value) // 2
        kept = max(len(letter.value) - added - _SLACK, half) if whole else half
        return replace(letter, value=letter.value[:kept])
    if part == "headers":
        ours = tuple(each for each in letter.headers if each[0].startswith(OURS))
        return replace(letter, headers=ours, left_out=(*letter.left_out, "headers left out"))
    return replace(letter, key=None, left_out=(*letter.left_out, f"key of {sizes['key']} bytes left out"))


def letter_of(keys: Any, values: Any, headers: Any) -> Letter:
    """The only row of these columns; headers as `encode_headers` makes them."""
    return Letter.of(
        None if keys is None else keys[0].as_py(),
        values[0].as_py(),
        () if headers is None else decode_headers(headers[0].as_py()),
    )


def columns_of(letter: Letter) -> tuple[Any, Any, Any]:
    """Keys, values and headers again, of one row."""
    keys = None if letter.key is None else pa.array([letter.key], pa.binary())
    plain = encode_header_bytes(letter.marked)
    return keys, pa.array([letter.value], pa.binary()), pa.array([plain], pa.binary())


def decode_headers(data: bytes) -> Headers:
    """From a record's own form: the count, then names and contents with their lengths."""
    count, at = read_varint(data, 0)
    found: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        size, at = read_varint(data, at)
        name, at = data[at : at + size].decode(), at + size
        size, at = read_varint(data, at)
        content = None if size < 0 else data[at : at + size]
        at += max(size, 0)
        found.append((name, content))
    return tuple(found)


def encode_header_bytes(headers: Headers) -> bytes:
    out = bytearray()
    append_varint(out, len(headers))
    for name, content in headers:
        plain = name.encode()
        append_varint(out, len(plain))
        out += plain
        append_varint(out, -1 if content is None else len(content))
        out += content or b""
    return bytes(out)
