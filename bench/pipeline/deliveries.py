"""What exactly once costs: the same stage over the same records, in transactions and without.

Both are run by turns, once to be thrown away. A stage that works off a full topic has large batches, where
the cost is the shuffle that brings the batches of a partition to one task; one that gets a record now and
then shows the round trips of a transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Any

from bench.pipeline import cases, topics
from bench.pipeline.table import Line
from ottla.pipeline import stage, topic
from ottla.pipeline.building import BuiltStage, RunContext, build
from ottla.pipeline.checkpoints import Checkpoints
from ottla.pipeline.declarations import DELIVERIES, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

EXACTLY_ONCE, AT_LEAST_ONCE = DELIVERIES


class _Stages:
    """Makes the stage for each run, with an output and a checkpoint of its own."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._folder = folder
        self._made = 0

    def start(self, source: Topic, delivery: str, **how: Any) -> StreamingQuery:
        self._made += 1
        name = f"copy-{self._made}"
        topics.make_topic(self._bootstrap, name)
        context = RunContext("bench", self._bootstrap, Checkpoints(self._folder / "stages"))

        @stage(source, to=topic(name), name=name, delivery=delivery)
        def copied(rows: DataFrame) -> DataFrame:
            return rows

        declared: Callable[..., Any] = copied
        built: BuiltStage = build(self._spark, declared.__stage__, context)  # type: ignore[attr-defined]
        checkpoint = context.checkpoints.stage(name).spark_checkpoint
        return built.writer(**how).option("checkpointLocation", checkpoint).start()


def measure_deliveries(
    spark: SparkSession, bootstrap: str, folder: Path, count: int, rounds: int, batches: int
) -> list[Line]:
    stages = _Stages(spark, bootstrap, folder)
    many, one = topic("delivered", json=topics.EVENTS), topic("delivered-one", string=True)
    topics.fill_events(bootstrap, "delivered", count)
    topics.make_topic(bootstrap, "delivered-one", 1)
    rates: dict[str, list[float]] = {each: [] for each in DELIVERIES}
    for turn in range(rounds + 1):
        for delivery in DELIVERIES if turn % 2 else DELIVERIES[::-1]:
            began = monotonic()
            stages.start(many, delivery, once=True).awaitTermination()
            if turn:
                rates[delivery].append(count / (monotonic() - began))
    took: dict[str, list[tuple[float, float]]] = {each: [] for each in DELIVERIES}
    for turn in range(2):
        for delivery in DELIVERIES if turn % 2 else DELIVERIES[::-1]:
            query = stages.start(one, delivery)
            query.processAllAvailable()
            took[delivery].append(cases.timed_batches(query, bootstrap, "delivered-one", batches))

    def line(title: str, unit: str, figure: Callable[[str], float]) -> Line:
        return Line(title, unit, figure(EXACTLY_ONCE), figure(AT_LEAST_ONCE))

    return [
        line("Stage from topic to topic", "rows/s", lambda each: median(rates[each])),
        line("Stage, micro-batch of a record", "ms", lambda each: median(t for t, _ in took[each])),
        line("Stage, record until its batch is done", "ms", lambda each: median(w for _, w in took[each])),
    ]
