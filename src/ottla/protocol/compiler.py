"""Turns the declaration of a message, at one version, into the Python code that reads or writes it.

A general codec that walks the declaration for each frame spends most of its time asking what comes next. The
answer is the same every time, so it is asked once: for each (message, version) the source of one straight
function is written, with nested structs as nested loops, and compiled. What it looks like:

- Fields of fixed width that stand next to each other are one `struct` call, and the length of what follows
  them (or the count of tagged fields) is read or written by the same call.
- A length as a varint of one byte is tested for in place; only longer ones call a function.
- Objects are made without their constructor and their slots filled as the values come.
- Records are a slice of the input, and a part of their own on the way out.

Here is what the two directions share: the sheet on which a function is written, and the functions that the
code calls when a byte is not the common case. `decoders.py` and `encoders.py` do the writing.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, cast

from ottla.protocol.schema import Field, Request, Response, Struct

MAX_STRING = 32767
MAX_TAGS = 127  # a count of one byte; no struct of Kafka's has ten
FUSED_INTS = 17  # arrays of fewer integers use a Struct made beforehand


class Malformed(Exception):
    """The bytes are not a message of the kind and version they claim to be."""


class ManyObjects(Exception):
    """The bytes may be a message, but not one with few objects: decode it in slices."""


def read_varint(view: memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits at `position`, and the position after it."""
    value = 0
    for shift in (0, 7, 14, 21):
        byte = view[position]
        position += 1
        if byte < 0x80:
            return value | byte << shift, position
        value |= (byte & 0x7F) << shift
    byte = view[position]
    if byte > 0x0F:
        raise Malformed("a varint is longer than 32 bits")
    return value | byte << 28, position + 1


def write_varint(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def skip_tags(view: memoryview, position: int, count: int, end: int) -> int:
    """Step over `count` unknown tagged fields; returns the position after them."""
    if count > MAX_TAGS:
        raise Malformed(f"more than {MAX_TAGS} tagged fields")
    last = -1
    for _ in range(count):
        tag, position = read_varint(view, position)
        if tag <= last:
            raise Malformed(f"tag {tag} comes twice or after a higher one")
        last = tag
        size, position = read_varint(view, position)
        position += size
        if position > end:
            raise Malformed("a tagged field is longer than the bytes that are left")
    return position


@cache
def struct_of(codes: str) -> struct.Struct:
    return struct.Struct(">" + codes)


@cache
def integer_structs(code: str) -> list[struct.Struct]:
    return [struct.Struct(f">{count}{code}") for count in range(FUSED_INTS)]


def present(field: Field, version: int) -> bool:
    return version in field.versions


def is_integers(field: Field) -> bool:
    return field.kind in ("int16", "int32", "int64", "int8")


class Source:
    """Lines of a function being written, the names it uses, and the run of fixed-width values not yet read
    or written."""

    def __init__(self, cls: type[Struct], version: int, *, sliced: bool = False) -> None:
        self.cls = cls
        self.version = version
        self.sliced = sliced
        message = cast("type[Request | Response]", cls)
        self.flexible = version in message.flexible
        self.lines: list[str] = []
        self.indent = 1
        self.names = 0
        self.scope: dict[str, Any] = {
            "Malformed": Malformed,
            "ManyObjects": ManyObjects,
            "read_varint": read_varint,
            "write_varint": write_varint,
            "skip_tags": skip_tags,
            "new": object.__new__,
            "unpack_from": struct.unpack_from,
            "pack": struct.pack,
            "struct_error": struct.error,
        }
        self.codes: list[str] = []  # the run: struct codes and what they are read into or written from
        self.slots: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def constant(self, prefix: str, value: object) -> str:
        name = self.name(prefix)
        self.scope[name] = value
        return name

    def fields(self, cls: type[Struct]) -> tuple[list[Field], list[Field]]:
        """The fields of `cls` in this version: those in line, and the tagged ones by rising tag."""
        here = [field for field in cls._fields if present(field, self.version)]
        tagged = sorted((f for f in here if f.tag is not None), key=lambda f: cast(int, f.tag))
        return [field for field in here if field.tag is None], tagged

    def function(self, head: str) -> Any:
        source = "\n".join([head, *self.lines, ""])
        filename = f"<{head.split('(')[0].removeprefix('def ')} {self.cls.__name__} v{self.version}>"
        exec(compile(source, filename, "exec"), self.scope)
        return self.scope[head.split("(")[0].removeprefix("def ")]
