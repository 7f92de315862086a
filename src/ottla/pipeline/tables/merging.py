"""New records of a changelog and the files of the version before, put together by Spark.

A record's key is its identity, as in compaction. Of one key in one partition the highest offset counts; of
one key in several partitions (a topic that got more of them) what came in a later batch, and within a batch
the later timestamp. A record without a value deletes the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ottla.pipeline.declarations import SOURCE_COLUMN, Changelog, StageError
from ottla.pipeline.values.formats import BAD, VALUE, Reader, decoded

KEY = "_ottla_key"
DELETED = "_ottla_deleted"
_ROW, _AGE, _TIME = "_ottla_row", "_ottla_age", "_ottla_time"

_FROM_TEXT = (
    T.NumericType,
    T.StringType,
    T.BinaryType,
    T.BooleanType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
)


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table: those of the values, and the one that holds the key."""

    reader: Reader
    key: str | None
    schema: T.StructType
    """What a stage's function sees."""

    @property
    def stored(self) -> T.StructType:
        """What the files hold."""
        return T.StructType(
            [T.StructField(KEY, T.BinaryType()), *self.schema, T.StructField(DELETED, T.BooleanType())]
        )


def table_columns(declared: Changelog, reader: Reader, what: str) -> TableColumns:
    """The columns that a declared table has; a `StageError` when the key cannot be one of them."""
    fields = [T.StructField(each.name, each.dataType) for each in reader.schema]
    if declared.key is None:
        return TableColumns(reader, None, T.StructType(fields))
    field = next((each for each in fields if each.name.lower() == declared.key.lower()), None)
    if field is None:
        fields.insert(0, T.StructField(declared.key, T.StringType()))
        return TableColumns(reader, declared.key, T.StructType(fields))
    if not isinstance(field.dataType, _FROM_TEXT):
        raise StageError(
            f"{what}: {declared.title}: key={declared.key!r} is {field.dataType.simpleString()}, which a"
            " record's key cannot be read as; name a column with text, a number, a date or bytes, or none"
        )
    return TableColumns(reader, field.name, T.StructType(fields))


def marked(raw: DataFrame, reader: Reader) -> DataFrame:
    """The records with `BAD` for those that cannot be part of a table. A deletion is not bad."""
    rows = decoded(raw, reader)
    unreadable = F.col("value").isNotNull() & F.col(BAD)
    return rows.withColumn(BAD, unreadable | F.col(SOURCE_COLUMN).getField("key").isNull())


def latest(records: DataFrame, columns: TableColumns, pieces: int) -> DataFrame:
    """One row for each key among readable records, with the time of its record."""
    source = F.col(SOURCE_COLUMN)
    stored = F.struct(
        *(_column(columns, each).alias(each.name) for each in columns.schema),
        F.col("value").isNull().alias(DELETED),
    )
    rows = records.select(
        source.getField("key").alias(KEY),
        source.getField("partition").alias("partition"),
        source.getField("offset").alias("offset"),
        source.getField("timestamp").alias(_TIME),
        stored.alias(_ROW),
    )
    in_partition = rows.repartition(pieces, KEY).groupBy(KEY, "partition")
    newest = in_partition.agg(F.max_by(F.struct(_ROW, _TIME), "offset").alias("newest"))
    return newest.select(
        KEY, F.col("newest").getField(_ROW).alias(_ROW), F.col("newest").getField(_TIME).alias(_TIME)
    )


def merged(new: DataFrame, before: Sequence[DataFrame], columns: TableColumns) -> DataFrame:
    """The rows of `new` and, where it has none for a key, of the stored parts before, the last one first."""
    names = [quoted(each.name) for each in columns.schema]
    rows = new.withColumn(_AGE, F.lit(0))
    for age, part in enumerate(reversed(before), 1):
        kept = part.select(
            KEY, F.struct(*names, DELETED).alias(_ROW), F.lit(None).cast("timestamp").alias(_TIME)
        )
        rows = rows.unionByName(kept.withColumn(_AGE, F.lit(-age)))
    newest = rows.groupBy(KEY).agg(F.max_by(_ROW, F.struct(_AGE, _TIME)).alias(_ROW))
    return newest.select(KEY, f"{_ROW}.*")


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _column(columns: TableColumns, field: T.StructField) -> Column:
    known = field.name in columns.reader.schema.fieldNames()
    value = F.col(VALUE).getField(field.name) if known else None
    if field.name != columns.key:
        assert value is not None
        return value
    key = F.col(SOURCE_COLUMN).getField("key")
    text = key if isinstance(field.dataType, T.BinaryType) else key.cast("string").try_cast(field.dataType)
    return text if value is None else F.coalesce(value, text)
