"""Keys and values as bytes, and back.

A format turns values into bytes and bytes into values; a producer uses one half, a consumer the other. Both
take for their `key_…` and `value_…` arguments: a format of this package (`Json(Order)`,
`Avro("order.avsc")`), the name of one that needs no arguments ("bytes", "str", "json"), a serializer of
confluent-kafka, or any function from a value to bytes (from bytes to a value). None is always None: a key
that is missing, or a value that deletes.
"""

from ottla.client.serialization.avro import Avro
from ottla.client.serialization.formats import Bytes, Json, Protobuf, Text
from ottla.client.serialization.resolving import (
    DeserializerInput,
    SerializationContext,
    SerializerInput,
    deserializer_for,
    serializer_for,
)

__all__ = [
    "Avro",
    "Bytes",
    "DeserializerInput",
    "Json",
    "Protobuf",
    "SerializationContext",
    "SerializerInput",
    "Text",
    "deserializer_for",
    "serializer_for",
]
