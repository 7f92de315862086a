"""Random messages, made from their declarations: a field that a version has gets any value it can hold.

Whoever calls hands in the source of chance: a seeded `random.Random` to fuzz, or Hypothesis's own, which can
shrink what it found.
"""

from __future__ import annotations

from random import Random
from typing import Any

from ottla.protocol.apis import APIS
from ottla.protocol.errors import ErrorCode
from ottla.protocol.schema import Field, Request, Response, Struct

Message = type[Request] | type[Response]

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_CODES = [int(code) for code in ErrorCode]
_LETTERS = ["a", "-", "\0", "Z9", "é", "ß", "ሴ", "漢字", "😀", "\ud7ff", "\uffff"]
_LATEST_TIME_MS = 253_402_300_799_999  # the end of the year 9999, where Python's own times end


_VERSIONS: dict[Message, range] = {
    cls: range(api.min_version, api.max_version + 1)
    for api in APIS.values()
    for cls in (api.request, api.response)
}


def messages() -> list[Message]:
    """Every message that is declared."""
    return list(_VERSIONS)


def versions_of(cls: Message) -> range:
    """The versions that it is declared for."""
    return _VERSIONS[cls]


def declared() -> list[tuple[Message, int]]:
    """Every message with every version."""
    return [(cls, version) for cls, versions in _VERSIONS.items() for version in versions]


def random_message(rng: Random, cls: type[Any], version: int, *, nulls: bool = True) -> Any:
    """A message with every field of `version` set; the other fields keep their defaults."""
    return cls(
        **{
            field.name: random_value(rng, field, version, nulls)
            for field in cls._fields
            # A tagged field is left out now and then, for what is not sent is a case of its own.
            if version in field.versions and not (field.tag is not None and rng.random() < 0.4)
        }
    )


def random_value(rng: Random, field: Field, version: int, nulls: bool) -> Any:
    if nulls and version in field.nullable and rng.random() < 0.3:
        return None
    match field.kind:
        case "boolean":
            return rng.random() < 0.5
        case "int8" | "int16" | "int32" | "int64":
            return _integer(rng, field)
        case "uuid":
            return rng.randbytes(16)
        case "string":
            return _string(rng)
        case "bytes":
            return rng.randbytes(rng.choice([0, 1, 5, 126, 127, 200]))
        case "uint16" | "uint32":
            return rng.getrandbits(int(field.kind[4:]))
        case "float64":
            return rng.uniform(-1e9, 1e9)
        case "records":
            return rng.randbytes(rng.choice([0, 1, 61, 126, 127, 200]))
        case "struct":
            return random_message(rng, _struct(field), version, nulls=nulls)
        case "array":
            element = field.of if isinstance(field.of, Field) else None
            # Lists of integers are cheap, and long ones take another way through the codec.
            count = (
                rng.choice([0, 1, 3, 16, 17, 130])
                if element and element.kind == "int32"
                else rng.randint(0, 2)
            )
            if element is not None:
                return [random_value(rng, element, version, nulls) for _ in range(count)]
            return [random_message(rng, _struct(field), version, nulls=nulls) for _ in range(count)]
    raise AssertionError(f"no random values of kind {field.kind}")


def _struct(field: Field) -> type[Struct]:
    assert isinstance(field.of, type)
    return field.of


def _integer(rng: Random, field: Field) -> int:
    if field.name.endswith("error_code"):
        return rng.choice(_CODES)
    if field.name == "log_append_time_ms":
        # The oracle holds a time here, or nothing for -1.
        return -1 if rng.random() < 0.3 else rng.randint(0, _LATEST_TIME_MS)
    if field.name == "transaction_start_time_ms":
        return rng.randint(0, _LATEST_TIME_MS)  # the same, and nothing is not allowed
    if field.name == "retention_time_ms":
        return rng.randint(-1, _LATEST_TIME_MS)  # the oracle holds a duration here
    bits = _BITS[field.kind] - 1
    if rng.random() < 0.4:
        return rng.choice([0, 1, -1, (1 << bits) - 1, -(1 << bits)])
    return rng.randint(-(1 << bits), (1 << bits) - 1)


def _string(rng: Random) -> str:
    if rng.random() < 0.1:
        return "x" * rng.choice([126, 127, 128, 300])
    return "".join(rng.choice(_LETTERS) for _ in range(rng.randint(0, 3)))
