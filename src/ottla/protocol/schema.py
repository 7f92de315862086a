"""The language in which messages are declared: one class per struct, one line per field.

    class PartitionProduceData(Struct):
        index: int = int32()
        records: Buffer | None = records(nullable="0+")

    class ProduceRequest(Request, api_key=0, versions="3-13", flexible="9+"):
        transactional_id: str | None = string(None, nullable="3+")
        acks: int = int16()

A declaration says all there is to know about a message: which versions have a field, where it may be null,
whether it travels as a tagged field, what its default is. `compiler.py` turns it into code.
"0+" means from version 0 on, "3-8" both ends included, "7" that version only.

For the user a message is a plain object: fields by keyword when it is made, every one with Kafka's default,
attributes afterwards, equality and a readable repr. Objects have slots and no dict; what is behind them is
nothing but the values. A struct that is a field's default is shared and refuses to be changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar, cast, dataclass_transform, overload

Buffer: TypeAlias = Any
"""Record batches: a memoryview into the frame when decoded; anything with a len() when encoded."""

ZERO_UUID = bytes(16)

_NEWEST = 32767  # the open end of "3+"
_T = TypeVar("_T")
_S = TypeVar("_S", bound="Struct")


class Versions(NamedTuple):
    """A closed range of versions; `v in versions` asks whether it holds version v."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str | None) -> Versions:
        if text is None:
            return cls(0, -1)
        if text.endswith("+"):
            return cls(int(text[:-1]), _NEWEST)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


NO_VERSIONS = Versions(0, -1)


class Field:
    """One declared field. `kind` is a key of KINDS, or "array" or "struct" with `of` saying of what."""

    __slots__ = ("default", "kind", "name", "nullable", "of", "tag", "versions")

    def __init__(
        self,
        kind: str,
        default: object,
        versions: str,
        nullable: str | None = None,
        tag: int | None = None,
        of: Field | type[Struct] | None = None,
    ) -> None:
        self.name = ""
        self.kind = kind
        self.default = default
        self.versions = Versions.parse(versions)
        self.nullable = Versions.parse(nullable)
        self.tag = tag
        self.of = of

    def __repr__(self) -> str:
        return f"<{self.name}: {self.kind} {self.versions.first}-{self.versions.last}>"


class Fixed(NamedTuple):
    """A kind that always takes the same number of bytes: how struct writes it, how many, and the memory
    that its Python object takes at most."""

    code: str
    size: int
    memory: int


FIXED = {
    "boolean": Fixed("?", 1, 0),
    "int8": Fixed("b", 1, 0),
    "int16": Fixed("h", 2, 28),
    "uint16": Fixed("H", 2, 28),
    "int32": Fixed("i", 4, 32),
    "uint32": Fixed("I", 4, 32),
    "int64": Fixed("q", 8, 36),
    "float64": Fixed("d", 8, 24),
    "uuid": Fixed("16s", 16, 49),
}


# The functions below are what stands on the right of a field. They return a Field and tell the type checker
# that they return the field's value: so `index: int = int32()` is checked like any other assignment.


def boolean(default: bool = False, *, versions: str = "0+", tag: int | None = None) -> bool:
    return cast(bool, Field("boolean", default, versions, None, tag))


def int8(default: int = 0, *, versions: str = "0+", tag: int | None = None) -> int:
    return cast(int, Field("int8", default, versions, None, tag))


def int16(default: int = 0, *, versions: str = "0+", tag: int | None = None) -> int:
    return cast(int, Field("int16", default, versions, None, tag))


def uint16(default: int = 0, *, versions: str = "0+", tag: int | None = None) -> int:
    return cast(int, Field("uint16", default, versions, None, tag))


def int32(default: int = 0, *, versions: str = "0+", tag: int | None = None) -> int:
    return cast(int, Field("int32", default, versions, None, tag))


def uint32(default: int = 0, *, versions: str = "0+", tag: int | None = None) -> int:
    return cast(int, Field("uint32", default, versions, None, tag))


def int64(default: int = 0, *, versions: str = "0+", tag: int | None = None) -> int:
    return cast(int, Field("int64", default, versions, None, tag))


def float64(default: float = 0.0, *, versions: str = "0+", tag: int | None = None) -> float:
    return cast(float, Field("float64", default, versions, None, tag))


def uuid(default: bytes = ZERO_UUID, *, versions: str = "0+", tag: int | None = None) -> bytes:
    """A topic id and the like: 16 raw bytes."""
    return cast(bytes, Field("uuid", default, versions, None, tag))


@overload
def string(default: str = "", *, versions: str = "0+", tag: int | None = None) -> str: ...
@overload
def string(
    default: str | None = "", *, nullable: str, versions: str = "0+", tag: int | None = None
) -> str | None: ...
def string(
    default: str | None = "", *, versions: str = "0+", nullable: str | None = None, tag: int | None = None
) -> str | None:
    return cast(str, Field("string", default, versions, nullable, tag))


@overload
def bytestring(default: bytes = b"", *, versions: str = "0+", tag: int | None = None) -> bytes: ...
@overload
def bytestring(
    default: bytes | None = b"", *, nullable: str, versions: str = "0+", tag: int | None = None
) -> bytes | None: ...
def bytestring(
    default: bytes | None = b"", *, versions: str = "0+", nullable: str | None = None, tag: int | None = None
) -> bytes | None:
    """Kafka's type "bytes"; decoded into a copy, unlike records."""
    return cast(bytes, Field("bytes", default, versions, nullable, tag))


def records(default: None = None, *, versions: str = "0+", nullable: str | None = None) -> Buffer | None:
    """Record batches, which are never copied: a slice of the frame in, a part of its own out."""
    return Field("records", default, versions, nullable)


@overload
def array(of: Callable[..., _T], *, versions: str = "0+", tag: int | None = None) -> list[_T]: ...
@overload
def array(
    of: Callable[..., _T],
    default: tuple[()] | None = (),
    *,
    nullable: str,
    versions: str = "0+",
    tag: int | None = None,
) -> list[_T] | None: ...
def array(
    of: Callable[..., _T],
    default: tuple[()] | None = (),
    *,
    versions: str = "0+",
    nullable: str | None = None,
    tag: int | None = None,
) -> list[_T] | None:
    """A list of structs (`array(Partition)`) or of values (`array(int32)`); a new empty list by default."""
    element = of if isinstance(of, StructType) else cast(Field, of())
    return cast("list[_T]", Field("array", default, versions, nullable, tag, cast(Any, element)))


@overload
def struct(of: type[_S], *, versions: str = "0+", tag: int | None = None) -> _S: ...
@overload
def struct(
    of: type[_S], default: None = None, *, nullable: str, versions: str = "0+", tag: int | None = None
) -> _S | None: ...
def struct(
    of: type[_S],
    default: None = None,
    *,
    versions: str = "0+",
    nullable: str | None = None,
    tag: int | None = None,
) -> _S | None:
    """A struct of its own. Its default is one with all defaults, or null where it is nullable."""
    return cast(_S, Field("struct", default, versions, nullable, tag, of))


@dataclass_transform(kw_only_default=True)
class StructType(type):
    """Makes a struct class out of its declaration: fields in order, slots for them, versions if a message."""

    _fields: tuple[Field, ...]
    _shape: StructType
    _default: Struct | None

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        api_key: int | None = None,
        versions: str | None = None,
        flexible: str | None = None,
    ) -> StructType:
        fields = []
        for key, value in list(namespace.items()):
            if isinstance(value, Field):
                value.name = key
                fields.append(value)
                del namespace[key]
        namespace["__slots__"] = tuple(field.name for field in fields)
        namespace.setdefault("_fields", tuple(fields))
        if versions is not None:
            namespace["api_key"] = api_key
            namespace["versions"] = Versions.parse(versions)
            namespace["flexible"] = Versions.parse(flexible)
        cls = super().__new__(mcs, name, bases, namespace)
        cls._shape = namespace.get("_shape", cls)
        cls._default = None
        return cls


class Struct(metaclass=StructType):
    """A group of fields; as a message, what the body of a frame holds."""

    _fields: ClassVar[tuple[Field, ...]]
    _shape: ClassVar[StructType]

    def __init__(self, **values: Any) -> None:
        # The first object of a class pays for the class's own constructor, so that importing all messages
        # stays cheap for a program that uses few of them.
        cls = self._shape
        cls.__init__ = _make_init(cast("type[Struct]", cls))  # type: ignore[misc]
        cls.__init__(self, **values)  # type: ignore[misc]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct):
            return NotImplemented
        if self._shape is not other._shape:
            return False
        for field in self._fields:  # noqa: SIM110 - every fetch of a follower is compared with a default
            if getattr(self, field.name) != getattr(other, field.name):
                return False
        return True

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = (f"{field.name}={_short(getattr(self, field.name))}" for field in self._fields)
        return f"{self._shape.__name__}({', '.join(values)})"


class Message(Struct):
    """A struct that stands for itself and has versions."""

    api_key: ClassVar[int]
    versions: ClassVar[Versions]
    flexible: ClassVar[Versions]


class Request(Message):
    """A message that a client sends."""


class Response(Message):
    """A message that a broker sends back."""


class Data(Message):
    """A message within a message or within a record: what members send each other through the broker, what
    coordinators keep in their log. Decoded as carefully as a request, and bytes behind it are passed over:
    they are fields of a later version."""


def shared_default(cls: type[Struct]) -> Struct:
    """The one object of `cls` with all defaults that stands wherever a field of this struct is not given.

    It is shared because a Fetch response has three such fields per partition and hardly ever uses them; and
    because it is shared, it cannot be changed: give the field a struct of your own instead.
    """
    if cls._default is None:
        frozen = StructType(cls.__name__, (cls,), {"_fields": cls._fields, "_shape": cls})
        instance = cast(Struct, cast(Any, frozen)())
        frozen.__setattr__ = _refuse  # type: ignore[assignment, method-assign]
        cls._default = instance
    return cls._default


def default_of(field: Field) -> Any:
    """The default of `field`; arrays give a new list each time."""
    if field.kind == "array":
        return None if field.default is None else []
    if field.kind == "struct" and field.nullable == NO_VERSIONS:
        return shared_default(cast("type[Struct]", field.of))
    return field.default


def _refuse(self: Struct, name: str, value: object) -> None:
    raise AttributeError(
        f"this {type(self).__name__} is the shared default of its field and cannot be changed: "
        f"assign a new {type(self).__name__} to the field instead"
    )


def _make_init(cls: type[Struct]) -> Callable[..., None]:
    """The constructor of `cls`: keywords only, straight assignments, a fresh list for each array."""
    scope: dict[str, Any] = {"_fresh": object()}
    parameters, body = [], []
    for index, field in enumerate(cls._fields):
        default = default_of(field)
        if field.kind == "array" and default is not None:
            parameters.append(f"{field.name}=_fresh")
            body.append(f"self.{field.name} = [] if {field.name} is _fresh else {field.name}")
        else:
            scope[f"_d{index}"] = default
            parameters.append(f"{field.name}=_d{index}")
            body.append(f"self.{field.name} = {field.name}")
    head = f"def __init__(self, *, {', '.join(parameters)}):" if parameters else "def __init__(self):"
    exec("\n    ".join([head, *(body or ["pass"])]), scope)
    return cast("Callable[..., None]", scope["__init__"])


def _short(value: object) -> str:
    """Values for a repr; long bytes and records by their size."""
    if isinstance(value, bytes | bytearray | memoryview) and len(value) > 32:
        return f"<{len(value)} bytes>"
    return repr(value)
