"""Ways to spoil a valid frame, and requests that are legal but as expensive as they can be.

Shared by the property test and the fuzz target, so that what one of them can find the other can too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from ottla.protocol.schema import Field, Request, Struct

# Counts and lengths that ask for more than there is, in every width that the protocol has.
ABSURD = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xfe",
    b"\x80\x00\x00\x00",
    b"\x7f\xff",
    b"\xff\xfe",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x80",
    b"\x00",
    b"\xff",
    b"\xff\x7f",
)


def spoil(rng: Random, frame: bytes) -> bytes:
    """`frame` with a few random faults in it."""
    data = bytearray(frame)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0 if data:
                data[at % len(data)] = rng.randrange(256)
            case 1 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 2:
                del data[at:]
            case 3:
                del data[at : at + rng.randrange(1, 9)]
            case 4:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case _:
                absurd = rng.choice(ABSURD)
                data[at : at + len(absurd)] = absurd
    return bytes(data)


def expensive(rng: Random, cls: type[Request], version: int) -> Iterator[tuple[str, Callable[[int], Any]]]:
    """For each array of `cls`, its name and a maker of requests that have little but so many elements of it.

    The elements are as small as they may be on the wire and hold values that cost Python an object each.
    """
    for path in _arrays(cls, version):
        for tags in (False, True):
            elements = _elements(rng, path[-1], version, tags)

            def request(count: int, path: list[Field] = path, elements: list[Any] = elements) -> Any:
                return _stuffed(rng, cls, version, path, (elements * (count // len(elements) + 1))[:count])

            yield ".".join(field.name for field in path), request
            of = path[-1].of
            if of is None or isinstance(of, Field) or not any(field.tag for field in of._fields):
                break


def _arrays(cls: type[Struct], version: int) -> Iterator[list[Field]]:
    for field in cls._fields:
        if field.kind == "array" and version in field.versions:
            yield [field]
            if not isinstance(field.of, Field) and field.of is not None:
                for rest in _arrays(field.of, version):
                    yield [field, *rest]


def _elements(rng: Random, field: Field, version: int, tags: bool) -> list[Any]:
    if isinstance(field.of, Field):
        return [_costly(rng, field.of) for _ in range(50)]
    assert field.of is not None
    return [_small(rng, field.of, version, tags) for _ in range(50)]


def _stuffed(rng: Random, cls: type[Any], version: int, path: list[Field], elements: list[Any]) -> Any:
    message = _small(rng, cls, version)
    field, *rest = path
    if rest:
        # One parent holds all, so that the parents cost nothing.
        assert isinstance(field.of, type)
        elements = [_stuffed(rng, field.of, version, rest, elements)]
    setattr(message, field.name, elements)
    return message


def _small(rng: Random, cls: type[Any], version: int, tags: bool = False) -> Any:
    return cls(
        **{
            field.name: _costly(rng, field)
            for field in cls._fields
            if version in field.versions
            and (tags or field.tag is None)
            and field.kind not in ("array", "struct")
        }
    )


def _costly(rng: Random, field: Field) -> Any:
    match field.kind:
        case "boolean":
            return True
        case "int8" | "int16" | "int32" | "int64":
            return rng.randrange(1 << (int(field.kind[3:]) - 2), 1 << (int(field.kind[3:]) - 1))
        case "uuid":
            return rng.randbytes(16)
        case "string":
            return rng.choice(["😀", "ሴ", "a😀bcdefghi", f"{rng.randrange(10, 99)}"])
        case "uint16" | "uint32":
            return rng.getrandbits(int(field.kind[4:]))
        case "float64":
            return rng.random()
        case "records" | "bytes":
            return b""
    raise AssertionError(f"no values of kind {field.kind}")
