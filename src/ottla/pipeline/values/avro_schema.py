"""What an Avro schema means to Spark: its types, and the plain form in which fastavro is given it.

The types are those that Spark's own Avro reader chooses, so that a query moves between the two:

    boolean, int, long, float, double, bytes, string    the same
    record, array, map                                  struct, array, map with string keys
    enum, uuid                                          string
    fixed                                               binary
    date                                                date
    timestamp-millis, -micros, -nanos                   timestamp (microseconds; finer parts are cut)
    local-timestamp-...                                 timestamp_ntz
    time-millis, time-micros                            int, long
    decimal                                             decimal, or binary beyond 38 digits
    a union with null                                   the other type (every column may be null in Spark)
    a union of int and long, of float and double        long, double
    any other union                                     a struct member0, member1, ... with one of them set

Dates, times and decimals travel between fastavro and Arrow as the numbers they are stored as: `storage_form`
strips the logical types, because turning each into a Python object and back would cost most of the time.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import types as T

from ottla.pipeline.declarations import StageError

Schema = dict[str, Any]
_PRIMITIVES: dict[str, T.DataType] = {
    "null": T.NullType(),
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "bytes": T.BinaryType(),
    "string": T.StringType(),
}
_TIMESTAMPS = ("timestamp-millis", "timestamp-micros", "timestamp-nanos")
_MAX_DIGITS = 38


def parsed(text: str, what: str) -> Any:
    """The schema with every name resolved: each use of a named type is replaced by its definition."""
    import fastavro.schema

    try:
        declared = json.loads(text)
        fastavro.schema.parse_schema(declared)
        return _resolved(declared, {}, (), "")
    except RecursiveSchema as problem:
        raise StageError(f"{what}: {problem}") from None
    except (
        fastavro.schema.SchemaParseException,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
    ) as problem:
        raise StageError(f"{what}: not an Avro schema: {type(problem).__name__}: {problem}") from None


class RecursiveSchema(ValueError):
    """A record that holds itself; Spark's types have an end."""


def spark_schema(schema: Any) -> T.StructType:
    """The columns of a topic with this schema: a record's fields, or one column `value` for anything else."""
    if isinstance(schema, dict) and schema.get("type") == "record":
        found = spark_type(schema)
        assert isinstance(found, T.StructType)
        return found
    return T.StructType().add("value", spark_type(schema))


def spark_type(schema: Any) -> T.DataType:
    """The Spark type of a resolved schema."""
    if isinstance(schema, list):
        return _union_type(schema)
    if isinstance(schema, str):
        return _PRIMITIVES[schema]
    logical = _logical_type(schema)
    if logical is not None:
        return logical
    kind = schema["type"]
    if kind == "record":
        return T.StructType(
            [T.StructField(each["name"], spark_type(each["type"])) for each in schema["fields"]]
        )
    if kind == "array":
        return T.ArrayType(spark_type(schema["items"]))
    if kind == "map":
        return T.MapType(T.StringType(), spark_type(schema["values"]))
    if kind == "enum":
        return T.StringType()
    if kind == "fixed":
        return T.BinaryType()
    return spark_type(kind)


def may_be_null(schema: Any) -> bool:
    """Whether null is a value of this schema."""
    return schema == "null" or (isinstance(schema, list) and "null" in schema)


def branches(union: list[Any]) -> list[Any]:
    """The branches of a union that are not null."""
    return [each for each in union if each != "null"]


def is_members(union: list[Any]) -> bool:
    """Whether the union becomes a struct with a member for each branch."""
    kinds = {_plain_kind(each) for each in branches(union)}
    return len(branches(union)) > 1 and kinds not in ({"int", "long"}, {"float", "double"})


def storage_form(schema: Any) -> Any:
    """A schema as declared but without logical types: fastavro then gives and takes what is stored."""
    if isinstance(schema, list):
        return [storage_form(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return storage_form(kind)
    if kind in _PRIMITIVES:
        return kind
    plain = {key: value for key, value in schema.items() if key not in ("logicalType", "precision", "scale")}
    if "fields" in plain:
        plain["fields"] = [{**field, "type": storage_form(field["type"])} for field in plain["fields"]]
    for inner in ("items", "values"):
        if inner in plain:
            plain[inner] = storage_form(plain[inner])
    return plain


def _union_type(union: list[Any]) -> T.DataType:
    rest = branches(union)
    if not rest:
        return T.NullType()
    if len(rest) == 1:
        return spark_type(rest[0])
    if not is_members(union):
        return T.LongType() if _plain_kind(rest[0]) in ("int", "long") else T.DoubleType()
    return T.StructType(
        [T.StructField(f"member{place}", spark_type(each)) for place, each in enumerate(rest)]
    )


def _plain_kind(schema: Any) -> str:
    if isinstance(schema, dict):
        return "logical" if "logicalType" in schema else str(schema["type"])
    return str(schema)


def _logical_type(schema: Schema) -> T.DataType | None:
    logical, kind = schema.get("logicalType"), schema["type"]
    if logical == "date" and kind == "int":
        return T.DateType()
    if logical in _TIMESTAMPS and kind == "long":
        return T.TimestampType()
    if isinstance(logical, str) and logical.removeprefix("local-") in _TIMESTAMPS and kind == "long":
        return T.TimestampNTZType()
    if logical == "decimal" and kind in ("bytes", "fixed") and schema.get("precision", 0) <= _MAX_DIGITS:
        return T.DecimalType(schema["precision"], schema.get("scale", 0))
    return None


def _resolved(schema: Any, known: dict[str, Any], open_names: tuple[str, ...], space: str) -> Any:
    if isinstance(schema, list):
        return [_resolved(each, known, open_names, space) for each in schema]
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return schema
        name = schema if "." in schema or not space else f"{space}.{schema}"
        if name in open_names or schema in open_names:
            raise RecursiveSchema(f"record {schema} holds itself, and Spark has no type without an end")
        return known[name] if name in known else known[schema]
    kind = schema["type"]
    if kind in ("record", "error", "enum", "fixed"):
        own_space, name = _full_name(schema, space)
        plain = {key: value for key, value in schema.items() if key not in ("namespace", "aliases", "doc")}
        if kind in ("record", "error"):
            plain["type"] = "record"
            inside = (*open_names, name)
            plain["fields"] = [
                {**field, "type": _resolved(field["type"], known, inside, own_space)}
                for field in schema["fields"]
            ]
        plain["name"] = name
        known[name] = plain
        return plain
    if kind == "array":
        return {**schema, "items": _resolved(schema["items"], known, open_names, space)}
    if kind == "map":
        return {**schema, "values": _resolved(schema["values"], known, open_names, space)}
    if isinstance(kind, dict | list) or kind not in _PRIMITIVES:
        return _resolved(kind, known, open_names, space)
    return schema if len(schema) > 1 else kind


def _full_name(schema: Schema, space: str) -> tuple[str, str]:
    name = schema["name"]
    if "." in name:
        return name.rpartition(".")[0], name
    own = schema.get("namespace", space)
    return own, f"{own}.{name}" if own else name


def logical_difference(written: Any, read: Any, path: str = "the value") -> str | None:
    """Where two schemas give the same stored type another meaning, which Avro's resolution would not notice.

    Both are as `parsed` gives them. None when there is no such place.
    """
    if isinstance(written, list) or isinstance(read, list):
        ours, theirs = _branches_of(read), _branches_of(written)
        if len(ours) == len(theirs) == 1:
            return logical_difference(theirs[0], ours[0], path)
        return None
    one, other = _meaning(written), _meaning(read)
    if one != other and _stored(written) == _stored(read):
        return f"{path} is {one or _stored(written)}, and {other or _stored(read)} is expected"
    if not isinstance(written, dict) or not isinstance(read, dict):
        return None
    if written["type"] == read["type"] == "record":
        fields = {each["name"]: each["type"] for each in written["fields"]}
        for each in read["fields"]:
            name = next((n for n in (each["name"], *each.get("aliases", ())) if n in fields), None)
            found = None if name is None else logical_difference(fields[name], each["type"], f"field {name}")
            if found is not None:
                return found
        return None
    for part in ("items", "values"):
        if part in written and part in read:
            return logical_difference(written[part], read[part], f"{part} of {path}")
    return None


def set_bytes_defaults(schema: Any) -> None:
    """In a schema that fastavro has parsed: defaults of bytes as bytes. JSON has them as text, and fastavro
    would hand out that."""
    for inner in schema if isinstance(schema, list) else ():
        set_bytes_defaults(inner)
    if not isinstance(schema, dict):
        return
    for part in ("items", "values"):
        set_bytes_defaults(schema.get(part))
    for field in schema.get("fields", ()):
        kind = field["type"][0] if isinstance(field["type"], list) else field["type"]
        if isinstance(field.get("default"), str) and _stored(kind) in ("bytes", "fixed"):
            field["default"] = field["default"].encode("latin-1")
        set_bytes_defaults(field["type"])


def _branches_of(schema: Any) -> list[Any]:
    return branches(schema) if isinstance(schema, list) else [schema]


def _stored(schema: Any) -> str:
    return str(schema["type"]) if isinstance(schema, dict) else str(schema)


def _meaning(schema: Any) -> str:
    """The logical type, with what belongs to it, if it makes another value of what is stored."""
    logical = schema.get("logicalType", "") if isinstance(schema, dict) else ""
    if not logical.startswith(("date", "timestamp", "local-timestamp", "decimal")):
        return ""
    numbers = [str(schema[name]) for name in ("precision", "scale") if name in schema]
    return str(logical) + (f"({', '.join(numbers)})" if numbers else "")
