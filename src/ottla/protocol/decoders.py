"""Writes the functions that read messages.

They meet bytes from anywhere, so each of them keeps these rules:

- Nothing is sliced before its length is checked, for Python slices truncate silently. Reads past the end that
  `struct` or an index notices itself are turned into Malformed at the end of the function.
- A struct may not bring more tagged fields than its count can say in one byte, nor one of them twice.
- Nothing is allocated for an array before its count is checked against the bytes that are left.
- The objects of a request may take `MEMORY_LIMIT` bytes, however many bytes were sent: padding buys nothing.
  Each array pays for its elements, before they are made, what they cost at most, and so do tagged fields.
  The contents of strings and bytes take as much as they did on the wire; strings with wide characters pay for
  the rest. A request that overdraws its allowance is Malformed.

Responses pay nothing: a client has chosen the broker that it reads them from.

Each function can be written in three ways: plain; as a generator that pauses after every few kilobytes
(`sliced`), so that a large request does not keep the event loop from its other work; and plain for requests
with few objects (`few`), which raises `ManyObjects` before it has made more of them. The bytes of records do
not count there: a request that brings much for few partitions is read as quickly as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, cast

from ottla.protocol.compiler import (
    FUSED_INTS,
    MAX_STRING,
    MAX_TAGS,
    Source,
    integer_structs,
    is_integers,
    present,
    struct_of,
)
from ottla.protocol.schema import FIXED, Data, Field, Request, Struct, default_of

Decoder = Callable[[memoryview, int], Any]
SlicedDecoder = Callable[[memoryview, int], Generator[None, None, Any]]

MEMORY_LIMIT = 32 << 20
"""Bytes that the objects of one request may take: some 100,000 partitions of an OffsetCommit or a Fetch."""
FEW_LIMIT = 160_000
"""The same for requests with few objects: some 500 partitions of a Produce."""
SLICE_BYTES = 8 << 10
"""Bytes that a sliced decoder reads before it pauses: some two milliseconds if they are all tiny elements."""

_LIST = 72  # an empty list with the collector's header
_LIST_SLOT = 10  # a place in a list that grows by appending
_TUPLE_SLOT = 8
_OBJECT = 32  # an object without its slots, with the collector's header
_SLOT = 8
_STRING = 80  # the fixed part of a string, at its widest
_BYTES = 33
_VIEW = 216  # a memoryview
_TAG = 64  # an unknown tagged field is not kept, but has to be read


def compile_decoder(cls: type[Struct], version: int) -> Decoder:
    """The function (view, position) -> object that reads `cls` at `version`."""
    return cast(Decoder, _Decoder(cls, version).compile())


def compile_sliced_decoder(cls: type[Struct], version: int) -> SlicedDecoder:
    """The same as a generator that pauses now and then and returns the object."""
    return cast(SlicedDecoder, _Decoder(cls, version, sliced=True).compile())


def compile_decoder_of_few(cls: type[Struct], version: int) -> Decoder:
    """The same function for requests with few objects. ManyObjects if there are more."""
    return cast(Decoder, _Decoder(cls, version, few=True).compile())


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
        if present(field, version) and field.tag is None:
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
    inline = [field for field in cls._fields if present(field, version) and field.tag is None]
    return _OBJECT + _SLOT * len(cls._fields) + sum(memory_of(field, version) for field in inline)


class _Decoder(Source):
    """Writes the function that reads one message at one version."""

    def __init__(self, cls: type[Struct], version: int, *, sliced: bool = False, few: bool = False) -> None:
        super().__init__(cls, version, sliced=sliced)
        self.few = few

    def compile(self) -> Any:
        self.bounded = issubclass(self.cls, Request | Data)
        self.line("end = len(view)")
        if self.bounded:
            self.line(f"allowance = {FEW_LIMIT if self.few else MEMORY_LIMIT}")
        if self.sliced:
            self.line(f"pause = pos + {SLICE_BYTES}")
            self.line("if 0: yield")  # a generator even where there is no array
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
        return self.function("def decode(view, pos):")

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
            form = struct_of("".join(self.codes))
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
            if self.few:
                self.line("if allowance < 0:")
                self.line("    raise ManyObjects")
            else:
                self.raises("allowance < 0", f"'it would need more than {MEMORY_LIMIT} bytes of memory'")

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
        if isinstance(element, Field) and is_integers(element):
            memory += _TUPLE_SLOT
        self.pay(f"{count} * {memory + _LIST_SLOT}")
        if isinstance(element, Field) and is_integers(element):
            code = FIXED[element.kind].code
            few = self.constant("ints", [form.unpack_from for form in integer_structs(code)])
            self.line(
                f"{target} = list({few}[{count}](view, pos) if {count} < {FUSED_INTS} "
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
        if self.sliced:
            self.line("if pos > pause:")
            self.line(f"    pause = pos + {SLICE_BYTES}")
            self.line("    yield")
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
        self.pay(f"{count} * {_TAG}")
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
