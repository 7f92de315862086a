"""Values of a topic as columns: JSON, Avro, text and bytes, with a mark on those that cannot be read.

Reading turns the rows of a topic source into the decoded value, whether it is bad, and `_source`, where it
came from. Deciding that a value is bad costs next to nothing for good ones; the words for it come from
`Reader.explain`, which only ever sees bad values. JSON and text are decoded inside Spark's engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.errors import IllegalArgumentException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ottla.pipeline.declarations import SOURCE_COLUMN, StageError, Topic
from ottla.pipeline.values.json_reasons import explain_json

VALUE = "_ottla_value"
BAD = "_ottla_bad"
_CORRUPT = "_ottla_corrupt"

# Fractions of a second are written whole: Spark's own default cuts them to milliseconds.
_WRITE_JSON = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_PATTERNS = ("timestampFormat", "timestampNTZFormat", "dateFormat")
_READ_JSON = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, "allowSingleQuotes": "false"}


@dataclass(frozen=True)
class Reader:
    """How the values of one input become columns."""

    schema: T.StructType
    decode: Callable[[Column], Column]
    """From the value column to a struct with at least the schema's fields; null when there is no value."""
    is_bad: Callable[[Column, Column], Column]
    """From the value and what `decode` made of it to true for values that cannot be used."""
    explain: Callable[[bytes | None], str]
    """Why a bad value is bad. Runs on the driver or in a worker."""


def reader_of(source: Topic) -> Reader:
    """The reader for an input as declared. Needs a running Spark, which parses the schema."""
    if source.format == "json":
        assert source.schema is not None
        check_formats(source)
        return _json_reader(parse_schema(source.schema, f"topic {source.title}"), source.json_options)
    if source.format == "avro":
        from ottla.pipeline.values.avro import avro_reader

        return avro_reader(source)
    if source.format == "string":
        return Reader(
            schema=T.StructType().add("value", T.StringType()),
            decode=lambda value: F.struct(value.cast("string").alias("value")),
            is_bad=lambda value, decoded: ~F.is_valid_utf8(value.cast("string")),
            explain=_explain_text,
        )
    return Reader(
        schema=T.StructType().add("value", T.BinaryType()),
        decode=lambda value: F.struct(value.alias("value")),
        is_bad=lambda value, decoded: F.lit(False),
        explain=lambda value: "cannot be read",
    )


def parse_schema(ddl: str, what: str) -> T.StructType:
    """The schema that a text such as `id long NOT NULL, user string` means."""
    try:
        schema = T.DataType.fromDDL(ddl)
    except PySparkException as problem:
        raise StageError(f"{what}: {ddl!r} is no schema: {first_line(problem)}") from None
    if not isinstance(schema, T.StructType):
        raise StageError(f'{what}: {ddl!r} is a type, not columns; write "name type, name type"')
    check_columns(schema, what)
    return schema


def check_columns(schema: T.StructType, what: str) -> None:
    """Refuses names that the pipeline needs for itself, and names that Spark could not tell apart."""
    seen: set[str] = set()
    for name in schema.fieldNames():
        if name == SOURCE_COLUMN or name.startswith("_ottla_"):
            raise StageError(f"{what}: a column cannot be called {name}; the pipeline uses this name")
        if name.lower() in seen:
            raise StageError(f"{what}: two columns are called {name} (Spark does not tell case apart)")
        seen.add(name.lower())


def decoded(raw: DataFrame, reader: Reader) -> DataFrame:
    """Rows of a topic source as the three columns `VALUE`, `BAD` and `_source`."""
    has_headers = "headers" in raw.columns
    no_headers = F.lit(None).cast("array<struct<key:string,value:binary>>").alias("headers")
    source = F.struct(
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "key",
        F.col("headers") if has_headers else no_headers,
    )
    parsed = raw.select(
        reader.decode(F.col("value")).alias(VALUE), source.alias(SOURCE_COLUMN), F.col("value")
    )
    # The value itself stays for the dead letters; the plan drops it where it is not used.
    return parsed.withColumn(BAD, F.coalesce(reader.is_bad(F.col("value"), F.col(VALUE)), F.lit(False)))


def columns_of(frame: DataFrame, reader: Reader) -> DataFrame:
    """The frame a stage's function gets: the schema's columns and `_source`."""
    fields = [F.col(VALUE).getField(name).alias(name) for name in reader.schema.fieldNames()]
    return frame.select(*fields, SOURCE_COLUMN)


def explained(value: Column, reader: Reader) -> Column:
    """The reason for each of these bad values, found in Spark's workers."""
    explain = reader.explain

    def reasons(values: pa.Array) -> pa.Array:
        return pa.array([explain(each) for each in values.to_pylist()], pa.string())

    return arrow_function(reasons, T.StringType())(value)


def arrow_function(function: Callable[[pa.Array], pa.Array], type: T.DataType) -> Callable[[Column], Column]:
    """A function from one column of Arrow data to another as a function of Spark columns."""
    made: Callable[[Column], Column] = F.arrow_udf(function, type)  # type: ignore[attr-defined]
    return made


def json_value(columns: list[Column], options: Mapping[str, str]) -> Column:
    """The columns as one JSON object; columns that are null are left out."""
    return F.to_json(F.struct(*columns), {**_WRITE_JSON, **options})


def check_formats(declared: Topic) -> None:
    """Refuse patterns of dates and times that are none, which Spark would notice at the first value."""
    for name, pattern in declared.json_options.items():
        if name not in _PATTERNS:
            continue
        jvm = SparkSession.active()._jvm
        assert jvm is not None
        try:
            jvm.java.time.format.DateTimeFormatter.ofPattern(pattern)
        except IllegalArgumentException as problem:
            reason = first_line(problem)
            raise StageError(f"topic {declared.title}: {name}={pattern!r} is no format: {reason}") from None


def first_line(problem: BaseException) -> str:
    """What Spark says, without the plan and the Java frames below it."""
    for line in str(problem).splitlines():
        if line.strip():
            return line.strip()
    return type(problem).__name__


def _json_reader(schema: T.StructType, options: Mapping[str, str]) -> Reader:
    corrupt = T.StructType([*schema.fields, T.StructField(_CORRUPT, T.StringType())])

    def is_bad(value: Column, parsed: Column) -> Column:
        text = value.cast("string")
        unread = parsed.isNull() | parsed.getField(_CORRUPT).isNotNull() | ~F.is_valid_utf8(text)
        bad = value.isNotNull() & unread
        for missing in _missing_required(parsed, schema):
            bad = bad | missing
        return bad

    return Reader(
        schema=schema,
        decode=lambda value: F.from_json(value.cast("string"), corrupt, {**_READ_JSON, **options}),
        is_bad=is_bad,
        explain=partial(explain_json, schema=schema, own_formats=any(each in options for each in _PATTERNS)),
    )


def _missing_required(parent: Column, schema: T.StructType) -> list[Column]:
    """Conditions that a NOT NULL field is null, for Spark reads every field of JSON as one that may be."""
    found = []
    for field in schema.fields:
        column = parent.getField(field.name)
        if not field.nullable:
            found.append(column.isNull())
        if isinstance(field.dataType, T.StructType):
            found += [column.isNotNull() & inner for inner in _missing_required(column, field.dataType)]
    return found


def _explain_text(value: bytes | None) -> str:
    try:
        (value or b"").decode("utf-8")
    except UnicodeDecodeError as problem:
        assert value is not None
        return f"not UTF-8 text: byte 0x{value[problem.start]:02x} at position {problem.start}"
    return "cannot be read as text"
