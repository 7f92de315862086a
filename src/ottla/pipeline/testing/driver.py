"""The test driver of a pipeline: all its stages on Spark, with topics and lakes in memory.

Nothing runs when records are fed. `run`, or asking for a result, lets every stage work through what has come,
each after the stages that feed it, until nothing is left. So what is fed between two looks is one batch.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession

from ottla.pipeline.building import RunContext
from ottla.pipeline.checkpoints import Checkpoints
from ottla.pipeline.declarations import Lake, Stage, StageError, Table, Topic, nearest
from ottla.pipeline.running.loading import Pipeline, PipelineLike
from ottla.pipeline.running.runner import in_order
from ottla.pipeline.testing.memory import MemoryTopics, with_data
from ottla.pipeline.testing.queries import Clock, StageQuery, test_session
from ottla.pipeline.testing.records import (
    Given,
    Headers,
    Moment,
    Record,
    Span,
    as_moment,
    as_span,
    encode_value,
    header_pairs,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
_MOST_ROUNDS = 100

TableLike = DataFrame | Sequence[Mapping[str, Any]]


class PipelineDriver:
    """A pipeline under test: a file, a module, or stage functions. Use it in a `with` statement.

    `stages` takes only some of its stages. `tables` gives the rows (dicts, or a DataFrame) of tables by
    the path they are declared with, so that a test needs no files. `partitions` says how many partitions
    a topic has (one, unless named). `now` is the time at which the test begins; `advance` moves it.
    """

    def __init__(
        self,
        pipeline: PipelineLike,
        *,
        stages: Iterable[str] = (),
        tables: Mapping[str, TableLike] | None = None,
        partitions: Mapping[str, int] | None = None,
        now: Moment = START,
        spark: SparkSession | None = None,
    ) -> None:
        self.spark = spark or test_session()
        self.pipeline = Pipeline.load(pipeline).only(stages)
        begin = as_moment(now)
        self._topics = MemoryTopics(dict(partitions or {}), begin)
        self._clock = Clock(self.spark, begin)
        self._folder = tempfile.mkdtemp(prefix="ottla-driver-")
        context = RunContext(self.pipeline.name, "memory", Checkpoints(self._folder))
        self._queries: dict[str, StageQuery] = {}
        try:
            for stage in in_order(self.pipeline):
                declared = self._with_tables(stage, tables or {})
                query = StageQuery(self.spark, declared, context, self._topics, self._clock)
                self._queries[stage.name] = query
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the queries and remove what they kept."""
        for query in self._queries.values():
            query.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    # In

    @property
    def now(self) -> datetime:
        return self._topics.now

    def feed(
        self,
        topic: str,
        *values: Any,
        key: str | bytes | None = None,
        headers: Headers | None = None,
        at: Moment | None = None,
        partition: int | None = None,
    ) -> None:
        """Append records to a topic. What is given by name holds for all of them.

        A value is a dict (encoded as the topic is declared), text, bytes or None; or a whole `record(...)`.
        """
        declared = self._read_as(topic)
        for each in values:
            given = each if isinstance(each, Given) else Given(each, key, headers, at, partition)
            value = encode_value(given.value, declared)
            self._topics.add(
                topic,
                value,
                key=given.key.encode() if isinstance(given.key, str) else given.key,
                headers=header_pairs(given.headers),
                partition=given.partition,
                at=None if given.at is None else as_moment(given.at),
                data=None,
            )

    def advance(self, span: Span) -> None:
        """Let time pass: "10 minutes", a timedelta, or seconds.

        Records that are fed from now on carry the new time, and `current_timestamp()` gives it. A watermark
        moves as it does in production, with the records that come, and not by itself.
        """
        passed = as_span(span)
        self.run()
        self._topics.now += passed
        self._clock.advance(int(passed.total_seconds() * 1000))

    def run(self) -> None:
        """Let all stages work through what has come. Raises what a stage fails with."""
        for _ in range(_MOST_ROUNDS):
            ran = [query.run() for query in self._queries.values()]
            if not any(ran):
                return
        raise RuntimeError(f"stages of {self.pipeline.name} feed each other without end")

    # Out

    def rows(self, stage: str) -> list[dict[str, Any]]:
        """What the stage's function gave so far, in order; `_source` is left out."""
        query = self._query(stage)
        self.run()
        return list(query.rows)

    def topic(self, name: str) -> list[Record]:
        """The records of a topic, by partition and offset."""
        self.run()
        known = {*self._topics.names(), *(each.name for each in self._outputs(Topic))}
        if name not in known:
            raise StageError(f"nothing has been written to topic {name}{nearest(name, known)}")
        declared = self._read_as(name, strict=False)
        found = sorted(self._topics.of(name), key=lambda each: (each.partition, each.offset))
        return [each if each.data is not None else with_data(each, declared) for each in found]

    def values(self, topic: str) -> list[Any]:
        """The values of a topic, decoded as it is declared."""
        return [each.data for each in self.topic(topic)]

    def dead_letters(self, stage: str) -> list[Record]:
        """The bad records of a stage, as they are in its dead-letter topic."""
        name = self._query(stage).dead_letter_topic
        self.run()
        if name is None:
            raise StageError(
                f"stage {stage} has no dead letters: it says bad={self.pipeline.stage(stage).bad!r}"
            )
        return list(self._topics.of(name))

    def lake(self, path: str | Path) -> list[dict[str, Any]]:
        """The rows that were written to a lake, by the path it is declared with."""
        self.run()
        declared = [each.path for each in self._outputs(Lake)]
        if str(path) not in declared:
            raise StageError(f"no stage writes a lake {path}{nearest(str(path), declared)}")
        return [row for query in self._queries.values() for row in query.connection.lakes.get(str(path), ())]

    def watermark(self, stage: str) -> datetime | None:
        """How far event time has come for the stage; None without a watermark."""
        self.run()
        return self._query(stage).watermark

    def _query(self, stage: str) -> StageQuery:
        return self._queries[self.pipeline.stage(stage).name]

    def _outputs(self, kind: type[Any]) -> list[Any]:
        return [each for stage in self.pipeline.stages for each in stage.outputs if isinstance(each, kind)]

    def _read_as(self, topic: str, *, strict: bool = True) -> Topic | None:
        """How the values of a topic are declared by a stage that reads it."""
        inputs = [each for stage in self.pipeline.stages for each in stage.read_topics]
        found = next((each for each in inputs if each.reads(topic)), None)
        if found is None and strict:
            names = [each.title for each in inputs]
            raise StageError(
                f"no stage reads topic {topic}{nearest(topic, names)} (there are {', '.join(names)})"
            )
        return found

    def _with_tables(self, stage: Stage, tables: Mapping[str, TableLike]) -> Stage:
        inputs = [
            self._table(each, tables[each.source])
            if isinstance(each, Table) and isinstance(each.source, str) and each.source in tables
            else each
            for each in stage.inputs
        ]
        return replace(stage, inputs=tuple(inputs))

    def _table(self, declared: Table, rows: TableLike) -> Table:
        if isinstance(rows, DataFrame):
            return Table(lambda spark: rows)
        if declared.schema is not None:
            schema = declared.schema
            return Table(lambda spark: spark.createDataFrame([dict(row) for row in rows], schema))
        return Table(lambda spark: spark.createDataFrame([dict(row) for row in rows]))
