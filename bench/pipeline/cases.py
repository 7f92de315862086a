"""What is measured: each case is a piece of Spark code that is the same for both connectors but for a name.

A case gets a `Connector` and returns nothing; its caller takes the time. Batches go to Spark's noop
sink, so the source is what is timed; whole pipelines run as streams over all there is (`availableNow`), as
they would in production, with a checkpoint of their own.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bench.pipeline import topics
from bench.processes import cpu_seconds
from ottla.pipeline.topics.options import SinkOptions
from ottla.pipeline.topics.writing import write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_numbers = itertools.count()


@dataclass
class Connector:
    """One of the two: its name in the table, its format in Spark, and the cluster it talks to."""

    name: str
    format: str
    spark: SparkSession
    bootstrap: str
    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    """Settings of the session that are changed while this one runs."""

    def read(self, topic: str, **options: str) -> DataFrame:
        reader = self.spark.read.format(self.format).option("kafka.bootstrap.servers", self.bootstrap)
        return reader.option("subscribe", topic).options(**options).load()

    def stream(self, topic: str, **options: str) -> DataFrame:
        reader = self.spark.readStream.format(self.format).option("kafka.bootstrap.servers", self.bootstrap)
        return reader.option("subscribe", topic).options(**options).load()

    def checkpoint(self) -> str:
        return str(self.folder / f"checkpoint-{next(_numbers)}")

    def fresh_topic(self) -> str:
        name = f"out-{next(_numbers)}"
        topics.make_topic(self.bootstrap, name)
        return name


# Batches


def read_all(connector: Connector, topic: str) -> None:
    connector.read(topic).write.format("noop").mode("overwrite").save()


def write_all(connector: Connector, topic: str, count: int, size: int) -> None:
    rows = connector.spark.range(0, count, 1, topics.PARTITIONS).selectExpr(
        "string(id % 1000) as key", f"lpad(string(id), {size}, 'x') as value"
    )
    writer = rows.write.format(connector.format).mode("append").option("topic", topic)
    writer.option("kafka.bootstrap.servers", connector.bootstrap).save()


def parse(connector: Connector, topic: str) -> None:
    _events(connector.read(topic)).write.format("noop").mode("overwrite").save()


def to_parquet(connector: Connector, topic: str) -> None:
    target = connector.folder / f"parquet-{next(_numbers)}"
    try:
        _events(connector.read(topic)).write.parquet(str(target))
    finally:
        shutil.rmtree(target, ignore_errors=True)


# Streams over all there is


def window_aggregate(connector: Connector, topic: str) -> None:
    events = _events(_from_start(connector, topic)).withWatermark("at", "10 minutes")
    counted = events.groupBy("user", _window("at", "1 minute")).count()
    _run_out(counted.writeStream.format("noop").outputMode("update"), connector)


def join(connector: Connector, topic: str, other: str) -> None:
    left = _events(_from_start(connector, topic)).withWatermark("at", "10 minutes").selectExpr("id", "at")
    right = _events(_from_start(connector, other)).withWatermark("at", "10 minutes")
    right = right.selectExpr("id as other_id", "at as other_at", "user")
    joined = left.join(
        right, _expr("id = other_id and other_at between at - interval 1 minute and at + interval 1 minute")
    )
    _run_out(joined.writeStream.format("noop").outputMode("append"), connector)


def dedup(connector: Connector, topic: str) -> None:
    events = _events(_from_start(connector, topic)).withWatermark("at", "10 minutes")
    unique = events.dropDuplicatesWithinWatermark(["id"])
    _run_out(unique.writeStream.format("noop").outputMode("append"), connector)


def to_topic(connector: Connector, topic: str, target: str) -> None:
    events = _events(_from_start(connector, topic)).where("amount > 1")
    rows = events.selectExpr("user as key", "to_json(struct(*)) as value")
    writer = rows.writeStream.format(connector.format).option("topic", target)
    _run_out(writer.option("kafka.bootstrap.servers", connector.bootstrap), connector)


# Micro-batches and rest


def micro_batches(connector: Connector, topic: str, count: int) -> tuple[float, float]:
    """Milliseconds of a batch of one record, and from sending it until its batch is done: medians.

    Asking for the latest offset is left out of the batch: one connector waits there for data and the other
    does not. Sending until done has all of it.
    """
    return timed_batches(_start_idle(connector, topic), connector.bootstrap, topic, count)


def timed_batches(query: StreamingQuery, bootstrap: str, topic: str, count: int) -> tuple[float, float]:
    """The same for a query that is started; it is stopped at the end."""
    took: list[float] = []
    whole: list[float] = []
    try:
        for number in range(count + 3):
            before = _done(query)
            sent = time.time()
            _send_one(bootstrap, topic)
            progress = _wait_for_rows(query, before)
            if number >= 3:  # the first batches meet code that was never run
                duration = progress["durationMs"]
                took.append(float(duration["triggerExecution"] - duration.get("latestOffset", 0)))
                began = _epoch(progress["timestamp"])
                whole.append((began - sent) * 1000 + duration["triggerExecution"])
    finally:
        query.stop()
    return median(took), median(whole)


def idle_cpu(connector: Connector, topic: str, seconds: float) -> float:
    """Percent of a core that a stream without data takes: the JVM and Spark's Python processes."""
    query = _start_idle(connector, topic)
    try:
        time.sleep(3)  # what starting left behind
        before = {pid: cpu_seconds(pid) for pid in _spark_processes(connector.spark)}
        began = time.monotonic()
        time.sleep(seconds)
        # Workers that have had nothing to do for a minute are ended by Spark meanwhile; new ones count whole.
        now = {pid: cpu_seconds(pid) for pid in _spark_processes(connector.spark)}
        used = sum(total - before.get(pid, 0.0) for pid, total in now.items())
        return used / (time.monotonic() - began) * 100
    finally:
        query.stop()


def with_settings(connector: Connector, work: Callable[[], Any]) -> Any:
    """Run `work` under the connector's settings of the session, which are set back afterwards."""
    conf = connector.spark.conf
    before = {name: conf.get(name) for name in connector.settings}
    for name, value in connector.settings.items():
        conf.set(name, value)
    try:
        return work()
    finally:
        for name, old in before.items():
            if old is None:
                conf.unset(name)
            else:
                conf.set(name, old)


def _start_idle(connector: Connector, topic: str) -> StreamingQuery:
    rows = connector.stream(topic, startingOffsets="latest")
    writer = rows.writeStream.format("noop").option("checkpointLocation", connector.checkpoint())
    query = writer.start()
    _send_one(connector.bootstrap, topic)
    query.processAllAvailable()
    return query


def _wait_for_rows(query: StreamingQuery, before: int) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for progress in query.recentProgress:
            if progress["batchId"] > before and progress["numInputRows"]:
                return dict(progress)
        if query.exception() is not None:
            raise RuntimeError(f"the stream failed: {query.exception()}")
        time.sleep(0.02)
    raise RuntimeError("a record was not read within 60 s")


def _done(query: StreamingQuery) -> int:
    last = query.lastProgress
    return -1 if last is None else int(last["batchId"]) - (0 if last["numInputRows"] else 1)


def _send_one(bootstrap: str, topic: str) -> None:
    write_rows(iter([pa.RecordBatch.from_pydict({"value": [b"one"]})]), SinkOptions(bootstrap, topic))


def _epoch(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _spark_processes(spark: SparkSession) -> list[int]:
    """The driver's JVM and all processes below it."""
    root = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return found


def _from_start(connector: Connector, topic: str) -> DataFrame:
    return connector.stream(topic, startingOffsets="earliest")


def _run_out(writer: Any, connector: Connector) -> None:
    query = writer.option("checkpointLocation", connector.checkpoint()).trigger(availableNow=True).start()
    query.awaitTermination()


def _events(rows: DataFrame) -> DataFrame:
    parsed = rows.select(_expr(f"from_json(cast(value as string), '{topics.EVENTS}') as event"))
    return parsed.select("event.*")


def _window(column: str, length: str) -> Any:
    from pyspark.sql import functions

    return functions.window(column, length)


def _expr(text: str) -> Any:
    from pyspark.sql import functions

    return functions.expr(text)
