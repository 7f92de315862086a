"""Turns the declaration of a message, at one version, into the Python code that reads or writes it.

A general decoder that walks the declaration for each frame spends most of its time asking what comes next.
The answer is the same every time, so it is asked once: for each (message, version) this module writes the
source of one straight function, with nested structs as nested loops, and compiles it. What it looks like:

- Fields of fixed width that stand next to each other are one `struct` call, and the length of what follows
  them (or the count of tagged fields, hardly ever more than a byte) is read by the same call.
- A length as a varint of one byte is tested for in place; only longer ones call a function.
- Objects are made without their constructor and their slots filled as the values come.
- Records are a slice of the input, and a part of their own on the way out.

The decoders meet bytes from anywhere, so each of them keeps these rules:

- Nothing is sliced before its length is checked, for Python slices truncate silently. Reads past the end that
  `struct` or an index notices itself are turned into Malformed at the end of the function.
- A struct may not bring more tagged fields than its count can say in one byte, nor one of them twice.
- Nothing is allocated for an array before its count is checked against the bytes that are left.
- A request may not need more memory than eight times its size (and a little). It starts with an allowance of
  seven bytes for each of its own; each array pays for its elements, before they are made, what they cost at
  most; the eighth is for the contents of strings, and strings with wide characters pay the rest. A request
  that overdraws its allowance is Malformed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, cast

from ottla.protocol.schema import FIXED, Field, Request, Response, Struct, default_of

Decoder = Callable[[memoryview, int], Any]
Encoder = Callable[[Any], list[Any]]

MEMORY_FACTOR = 8
MEMORY_ALLOWANCE = 2 << 20  # room for the short names and small numbers that honest requests are full of
MAX_STRING = 32767
MAX_TAGS = 127  # a count of one byte; no struct of Kafka's has ten

_LIST = 72  # an empty list with the collector's header
_LIST_SLOT = 10  # a place in a list that grows by appending
_TUPLE_SLOT = 8
_OBJECT = 32  # an object without its slots, with the collector's header
_SLOT = 8
_STRING = 80  # the fixed part of a string, at its widest
_BYTES = 33
_VIEW = 216  # a memoryview
_FUSED_INTS = 17  # arrays of fewer integers use a Struct made beforehand


class Malformed(Exception):
    """The bytes are not a message of the kind and version they claim to be."""


def compile_decoder(cls: type[Struct], version: int) -> Decoder:
    """The function (view, position) -> object that reads `cls` at `version`, to the last byte."""
    return _DecoderSource(cls, version).compile()


def compile_encoder(cls: type[Struct], version: int) -> Encoder:
    """The function object -> parts that writes `cls` at `version`."""
    return _EncoderSource(cls, version).compile()


# What the generated code calls when a byte is not the common case.


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
    """Step over `count` tagged fields that nobody here knows; gives the position after them."""
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
def _struct(codes: str) -> struct.Struct:
    return struct.Struct(">" + codes)


@cache
def _integer_structs(code: str) -> list[struct.Struct]:
    return [struct.Struct(f">{count}{code}") for count in range(_FUSED_INTS)]


def _present(field: Field, version: int) -> bool:
    return version in field.versions


def _is_integers(field: Field) -> bool:
    return field.kind in ("int16", "int32", "int64", "int8")


def minimum_size(field: Field, version: int, flexible: bool) -> int:
    """The fewest bytes that a value of `field` takes on the wire."""
    if field.kind in FIXED:
        return FIXED[field.kind].size
    if field.kind == "struct":
        if version in field.nullable:
            return 1
        return minimum_struct_size(cast("type[Struct]", field.of), version, flexible)
    if flexible:
        return 1
    return 2 if field.kind == "string" else 4


def minimum_struct_size(cls: type[Struct], version: int, flexible: bool) -> int:
    """The fewest bytes that a struct takes on the wire; at least 1, so that counts are always bounded."""
    size = 1 if flexible else 0
    for field in cls._fields:
        if _present(field, version) and field.tag is None:
            size += minimum_size(field, version, flexible)
    return max(size, 1)


def memory_of(field: Field, version: int) -> int:
    """What a value of `field` costs in memory at most, without the contents of strings and arrays."""
    if field.kind in FIXED:
        return FIXED[field.kind].memory
    if field.kind == "struct":
        return memory_of_struct(cast("type[Struct]", field.of), version)
    return {"string": _STRING, "bytes": _BYTES, "records": _VIEW, "array": _LIST}[field.kind]


def memory_of_struct(cls: type[Struct], version: int) -> int:
    """What a struct costs in memory at most, without its tagged fields, which are hardly ever sent."""
    inline = [field for field in cls._fields if _present(field, version) and field.tag is None]
    return _OBJECT + _SLOT * len(cls._fields) + sum(memory_of(field, version) for field in inline)


class _Source:
    """Lines of a function being written, the names it uses, and the run of fixed-width values not yet read
    or written."""

    def __init__(self, cls: type[Struct], version: int) -> None:
        self.cls = cls
        self.version = version
        message = cast("type[Request | Response]", cls)
        self.flexible = version in message.flexible
        self.lines: list[str] = []
        self.indent = 1
        self.names = 0
        self.scope: dict[str, Any] = {
            "Malformed": Malformed,
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
        here = [field for field in cls._fields if _present(field, self.version)]
        tagged = sorted((f for f in here if f.tag is not None), key=lambda f: cast(int, f.tag))
        return [field for field in here if field.tag is None], tagged

    def function(self, head: str) -> Any:
        source = "\n".join([head, *self.lines, ""])
        filename = f"<{head.split('(')[0].removeprefix('def ')} {self.cls.__name__} v{self.version}>"
        exec(compile(source, filename, "exec"), self.scope)
        return self.scope[head.split("(")[0].removeprefix("def ")]


class _DecoderSource(_Source):
    """Writes the function that reads one message at one version."""

    def compile(self) -> Decoder:
        self.bounded = issubclass(self.cls, Request)
        self.line("end = len(view)")
        if self.bounded:
            self.line(f"allowance = {MEMORY_FACTOR - 1} * (end - pos) + {MEMORY_ALLOWANCE}")
        self.line("try:")
        self.indent += 1
        result = self.struct(self.cls)
        self.flush()
        self.indent -= 1
        what = f"{self.cls.__name__} v{self.version}"
        self.line("except (IndexError, struct_error):")
        self.line(f"    raise Malformed(f'{what}: cut off, {{end}} bytes are too few') from None")
        self.line("except UnicodeDecodeError:")
        self.line(f"    raise Malformed(f'{what}: a string near byte {{pos}} is not UTF-8') from None")
        self.line("except Malformed as error:")
        self.line(f"    raise Malformed(f'{what}: {{error}}') from None")
        if not self.bounded:
            # Requests may carry bytes behind their end: librdkafka's Metadata v9+ for all topics does, and
            # Kafka never looks. A response that is too long was read by the wrong version.
            self.line("if pos != end:")
            self.line(f"    raise Malformed(f'{what}: {{end - pos}} bytes are left over')")
        self.line(f"return {result}")
        return cast(Decoder, self.function("def decode(view, pos):"))

    def read(self, code: str, target: str) -> None:
        """Put a fixed-width value at the end of the run."""
        self.codes.append(code)
        self.slots.append(target)

    def flush(self) -> None:
        """Emit the run as one call."""
        if not self.codes:
            return
        if self.codes == ["B"]:
            self.line(f"{self.slots[0]} = view[pos]")
            self.line("pos += 1")
        else:
            form = _struct("".join(self.codes))
            unpack = self.constant("unpack", form.unpack_from)
            self.line(f"{', '.join(self.slots)}, = {unpack}(view, pos)")
            self.line(f"pos += {form.size}")
        self.codes, self.slots = [], []

    def raises(self, condition: str, text: str) -> None:
        self.line(f"if {condition}:")
        self.line(f"    raise Malformed({text})")

    def pay(self, memory: str) -> None:
        """Emit the charge for memory that is about to be used, if this message is charged at all."""
        if self.bounded:
            self.line(f"allowance -= {memory}")
            self.raises("allowance < 0", "'it would need too much memory for its size'")

    def struct(self, cls: type[Struct]) -> str:
        """Emit the reading of a struct; gives the name of the variable that holds it."""
        obj = self.name("o")
        self.line(f"{obj} = new({self.constant('C', cls)})")
        inline, tagged = self.fields(cls)
        for field in cls._fields:
            if field not in inline:
                self.default(field, f"{obj}.{field.name}")
        for field in inline:
            self.value(field, f"{obj}.{field.name}")
        if self.flexible:
            self.tags(obj, tagged)
        return obj

    def default(self, field: Field, target: str) -> None:
        if field.kind == "array":
            self.line(f"{target} = {'None' if field.default is None else '[]'}")
        elif isinstance(field.default, int | str | None) and field.kind != "struct":
            self.line(f"{target} = {field.default!r}")
        else:
            self.line(f"{target} = {self.constant('default', default_of(field))}")

    def value(self, field: Field, target: str) -> None:
        """Emit the reading of one value into `target`."""
        if field.kind in FIXED:
            self.read(FIXED[field.kind].code, target)
        elif field.kind == "struct":
            self.nested(field, target)
        else:
            count = self.count(field)
            self.line(f"if {count} {'' if self.flexible else '>= 0'}:")
            self.indent += 1
            if self.flexible:
                self.line(f"{count} -= 1")
            if field.kind == "array":
                self.array(field, count, target)
            else:
                self.bytes(field, count, target)
            self.indent -= 1
            self.null(field, count, target)

    def count(self, field: Field) -> str:
        """Emit the reading of a length or count; in flexible versions it is one more than it says."""
        count = self.name("n")
        if not self.flexible:
            self.read("h" if field.kind == "string" else "i", count)
            self.flush()
            return count
        self.read("B", count)
        self.flush()
        self.line(f"if {count} > 127:")
        self.line(f"    {count}, pos = read_varint(view, pos - 1)")
        if field.kind == "string":
            self.line(f"    if {count} > {MAX_STRING + 1}:")
            self.line(f"        raise Malformed('{field.name} is longer than {MAX_STRING} bytes')")
        return count

    def null(self, field: Field, count: str, target: str) -> None:
        nullable = self.version in field.nullable
        if nullable and not self.flexible:
            self.line(f"elif {count} == -1:")
            self.line(f"    {target} = None")
        self.line("else:")
        if nullable and self.flexible:
            self.line(f"    {target} = None")
        elif nullable:
            self.line(f"    raise Malformed(f'{field.name} has the length {{{count}}}')")
        else:
            self.line(f"    raise Malformed('{field.name} is null')")

    def bytes(self, field: Field, count: str, target: str) -> None:
        self.line(f"stop = pos + {count}")
        self.raises("stop > end", f"'{field.name} is longer than the bytes that are left'")
        if field.kind == "string":
            self.line(f"{target} = text = view[pos:stop].tobytes().decode()")
            if self.bounded:
                # Fewer characters than bytes: up to four bytes of memory for each of them.
                self.line(f"if len(text) != {count}:")
                self.indent += 1
                self.pay(f"{count} * 3")
                self.indent -= 1
        elif field.kind == "bytes":
            self.line(f"{target} = view[pos:stop].tobytes()")
        else:
            self.line(f"{target} = view[pos:stop]")
        self.line("pos = stop")

    def array(self, field: Field, count: str, target: str) -> None:
        element = cast("Field | type[Struct]", field.of)
        if isinstance(element, Field):
            size = minimum_size(element, self.version, self.flexible)
            memory = memory_of(element, self.version)
        else:
            size = minimum_struct_size(element, self.version, self.flexible)
            memory = memory_of_struct(element, self.version)
        self.raises(
            f"{count} * {size} > end - pos",
            f"f'{field.name} cannot have {{{count}}} elements in what is left'",
        )
        if isinstance(element, Field) and _is_integers(element):
            memory += _TUPLE_SLOT
        self.pay(f"{count} * {memory + _LIST_SLOT}")
        if isinstance(element, Field) and _is_integers(element):
            code = FIXED[element.kind].code
            few = self.constant("ints", [form.unpack_from for form in _integer_structs(code)])
            self.line(
                f"{target} = list({few}[{count}](view, pos) if {count} < {_FUSED_INTS} "
                f"else unpack_from(f'>{{{count}}}{code}', view, pos))"
            )
            self.line(f"pos += {count} * {size}")
            return
        items = self.name("items")
        self.line(f"{items} = {target} = []")
        self.line(f"for _ in range({count}):")
        self.indent += 1
        if isinstance(element, Field):
            item = self.name("item")
            self.value(element, item)
        else:
            item = self.struct(element)
        self.flush()
        self.line(f"{items}.append({item})")
        self.indent -= 1

    def nested(self, field: Field, target: str) -> None:
        cls = cast("type[Struct]", field.of)
        if self.version not in field.nullable:
            self.line(f"{target} = {self.struct(cls)}")
            return
        marker = self.name("n")
        self.read("b", marker)
        self.flush()
        self.line(f"if {marker} == 1:")
        self.indent += 1
        obj = self.struct(cls)
        self.flush()
        self.line(f"{target} = {obj}")
        self.indent -= 1
        self.line(f"elif {marker} == -1:")
        self.line(f"    {target} = None")
        self.line("else:")
        self.line(f"    raise Malformed(f'{field.name} is neither there nor null: {{{marker}}}')")

    def tags(self, obj: str, tagged: list[Field]) -> None:
        count = self.name("t")
        self.read("B", count)
        self.flush()
        self.line(f"if {count}:")
        self.indent += 1
        if tagged:
            self.known_tags(obj, tagged, count)
        else:
            self.line(f"pos = skip_tags(view, pos, {count}, end)")
        self.indent -= 1

    def known_tags(self, obj: str, tagged: list[Field], count: str) -> None:
        last, tag, size, after = self.name("last"), self.name("tag"), self.name("size"), self.name("after")
        self.raises(f"{count} > {MAX_TAGS}", f"'more than {MAX_TAGS} tagged fields'")
        self.line(f"{last} = -1")
        self.line(f"for _ in range({count}):")
        self.indent += 1
        self.line(f"{tag}, pos = read_varint(view, pos)")
        self.raises(f"{tag} <= {last}", f"f'tag {{{tag}}} comes twice or after a higher one'")
        self.line(f"{last} = {tag}")
        self.line(f"{size}, pos = read_varint(view, pos)")
        self.line(f"{after} = pos + {size}")
        self.raises(f"{after} > end", "'a tagged field is longer than the bytes that are left'")
        for index, field in enumerate(tagged):
            self.line(f"{'el' if index else ''}if {tag} == {field.tag}:")
            self.indent += 1
            self.pay(str(memory_of(field, self.version)))
            self.value(field, f"{obj}.{field.name}")
            self.flush()
            self.raises(f"pos != {after}", f"'{field.name} is not as long as its tag says'")
            self.indent -= 1
        self.line("else:")
        self.line(f"    pos = {after}")
        self.indent -= 1


class _EncoderSource(_Source):
    """Writes the function that writes one message at one version."""

    def compile(self) -> Encoder:
        self.buffer = "buf"
        self.line("parts = []")
        self.line("buf = bytearray()")
        self.struct(self.cls, "o")
        self.flush()
        self.line("if buf or not parts:")
        self.line("    parts.append(buf)")
        self.line("return parts")
        return cast(Encoder, self.function("def encode(o):"))

    def write(self, code: str, value: str) -> None:
        """Put a fixed-width value at the end of the run."""
        self.codes.append(code)
        self.slots.append(value)

    def flush(self) -> None:
        """Emit the run as one call."""
        if self.codes:
            pack = self.constant("pack", _struct("".join(self.codes)).pack)
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
        if isinstance(element, Field) and _is_integers(element):
            code = FIXED[element.kind].code
            few = self.constant("ints", [form.pack for form in _integer_structs(code)])
            self.line(f"{count} = len({items})")
            self.line(
                f"{self.buffer} += {few}[{count}](*{items}) if {count} < {_FUSED_INTS} "
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
        if len(self.lines) == start:
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
