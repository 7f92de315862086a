"""Avro values, decoded and encoded by fastavro in Spark's Python workers, a column of Arrow data at a time.

Spark's own `from_avro` is not in the pip package. Here only the value column travels to Python and back; a
value that does not decode becomes a marked row, never an error. Avro carries no schema in its values, so
bytes of another schema often decode to nonsense: what can be noticed is (bytes left over, branches that do
not exist, text that is none), and the rest is as it is with every Avro reader.

Confluent's clients put five bytes before each value, a zero and the id of the schema in their registry. With
`framing="confluent"` they are skipped when reading and written with the declared `schema_id`. A topic with
`schemas` has values of several schemas: each is read with the one that its id names, and resolved to the
declared one by Avro's rules (fields by name, defaults, wider types). The registry itself is not asked.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from ottla.pipeline.declarations import StageError, Topic
from ottla.pipeline.values import avro_schema
from ottla.pipeline.values.avro_values import from_avro, has_members, to_avro
from ottla.pipeline.values.formats import Reader, arrow_function, check_columns

_CORRUPT = "_ottla_corrupt"
_PREFIX = struct.Struct(">bI")


Schemas = tuple[tuple[int, str], ...]
"""Ids of a registry and the texts of their schemas."""


class BadValue(ValueError):
    """Bytes that are not a value of the schema; the text says why."""


def schema_of(declared: Topic) -> T.StructType:
    """The columns of a topic declared with an Avro schema."""
    return avro_schema.spark_schema(_resolved(_text_of(declared), f"topic {declared.title}"))


def avro_reader(source: Topic) -> Reader:
    """The reader for an input with Avro values."""
    text, framing, schemas = _text_of(source), source.framing, source.schemas
    schema = schema_of(source)
    for number, written in schemas:
        avro_schema.parsed(written, f"topic {source.title}: schema {number}")
    check_columns(schema, f"topic {source.title}")
    marked = T.StructType([*schema.fields, T.StructField(_CORRUPT, T.BooleanType())])

    def decode(values: pa.Array) -> pa.Array:
        return decode_array(values, text, framing, schemas)

    def explain(value: bytes | None) -> str:
        return explain_avro(value, text, framing, schemas)

    return Reader(
        schema=schema,
        decode=arrow_function(decode, marked),
        is_bad=lambda value, parsed: parsed.getField(_CORRUPT).isNotNull(),
        explain=explain,
    )


def avro_value(columns: list[Column], target: Topic) -> Column:
    """The columns, in the schema's order and types, as Avro values."""
    text, framing, schema_id = _text_of(target), target.framing, target.schema_id

    def encode(rows: pa.Array) -> pa.Array:
        return encode_array(rows, text, framing, schema_id)

    return arrow_function(encode, T.BinaryType())(F.struct(*columns))


def has_default(target: Topic, field: str) -> bool:
    """Whether the schema says what stands for a field that is not given."""
    schema = _resolved(_text_of(target), f"topic {target.title}")
    fields = schema.get("fields", []) if isinstance(schema, dict) else []
    return any(each["name"] == field and "default" in each for each in fields)


def decode_array(values: pa.Array, text: str, framing: str, schemas: Schemas = ()) -> pa.Array:
    """Avro values as rows of the schema's columns and a mark, set for what is no value of the schema."""
    decode = _decoder(text, framing, schemas)
    type = _marked_arrow_type(text)
    bad = {_CORRUPT: True}
    rows: list[Any] = []
    for value in values.to_pylist():
        try:
            rows.append(None if value is None else decode(value))
        except BadValue:
            rows.append(bad)
    try:
        return pa.array(rows, type)
    except (pa.ArrowException, OverflowError):
        # A number beyond what its column can hold: find the rows at fault and mark them, the others are good.
        return pa.array([row if _fits(row, type) else bad for row in rows], type)


def encode_array(rows: pa.Array, text: str, framing: str, schema_id: int) -> pa.Array:
    """Rows of the schema's columns as Avro values."""
    encode = _encoder(text)
    prefix = _PREFIX.pack(0, schema_id) if framing == "confluent" else b""
    stored = rows.cast(_storage_arrow(rows.type))
    return pa.array([prefix + encode(row) for row in stored.to_pylist()], pa.binary())


def explain_avro(value: bytes | None, text: str, framing: str, schemas: Schemas = ()) -> str:
    """Why this value is no value of the schema."""
    if value is None:
        return "no value"
    try:
        row = _decoder(text, framing, schemas)(value)
    except BadValue as problem:
        return str(problem)
    if not _fits(row, _marked_arrow_type(text)):
        return "not Avro of this schema: a number is too large for its type"
    return "does not fit the schema"


@lru_cache(maxsize=64)
def _resolved(text: str, what: str = "") -> Any:
    return avro_schema.parsed(text, what)


@lru_cache(maxsize=64)
def _marked_arrow_type(text: str) -> pa.DataType:
    schema = avro_schema.spark_schema(_resolved(text))
    marked = T.StructType([*schema.fields, T.StructField(_CORRUPT, T.BooleanType())])
    return to_arrow_type(marked, timezone="UTC")


@lru_cache(maxsize=64)
def _decoder(text: str, framing: str, schemas: Schemas = ()) -> Callable[[bytes], dict[str, Any]]:
    if not schemas:
        return _decoder_of(text, text, framing)
    texts = dict(schemas)
    decoders: dict[int, Callable[[bytes], dict[str, Any]]] = {}

    def decode(value: bytes) -> dict[str, Any]:
        if len(value) < _PREFIX.size or value[0] != 0:
            raise BadValue(_no_prefix(value))
        number = int.from_bytes(value[1 : _PREFIX.size], "big")
        known = decoders.get(number)
        if known is None:
            if number not in texts:
                there = ", ".join(map(str, sorted(texts)))
                raise BadValue(f"written with schema {number}, which is not among the schemas ({there})")
            known = decoders[number] = _decoder_of(texts[number], text, framing)
        return known(value)

    return decode


def _decoder_of(written: str, text: str, framing: str) -> Callable[[bytes], dict[str, Any]]:
    """For values written with one schema and read as another, or the same."""
    import fastavro

    resolved = _resolved(text)
    stored: Any = fastavro.parse_schema(avro_schema.storage_form(json.loads(written)))
    wanted: Any = None
    if written != text:
        different = avro_schema.logical_difference(_resolved(written), resolved)
        if different is not None:
            raise BadValue(f"the schema it was written with has another type: {different}")
        wanted = fastavro.parse_schema(avro_schema.storage_form(json.loads(text)))
        avro_schema.set_bytes_defaults(wanted)
    is_record = isinstance(resolved, dict) and resolved["type"] == "record"
    names = has_members(resolved)
    convert = from_avro(resolved, names)
    skip = _PREFIX.size if framing == "confluent" else 0
    read = fastavro.schemaless_reader

    def decode(value: bytes) -> dict[str, Any]:
        if skip and (len(value) < skip or value[0] != 0):
            raise BadValue(_no_prefix(value))
        stream = io.BytesIO(value)
        stream.seek(skip)
        try:
            found = read(stream, stored, wanted, return_named_type=names)
            if convert is not None:
                found = convert(found)
        except Exception as problem:  # noqa: BLE001  bytes from outside may break a decoder in any way
            at_end = stream.tell() >= len(value)
            raise BadValue(_words(problem, value, skip, at_end)) from None
        left = len(value) - stream.tell()
        if left:
            raise BadValue(f"not Avro of this schema: bytes left after the value: {left}{_hint(value, skip)}")
        return cast(dict[str, Any], found) if is_record else {"value": found}

    return decode


@lru_cache(maxsize=64)
def _encoder(text: str) -> Callable[[dict[str, Any]], bytes]:
    import fastavro

    resolved = _resolved(text)
    stored = fastavro.parse_schema(avro_schema.storage_form(json.loads(text)))
    is_record = isinstance(resolved, dict) and resolved["type"] == "record"
    convert = to_avro(resolved)
    write = fastavro.schemaless_writer

    def encode(row: dict[str, Any]) -> bytes:
        stream = io.BytesIO()
        given: Any = row if is_record else row["value"]
        try:
            write(stream, stored, convert(given) if convert is not None else given)
        except Exception as problem:
            raise StageError(f"cannot be written as Avro: {_at_fault(row, resolved) or problem}") from problem
        return stream.getvalue()

    return encode


def _at_fault(row: dict[str, Any], schema: Any) -> str | None:
    if isinstance(schema, dict) and schema["type"] == "record":
        for field in schema["fields"]:
            if (
                row.get(field["name"]) is None
                and field["name"] in row
                and not avro_schema.may_be_null(field["type"])
            ):
                return f"field {field['name']} is null, which its schema does not allow"
    return None


def _words(problem: Exception, value: bytes, skip: int, at_end: bool) -> str:
    if isinstance(problem, EOFError) or (isinstance(problem, IndexError) and at_end):
        why = "the value ends too early"
    elif isinstance(problem, IndexError):
        why = "it names a branch of a union, or a symbol, that does not exist"
    elif isinstance(problem, UnicodeDecodeError):
        why = "text in it is not UTF-8"
    else:
        why = str(problem) or type(problem).__name__
    return f"not Avro of this schema: {why}{_hint(value, skip)}"


def _hint(value: bytes, skip: int) -> str:
    if not skip and len(value) > _PREFIX.size and value[0] == 0:
        return ' (it begins with a zero byte: with a registry prefix, declare framing="confluent")'
    return ""


def _no_prefix(value: bytes) -> str:
    if len(value) < _PREFIX.size:
        return f"no registry prefix: the value has only {len(value)} bytes"
    return f"no registry prefix: the first byte is 0x{value[0]:02x}, not 0"


def _fits(row: Any, type: pa.DataType) -> bool:
    try:
        pa.array([row], type)
    except (pa.ArrowException, OverflowError):
        return False
    return True


def _text_of(declared: Topic) -> str:
    assert declared.schema is not None
    return declared.schema


def _storage_arrow(type: pa.DataType) -> pa.DataType:
    """The type with dates and timestamps as the numbers they are."""
    if pa.types.is_timestamp(type):
        return pa.int64()
    if pa.types.is_date32(type):
        return pa.int32()
    if pa.types.is_struct(type):
        return pa.struct([pa.field(field.name, _storage_arrow(field.type)) for field in type])
    if pa.types.is_map(type):
        return pa.map_(type.key_type, _storage_arrow(type.item_type))
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return pa.list_(_storage_arrow(type.value_type))
    return type
