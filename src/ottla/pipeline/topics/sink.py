"""The writer of `format("ottla")`: what Spark calls to write a DataFrame or an append stream to topics.

The columns and the words of refusal are those of Spark's Kafka sink: `value` (string or binary) is needed,
`key`, `headers`, `topic` and `partition` are there if wanted, the option `topic` wins over the column, other
columns are ignored. Tasks write with `writing.write_rows` and report only what brokers have acknowledged.

Delivery is at least once. There is nothing for the driver to commit or to take back: when a task or a
micro-batch fails and Spark runs it again, the records written before are there twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla.pipeline.topics.options import OptionError, SinkOptions
from ottla.pipeline.topics.writing import WriteSummary, write_rows

__all__ = ["BatchSink", "StreamSink", "Written", "check_columns"]

log = logging.getLogger("ottla.pipeline")

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

_SPARKS_OWN = {"checkpointlocation", "path", "queryname"}
"""Options that are Spark's, not the sink's; it hands them on."""

_ALLOWED: dict[str, tuple[DataType, ...]] = {
    "topic": (StringType(),),
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "headers": (HEADERS,),
    "partition": (IntegerType(),),
    "timestamp": (TimestampType(),),
}


@dataclass
class Written(WriterCommitMessage):
    """What one task has written."""

    summary: WriteSummary


class BatchSink(DataSourceArrowWriter):
    """Writes a DataFrame: `df.write.format("ottla").option("topic", ...).mode("append").save()`."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(
                "Save mode Overwrite not allowed for Kafka: records of a topic cannot be replaced. "
                'Use mode("append").'
            )
        self.options = _checked(options, schema)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return Written(write_rows(iterator, self.options))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _log_total("written", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _log_total("the write failed; what it had written stays:", messages)


class StreamSink(DataSourceStreamArrowWriter):
    """Writes an append stream: `df.writeStream.format("ottla").option("topic", ...)`."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(
                "Output mode Complete is not possible here: records of a topic cannot be replaced. "
                "Use append, or update mode in foreachBatch."
            )
        self.options = _checked(options, schema)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return Written(write_rows(iterator, self.options))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do: a task reports only after the brokers have acknowledged its records."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _log_total(f"batch {batchId} failed and will be written again; what it had written stays:", messages)


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Refuse a schema that has no value, nowhere to go, or columns of other types than the sink takes."""
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise OptionError("Required attribute 'value' not found")
    if options.topic is None and "topic" not in types:
        raise OptionError(
            "topic option required when no 'topic' attribute is present. "
            "Use the topic option for setting a topic."
        )
    if options.include_timestamp and "timestamp" not in types:
        raise OptionError("includeTimestamp is true, but there is no column timestamp")
    for name, allowed in _ALLOWED.items():
        found = types.get(name)
        if found is None or (name == "topic" and options.topic is not None):
            continue
        if name == "timestamp" and not options.include_timestamp:
            continue
        if not any(_same(found, kind) for kind in allowed):
            wanted = " or ".join(kind.simpleString() for kind in allowed)
            raise OptionError(
                f"{name} attribute unsupported type {found.simpleString()}. {name} must be a(n) {wanted}"
            )


def _same(found: DataType, wanted: DataType) -> bool:
    """Equal but for what may be null, which the data has to say."""
    if isinstance(found, ArrayType) and isinstance(wanted, ArrayType):
        return _same(found.elementType, wanted.elementType)
    if isinstance(found, StructType) and isinstance(wanted, StructType):
        return found.names == wanted.names and all(
            _same(a.dataType, b.dataType) for a, b in zip(found.fields, wanted.fields, strict=True)
        )
    return type(found) is type(wanted)


def _checked(options: Mapping[str, str], schema: StructType) -> SinkOptions:
    parsed = SinkOptions.parse({n: v for n, v in options.items() if n.lower() not in _SPARKS_OWN})
    check_columns(schema, parsed)
    for notice in parsed.notices:
        log.warning("%s", notice)
    return parsed


def _log_total(what: str, messages: list[WriterCommitMessage | None]) -> None:
    done = [m.summary for m in messages if isinstance(m, Written)]
    log.info("%s %d records by %d tasks", what, sum(s.records for s in done), len(done))
