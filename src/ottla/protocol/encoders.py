"""Writes the functions that write messages.

What they produce is a list of parts to be sent one after the other: small pieces joined into buffers, and
between them the records, which are never touched. Here they have only to be sized.

Each function can be written in two ways: plain, and as a generator that pauses after a number of elements
(`sliced`), so that a large response does not keep the event loop from its other work.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, cast

from ottla.protocol.compiler import (
    FUSED_INTS,
    MAX_STRING,
    Source,
    integer_structs,
    is_integers,
    struct_of,
)
from ottla.protocol.schema import FIXED, Field, Struct, default_of

Encoder = Callable[[Any], list[Any]]
SlicedEncoder = Callable[[Any], Generator[None, None, list[Any]]]

SLICE_ELEMENTS = 256
"""Elements of arrays that a sliced encoder writes before it pauses: less than a millisecond."""


def compile_encoder(cls: type[Struct], version: int) -> Encoder:
    """The function object -> parts that writes `cls` at `version`."""
    return cast(Encoder, _Encoder(cls, version).compile())


def compile_sliced_encoder(cls: type[Struct], version: int) -> SlicedEncoder:
    """The same as a generator that pauses now and then and returns the parts."""
    return cast(SlicedEncoder, _Encoder(cls, version, sliced=True).compile())


class _Encoder(Source):
    """Writes the function that writes one message at one version."""

    def compile(self) -> Any:
        self.buffer = "buf"
        if self.sliced:
            self.line(f"left = {SLICE_ELEMENTS}")
            self.line("if 0: yield")  # a generator even where there is no array
        self.line("parts = []")
        self.line("buf = bytearray()")
        self.struct(self.cls, "o")
        self.flush()
        self.line("if buf or not parts:")
        self.line("    parts.append(buf)")
        self.line("return parts")
        return self.function("def encode(o):")

    def write(self, code: str, value: str) -> None:
        """Put a fixed-width value at the end of the run."""
        self.codes.append(code)
        self.slots.append(value)

    def flush(self) -> None:
        """Emit the run as one call."""
        if self.codes:
            pack = self.constant("pack", struct_of("".join(self.codes)).pack)
            self.line(f"{self.buffer} += {pack}({', '.join(self.slots)})")
        self.codes, self.slots = [], []

    def struct(self, cls: type[Struct], obj: str) -> None:
        inline, tagged = self.fields(cls)
        for field in inline:
            self.value(field, f"{obj}.{field.name}")
        if self.flexible:
            self.tags(obj, tagged)

    def value(self, field: Field, source: str) -> None:
        """Emit the writing of one value."""
        nullable = self.version in field.nullable
        if field.kind in FIXED:
            if field.kind == "uuid":
                self.line(f"if len({source}) != 16:")
                self.line(f"    raise ValueError('{field.name} is not 16 bytes long')")
            self.write(FIXED[field.kind].code, source)
        elif field.kind == "struct":
            self.nested(field, source, nullable)
        elif field.kind == "array":
            self.array(field, source, nullable)
        else:
            self.bytes(field, source, nullable)

    def length(self, field: Field, count: str) -> None:
        """Emit the length of what follows, together with the run that stands before it."""
        if not self.flexible:
            self.write("h" if field.kind == "string" else "i", count)
            self.flush()
            return
        before = list(self.codes), list(self.slots)
        self.line(f"if {count} < 128:")
        self.indent += 1
        self.write("B", count)
        self.flush()
        self.indent -= 1
        self.line("else:")
        self.indent += 1
        self.codes, self.slots = before
        self.flush()
        self.line(f"{self.buffer} += write_varint({count})")
        self.indent -= 1

    def bytes(self, field: Field, source: str, nullable: bool) -> None:
        value, count = self.name("s"), self.name("n")
        extra = " + 1" if self.flexible else ""
        encode = ".encode()" if field.kind == "string" else ""
        if nullable:
            self.line(f"{value} = {source}")
            self.line(f"if {value} is None:")
            self.line(f"    {value} = b''")
            self.line(f"    {count} = {0 if self.flexible else -1}")
            self.line("else:")
            if encode:
                self.line(f"    {value} = {value}{encode}")
            self.line(f"    {count} = len({value}){extra}")
        else:
            self.line(f"{value} = {source}{encode}")
            self.line(f"{count} = len({value}){extra}")
        if field.kind == "string" and self.flexible:
            self.line(f"if {count} > {MAX_STRING + 1}:")
            self.line(f"    raise ValueError('{field.name} is longer than {MAX_STRING} bytes')")
        self.length(field, count)
        if field.kind == "records":
            self.line(f"if {count} > {1 if self.flexible else 0}:")
            self.line("    parts.append(buf)")
            self.line(f"    parts.append({value})")
            self.line("    buf = bytearray()")
        else:
            self.line(f"{self.buffer} += {value}")

    def array(self, field: Field, source: str, nullable: bool) -> None:
        items, count = self.name("items"), self.name("n")
        self.line(f"{items} = {source}")
        if nullable:
            self.line(f"if {items} is None:")
            self.line(f"    {items} = ()")
            self.line(f"    {count} = {0 if self.flexible else -1}")
            self.line("else:")
            self.line(f"    {count} = len({items}){' + 1' if self.flexible else ''}")
        else:
            self.line(f"{count} = len({items}){' + 1' if self.flexible else ''}")
        self.length(field, count)
        element = cast("Field | type[Struct]", field.of)
        if isinstance(element, Field) and is_integers(element):
            code = FIXED[element.kind].code
            few = self.constant("ints", [form.pack for form in integer_structs(code)])
            self.line(f"{count} = len({items})")
            self.line(
                f"{self.buffer} += {few}[{count}](*{items}) if {count} < {FUSED_INTS} "
                f"else pack(f'>{{{count}}}{code}', *{items})"
            )
            return
        item = self.name("o")
        self.line(f"for {item} in {items}:")
        self.indent += 1
        start = len(self.lines)
        if isinstance(element, Field):
            self.value(element, item)
        else:
            self.struct(element, item)
        self.flush()
        if self.sliced:
            self.line("left -= 1")
            self.line("if not left:")
            self.line(f"    left = {SLICE_ELEMENTS}")
            self.line("    yield")
        elif len(self.lines) == start:
            self.line("pass")
        self.indent -= 1

    def nested(self, field: Field, source: str, nullable: bool) -> None:
        cls = cast("type[Struct]", field.of)
        obj = self.name("o")
        self.line(f"{obj} = {source}")
        if not nullable:
            self.struct(cls, obj)
            return
        self.flush()
        self.line(f"if {obj} is None:")
        self.line(f"    {self.buffer}.append(255)")
        self.line("else:")
        self.indent += 1
        self.write("b", "1")
        self.struct(cls, obj)
        self.flush()
        self.indent -= 1

    def tags(self, obj: str, tagged: list[Field]) -> None:
        if not tagged:
            self.write("B", "0")
            return
        given = []
        for field in tagged:
            name = self.name("given")
            given.append(name)
            self.line(f"{name} = {self.differs(field, f'{obj}.{field.name}')}")
        self.write("B", " + ".join(given))
        self.flush()
        outer = self.buffer
        for field, name in zip(tagged, given, strict=True):
            self.line(f"if {name}:")
            self.indent += 1
            self.buffer = self.name("tagged")
            self.line(f"{self.buffer} = bytearray()")
            self.value(field, f"{obj}.{field.name}")
            self.flush()
            self.line(
                f"{outer} += write_varint({field.tag}) + write_varint(len({self.buffer})) + {self.buffer}"
            )
            self.buffer = outer
            self.indent -= 1

    def differs(self, field: Field, source: str) -> str:
        """The expression that is true when a tagged field is not its default and so must be written."""
        if field.default is None and (field.kind != "struct" or self.version in field.nullable):
            return f"{source} is not None"
        if field.kind == "array":
            return f"({source} is None or len({source}) > 0)"
        if field.kind == "struct":
            default = self.constant("default", default_of(field))
            return f"({source} is not {default} and {source} != {default})"
        return f"{source} != {self.constant('default', field.default)}"
