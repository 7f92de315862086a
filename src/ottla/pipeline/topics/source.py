"""`format("ottla")`: topics as a Spark data source, for batches and streams, in the place of Spark's `kafka`.

    spark.readStream.format("ottla").option("kafka.bootstrap.servers", "127.0.0.1:9092").option(
        "subscribe", "clicks"
    ).load()

Spark finds it by itself: `pyspark_ottla` is a module name that it looks for. Rows have the schema of Spark's
Kafka source, and options its names; `options.py` has them all. This class is imported in every worker, so the
parts are imported when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from ottla.pipeline.topics.options import OptionError, SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)
HEADERS = "headers array<struct<key: string, value: binary>>"

_COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


class OttlaDataSource(DataSource):
    """The source and the sink."""

    @classmethod
    def name(cls) -> str:
        return "ottla"

    def schema(self) -> str:
        """Fixed, but for the headers. Spark asks when a frame is made, so bad options show there already."""
        options = SourceOptions.parse(self.options)
        return f"{SCHEMA}, {HEADERS}" if options.include_headers else SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        from ottla.pipeline.topics.reader import BatchReader

        return BatchReader(self._read_options(schema).for_batch())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from ottla.pipeline.topics.stream import StreamReader

        return StreamReader(self._read_options(schema).for_stream())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from ottla.pipeline.topics.sink import BatchSink

        return BatchSink(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from ottla.pipeline.topics.sink import StreamSink

        return StreamSink(self.options, schema, overwrite)

    def _read_options(self, schema: StructType) -> SourceOptions:
        options = SourceOptions.parse(self.options)
        wanted = [*_COLUMNS, "headers"] if options.include_headers else _COLUMNS
        if schema.fieldNames() != wanted:
            raise OptionError(
                f"a schema cannot be given: rows of this source always have the columns {', '.join(wanted)}"
            )
        return options
