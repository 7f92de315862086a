"""Cutting an Arrow batch of rows into record batches: which partition, in which order, how large.

A row goes to the partition that its `partition` column names, else to the one of its key, else where the
writer is at the moment. Rows are put into the order of their partitions with a stable sort, so that rows of
one partition keep the order they came in, and encoded all at once; every record batch is then a stretch of
the sorted rows. Batches come out in waves: a wave has at most one batch for each partition.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ottla.pipeline.topics.arrow_encoding import (
    BadRow,
    EncodedRecords,
    encode_headers,
    encode_rows,
    row_sizes,
    seal,
)
from ottla.pipeline.topics.arrow_records import BatchBody, RecordDecoder
from ottla.pipeline.topics.links import TopicPlace
from ottla.pipeline.topics.partitioning import Sticky, partitions_by_key
from ottla.protocol.batches import HEADER_SIZE, read_header
from ottla.protocol.compression import Codec, decompress
from ottla.protocol.errors import ApiError

__all__ = ["RowBatch", "RowBatcher", "reopened"]

Array = Any

PIECE_BYTES = 32 << 20
"""An Arrow batch with more than this is taken in pieces, so that a task's memory stays bounded."""


MOST_OPENED = 256 << 20
"""Bytes of a compressed batch of our own that has to be opened again."""


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows of one partition that make one record batch. Slices: they hold no bytes of their own."""

    topic: str
    partition: int
    keys: Array | None
    values: Array | None
    """None when only the encoded records are at hand; `reopened` gets the rows back."""
    headers: Array | None
    times: Array | None = None
    """In ms; None when all records carry the time of writing."""

    @property
    def where(self) -> str:
        return f"partition {self.partition} of topic {self.topic!r}"

    def part(self, start: int, end: int) -> RowBatch:
        size = end - start
        return RowBatch(
            self.topic,
            self.partition,
            None if self.keys is None else self.keys.slice(start, size),
            None if self.values is None else self.values.slice(start, size),
            None if self.headers is None else self.headers.slice(start, size),
            None if self.times is None else self.times.slice(start, size),
        )


def reopened(rows: RowBatch, records: EncodedRecords) -> RowBatch:
    """The rows of a batch of which perhaps only the encoded records came along."""
    if rows.values is not None:
        return rows
    plain = records
    if records.codec:
        opened = decompress(records.codec, records.body, MOST_OPENED)
        plain = records._replace(body=opened, codec=Codec.NONE)
    sealed = seal(plain, -1, -1, -1)
    body = BatchBody(read_header(sealed, 0), HEADER_SIZE, len(sealed))
    found = RecordDecoder(rows.topic, rows.partition, include_headers=True).decode(
        sealed, [body], 0, records.record_count
    )
    keys = found["key"]
    return RowBatch(
        rows.topic,
        rows.partition,
        None if keys.null_count == len(keys) else keys,
        found["value"],
        encode_headers(found["headers"]),
        _milliseconds(found),
    )


class RowBatcher:
    """Cuts the rows of a task. `place` tells where a topic is; `batch_bytes` is the size of a full batch."""

    def __init__(
        self,
        topic: str | None,
        place: Callable[[str], TopicPlace],
        batch_bytes: int,
        with_times: bool = False,
    ) -> None:
        self._topic = topic
        self._with_times = with_times
        self._place = place
        self._limit = max(batch_bytes - HEADER_SIZE, 1)
        self._sticky: dict[str, Sticky] = {}

    def batches(
        self, batch: Any, codec: int = 0
    ) -> Iterator[tuple[list[RowBatch], list[EncodedRecords], list[int]]]:
        """Row batches, their records, and where in these lists each wave begins; once or more."""
        if not batch.num_rows:
            return
        if batch.nbytes > PIECE_BYTES and batch.num_rows > 1:
            middle = batch.num_rows // 2
            yield from self.batches(batch.slice(0, middle), codec)
            yield from self.batches(batch.slice(middle), codec)
            return
        values = _binary(batch, "value")
        if values is None:
            raise BadRow("Required attribute 'value' not found")
        keys = _binary(batch, "key")
        if keys is not None and keys.null_count == len(keys):
            keys = None
        names = batch.schema.names
        headers = encode_headers(batch["headers"]) if "headers" in names else None
        wishes = batch["partition"].cast(pa.int32()) if "partition" in names else None
        times = _milliseconds(batch) if self._with_times else None
        sizes = row_sizes(keys, values, headers)
        places, targets = self._targets(batch, keys, wishes, sizes)
        if len(places) > 1:
            order = pc.array_sort_indices(targets)
            keys, values, headers, times = (_take(c, order) for c in (keys, values, headers, times))
            sizes, targets = sizes.take(order), targets.take(order)
        whole = RowBatch("", -1, keys, values, headers, times)
        yield self._cut(whole, places, targets, sizes, codec)

    def _cut(
        self, rows: RowBatch, places: list[tuple[str, int]], targets: Array, sizes: Array, codec: int
    ) -> tuple[list[RowBatch], list[EncodedRecords], list[int]]:
        starts: list[int] = []
        whose: list[tuple[str, int]] = []
        waves: list[int] = []
        """The number of each batch within its partition."""
        runs = pc.run_end_encode(targets)
        totals = _running_totals(sizes)
        start = 0
        for end, target in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
            number = 0
            while start < end:
                before = totals[start - 1] if start else 0
                starts.append(start)
                whose.append(places[target])
                waves.append(number)
                number += 1
                start = max(bisect_right(totals, before + self._limit, start, end), start + 1)
        encoded = encode_rows(rows.keys, rows.values, rows.headers, starts, codec=codec, times=rows.times)
        ends = [*starts[1:], len(sizes)]
        order = sorted(range(len(starts)), key=waves.__getitem__)  # stable: partitions stay in order
        batches = []
        for n in order:
            part = rows.part(starts[n], ends[n])
            batches.append(RowBatch(*whose[n], part.keys, part.values, part.headers, part.times))
        begins = [i for i, n in enumerate(order) if not i or waves[n] != waves[order[i - 1]]]
        return batches, [encoded[n] for n in order], begins

    def _targets(
        self, batch: Any, keys: Array | None, wishes: Array | None, sizes: Array
    ) -> tuple[list[tuple[str, int]], Array]:
        """The places rows go to, and for each row the number of its place."""
        if self._topic is not None:
            place = self._place(self._topic)
            chosen = self._partitions(place, keys, wishes, sizes)
            return _compact([(place.name, p) for p in range(place.partition_count)], chosen)
        if "topic" not in batch.schema.names:
            raise BadRow(
                "topic option required when no 'topic' attribute is present. "
                "Use the topic option for setting a topic."
            )
        topics = batch["topic"].cast(pa.string())
        if topics.null_count:
            raise BadRow(
                "The Kafka message data sent to the producer contains a null topic. "
                "Use the `topic` option for setting a default topic."
            )
        encoded = topics.dictionary_encode()
        places: list[tuple[str, int]] = []
        targets = pa.nulls(len(topics), pa.int32())
        for number, name in enumerate(encoded.dictionary.to_pylist()):
            place = self._place(name)
            here = pc.equal(encoded.indices, pa.scalar(number, pa.int32()))
            chosen = self._partitions(place, _filter(keys, here), _filter(wishes, here), sizes.filter(here))
            chosen = pc.add(chosen, pa.scalar(len(places), pa.int32()))
            targets = pc.replace_with_mask(targets, here, chosen)
            places += [(name, p) for p in range(place.partition_count)]
        return _compact(places, targets)

    def _partitions(self, place: TopicPlace, keys: Array | None, wishes: Array | None, sizes: Array) -> Array:
        """The partition of each row in one topic."""
        count = place.partition_count
        if wishes is not None and wishes.null_count < len(wishes):
            found = pc.min_max(wishes)
            for number in (found["min"].as_py(), found["max"].as_py()):
                if not 0 <= number < count:
                    _no_such_partition(place, number)
        else:
            wishes = None
        chosen = wishes
        if keys is not None and (chosen is None or chosen.null_count):
            by_key = partitions_by_key(keys, count)
            chosen = by_key if chosen is None else pc.coalesce(chosen, by_key)
        if chosen is not None and not chosen.null_count:
            return chosen
        free = None if chosen is None else chosen.is_null()
        totals = _running_totals(sizes if free is None else sizes.filter(free))
        runs = self._sticky_for(place).choose(totals)
        given = pa.concat_arrays([pa.repeat(pa.scalar(p, pa.int32()), n) for p, n in runs])
        return given if free is None else pc.replace_with_mask(chosen, free, given)

    def _sticky_for(self, place: TopicPlace) -> Sticky:
        sticky = self._sticky.get(place.name)
        if sticky is None:
            usable = [p for p, leader in sorted(place.leaders.items()) if leader >= 0]
            sticky = Sticky(usable or sorted(place.leaders), self._limit)
            self._sticky[place.name] = sticky
        return sticky


def _no_such_partition(place: TopicPlace, number: int) -> None:
    try:
        place.leader(number)
    except ApiError as error:
        raise BadRow(error.message) from None
    raise BadRow(f"topic {place.name!r} has no partition {number}")


def _compact(places: list[tuple[str, int]], targets: Array) -> tuple[list[tuple[str, int]], Array]:
    """Keep only one place, number 0, if that is all; sorting is then not needed."""
    found = pc.min_max(targets)
    smallest, largest = found["min"].as_py(), found["max"].as_py()
    if smallest == largest:
        return [places[smallest]], pa.repeat(pa.scalar(0, pa.int32()), len(targets))
    return places, targets


def _running_totals(sizes: Array) -> memoryview:
    """Each size added to all before it, as a sequence of ints that is cheap to search."""
    return memoryview(pc.cumulative_sum(sizes).buffers()[1]).cast("q")[: len(sizes)]


def _binary(batch: Any, name: str) -> Array | None:
    if name not in batch.schema.names:
        return None
    column = batch[name]
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _milliseconds(batch: Any) -> Array | None:
    """The column `timestamp` in ms since 1970, finer parts cut off; None when there is no such column."""
    if "timestamp" not in batch.schema.names:
        return None
    micros = batch["timestamp"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    earliest = pc.min(micros).as_py()
    if earliest is not None and earliest < 0:
        raise BadRow("a timestamp before 1970: the time of a record cannot be negative")
    return pc.divide(micros, pa.scalar(1000, pa.int64()))


def _take(column: Array | None, order: Array) -> Array | None:
    return None if column is None else column.take(order)


def _filter(column: Array | None, mask: Array) -> Array | None:
    return None if column is None else column.filter(mask)
