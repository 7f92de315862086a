"""Bytes to messages and back: the functions that other packages call.

`decode` and `encode` look up the code that is made for a message and version, which happens once, on first
use, in about a millisecond. Decoding knows one failure, `Malformed`, whatever the bytes are. Encoding fails
with a ValueError that names the field, and then the fault is in our own code.

`decode_in_slices` and `encode_in_slices` do the same as generators that pause every millisecond or two. The
broker uses them for requests and responses of any size that it cannot know to be small. `decode_few` is for
requests that are mostly records: it reads those with few objects, however many bytes they have.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Any, TypeVar, cast

from ottla.protocol.compiler import MAX_STRING, Malformed, ManyObjects
from ottla.protocol.decoders import (
    Decoder,
    SlicedDecoder,
    compile_decoder,
    compile_decoder_of_few,
    compile_sliced_decoder,
)
from ottla.protocol.encoders import Encoder, SlicedEncoder, compile_encoder, compile_sliced_encoder
from ottla.protocol.schema import Field, Message, Struct

__all__ = [
    "Malformed",
    "ManyObjects",
    "decode",
    "decode_few",
    "decode_in_slices",
    "decoder",
    "encode",
    "encode_in_slices",
    "encoder",
]

_M = TypeVar("_M", bound=Message)

_decoders: dict[tuple[type[Struct], int], Decoder] = {}
_decoders_of_few: dict[tuple[type[Struct], int], Decoder] = {}
_encoders: dict[tuple[type[Struct], int], Encoder] = {}
_sliced_decoders: dict[tuple[type[Struct], int], SlicedDecoder] = {}
_sliced_encoders: dict[tuple[type[Struct], int], SlicedEncoder] = {}


def decoder(cls: type[Message], version: int) -> Decoder:
    """The compiled function (view, position) -> message."""
    try:
        return _decoders[cls, version]
    except KeyError:
        _check_version(cls, version)
        return _decoders.setdefault((cls, version), compile_decoder(cls, version))


def encoder(cls: type[Message], version: int) -> Encoder:
    """The compiled function message -> parts. Unlike `encode` it does not explain what it cannot write."""
    try:
        return _encoders[cls, version]
    except KeyError:
        _check_version(cls, version)
        return _encoders.setdefault((cls, version), compile_encoder(cls, version))


def decode(cls: type[_M], version: int, view: memoryview, position: int = 0) -> _M:
    """The message that stands in `view` from `position` on; Malformed if anything else does.

    A response must end where `view` ends. Bytes behind a request or data are passed over, as Kafka does.
    """
    return cast(_M, decoder(cls, version)(view, position))


def decode_few(cls: type[_M], version: int, view: memoryview, position: int = 0) -> _M:
    """As `decode`, but ManyObjects where the message has so many that decoding it would take long."""
    try:
        read = _decoders_of_few[cls, version]
    except KeyError:
        _check_version(cls, version)
        read = _decoders_of_few.setdefault((cls, version), compile_decoder_of_few(cls, version))
    return cast(_M, read(view, position))


def decode_in_slices(
    cls: type[_M], version: int, view: memoryview, position: int = 0
) -> Generator[None, None, _M]:
    """As `decode`, with pauses. `view` must not change until it is done."""
    read = _sliced_decoders.get((cls, version))
    if read is None:
        _check_version(cls, version)
        read = _sliced_decoders.setdefault((cls, version), compile_sliced_decoder(cls, version))
    return cast("Generator[None, None, _M]", read(view, position))


def encode(message: Message, version: int) -> list[Any]:
    """The message as parts to be sent one after the other; records are parts of their own, uncopied."""
    write = encoder(type(message), version)
    try:
        return write(message)
    except _ENCODING_ERRORS as error:
        raise _explained(error, message, version) from error


def encode_in_slices(message: Message, version: int) -> Generator[None, None, list[Any]]:
    """As `encode`, with pauses. The message must not change until it is done."""
    key = type(message), version
    write = _sliced_encoders.get(key)
    if write is None:
        _check_version(type(message), version)
        write = _sliced_encoders.setdefault(key, compile_sliced_encoder(type(message), version))
    try:
        return (yield from write(message))
    except _ENCODING_ERRORS as error:
        raise _explained(error, message, version) from error


_ENCODING_ERRORS = (AttributeError, TypeError, ValueError, struct.error)


def _explained(error: Exception, message: Message, version: int) -> ValueError:
    _explain(message, version, type(message).__name__)
    return ValueError(f"{type(message).__name__} v{version}: {error}")


def _check_version(cls: type[Message], version: int) -> None:
    if version not in cls.versions:
        raise ValueError(
            f"{cls.__name__} has versions {cls.versions.first} to {cls.versions.last}, not {version}"
        )


_RANGES = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "float64": (float, int),
    "string": str,
    "bytes": (bytes, bytearray, memoryview),
    "uuid": (bytes, bytearray, memoryview),
    "array": (list, tuple),
}


def _explain(obj: Struct, version: int, path: str) -> None:
    """Find the first field that cannot be written and say which and why."""
    for field in obj._fields:
        if version in field.versions:
            name = f"{path}.{field.name}"
            if not hasattr(obj, field.name):
                raise ValueError(f"{name} is missing: {path} is a {type(obj).__name__}")
            _explain_value(field, getattr(obj, field.name), version, name)


def _explain_value(field: Field, value: Any, version: int, name: str) -> None:
    if value is None:
        if version in field.nullable:
            return
        raise ValueError(f"{name} is None, but cannot be null in version {version}")
    expected = cast(type, field.of) if field.kind == "struct" else _TYPES.get(field.kind)
    if expected is not None and not isinstance(value, expected):
        raise ValueError(f"{name} is a {type(value).__name__}, not a {field.kind}: {value!r}")
    if field.kind in _RANGES:
        bits = _RANGES[field.kind]
        if not isinstance(value, int) or not -(1 << bits) <= value < 1 << bits:
            raise ValueError(f"{name} is not an {field.kind}: {value!r}")
    elif field.kind == "uuid" and len(value) != 16:
        raise ValueError(f"{name} is not 16 bytes long: {value!r}")
    elif field.kind == "string" and len(value.encode()) > MAX_STRING:
        raise ValueError(f"{name} is longer than {MAX_STRING} bytes")
    elif field.kind == "struct":
        _explain(value, version, name)
    elif field.kind == "array":
        # An element is checked like a field of its own, whether it is a value or a struct.
        element = field.of if isinstance(field.of, Field) else Field("struct", None, "0+", of=field.of)
        for index, item in enumerate(value):
            _explain_value(element, item, version, f"{name}[{index}]")
