"""Topics and lakes in memory, and the connection through which a stage reads and writes them.

`MemoryTopics` is all that a test has fed and all that stages have written. `MemoryConnection` stands for the
broker and the disk: `stream` makes a source of Spark's own for tests (`MemoryStream`), into which the driver
puts records; what a stage writes is collected. Encoding, partitions by key, conditions (`where`), dead
letters and their reasons are the stage's own and the same as in production.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from ottla.pipeline.connectors import Connection, Offsets
from ottla.pipeline.declarations import Lake, Output, Topic
from ottla.pipeline.tables.versions import Span
from ottla.pipeline.testing.records import Record, decode_value
from ottla.protocol_client.partitioner import murmur2

if TYPE_CHECKING:
    from ottla.pipeline.checkpoints import StageFolder

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
SOURCE = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(_HEADER)),
    ]
)
"""The columns of a topic source, as format("ottla") has them."""


class MemoryTopics:
    """The records of all topics, in the order in which they came."""

    def __init__(self, partitions: Mapping[str, int], now: datetime) -> None:
        self._partitions = partitions
        self._records: dict[str, list[Record]] = {}
        self.now = now
        """The time that records get which carry none of their own."""

    def names(self) -> list[str]:
        return list(self._records)

    def of(self, topic: str) -> list[Record]:
        return self._records.get(topic, [])

    def partitions(self, topic: str) -> int:
        return self._partitions.get(topic, 1)

    def add(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...],
        partition: int | None,
        at: datetime | None,
        data: Any,
    ) -> None:
        """Append a record; without a partition it goes where its key belongs, as with Kafka's clients."""
        count = self.partitions(topic)
        if partition is None:
            partition = 0 if key is None else (murmur2(key) & 0x7FFFFFFF) % count
        if not 0 <= partition < count:
            raise ValueError(
                f"topic {topic} has partitions 0 to {count - 1}, not {partition}; more are made by"
                f" partitions={{{topic!r}: {partition + 1}}}"
            )
        records = self._records.setdefault(topic, [])
        offset = sum(each.partition == partition for each in records)
        records.append(
            Record(topic, partition, offset, at or self.now, key, value, headers, data),
        )


def as_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Records as rows of a topic source."""
    return [
        {
            "key": each.key,
            "value": each.value,
            "topic": each.topic,
            "partition": each.partition,
            "offset": each.offset,
            "timestamp": each.timestamp,
            "timestampType": 0,
            "headers": [{"key": name, "value": value} for name, value in each.headers] or None,
        }
        for each in records
    ]


class MemoryInput:
    """One input of a stage: a stream of Spark's, and how far the stage has read its topics."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        assert spark._jvm is not None
        empty = spark.createDataFrame(SOURCE.empty_table())
        streams = spark._jvm.org.apache.spark.sql.execution.streaming.runtime.MemoryStream
        self._stream = streams.apply(empty._jdf.encoder(), spark._jsparkSession)
        self.frame = DataFrame(self._stream.toDF(), spark)
        self._read: dict[str, int] = {}
        self.batch: DataFrame | None = None
        """The records of the batch that is about to run, or runs; None when it has none of this input."""

    def take(self, source: Topic, topics: MemoryTopics) -> list[Record]:
        """The records of this input that have come since the last call."""
        found: list[Record] = []
        for name in topics.names():
            if source.reads(name):
                records = topics.of(name)
                found += records[self._read.get(name, 0) :]
                self._read[name] = len(records)
        return found

    def prepare(self, records: Sequence[Record]) -> Any:
        """The records as rows in the JVM, for `put`."""
        self.batch = self._spark.createDataFrame(pa.Table.from_pylist(as_rows(records), SOURCE))
        assert self._spark._jvm is not None
        converters = self._spark._jvm.scala.jdk.javaapi.CollectionConverters
        return converters.asScala(self.batch._jdf.collectAsList())

    def put(self, rows: Any) -> None:
        self._stream.addData(rows)


class MemoryConnection(Connection):
    """What one stage reads from and writes to."""

    def __init__(self, topics: MemoryTopics, outputs: Sequence[Output]) -> None:
        super().__init__("ottla", "memory")
        # The base is a frozen dataclass, whose equality and hash are of no use here.
        vars(self).update(inputs=[], topics=topics, lakes={}, _outputs=outputs, _options=[])

    inputs: list[MemoryInput]
    """In the order in which the stage declares its topics."""
    topics: MemoryTopics
    lakes: dict[str, list[dict[str, Any]]]
    _outputs: Sequence[Output]
    _options: list[Mapping[str, str]]

    in_memory = True

    def stream(self, spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
        self.inputs.append(MemoryInput(spark))
        self._options.append(options)
        return self.inputs[-1].frame

    def read_batch(
        self,
        spark: SparkSession,
        source: Topic,
        options: Mapping[str, str],
        folder: StageFolder,
        batch_id: int,
    ) -> DataFrame | None:
        number = next(place for place, each in enumerate(self._options) if each is options)
        return self.inputs[number].batch

    def table_span(self, source: Topic) -> Span:
        assert source.name is not None
        ends = dict.fromkeys(range(self.topics.partitions(source.name)), 0)
        for each in self.topics.of(source.name):
            ends[each.partition] = each.offset + 1
        return Span("memory", dict.fromkeys(ends, 0), ends)

    def read_range(
        self, spark: SparkSession, options: Mapping[str, str], start: Offsets, end: Offsets
    ) -> DataFrame:
        found = [
            each
            for topic in dict.fromkeys(topic for topic, _ in end)
            for each in self.topics.of(topic)
            if start.get((topic, each.partition), 0) <= each.offset < end.get((topic, each.partition), 0)
        ]
        return spark.createDataFrame(pa.Table.from_pylist(as_rows(found), SOURCE))

    def write(self, rows: DataFrame, topic: str, options: Mapping[str, str]) -> None:
        declared = next(
            (each for each in self._outputs if isinstance(each, Topic) and each.name == topic), None
        )
        for row in rows.toArrow().to_pylist():
            value, key = _bytes(row["value"]), _bytes(row.get("key"))
            headers = tuple((each["key"], _bytes(each["value"])) for each in row.get("headers") or ())
            data = decode_value(value, declared)
            self.topics.add(
                topic,
                value,
                key=key,
                headers=headers,
                partition=row.get("partition"),
                at=row.get("timestamp"),
                data=data,
            )

    def write_letters(self, letters: DataFrame, topic: str) -> None:
        self.write(letters, topic, {})

    def write_lake(self, rows: DataFrame, target: Lake, query_id: str, batch_id: int) -> None:
        self.lakes.setdefault(target.path, []).extend(rows.toArrow().to_pylist())

    def forget_batch(self) -> None:
        """The batch is done; a batch without data may follow."""
        for each in self.inputs:
            each.batch = None


def with_data(record: Record, declared: Topic | None) -> Record:
    return replace(record, data=decode_value(record.value, declared))


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
