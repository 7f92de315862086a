"""From a declared stage to what Spark runs: a streaming DataFrame, and a function that writes its batches.

`build` reads the inputs, decodes them, calls the stage's function and checks what it returns, all without
a record being read; every mistake is a `StageError` with the stage's name. Then for each batch `write_batch`
writes all outputs and the dead letters, in this order:

    lakes          a batch that is written again replaces its own files
    sinks          functions of the user, called again with the same batch until they return
    topics         all in one transaction, where there are transactions (`exactly_once`)
    dead letters   in the same one

and only when it returns does Spark count the batch as done. A failure anywhere makes Spark run the same batch
again, from the offsets it wrote down before. So nothing is lost, and lakes and topics have every row once.
Where there are no transactions, topics have rows twice that were written by a batch which did not come to its
end, but a failure that lasts does not add more of them with each attempt:

- outputs that are written are noted (`deliveries`), and a batch that runs again leaves them out;
- a batch that runs again is computed as a whole before anything is written, so that a record on which the
  stage fails stops it before the other tasks have written their rows.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException, PySparkException, PySparkImportError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.storagelevel import StorageLevel

from ottla.pipeline.connectors import CONNECTORS, Connection
from ottla.pipeline.dead_letters import (
    DeadLetters,
    Input,
    Seen,
    explain_failure,
    explain_unwritable,
    seen_in_batch,
    watched,
)
from ottla.pipeline.declarations import (
    Changelog,
    Lake,
    Output,
    Sink,
    Stage,
    StageError,
    Table,
    Topic,
    nearest,
)
from ottla.pipeline.deliveries import Deliveries
from ottla.pipeline.exactly_once import BatchTransaction, ExactlyOnce, exactly_once
from ottla.pipeline.fingerprint import Fingerprint, shape_of
from ottla.pipeline.refusals import anchor_hint
from ottla.pipeline.tables.changelog import ChangelogTable
from ottla.pipeline.values.encoding import encoded, lake_target, rows_for, topic_columns, value_schema
from ottla.pipeline.values.formats import columns_of, decoded, first_line, reader_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from ottla.pipeline.checkpoints import Checkpoints, StageFolder

__all__ = ["BuiltStage", "RunContext", "build", "shape_of"]

log = logging.getLogger("ottla.pipeline")

_INSTALL = "`pip install 'ottla[stateful]'` brings what functions with state need: pandas and protobuf"
_ORDER = (Lake, Sink, Topic)
"""What is written first. A sink that fails leaves nothing on a topic that would be there twice."""
_STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass(frozen=True)
class RunContext:
    """What all stages of a run have in common. Of `settings` those called `kafka.*` reach every topic."""

    pipeline: str
    bootstrap: str
    checkpoints: Checkpoints
    connector: str = "ottla"
    settings: Mapping[str, str] = field(default_factory=dict)


class BuiltStage:
    """A stage, ready to be started with `frame.writeStream.foreachBatch(write_batch)`."""

    def __init__(
        self,
        stage: Stage,
        frame: DataFrame,
        output_schemas: Sequence[T.StructType],
        connection: Connection,
        folder: StageFolder,
        letters: DeadLetters | None,
        inputs: Sequence[Input],
        deliveries: Deliveries,
        exactly: ExactlyOnce | None,
    ) -> None:
        self.stage = stage
        self.frame = frame
        self.output_schemas = tuple(output_schemas)
        """What is written to each output, in the order of `stage.outputs`."""
        self.fingerprint = Fingerprint(shape_of(stage, frame))
        self.inputs = tuple(inputs)
        self.deliveries = deliveries
        self._connection = connection
        self._folder = folder
        self._letters = letters
        self._exactly = exactly
        # Lakes and topics keep what they have through a crash of the machine, and state cannot be computed
        # again; so what Spark needs to run the same batch again has to be kept too.
        lasting = self.fingerprint.shape["stateful"] or any(isinstance(each, Lake) for each in stage.outputs)
        self._files = folder.spark_files() if lasting or exactly is not None else None
        self._columns: dict[int, list[Column]] = {}

    @property
    def settings(self) -> dict[str, str]:
        """Settings of Spark without which it refuses the stage: transformWithState keeps state in RocksDB."""
        return needed_settings(self.fingerprint.shape["stateful"], self.stage.options)

    @property
    def dead_letter_topic(self) -> str | None:
        """Where bad records go, if they go anywhere."""
        return None if self._letters is None else self._letters.topic

    def writer(
        self, *, once: bool = False, write_batch: Callable[[DataFrame, int], None] | None = None
    ) -> DataStreamWriter:
        """The query, but for its name and checkpoint: what it writes to, its output mode and its trigger.

        `once` ends it when all is read that is there at the start. `write_batch` stands for the stage's own,
        around which a runner may have something to do; in real time there are no batches to call it for.
        """
        if self.stage.real_time and not once:
            (output,) = self.stage.outputs
            assert isinstance(output, Topic) and output.name is not None
            rows = encoded(rows_for(self.frame, output), output, f"stage {self.stage.name}")
            writer = self._connection.writer(rows, output.name, output.options)
            # Rows are final as they come, and Spark calls that update here.
            mode = "update" if self.stage.mode == "append" else self.stage.mode
            return writer.outputMode(mode).trigger(**self.stage.trigger_arguments)
        batches = self.frame.writeStream.foreachBatch(write_batch or self.write_batch)
        batches = batches.outputMode(self.stage.mode)
        if once:
            return batches.trigger(availableNow=True)
        return batches.trigger(**self.stage.trigger_arguments)

    def write_batch(self, frame: DataFrame, batch_id: int) -> None:
        """Write a batch to all outputs, then its dead letters. Called by Spark."""
        spark = frame.sparkSession
        query_id = _query_id(spark) or self._folder.query_id()
        again = self.deliveries.begin(query_id, batch_id)
        if self._files is not None:
            self._files.sync()
        in_order = sorted(
            zip(self.stage.outputs, _labels(self.stage.outputs), range(len(self.stage.outputs)), strict=True),
            key=lambda each: _ORDER.index(type(each[0])),
        )
        transaction = self._transaction(query_id, batch_id)
        missing = [each for each in in_order if not self.deliveries.is_done(each[1])]
        first = next((output for output, *_ in missing if isinstance(output, Topic)), None)
        committed = False
        if transaction is not None and first is not None:
            begun = transaction.begin(first)
            committed = begun.committed
            transaction = transaction if committed or begun.producer is not None else None
        if committed:
            missing = [each for each in missing if not isinstance(each[0], Topic)]
        # A sink may look at some of the rows only, and bad records are counted where all are computed.
        computed = again or committed or (bool(missing) and isinstance(missing[0][0], Sink))
        kept = len(missing) > 1 or (computed and bool(missing))
        shared = frame.persist(StorageLevel.MEMORY_AND_DISK) if kept else frame
        written: list[str] = []
        done = self.deliveries.done if transaction is None else written.append
        counts = _Counts(
            self.frame.sparkSession, query_id, wanted=self._letters is not None and not committed
        )
        try:
            if computed:
                # Also when nothing is missing: state, watermark and counts come from computing the batch.
                shared.write.format("noop").mode("overwrite").save()
                counts.take()
            for output, label, number in missing:
                self._write(shared, number, output, query_id, batch_id, transaction or self._connection)
                counts.take()
                (done if isinstance(output, Topic) else self.deliveries.done)(label)
            if self._letters is not None and not committed:
                self._letters.deliver(
                    spark,
                    batch_id,
                    counts.seen,
                    transaction or self._connection,
                    self.deliveries.is_done,
                    done,
                )
            if transaction is not None:
                transaction.commit()
            for label in written:
                self.deliveries.done(label)
        except Exception as error:
            lost = transaction.abort() if transaction is not None else None
            self.deliveries.failed()
            if lost is not None:
                raise lost from error
            told = explain_failure(error, self.stage, self.inputs) if self.stage.bad == "fail" else None
            told = told or explain_unwritable(error, frame, self.stage)
            if told is not None:
                raise told from None
            raise
        finally:
            if kept:
                shared.unpersist()

    def _transaction(self, query_id: str | None, batch_id: int) -> BatchTransaction | None:
        if self._exactly is None:
            return None
        assert query_id is not None, "Spark writes the query's id before its first batch"
        return self._exactly.of_batch(query_id, batch_id)

    def _write(
        self,
        frame: DataFrame,
        number: int,
        output: Output,
        query_id: str | None,
        batch_id: int,
        writes: Connection | BatchTransaction,
    ) -> None:
        rows = rows_for(frame, output)
        if isinstance(output, Lake):
            assert query_id is not None, "Spark writes the query's id before its first batch"
            target = lake_target(rows, output, f"stage {self.stage.name}")
            self._connection.write_lake(rows, target, query_id, batch_id)
            return
        if isinstance(output, Sink):
            output.function(rows, batch_id)
            return
        assert output.name is not None
        if number not in self._columns:  # made once, for making them costs as much as a small batch
            self._columns[number] = topic_columns(rows, output, f"stage {self.stage.name}")
        options = {**output.options, "includeTimestamp": "true"} if output.timestamp else output.options
        writes.write(rows.select(*self._columns[number]), output.name, options)


@dataclass
class _Counts:
    """What the metrics say of the batch once all of it was computed.

    Later they say only what was computed last: where rows that were kept for the next output are lost, as
    with an executor, that is a part of them.
    """

    session: SparkSession
    query_id: str | None
    wanted: bool
    seen: dict[str, Seen] | None = None

    def take(self) -> None:
        if self.wanted:
            self.seen, self.wanted = seen_in_batch(self.session, self.query_id), False


def build(
    spark: SparkSession,
    stage: Stage,
    context: RunContext,
    deliveries: Deliveries | None = None,
    connection: Connection | None = None,
) -> BuiltStage:
    """The stage as Spark runs it, checked as far as that goes without reading a record.

    `deliveries` is what an earlier start of the stage in this process has written. `connection` is what the
    stage reads from and writes to, if that is not the broker of the context.
    """
    what = f"stage {stage.name}"
    if context.connector not in CONNECTORS:
        raise StageError(
            f"no connector {context.connector!r}{nearest(context.connector, CONNECTORS)}; there are"
            f" {' and '.join(CONNECTORS)}"
        )
    if not hasattr(spark, "_jsparkSession"):
        raise StageError(
            f"{what}: a pipeline writes its batches from the driver's own process and does not run over Spark"
            " Connect (sc://); give another master, such as local[2] or spark://host:7077"
        )
    if stage.real_time and connection is None and context.connector != "kafka":
        raise StageError(
            f'{what}: trigger="real-time" needs Spark\'s own connector: run with --connector kafka'
        )
    timed = [each.title for each in stage.outputs if isinstance(each, Topic) and each.timestamp]
    if timed and context.connector == "kafka":
        raise StageError(f"{what}: timestamp= for {timed[0]}: Spark's own connector cannot set it")
    connection = connection or Connection(context.connector, context.bootstrap, context.settings)
    folder = context.checkpoints.stage(stage.name)
    dead_letter_topic = stage.dead_letter_topic(context.pipeline)
    inputs: list[Input] = []
    frames: list[DataFrame] = []
    letters = None
    if stage.bad == "dead-letter":
        letters = DeadLetters(stage, dead_letter_topic, inputs, connection, folder)
    try:
        for declared in stage.inputs:
            if isinstance(declared, Table):
                frames.append(_table(spark, declared, what))
                continue
            if isinstance(declared, Changelog):
                number = stage.changelogs.index(declared)
                table = ChangelogTable(spark, declared, number, stage, connection, folder, letters)
                frames.append(table.frame())
                continue
            if stage.bad == "dead-letter" and declared.reads(dead_letter_topic):
                raise StageError(
                    f'{what}: reads its own dead letters: {dead_letter_topic}; give dead_letters="..."'
                    f"{anchor_hint(declared)}"
                )
            options = connection.source_options(
                declared,
                stage.group(context.pipeline),
                folder.starting_options(),
                folder.offsets_file(len(inputs)),
                bounded=not stage.real_time,
            )
            read = Input(len(inputs), declared, reader_of(declared), options)
            inputs.append(read)
            raw = connection.stream(spark, options)
            frames.append(columns_of(watched(decoded(raw, read.reader), read, stage), read.reader))
        result = _result(stage, frames, what)
        schemas = [value_schema(result, output, what) for output in stage.outputs]
        _check_mode(spark, stage, result)
        written = deliveries or Deliveries(folder)
        exactly = exactly_once(spark, stage, connection, folder, stage.group(context.pipeline))
        built = BuiltStage(stage, result, schemas, connection, folder, letters, inputs, written, exactly)
        if built.settings and not _is_installed("google.protobuf"):
            # Spark would start a Python process that fails to, and say only that it did not answer.
            raise StageError(f"{what}: transformWithState needs protobuf, which is not installed. {_INSTALL}")
        return built
    except AnalysisException as problem:
        raise StageError(f"{what}: {first_line(problem)}") from problem
    except PySparkImportError as problem:
        raise StageError(f"{what}: {first_line(problem)} {_INSTALL}") from problem


def needed_settings(stateful: Sequence[Mapping[str, Any]], options: Mapping[str, str]) -> dict[str, str]:
    """What operators with state need to be told, unless the stage says it."""
    needed = any(each["operator"].startswith("TransformWithState") for each in stateful)
    return {_STATE_STORE: _ROCKSDB} if needed and _STATE_STORE not in options else {}


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package it is in
        return False


def _labels(outputs: Sequence[Output]) -> list[str]:
    """A name for each output that stays the same when others are added or removed."""
    labels: list[str] = []
    for output in outputs:
        label = output.title if output.where is None else f"{output.title} where {output.where}"
        earlier = sum(each == label or each.startswith(f"{label} #") for each in labels)
        labels.append(f"{label} #{earlier + 1}" if earlier else label)
    return labels


def _result(stage: Stage, frames: Sequence[DataFrame], what: str) -> DataFrame:
    result = stage.function(*frames)
    if result is None:
        raise StageError(f"{what}: the function returned nothing; does it end with return?")
    if not isinstance(result, DataFrame):
        raise StageError(f"{what}: the function returned {type(result).__name__}, not a DataFrame")
    if not result.isStreaming:
        raise StageError(
            f"{what}: the result does not come from {stage.topics[0].title}, it is static; make it of"
            " the frames that the function is given"
        )
    return result


def _table(spark: SparkSession, declared: Table, what: str) -> DataFrame:
    if callable(declared.source):
        frame = declared.source(spark)
        if not isinstance(frame, DataFrame):
            raise StageError(f"{what}: {declared.title} gave {type(frame).__name__}, not a DataFrame")
        if frame.isStreaming:
            raise StageError(f"{what}: {declared.title} streams; a table does not, read it with spark.read")
        return frame
    reader = spark.read.format(declared.format).options(**declared.options)
    if declared.schema is not None:
        reader = reader.schema(declared.schema)
    try:
        return reader.load(_where_we_are(declared.source))
    except PySparkException as problem:
        raise StageError(f"{what}: {declared.title} cannot be read: {first_line(problem)}") from problem


def _where_we_are(path: str) -> str:
    """A file that lies here, by its whole name: the JVM may have been started in another folder."""
    here = Path(path)
    return here.absolute().as_uri() if here.exists() else path


def _check_mode(spark: SparkSession, stage: Stage, frame: DataFrame) -> None:
    """What Spark would say at the start of the query about its output mode, watermarks and joins.

    Asked now so that `ottla pipeline check` can tell it, and with the stage's name.
    """
    jvm = spark._jvm
    assert jvm is not None
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    mode = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[stage.mode]()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), mode)
    except AnalysisException as problem:
        raise StageError(f"stage {stage.name}, mode={stage.mode!r}: {first_line(problem)}") from problem


def _query_id(spark: SparkSession) -> str | None:
    """The id of the query whose batch this thread is in."""
    found: str | None = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    return found
