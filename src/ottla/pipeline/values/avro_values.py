"""From the values that fastavro gives to those that Arrow takes, and back.

Most values are the same to both. What is not (maps, decimals, timestamps in other units, unions of several
types) gets a small function, put together once per schema. None stands for "as it is", so that a record
without anything special in it is not walked again.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

from pyspark.sql import types as T

from ottla.pipeline.values import avro_schema

Convert = Callable[[Any], Any]

_EXACT = Context(prec=80)


def from_avro(schema: Any, names: bool) -> Convert | None:
    """For reading. `names`: fastavro was told to give values of named types in unions with their names."""
    if isinstance(schema, list):
        return _from_union(schema, names)
    if isinstance(schema, str):
        return None
    logical, kind = schema.get("logicalType", ""), schema["type"]
    if logical.endswith("timestamp-millis"):
        return lambda value: value * 1000
    if logical.endswith("timestamp-nanos"):
        return lambda value: value // 1000
    if logical == "decimal" and isinstance(avro_schema.spark_type(schema), T.DecimalType):
        return _decimal_reader(schema["precision"], schema.get("scale", 0))
    if kind == "record":
        found = [(each["name"], from_avro(each["type"], names)) for each in schema["fields"]]
        special = [(name, convert) for name, convert in found if convert is not None]
        return _on_fields(special) if special else None
    if kind == "array":
        inner = from_avro(schema["items"], names)
        return None if inner is None else lambda items: [inner(each) for each in items]
    if kind == "map":
        value = from_avro(schema["values"], names)
        if value is None:
            return lambda entries: list(entries.items())
        return lambda entries: [(key, value(each)) for key, each in entries.items()]
    return None


def _on_fields(special: list[tuple[str, Convert]]) -> Convert:
    def convert(record: dict[str, Any]) -> dict[str, Any]:
        record = record.copy()  # a default of the schema is the same object in every row
        for name, inner in special:
            record[name] = inner(record[name])
        return record

    return convert


def _from_union(union: list[Any], names: bool) -> Convert | None:
    rest = avro_schema.branches(union)
    if avro_schema.is_members(union):
        return _members_reader(rest, names)
    if len(rest) != 1:
        return None
    inner = from_avro(rest[0], names)
    if names and isinstance(rest[0], dict) and "name" in rest[0]:
        return lambda pair: _of_named(pair, inner)
    return None if inner is None else lambda value: None if value is None else inner(value)


def _of_named(pair: Any, inner: Convert | None) -> Any:
    """The value of a named type in a union; a default of the schema comes without its name."""
    value = pair[1] if isinstance(pair, tuple) else pair
    return value if value is None or inner is None else inner(value)


def _members_reader(rest: list[Any], names: bool) -> Convert:
    converts = [from_avro(each, names) for each in rest]
    named = {
        each["name"]: place for place, each in enumerate(rest) if isinstance(each, dict) and "name" in each
    }
    python_types = [
        (place, _python_type(each)) for place, each in enumerate(rest) if place not in named.values()
    ]

    def convert(value: Any) -> dict[str, Any] | None:
        if value is None:
            return None
        if isinstance(value, tuple):
            name, value = value
            place = named[name]
        else:
            place = next(place for place, type in python_types if type is value.__class__)
        inner = converts[place]
        return {f"member{place}": value if inner is None else inner(value)}

    return convert


def _python_type(schema: Any) -> type:
    kind = schema["type"] if isinstance(schema, dict) else schema
    kinds = {"boolean": bool, "int": int, "long": int, "float": float, "double": float, "bytes": bytes}
    return {**kinds, "string": str, "array": list, "map": dict}[kind]


def _decimal_reader(precision: int, scale: int) -> Convert:
    def convert(stored: bytes) -> Decimal:
        unscaled = int.from_bytes(stored, "big", signed=True)
        if abs(unscaled) >= 10**precision:
            raise ValueError(f"a decimal has more than {precision} digits")
        return Decimal(unscaled).scaleb(-scale, _EXACT)

    return convert


def has_members(schema: Any) -> bool:
    """Whether a union of several types is somewhere inside, so that reading needs to know which it was."""
    if isinstance(schema, list):
        return avro_schema.is_members(schema) or any(has_members(each) for each in schema)
    if not isinstance(schema, dict):
        return False
    inner = [field["type"] for field in schema.get("fields", [])]
    inner += [schema[part] for part in ("items", "values") if part in schema]
    return any(has_members(each) for each in inner)


def to_avro(schema: Any) -> Convert | None:
    """For writing."""
    if isinstance(schema, list):
        return _to_union(schema)
    if isinstance(schema, str):
        return None
    logical, kind = schema.get("logicalType", ""), schema["type"]
    if logical.endswith("timestamp-millis"):
        return lambda value: None if value is None else value // 1000
    if logical.endswith("timestamp-nanos"):
        return lambda value: None if value is None else value * 1000
    if logical == "decimal" and isinstance(avro_schema.spark_type(schema), T.DecimalType):
        return _decimal_writer(schema.get("scale", 0), schema.get("size"))
    if kind == "record":
        found = [(each["name"], to_avro(each["type"])) for each in schema["fields"]]
        special = [(name, convert) for name, convert in found if convert is not None]
        return _on_given_fields(special) if special else None
    if kind == "array":
        inner = to_avro(schema["items"])
        return (
            None
            if inner is None
            else lambda items: None if items is None else [inner(each) for each in items]
        )
    if kind == "map":
        value = to_avro(schema["values"]) or (lambda each: each)
        return lambda entries: None if entries is None else {key: value(each) for key, each in entries}
    return None


def _on_given_fields(special: list[tuple[str, Convert]]) -> Convert:
    def convert(record: dict[str, Any] | None) -> dict[str, Any] | None:
        if record is not None:
            for name, inner in special:
                if name in record:
                    record[name] = inner(record[name])
        return record

    return convert


def _to_union(union: list[Any]) -> Convert | None:
    rest = avro_schema.branches(union)
    if not avro_schema.is_members(union):
        return to_avro(rest[0]) if len(rest) == 1 else None
    converts = [to_avro(each) for each in rest]

    def convert(members: dict[str, Any] | None) -> Any:
        for place, inner in enumerate(converts):
            value = None if members is None else members[f"member{place}"]
            if value is not None:
                branch = rest[place]
                written = value if inner is None else inner(value)
                named = isinstance(branch, dict) and "name" in branch
                return (branch["name"], written) if named else written
        return None

    return convert


def _decimal_writer(scale: int, size: int | None) -> Convert:
    def convert(value: Decimal | None) -> bytes | None:
        if value is None:
            return None
        unscaled = int(value.scaleb(scale, _EXACT))
        length = size or (unscaled + (unscaled < 0)).bit_length() // 8 + 1
        return unscaled.to_bytes(length, "big", signed=True)

    return convert
