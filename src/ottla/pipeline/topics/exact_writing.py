"""Writing the rows of a DataFrame into a transaction that the driver began: the jobs, and what tasks do.

A transaction has one producer id and epoch, and per partition one run of sequence numbers from 0. So each
partition of the topic must be written by one task only:

- a frame that is one task is encoded and written by that task;
- of a frame with more tasks, each encodes its rows into record batches, without writing; the batches are
  shuffled so that those of a partition meet in one task, in the order of their tasks, and that one writes.

No task may write twice. A broker would take the second attempt for a repeat of the first where the sequence
numbers are the same, though after a shuffle its records may not be. So a task that Spark starts again refuses
to write (also a speculative copy), which fails the batch; and since a task cannot see that its whole stage
was started again, the driver looks at the stages of the job when it is done. What such attempts have written
is aborted with the transaction.

Of a task that fails several times Spark tells only the last reason, which must not be that refusal. So a task
that cannot write ends well, with the reason as its report; and one that is started again fails first on what
its rows fail on.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from ottla.pipeline.topics.arrow_encoding import BadRow, EncodedRecords
from ottla.pipeline.topics.destinations import NoSuchTopic, WriteRefused, find_topic
from ottla.pipeline.topics.links import Link, Producership, borrowed
from ottla.pipeline.topics.options import SinkOptions
from ottla.pipeline.topics.row_batches import RowBatch, RowBatcher
from ottla.pipeline.topics.writing import TransactionLost, Writer
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ApiError
from ottla.protocol_client.transaction_steps import TransactionalProducer
from ottla.protocol_client.wire import BrokerUnreachable, UnsupportedByBroker

_STAGE_PATIENCE = 60.0
"""Seconds. What Spark knows of its stages is behind by many of them on a busy machine."""
_CANNOT_WRITE = (
    ApiError,
    BadRow,
    BrokerUnreachable,
    NoSuchTopic,
    TransactionLost,
    UnsupportedByBroker,
    WriteRefused,
)
_REPORT = "report string"
_ENCODED = (
    "slot int, partition int, task int, number int, body binary, records int, codec int,"
    " first_time bigint, last_time bigint"
)
_BATCHES = pa.schema(
    [
        ("slot", pa.int32()),
        ("partition", pa.int32()),
        ("task", pa.int32()),
        ("number", pa.int32()),
        ("body", pa.binary()),
        ("records", pa.int32()),
        ("codec", pa.int32()),
        ("first_time", pa.int64()),
        ("last_time", pa.int64()),
    ]
)


class RepeatedTask(Exception):
    """A task was started again, which must not write: its batch is run again as a whole."""


class WriteFailed(Exception):
    """Tasks could not write. The text has their traces, as that of an exception of Spark would."""


@dataclass
class TransactionWrites:
    """What a transaction has written so far; given to each job, so that it can go on from there."""

    producer: TransactionalProducer
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)
    """The next sequence number of each partition."""
    records: int = 0


def write_in_transaction(rows: DataFrame, options: SinkOptions, writes: TransactionWrites) -> None:
    """Write rows to `options.topic`; all are acknowledged when this returns, and counted in `writes`."""
    assert options.topic is not None
    tasks: int = rows._jdf.queryExecution().toRdd().getNumPartitions()
    job = _Job(options, writes.producer, _sequences_of(writes.sequences, options.topic))
    if tasks <= 1:
        reporting = _mapped(rows.coalesce(1), partial(_write_rows, job), _REPORT)
    else:
        with _link(options) as link:
            partitions = find_topic(link, options.topic, options.delivery_timeout).partition_count
        slots = max(min(tasks, partitions), 1)
        encoded = _mapped(rows, partial(_encode_rows, options, slots), _ENCODED)
        owned = encoded.repartitionById(slots, "slot").sortWithinPartitions("partition", "task", "number")
        reporting = _mapped(owned.drop("slot", "task", "number"), partial(_write_batches, job), _REPORT)
    reports = [json.loads(row.report) for row in reporting.collect()]
    failed = [report["failed"] for report in reports if "failed" in report]
    if failed:
        raise WriteFailed("\n".join(["a task could not write:", *failed]))
    _check_stages(rows.sparkSession, {report["stage"] for report in reports})
    taken = merged(report["sequences"] for report in reports)
    writes.sequences.update({(options.topic, number): next_one for number, next_one in taken.items()})
    writes.records += sum(report["records"] for report in reports)


def _mapped(frame: DataFrame, function: Callable[..., Any], schema: str) -> DataFrame:
    """`frame.mapInArrow`, which wants pandas to be installed and does without it."""
    udf = UserDefinedFunction(
        function, schema, "write", PythonEvalType.SQL_MAP_ARROW_ITER_UDF, deterministic=False
    )
    column: Any = udf(*(frame[name] for name in frame.columns))
    return DataFrame(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)


def merged(sequences: Iterable[Mapping[str, int]]) -> dict[int, int]:
    """The next sequence numbers by partition, as the tasks report them; no partition may have two tasks."""
    found: dict[int, int] = {}
    for of_task in sequences:
        for number, next_one in of_task.items():
            if int(number) in found:
                raise RepeatedTask(f"two tasks have written to partition {number}; the batch is run again")
            found[int(number)] = next_one
    return found


def _sequences_of(sequences: Mapping[tuple[str, int], int], topic: str) -> dict[tuple[str, int], int]:
    return {place: number for place, number in sequences.items() if place[0] == topic}


def _check_stages(spark: SparkSession, stages: set[int]) -> None:
    """Spark may start a stage again whose input was lost, beside tasks of the first attempt that still run.

    What Spark knows of a stage is a moment behind the job.
    """
    tracker = spark.sparkContext.statusTracker()
    until = time.monotonic() + _STAGE_PATIENCE
    for stage in stages:
        while (info := tracker.getStageInfo(stage)) is None or info.numCompletedTasks < info.numTasks:
            if time.monotonic() > until:
                raise RepeatedTask(f"Spark does not say how stage {stage} ended; the batch is run again")
            time.sleep(0.005)
        if info.currentAttemptId:
            raise RepeatedTask(f"Spark has started stage {stage} again; the batch is run again as a whole")


# In tasks


@dataclass(frozen=True)
class _Job:
    options: SinkOptions
    producer: TransactionalProducer
    sequences: dict[tuple[str, int], int]


def _link(options: SinkOptions) -> Any:
    return borrowed(options.bootstrap, options.client_id, options.connect_timeout, options.request_timeout)


def _write_rows(job: _Job, batches: Iterable[Any]) -> Iterator[Any]:
    """Encode the rows and write them, in the only task of the job."""
    yield _write(job, batches, Writer.write)


def _encode_rows(options: SinkOptions, slots: int, batches: Iterable[Any]) -> Iterator[Any]:
    """Record batches of the rows of one task. Nothing is written, so this may be done again."""
    context = TaskContext.get()
    assert context is not None
    number = 0
    with _link(options) as link:
        batcher = RowBatcher(
            options.topic,
            lambda topic: find_topic(link, topic, options.delivery_timeout),
            min(options.batch_bytes, options.max_request_bytes),
            options.include_timestamp,
        )
        for batch in batches:
            for rows, encoded, _ in batcher.batches(batch, Codec[options.compression.upper()]):
                count = len(rows)
                partitions = [each.partition for each in rows]
                columns = [
                    [partition % slots for partition in partitions],
                    partitions,
                    [context.partitionId()] * count,
                    list(range(number, number + count)),
                    [each.body for each in encoded],
                    [each.record_count for each in encoded],
                    [each.codec for each in encoded],
                    [each.timestamp for each in encoded],
                    [each.last_timestamp for each in encoded],
                ]
                number += count
                yield pa.RecordBatch.from_arrays(
                    [pa.array(c, each.type) for c, each in zip(columns, _BATCHES, strict=True)],
                    schema=_BATCHES,
                )


def _write_batches(job: _Job, batches: Iterable[Any]) -> Iterator[Any]:
    """Write record batches of the partitions that this task owns; they come in their order."""
    topic = job.options.topic
    assert topic is not None

    def send(writer: Writer, batch: Any) -> None:
        rows, encoded = _encoded_in(batch, topic)
        order, starts = in_waves([each.partition for each in rows])
        writer.write_encoded([rows[n] for n in order], [encoded[n] for n in order], starts)

    yield _write(job, batches, send)


def _write(job: _Job, batches: Iterable[Any], send: Callable[[Writer, Any], None]) -> Any:
    """What this task has written, or why it could not."""
    stage = _first_attempt(batches)
    try:
        with _link(job.options) as link:
            writer, producership = _writer(job, link)
            for batch in batches:
                send(writer, batch)
            writer.finish()
    except _CANNOT_WRITE:
        return _reported({"stage": stage, "failed": traceback.format_exc().rstrip()})
    return _report(stage, writer, producership)


def _encoded_in(batch: Any, topic: str) -> tuple[list[RowBatch], list[EncodedRecords]]:
    rows = [RowBatch(topic, number, None, None, None) for number in batch["partition"].to_pylist()]
    encoded = [
        EncodedRecords(memoryview(body.as_buffer()), *rest)
        for body, *rest in zip(
            batch["body"],
            *(batch[name].to_pylist() for name in ("records", "codec", "first_time", "last_time")),
            strict=True,
        )
    ]
    return rows, encoded


def in_waves(partitions: list[int]) -> tuple[list[int], list[int]]:
    """An order in which batches go out, with at most one for each partition in a wave, and where waves begin.

    Batches of one partition keep their order.
    """
    seen: dict[int, int] = {}
    waves: list[int] = []
    for partition in partitions:
        waves.append(seen.get(partition, 0))
        seen[partition] = waves[-1] + 1
    order = sorted(range(len(waves)), key=waves.__getitem__)
    return order, [i for i, n in enumerate(order) if not i or waves[n] != waves[order[i - 1]]]


def _first_attempt(batches: Iterable[Any]) -> int:
    """The stage of this task, if the task is started for the first time."""
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber():
        for _ in batches:
            pass  # the first attempt may have failed on a row; then this one does, too
        raise RepeatedTask("a task that writes was started again; the batch is run again as a whole")
    return context.stageId()


def _writer(job: _Job, link: Link) -> tuple[Writer, Producership]:
    producer = job.producer
    producership = Producership(
        producer.producer_id, producer.epoch, producer.transactional_id, dict(job.sequences)
    )
    return Writer(link, job.options, producership), producership


def _report(stage: int, writer: Writer, producership: Producership) -> Any:
    return _reported(
        {
            "stage": stage,
            "records": writer.summary.records,
            "sequences": {place[1]: producership.sequences[place] for place in writer.joined},
        }
    )


def _reported(report: Mapping[str, Any]) -> Any:
    return pa.RecordBatch.from_pydict({"report": [json.dumps(report)]})
