"""`format("ottla")`: topics as a Spark data source, for batches and streams, in the place of Spark's `kafka`.

    spark.readStream.format("ottla").option("kafka.bootstrap.servers", "127.0.0.1:9092").option(
        "subscribe", "clicks"
    ).load()

Spark finds it by itself: `pyspark_ottla` is a module name that it looks for. Rows have the schema of Spark's
Kafka source, and options its names; `options.py` has them all.

Spark makes several copies of a reader. One lives in a process of its own on the driver and answers all
questions about offsets; the others are pickled and only ever `read`. So a reader holds nothing but its
options, this file is light to import, and what the driver needs (`stream_driver.py`: connections, the long
poll, the group) is made when Spark asks the first question about offsets.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ottla.pipeline.topics.options import Bound, OptionError, SourceOptions
from ottla.pipeline.topics.planning import Range, read_slice, slices

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from ottla.pipeline.topics.stream_driver import StreamDriver

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)
HEADERS = "headers array<struct<key: string, value: binary>>"

_COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
_NO_LIMIT = (1 << 63) - 1
_FOR_STREAMS = {
    "max_offsets_per_trigger": "maxOffsetsPerTrigger",
    "min_offsets_per_trigger": "minOffsetsPerTrigger",
    "max_bytes_per_trigger": "maxBytesPerTrigger",
}
_LOOK = 1.0
_OF_SPARK = "PYTHON_WORKER_FACTORY_"
_watching = threading.Lock()


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
        return BatchReader(self._read_options(schema).for_batch())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
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


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as a stream."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._driver: StreamDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_driver": None}

    # On the driver

    def initialOffset(self) -> dict[str, Any]:
        return self._on_driver().initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Never ReadAllAvailable, which is how Spark says Trigger.Once; the limits themselves are options."""
        options = self.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadMaxRows(_NO_LIMIT)

    def prepareForTriggerAvailableNow(self) -> None:
        self._on_driver().stop_at_what_is_there()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._on_driver().latest(start, everything=isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._on_driver().ends()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = self._on_driver().ranges(start, end)
        return slices(ranges, self.options.min_partitions, self.options.max_records_per_partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._on_driver().done(end)

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    # In the workers

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_slice(partition, self.options)

    def _on_driver(self) -> StreamDriver:
        if self._driver is None:
            from ottla.pipeline.topics.stream_driver import StreamDriver

            end_with_spark()
            show_log()
            self._driver = StreamDriver(self.options)
        return self._driver


class BatchReader(DataSourceReader):
    """Reads what topics hold."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        found = slices(
            batch_ranges(self.options), self.options.min_partitions, self.options.max_records_per_partition
        )
        return list(found)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_slice(partition, self.options)


def batch_ranges(options: SourceOptions) -> list[Range]:
    """The offsets between startingOffsets and endingOffsets, as the brokers have them now."""
    import logging

    from ottla.pipeline.topics.brokers import Brokers
    from ottla.pipeline.topics.offsets import find_all, name, ranges_between, report, resolve

    show_log()
    log = logging.getLogger("ottla.pipeline")
    for text in options.notices:
        log.warning("%s", text)
    if ignored := [option for field, option in _FOR_STREAMS.items() if getattr(options, field) is not None]:
        log.warning("without effect on a batch query: %s", ", ".join(ignored))
    brokers = Brokers(options)
    try:
        spans = brokers.spans(find_all(brokers).places)
        start = resolve(options.starting or Bound("earliest"), brokers, spans, options)
        end = resolve(options.ending or Bound("latest"), brokers, spans, options)
    finally:
        brokers.close()
    for place, offset in start.items():
        if offset > end[place]:
            raise OptionError(
                f"{name(place)}: reading would start at offset {offset} and end at {end[place]}, before it. "
                "Check startingOffsets and endingOffsets (or the times); was the topic made anew?"
            )
    plan = ranges_between(start, end, spans)
    report(plan.losses, options)
    return plan.ranges


def show_log() -> None:
    """Let the notices of the source reach the error output of the driver, unless a handler is set already."""
    import logging

    log = logging.getLogger("ottla.pipeline")
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s ottla: %(message)s", "%H:%M:%S"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)


def end_with_spark() -> None:
    """In a process that Spark started: end it soon after its parent has ended. Elsewhere do nothing.

    Such a process ends when it finds its connection to the JVM closed, which it does not look at while it
    waits for a broker: with both gone, it would go on asking for a minute.
    """
    if any(name.startswith(_OF_SPARK) for name in os.environ) and _watching.acquire(blocking=False):
        threading.Thread(target=_watch, args=(os.getppid(),), name="ends with Spark", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(0)  # nothing is left that could take an error, or an answer
