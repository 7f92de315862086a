"""The formats that need nothing but Python: bytes, text, JSON, and Protobuf messages, which encode
themselves.
"""

from __future__ import annotations

import enum
import json
from datetime import date, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from ottla.client.serialization.models import from_plain, is_pydantic, to_plain


class Bytes:
    """Bytes as they are."""

    def serialize(self, value: Any) -> bytes:
        return bytes(memoryview(value))

    def deserialize(self, data: bytes) -> bytes:
        return data


class Text:
    """Text in UTF-8, or in another encoding."""

    def __init__(self, encoding: str = "utf-8") -> None:
        "".encode(encoding)
        self._encoding = encoding

    def serialize(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"expected str, got {type(value).__name__}")
        return value.encode(self._encoding)

    def deserialize(self, data: bytes) -> str:
        return data.decode(self._encoding)


class Json:
    """JSON in UTF-8. With a dataclass or pydantic model, values are read as that; both may be written without
    it.

    Times, dates, decimals, UUIDs and enumerations are written as text (enumerations as their value).
    """

    def __init__(self, model: type | None = None) -> None:
        self._model = model

    def serialize(self, value: Any) -> bytes:
        if is_pydantic(value):
            text: str = value.model_dump_json()
            return text.encode()
        return json.dumps(
            to_plain(value), default=_plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False
        ).encode()

    def deserialize(self, data: bytes) -> Any:
        if self._model is None:
            return json.loads(data)
        if is_pydantic(self._model):
            return self._model.model_validate_json(data)  # type: ignore[attr-defined]
        return from_plain(self._model, json.loads(data))


class Protobuf:
    """Messages of a class that protoc made, as their plain bytes."""

    def __init__(self, message: type) -> None:
        if not hasattr(message, "FromString"):
            raise TypeError(f"{message!r} is no class of Protobuf messages")
        self._message = message

    def serialize(self, value: Any) -> bytes:
        if not isinstance(value, self._message):
            raise TypeError(f"expected {self._message.__name__}, got {type(value).__name__}")
        data: bytes = value.SerializeToString()  # type: ignore[attr-defined]
        return data

    def deserialize(self, data: bytes) -> Any:
        return self._message.FromString(data)


def _plain(value: Any) -> Any:
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (set, frozenset)):
        return list(value)
    plain = to_plain(value)
    if plain is not value:
        return plain
    raise TypeError(f"JSON has no form for {type(value).__name__}")
