"""Dataclasses and pydantic models as plain dicts, and back.

`to_plain` makes of a model what JSON and Avro encoders take; `from_plain` builds a model from what their
decoders give. Pydantic is not imported: its models are known by their methods. A dataclass is filled by its
type hints, with nested dataclasses, lists, dicts, tuples, optional fields, enumerations, and the times,
decimals and UUIDs that JSON has as text. Fields that the class does not have are ignored, so that a reader
lives with a newer writer.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from functools import cache
from typing import Any
from uuid import UUID

_FROM_TEXT: dict[Any, Any] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    Decimal: Decimal,
    UUID: UUID,
}


def is_pydantic(model: object) -> bool:
    return hasattr(model, "model_validate") and hasattr(model, "model_dump")


def to_plain(value: Any) -> Any:
    """A model as a dict; anything else as it is."""
    if is_pydantic(value):
        return value.model_dump()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value


def from_plain(model: Any, data: Any) -> Any:
    """An instance of the class `model` from decoded data."""
    if is_pydantic(model):
        return model.model_validate(data)
    return _convert(model, data)


def _convert(hint: Any, data: Any) -> Any:
    if hint is Any or data is None:
        return data
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _dataclass(hint, data)
    origin = typing.get_origin(hint)
    if origin is not None:
        return _generic(origin, typing.get_args(hint), data)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(data)
    if isinstance(data, str) and hint in _FROM_TEXT:
        return _FROM_TEXT[hint](data)
    if hint is float and isinstance(data, int):
        return float(data)
    if isinstance(hint, type) and not isinstance(data, hint):
        raise TypeError(f"expected {hint.__name__}, got {type(data).__name__}")
    return data


def _generic(origin: Any, arguments: tuple[Any, ...], data: Any) -> Any:
    if origin in (typing.Union, types.UnionType):
        return _first_that_fits(arguments, data)
    if origin is typing.Annotated:
        return _convert(arguments[0], data)
    if origin in (list, set, frozenset):
        return origin(_convert(arguments[0], item) for item in data)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_convert(arguments[0], item) for item in data)
        return tuple(_convert(hint, item) for hint, item in zip(arguments, data, strict=True))
    if isinstance(data, Mapping) and len(arguments) == 2:
        return {_convert(arguments[0], key): _convert(arguments[1], item) for key, item in data.items()}
    return data


def _first_that_fits(hints: tuple[Any, ...], data: Any) -> Any:
    failures = []
    for hint in hints:
        if hint is type(None):
            continue
        try:
            return _convert(hint, data)
        except (TypeError, ValueError, KeyError) as failure:
            failures.append(str(failure))
    raise TypeError(f"fits none of the types of the field: {'; '.join(failures)}")


def _dataclass(model: type, data: Any) -> Any:
    if not isinstance(data, Mapping):
        raise TypeError(f"expected an object for {model.__name__}, got {type(data).__name__}")
    values = {}
    for name, hint in _fields(model):
        if name in data:
            try:
                values[name] = _convert(hint, data[name])
            except (TypeError, ValueError) as failure:
                raise type(failure)(f"{model.__name__}.{name}: {failure}") from failure
    return model(**values)


@cache
def _fields(model: Any) -> list[tuple[str, Any]]:
    hints = typing.get_type_hints(model, include_extras=True)
    return [(field.name, hints[field.name]) for field in dataclasses.fields(model) if field.init]
