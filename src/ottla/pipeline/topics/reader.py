"""The batch source as Spark sees it: a fixed range of offsets, decided when the query is planned.

Like the stream reader it travels to the workers, so it holds nothing but its options.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from ottla.pipeline.topics.options import Bound, OptionError, SourceOptions
from ottla.pipeline.topics.planning import Range, read_slice, slices
from ottla.pipeline.topics.stream import show_log

_FOR_STREAMS = {
    "max_offsets_per_trigger": "maxOffsetsPerTrigger",
    "min_offsets_per_trigger": "minOffsetsPerTrigger",
    "max_bytes_per_trigger": "maxBytesPerTrigger",
}


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
