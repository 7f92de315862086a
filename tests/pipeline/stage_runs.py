"""Runs one declared stage on a real session and broker, without the runner: build, start, wait."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from ottla.pipeline.building import BuiltStage, RunContext, build
from ottla.pipeline.checkpoints import Checkpoints
from ottla.protocol_client.consume import Consumer
from ottla.protocol_client.offsets import spans
from ottla.protocol_client.produce import Producer
from ottla.protocol_client.wire import Wire
from ottla.testing.in_process import InProcessBroker

_numbers = itertools.count(1)


class Got(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes | None]


class StageRuns:
    """A place for stages: topics with names of their own, a checkpoint folder, and runs until all is read."""

    def __init__(self, spark: SparkSession, broker: InProcessBroker, folder: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.folder = folder
        self.prefix = f"t{next(_numbers)}"
        self.settings: dict[str, str] = {}

    def name(self, topic: str, partitions: int | None = 1) -> str:
        """A topic of this test's own; made unless `partitions` is None."""
        name = f"{self.prefix}.{topic}"
        if partitions is not None:
            self.broker.create_topic(name, partitions)
        return name

    def context(self) -> RunContext:
        return RunContext(
            pipeline=self.prefix,
            bootstrap=self.broker.bootstrap_servers,
            checkpoints=Checkpoints(self.folder / "checkpoints"),
            settings=self.settings,
        )

    def build(self, function: Callable[..., Any]) -> BuiltStage:
        return build(self.spark, function.__stage__, self.context())  # type: ignore[attr-defined]

    def start(self, built: BuiltStage, write_batch: Callable[..., None] | None = None) -> StreamingQuery:
        folder = self.context().checkpoints.stage(built.stage.name)
        return (
            built.frame.writeStream.outputMode(built.stage.mode)
            .option("checkpointLocation", folder.spark_checkpoint)
            .foreachBatch(write_batch or built.write_batch)
            .trigger(availableNow=True)
            .start()
        )

    def run(
        self, function: Callable[..., Any], write_batch: Callable[..., None] | None = None
    ) -> StreamingQuery:
        """Run the stage over all that is there."""
        query = self.start(self.build(function), write_batch)
        query.awaitTermination()
        return query

    def produce(self, topic: str, values: Iterable[bytes | tuple[bytes | None, bytes | None] | None]) -> None:
        """Values, or pairs of key and value."""
        with Wire(self.broker.bootstrap_servers) as wire, Producer(wire, topic) as producer:
            for each in values:
                key, value = each if isinstance(each, tuple) else (None, each)
                producer.add(key, value)

    def records(self, topic: str, *, committed: bool = True) -> list[Got]:
        """All (committed) records of a topic, by partition and offset; none if there is no such topic."""
        with Wire(self.broker.bootstrap_servers) as wire:
            known = {each.name: len(each.partitions) for each in wire.metadata().topics}
            if topic not in known:
                return []
            found = spans(wire, topic, range(known[topic]), read_committed=committed)
            starts = {partition: span.start for partition, span in found.items()}
            ends = {partition: span.end for partition, span in found.items()}
            got = [
                Got(partition, record.offset, record.key, record.value, dict(record.headers))
                for partition, record in Consumer(wire, topic, starts, ends, read_committed=committed)
            ]
        return sorted(got, key=lambda each: (each.partition, each.offset))
