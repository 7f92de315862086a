"""From ranges of offsets to the input partitions that Spark's tasks read.

One task per partition of a topic is right for much data and wrong for little: starting a task costs about as
much as reading thousands of records, so the small ranges of a micro-batch are put together until they make a
task worth starting. minPartitions and maxRecordsPerPartition split large ranges, by the arithmetic of Spark's
Kafka source; with either of them nothing is put together.

The plan of the same ranges is always the same, in the order of topics and partitions. A `Slice` travels to
the workers, so it holds plain data only, and this module imports little.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil, floor
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from ottla.pipeline.topics.options import SourceOptions

SMALL = 4_000
"""Ranges are put together as long as they hold no more records than this."""


class Range(NamedTuple):
    """Offsets of a partition from `start` up to but not including `end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """Upper limit of the number of records: compaction and transactions leave gaps."""
        return self.end - self.start


class Slice(InputPartition):
    """What one task reads, in order."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        super().__init__(tuple(ranges))

    @property
    def ranges(self) -> tuple[Range, ...]:
        found: tuple[Range, ...] = self.value
        return found


def slices(
    ranges: Iterable[Range], min_partitions: int | None = None, max_records: int | None = None
) -> list[Slice]:
    """The tasks that read `ranges`. Empty ranges are dropped."""
    wanted = sorted(r for r in ranges if r.size > 0)
    if min_partitions is None and max_records is None:
        return [Slice(group) for group in _together(wanted)]
    if max_records is not None:
        wanted = [part for r in wanted for part in _split(r, ceil(r.size / max_records))]
    if min_partitions is not None and min_partitions > len(wanted):
        wanted = _split_largest(wanted, min_partitions)
    return [Slice((r,)) for r in wanted]


def read_slice(partition: InputPartition, options: SourceOptions) -> Iterator[Any]:
    """The records of a slice as Arrow batches. Runs in Spark's workers.

    Spark makes up a partition without a value for a batch query that has nothing to read.
    """
    if not isinstance(partition, Slice):
        return
    from ottla.pipeline.topics.fetching import ReadOptions, read_range

    how = ReadOptions(
        include_headers=options.include_headers,
        fail_on_data_loss=options.fail_on_data_loss,
        read_committed=options.read_committed,
        check_crcs=options.check_crcs,
        timeout=options.read_timeout,
        client_id=options.client_id,
        connect_timeout=options.connect_timeout,
        request_timeout=options.request_timeout,
        **({"max_partition_fetch_bytes": b} if (b := options.partition_fetch_bytes) else {}),
    )
    for topic, number, start, end in partition.ranges:
        yield from read_range(options.bootstrap, topic, number, start, end, options=how)


def _together(ranges: list[Range]) -> Iterator[list[Range]]:
    group: list[Range] = []
    held = 0
    for r in ranges:
        if group and held + r.size > SMALL:
            yield group
            group, held = [], 0
        group.append(r)
        held += r.size
    if group:
        yield group


def _split_largest(ranges: list[Range], least: int) -> list[Range]:
    """About `least` parts in all. Ranges too small to be split do not count in the shares of the others."""
    total = sum(r.size for r in ranges)
    whole = {r for r in ranges if _share(r.size, total, least) == 1}
    others = total - sum(r.size for r in whole)
    parts = max(least - len(whole), 1)
    return [
        part for r in ranges for part in ([r] if r in whole else _split(r, _share(r.size, others, parts)))
    ]


def _share(size: int, total: int, parts: int) -> int:
    return max(floor(size / total * parts + 0.5), 1)


def _split(whole: Range, parts: int) -> list[Range]:
    """`whole` in so many parts of nearly the same size; fewer when there are not so many records."""
    start, left = whole.start, whole.size
    found = []
    for rest in range(parts, 0, -1):
        end = start + left // rest
        if end > start:
            found.append(whole._replace(start=start, end=end))
        left -= end - start
        start = end
    return found
