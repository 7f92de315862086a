"""Avro by fastavro, with the schema from a file or text.

A record is the bare Avro encoding, without a header: reader and writer agree on the schema. To read what was
written with an older or newer schema, give that as `writer`. With a registry, use confluent-kafka's
serializers instead, which put the schema's id before the bytes.
"""

from __future__ import annotations

import enum
import io
import json
from pathlib import Path
from typing import Any

from ottla.client.errors import ConfigurationError, MissingDependencyError
from ottla.client.serialization.models import from_plain, to_plain

try:
    import fastavro
except ImportError as error:
    _missing: ImportError | None = error
else:
    _missing = None


class Avro:
    """Avro after a schema: a path, the schema's JSON as text, or a dict. A model class makes objects of what
    is read.
    """

    def __init__(
        self,
        schema: str | Path | dict[str, Any] | list[Any],
        model: type | None = None,
        *,
        writer: str | Path | dict[str, Any] | list[Any] | None = None,
    ) -> None:
        if _missing is not None:
            raise MissingDependencyError("Avro values", "fastavro", "ottla[client]") from _missing
        self._schema = _parse(schema)
        self._writer = self._schema if writer is None else _parse(writer)
        self._model = model

    def serialize(self, value: Any) -> bytes:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(
            buffer, self._schema, _without_enums(to_plain(value)), strict_allow_default=True
        )
        return buffer.getvalue()

    def deserialize(self, data: bytes) -> Any:
        buffer = io.BytesIO(data)
        reader = None if self._writer is self._schema else self._schema
        value = fastavro.schemaless_reader(buffer, self._writer, reader)
        if buffer.tell() != len(data):
            raise ValueError(f"{len(data) - buffer.tell()} bytes are left after the value: another schema?")
        return value if self._model is None else from_plain(self._model, value)


def _without_enums(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_enums(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_enums(item) for item in value]
    return value.value if isinstance(value, enum.Enum) else value


def _parse(schema: str | Path | dict[str, Any] | list[Any]) -> Any:
    if isinstance(schema, Path) or (isinstance(schema, str) and schema.lstrip()[:1] not in ("{", "[", '"')):
        try:
            text = Path(schema).read_text()
        except OSError as error:
            raise ConfigurationError(
                f"cannot read the Avro schema {str(schema)!r}: {error.strerror}"
            ) from error
    elif isinstance(schema, str):
        text = schema
    else:
        text = json.dumps(schema)
    try:
        return fastavro.parse_schema(json.loads(text))
    except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
        raise ConfigurationError(f"not an Avro schema: {error}") from error
