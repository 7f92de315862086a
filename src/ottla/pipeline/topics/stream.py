"""The streaming source as Spark sees it: thin, and light to import, because it travels to the workers.

Spark makes several copies of a reader. One lives in a process of its own on the driver and answers all
questions about offsets; the others are pickled and only ever `read`. So the reader itself holds nothing but
its options, and what the driver needs (`stream_driver.py`: connections, the long poll, the group) is made
when Spark asks the first question about offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ottla.pipeline.topics.options import SourceOptions
from ottla.pipeline.topics.planning import read_slice, slices

if TYPE_CHECKING:
    from ottla.pipeline.topics.stream_driver import StreamDriver

_NO_LIMIT = (1 << 63) - 1


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
            from ottla.pipeline.topics.orphans import end_with_spark
            from ottla.pipeline.topics.stream_driver import StreamDriver

            end_with_spark()
            show_log()
            self._driver = StreamDriver(self.options)
        return self._driver


def show_log() -> None:
    """Let the notices of the source reach the error output of the driver, unless a handler is set already."""
    import logging

    log = logging.getLogger("ottla.pipeline")
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s ottla: %(message)s", "%H:%M:%S"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
