"""Other people's codecs, as judges of ours: kio, generated from Kafka's own message files, and kafka-python.

Both hold some values in types of their own (times, error codes, sets of bits); the translation is all there
is here. A message goes in, its bytes according to the oracle come out.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import re
import types
import typing
import uuid
from functools import cache
from typing import Any

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.producer.transaction
from kafka.protocol.schemas.fields.codecs import BitField
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from ottla.protocol.schema import ZERO_UUID, Struct, default_of

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def kio_bytes(message: Struct, version: int) -> bytes:
    """What kio writes for `message`."""
    out = io.BytesIO()
    cls = _kio_class(type(message), version)
    entity_writer(cls)(out, _kio_entity(cls, message))
    return out.getvalue()


@cache
def _kio_class(cls: type[Struct], version: int) -> Any:
    api, kind = re.fullmatch(r"(\w+)(Request|Response)", cls.__name__).groups()  # type: ignore[union-attr]
    folder = re.sub(r"(?<!^)(?=[A-Z])", "_", api).lower()
    module = importlib.import_module(f"kio.schema.{folder}.v{version}.{kind.lower()}")
    return getattr(module, cls.__name__)


@cache
def _kio_fields(cls: Any) -> list[tuple[str, str | None, Any]]:
    """Name, kind and, for structs, class of each field of a kio class."""
    hints = typing.get_type_hints(cls)
    result = []
    for field in dataclasses.fields(cls):
        inner = hints[field.name]
        while typing.get_origin(inner) in (tuple, types.UnionType, typing.Union):
            inner = next(arg for arg in typing.get_args(inner) if arg not in (..., type(None)))
        nested = inner if dataclasses.is_dataclass(inner) else None
        result.append((field.name, field.metadata.get("kafka_type"), nested))
    return result


def _kio_entity(cls: Any, obj: Struct) -> Any:
    values = {}
    for name, kind, nested in _kio_fields(cls):
        # kio takes the unit out of the name of a time.
        value = getattr(obj, name if hasattr(obj, name) else f"{name}_ms")
        if nested is not None:
            if isinstance(value, list):
                value = tuple(_kio_entity(nested, item) for item in value)
            elif value is not None:
                value = _kio_entity(nested, value)
        elif isinstance(value, list):
            value = tuple(value)
        elif kind == "uuid":
            value = None if value == ZERO_UUID else uuid.UUID(bytes=value)
        elif kind == "error_code":
            value = ErrorCode(value)
        elif kind in ("timedelta_i32", "timedelta_i64"):
            value = datetime.timedelta(milliseconds=value)
        elif kind == "datetime_i64":
            value = None if value == -1 else _EPOCH + datetime.timedelta(milliseconds=value)
        values[name] = value
    return cls(**values)


_KAFKA_PYTHON = (
    kafka.protocol.producer,
    kafka.protocol.producer.transaction,
    kafka.protocol.consumer,
    kafka.protocol.metadata,
    kafka.protocol.admin,
)


@cache
def _kafka_python_class(cls: type[Struct]) -> Any:
    return next((getattr(m, cls.__name__) for m in _KAFKA_PYTHON if hasattr(m, cls.__name__)), None)


def kafka_python_knows(cls: type[Struct]) -> bool:
    """It does not speak the consumer protocol of KIP-848."""
    return _kafka_python_class(cls) is not None


def kafka_python_bytes(message: Struct, version: int) -> bytes:
    """What kafka-python writes for `message`."""
    entity = _kafka_python_entity(_kafka_python_class(type(message)), message, version)
    return bytes(entity.encode(version=version))


def _kafka_python_entity(cls: Any, obj: Struct, version: int) -> Any:
    values: dict[str, Any] = {}
    declared = {field.name: field for field in obj._fields}
    for name, field in cls.fields.items():
        if not field.for_version_q(version):
            continue
        # kafka-python has a shorter name for these, whatever they are operations on.
        ours = next(
            (n for n in declared if n == name or (n.endswith(f"_{name}") and "_operations" in n)), name
        )
        value = getattr(obj, ours)
        # It writes any tagged field it is given, and Kafka only those that are not their defaults.
        if field.tagged_field_q(version) and value == default_of(declared[ours]):
            continue
        if field.is_struct_array() and value is not None:
            value = [_kafka_python_entity(field.data_class, item, version) for item in value]
        elif field.is_struct() and value is not None:
            value = _kafka_python_entity(field.data_class, value, version)
        elif field.type_str == "uuid":
            value = uuid.UUID(bytes=value)
        elif getattr(field, "_type", None) is BitField:
            assert BitField is not None
            value = BitField.from_32_bit_field(value & 0xFFFFFFFF)
        values[name] = value
    return cls(version=version, **values)
