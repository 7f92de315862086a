"""A stage as a streaming query for tests: it runs when it is told to, and its clock is set by hand.

The query is one of Spark's own and does what it does in production: batches, state, watermark, output mode.
Two things differ. Its clock is Spark's `ManualClock`, so `current_timestamp()` is what the test says. And
all records that were fed since the last run, of all inputs, go into one batch: they are put in while the
query is kept from planning the next one.

`test_session` is a Spark session made for small data: one task, and expressions that are interpreted, since
compiling them takes longer than a test's few rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.storagelevel import StorageLevel

from ottla.pipeline.building import BuiltStage, RunContext, build
from ottla.pipeline.declarations import SOURCE_COLUMN, Stage, StageError
from ottla.pipeline.running.causes import root_cause
from ottla.pipeline.running.supervision import copy_session
from ottla.pipeline.spark.session import spark_session
from ottla.pipeline.testing.memory import MemoryConnection, MemoryTopics

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_SETTINGS = {
    "ottla.compile": "quick",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.pollingDelay": "5ms",
    "spark.sql.streaming.minBatchesToRetain": "2",
}


def test_session(settings: Mapping[str, str] | None = None) -> SparkSession:
    """The Spark session of this process, made for tests. Its start takes seconds: have one for all tests."""
    return spark_session("ottla tests", "local[2]", {**_SETTINGS, **(settings or {})})


test_session.__test__ = False  # type: ignore[attr-defined]  # pytest would take it for a test


class Clock:
    """The time of all queries of a driver."""

    def __init__(self, spark: SparkSession, now: datetime) -> None:
        assert spark._jvm is not None
        self.java = spark._jvm.org.apache.spark.util.ManualClock(int(now.timestamp() * 1000))

    def advance(self, milliseconds: int) -> None:
        self.java.advance(milliseconds)


class StageQuery:
    """One stage under test."""

    def __init__(
        self, spark: SparkSession, stage: Stage, context: RunContext, topics: MemoryTopics, clock: Clock
    ) -> None:
        self.stage = stage
        self.rows: list[dict[str, Any]] = []
        """What the function gave, without `_source`, over all batches."""
        self._context = context
        self._clock = clock
        self._topics = topics
        self._error: BaseException | None = None
        self._query: StreamingQuery | None = None
        self._built = self._build(spark)

    def _build(self, spark: SparkSession) -> BuiltStage:
        self.connection = MemoryConnection(self._topics, self.stage.outputs)
        built = build(spark, self.stage, self._context, connection=self.connection)
        settings = {**built.settings, **self.stage.options}
        if settings:
            session = copy_session(spark)
            for key, value in settings.items():
                session.conf.set(key, value)
            self.connection = MemoryConnection(self._topics, self.stage.outputs)
            built = build(session, self.stage, self._context, connection=self.connection)
        if any("ProcessingTime" in each["operator"] for each in built.fingerprint.shape["stateful"]):
            raise StageError(
                f"stage {self.stage.name}: timers in processing time make Spark run batches without end, so"
                " the test driver cannot tell when it is done; test it against a broker, or use event time"
            )
        return built

    @property
    def dead_letter_topic(self) -> str | None:
        return self._built.dead_letter_topic

    @property
    def watermark(self) -> datetime | None:
        """The watermark; None before there is one."""
        if self._query is None:
            return None
        milliseconds = self._query._jsq.streamingQuery().watermarkTracker().currentWatermark()
        return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None

    def run(self) -> bool:
        """Run a batch over what has come since the last one. False when nothing has."""
        inputs = list(zip(self.connection.inputs, self.stage.topics, strict=True))
        taken = [(each, each.take(source, self._topics)) for each, source in inputs]
        rows = [(each, each.prepare(records)) for each, records in taken if records]
        if not rows:
            return False
        if self._query is None:
            for each, prepared in rows:
                each.put(prepared)
            self._query = self._start()
        else:
            with self._not_planning():
                for each, prepared in rows:
                    each.put(prepared)
        try:
            self._query.processAllAvailable()
        except StreamingQueryException as failure:
            if self._error is not None:
                raise self._error from None
            raise RuntimeError(f"stage {self.stage.name}: {root_cause(str(failure))}") from failure
        return True

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()

    def _start(self) -> StreamingQuery:
        """As `DataStreamWriter.start` does, but with our clock."""
        from pyspark.sql.streaming.query import StreamingQuery

        frame = self._built.frame
        spark = frame.sparkSession
        jvm = spark._jvm
        assert jvm is not None
        writer = frame.writeStream.foreachBatch(self._write_batch)._jwrite
        sink = jvm.org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink(
            writer.foreachBatchWriter(), frame._jdf.exprEnc()
        )
        none = jvm.scala.Option.empty()
        folder = self._context.checkpoints.stage(self.stage.name)
        started = spark._jsparkSession.streams().startQuery(
            none,
            none,
            jvm.scala.Option.apply(folder.spark_checkpoint),
            frame._jdf,
            getattr(jvm.scala.collection.immutable, "Map$").__getattr__("MODULE$").empty(),
            sink,
            getattr(jvm.org.apache.spark.sql.streaming.OutputMode, self.stage.mode.capitalize())(),
            False,
            True,
            jvm.org.apache.spark.sql.streaming.Trigger.ProcessingTime(0),
            self._clock.java,
            none,
            none,
        )
        return StreamingQuery(started)

    @contextmanager
    def _not_planning(self) -> Iterator[None]:
        """While entered, the query plans no batch, so that one batch gets all that is put in."""
        assert self._query is not None
        lock = self._query._jsq.streamingQuery().awaitProgressLock()
        lock.lock()
        try:
            yield
        finally:
            lock.unlock()

    def _write_batch(self, frame: DataFrame, batch_id: int) -> None:
        frame.persist(StorageLevel.MEMORY_ONLY)
        try:
            try:
                found = frame.drop(SOURCE_COLUMN).toArrow().to_pylist()
            except PySparkException:
                found = []  # writing the batch fails in the same way, and says why in the stage's words
            self._built.write_batch(frame, batch_id)
            self.rows += found
        except BaseException as error:
            self._error = error
            raise
        finally:
            frame.unpersist()
            self.connection.forget_batch()
