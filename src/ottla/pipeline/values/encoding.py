"""From the rows a stage returns to what a topic takes: columns key, value, headers and partition.

Everything that can be wrong with the columns is found here before a stage runs: a name that is not there is
told with the nearest one that is, a type that would not survive with what it should be. The column `_source`,
which inputs have, never gets out.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ottla.pipeline.declarations import SOURCE_COLUMN, Lake, Output, Sink, StageError, Topic, nearest
from ottla.pipeline.values.formats import check_formats, json_value, parse_schema

_NUMBERS: tuple[type[T.DataType], ...] = (
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.FloatType,
    T.DoubleType,
)
_WHOLE = _NUMBERS[:4]
_HEADERS = "array<struct<key string, value binary>> or map<string, string>"


def rows_for(frame: DataFrame, output: Output) -> DataFrame:
    """The rows that belong to this output, without `_source`."""
    chosen = frame if output.where is None else frame.where(F.expr(output.where))
    return chosen.drop(SOURCE_COLUMN)


def value_schema(frame: DataFrame, output: Output, what: str) -> T.StructType:
    """What is written to this output, or a `StageError` that says why it cannot be."""
    rows = rows_for(frame, output)
    _check_names(rows, what)
    if isinstance(output, Lake):
        from ottla.pipeline.lakes.staging import check_lake

        check_lake(rows.schema, lake_target(rows, output, what), what)
        return rows.schema
    if isinstance(output, Sink):
        return rows.schema
    encoded(rows, output, what)
    return rows.select(*_value_columns(rows, output, what)).schema


def lake_target(rows: DataFrame, output: Lake, what: str) -> Lake:
    """The lake with the columns it is partitioned by under the names they have in these rows."""
    where = f"{what}: partition_by for {output.title}"
    names = tuple(_find(rows, column, where) for column in output.partition_by)
    if len(set(names)) < len(names):
        raise StageError(f"{where}: a column is named twice: {', '.join(output.partition_by)}")
    return replace(output, partition_by=names)


def encoded(rows: DataFrame, target: Topic, what: str) -> DataFrame:
    """The rows as a topic takes them."""
    return rows.select(*topic_columns(rows, target, what))


def topic_columns(rows: DataFrame, target: Topic, what: str) -> list[Column]:
    """What makes of such rows what a topic takes; good for all frames with these columns."""
    columns = [_value(rows, target, what).alias("value")]
    if target.key is not None:
        columns.append(_key(rows, target.key, f"{what}: key for {target.title}").alias("key"))
    if target.headers is not None:
        columns.append(_headers(rows, target.headers, f"{what}: headers for {target.title}").alias("headers"))
    if target.partition is not None:
        columns.append(
            _partition(rows, target.partition, f"{what}: partition for {target.title}").alias("partition")
        )
    if target.timestamp is not None:
        where = f"{what}: timestamp for {target.title}"
        columns.append(_timestamp(rows, target.timestamp, where).alias("timestamp"))
    return columns


def _value(rows: DataFrame, target: Topic, what: str) -> Column:
    columns = _value_columns(rows, target, what)
    if target.format == "json":
        check_formats(target)
        return json_value(columns, target.json_options)
    if target.format == "avro":
        from ottla.pipeline.values.avro import avro_value

        return avro_value(columns, target)
    return columns[0]


def _value_columns(rows: DataFrame, target: Topic, what: str) -> list[Column]:
    where = f"{what}: value for {target.title}"
    if target.format in ("string", "bytes"):
        return [_single(rows, target, where).alias("value")]
    if target.schema is None:
        names = _left_for_value(rows, target)
        if not names:
            raise StageError(f"{where}: no column is left to write")
        return [_column(name) for name in names]
    if target.format == "avro":
        from ottla.pipeline.values.avro import has_default, schema_of

        schema = schema_of(target)
        given = [
            field for field in schema if _is_there(rows, field.name) or not has_default(target, field.name)
        ]
    else:
        given = list(parse_schema(target.schema, f"topic {target.title}"))
        if target.drop_key and target.key is not None:
            given = [field for field in given if field.name.lower() != target.key.lower()]
    return [_as_declared(rows, field, where) for field in given]


def _left_for_value(rows: DataFrame, target: Topic) -> list[str]:
    """The columns of the value: all but those that say how to send it, and the key if it is to be dropped."""
    apart = [target.headers, target.partition, target.key if target.drop_key else None]
    gone = {name.lower() for name in apart if name is not None}
    return [name for name in rows.columns if name.lower() not in gone]


def _single(rows: DataFrame, target: Topic, where: str) -> Column:
    name = "value"
    if not _is_there(rows, name):
        apart = {each.lower() for each in (target.key, target.headers, target.partition) if each is not None}
        left = [each for each in rows.columns if each.lower() not in apart]
        if len(left) != 1:
            raise StageError(
                f"{where}: as {target.format} it has one column; call it value"
                f" (there are {', '.join(rows.columns)})"
            )
        name = left[0]
    type = _type(rows, name)
    if not isinstance(type, T.StringType | T.BinaryType):
        raise StageError(
            f"{where}: column {name} is {type.simpleString()}; as {target.format} it must be string or binary"
        )
    return _column(name).cast("string" if target.format == "string" else "binary")


def _as_declared(rows: DataFrame, field: T.StructField, where: str) -> Column:
    name = _find(rows, field.name, where)
    actual, wanted = _type(rows, name), field.dataType.simpleString()
    if not _goes_into(actual, field.dataType):
        raise StageError(
            f"{where}: column {name} is {actual.simpleString()}, its schema says {wanted};"
            f' cast it in the function: .withColumn("{name}", col("{name}").cast("{wanted}"))'
        )
    return _column(name).cast(field.dataType).alias(field.name)


def _goes_into(actual: T.DataType, wanted: T.DataType) -> bool:
    """Whether every value of one type has its place in the other."""
    if isinstance(actual, T.NullType) or actual.simpleString() == wanted.simpleString():
        return True
    if isinstance(actual, _NUMBERS) and isinstance(wanted, _NUMBERS):
        return _NUMBERS.index(type(actual)) < _NUMBERS.index(type(wanted))
    if isinstance(actual, T.DecimalType) and isinstance(wanted, T.DecimalType):
        whole = actual.precision - actual.scale <= wanted.precision - wanted.scale
        return whole and actual.scale <= wanted.scale
    if isinstance(actual, T.StructType) and isinstance(wanted, T.StructType):
        return actual.fieldNames() == wanted.fieldNames() and all(
            _goes_into(one.dataType, other.dataType) for one, other in zip(actual, wanted, strict=True)
        )
    if isinstance(actual, T.ArrayType) and isinstance(wanted, T.ArrayType):
        return _goes_into(actual.elementType, wanted.elementType)
    if isinstance(actual, T.MapType) and isinstance(wanted, T.MapType):
        return _goes_into(actual.keyType, wanted.keyType) and _goes_into(actual.valueType, wanted.valueType)
    return isinstance(actual, T.DateType) and isinstance(wanted, T.TimestampType)


def _key(rows: DataFrame, column: str, where: str) -> Column:
    name = _find(rows, column, where)
    type = _type(rows, name)
    if isinstance(type, T.StringType | T.BinaryType):
        return _column(name)
    if isinstance(type, T.StructType | T.ArrayType | T.MapType):
        raise StageError(
            f"{where}: column {name} is {type.simpleString()}; a key is string, binary or a single value"
        )
    return _column(name).cast("string")


def _headers(rows: DataFrame, column: str, where: str) -> Column:
    name = _find(rows, column, where)
    type = _type(rows, name)
    if isinstance(type, T.MapType) and _is_text_or_bytes(type.valueType):
        return F.transform(F.map_entries(_column(name)), _as_header)
    if isinstance(type, T.ArrayType) and isinstance(type.elementType, T.StructType):
        fields = {field.name: field.dataType for field in type.elementType}
        if list(fields) == ["key", "value"] and all(_is_text_or_bytes(each) for each in fields.values()):
            return F.transform(_column(name), _as_header)
    raise StageError(f"{where}: column {name} is {type.simpleString()}; headers are {_HEADERS}")


def _as_header(entry: Column) -> Column:
    return F.struct(
        entry.getField("key").cast("string").alias("key"),
        entry.getField("value").cast("binary").alias("value"),
    )


def _is_text_or_bytes(type: T.DataType) -> bool:
    return isinstance(type, T.StringType | T.BinaryType)


def _partition(rows: DataFrame, column: str, where: str) -> Column:
    name = _find(rows, column, where)
    type = _type(rows, name)
    if not isinstance(type, _WHOLE):
        raise StageError(f"{where}: column {name} is {type.simpleString()}; a partition is a whole number")
    return _column(name).cast("int")


def _timestamp(rows: DataFrame, column: str, where: str) -> Column:
    name = _find(rows, column, where)
    type = _type(rows, name)
    if not isinstance(type, T.TimestampType | T.TimestampNTZType):
        raise StageError(
            f"{where}: column {name} is {type.simpleString()}; the time of a record is a timestamp: cast it"
            " in the function (timestamp_millis(...) for milliseconds)"
        )
    return _column(name).cast("timestamp")


def _find(rows: DataFrame, column: str, where: str) -> str:
    for name in rows.columns:
        if name.lower() == column.lower():
            return name
    raise StageError(
        f"{where}: there is no column {column}{nearest(column, rows.columns)}"
        f" (there are {', '.join(rows.columns)})"
    )


def _is_there(rows: DataFrame, column: str) -> bool:
    return any(name.lower() == column.lower() for name in rows.columns)


def _check_names(rows: DataFrame, what: str) -> None:
    seen: set[str] = set()
    for name in rows.columns:
        if name.lower() in seen:
            raise StageError(
                f"{what}: two columns of the result are called {name}; drop or rename one of them"
            )
        seen.add(name.lower())


def _type(rows: DataFrame, name: str) -> T.DataType:
    return rows.schema[name].dataType


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")
