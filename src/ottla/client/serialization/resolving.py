"""What users may give as a serializer, as one kind of function.

Clients call a serializer with the value, the topic and the record's headers, whatever it was made from.
Failures become `SerializationError` and `DeserializationError` where the client knows the record's place;
here they pass.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable
from typing import Any, Literal

from ottla.client.errors import ConfigurationError
from ottla.client.records import Header
from ottla.client.serialization.formats import Bytes, Json, Text

Field = Literal["key", "value"]
SerializerInput = str | Callable[..., Any] | object
DeserializerInput = SerializerInput
Resolved = Callable[[Any, str, list[Header]], Any]
"""(value, topic, headers) -> bytes, or (bytes, topic, headers) -> value. A serializer may add headers."""

_NAMED = {"bytes": Bytes, "str": Text, "json": Json}


@dataclasses.dataclass
class SerializationContext:
    """Where a key or value belongs. Functions that take a second argument are called with it."""

    topic: str
    field: Field
    headers: list[Header] = dataclasses.field(default_factory=list)


def serializer_for(given: SerializerInput | None, part: Field) -> Resolved | None:
    """The function behind a `key_serializer` or `value_serializer`; None: bytes and text as they are."""
    return _resolve(given, part, "serialize")


def deserializer_for(given: DeserializerInput | None, part: Field) -> Resolved | None:
    """The function behind a `key_deserializer` or `value_deserializer`; None for plain bytes."""
    return _resolve(given, part, "deserialize")


def _resolve(given: SerializerInput | None, part: Field, method: str) -> Resolved | None:
    if given is None:
        return None
    if isinstance(given, str):
        if given not in _NAMED:
            raise ConfigurationError(f"no {method}r is called {given!r}: choose one of {', '.join(_NAMED)}")
        given = _NAMED[given]()
    if isinstance(given, type) and not issubclass(given, (str, bytes, int, float)):
        raise ConfigurationError(
            f"the {part} {method}r is the class {given.__name__}: give an object, {given.__name__}(…)"
        )
    own = getattr(given, method, None)
    if own is not None:
        return _without_context(own) if _arguments(own) < 2 else _with_context(own, part)
    if not callable(given):
        raise ConfigurationError(
            f"{given!r} is no {part} {method}r: give a function, or an object with {method}()"
        )
    if _is_confluent(given):
        return _confluent(given, part)
    return _without_context(given) if _arguments(given) < 2 else _with_context(given, part)


def _without_context(function: Callable[[Any], Any]) -> Resolved:
    return lambda value, topic, headers: function(value)


def _with_context(function: Callable[[Any, SerializationContext], Any], part: Field) -> Resolved:
    return lambda value, topic, headers: function(value, SerializationContext(topic, part, headers))


def _arguments(function: Callable[..., Any]) -> int:
    """How many arguments without a default it takes by position."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a function written in C that does not say
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in kinds and each.default is inspect.Parameter.empty for each in parameters)


def _is_confluent(given: object) -> bool:
    """Whether it is a serializer of confluent-kafka; that is not imported for the question."""
    module = sys.modules.get("confluent_kafka.serialization")
    return module is not None and isinstance(given, (module.Serializer, module.Deserializer))


def _confluent(given: Callable[[Any, Any], Any], part: Field) -> Resolved:
    from confluent_kafka.serialization import MessageField
    from confluent_kafka.serialization import SerializationContext as Context

    place = MessageField.KEY if part == "key" else MessageField.VALUE
    return lambda value, topic, headers: given(value, Context(topic, place, headers))  # type: ignore[arg-type]
