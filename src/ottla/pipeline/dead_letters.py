"""Bad records: counted while a batch is read, and in the dead-letter topic before the batch counts.

Each input carries a metric that Spark collects on the side while it computes a batch: how many records, how
many bad, and the first few bad ones as they are. A clean batch costs nothing more. The metric is read when
all of the batch was computed once. When its outputs are written, and before Spark commits it, a few small bad
records are at hand, and are written to the dead-letter topic at once; if there were many or large ones, the
batch's range of offsets is read again, this time for the bad ones alone.

So dead letters are never lost: a crash before the commit makes Spark run the whole batch again, dead letters
with it. They are in the transaction of the batch where there is one, and there once. When a metric is missing
or has seen nothing (an output that skipped a batch it knew, a join that needed no rows), it proves nothing,
and the range is read again too.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ottla.pipeline.declarations import SOURCE_COLUMN, Stage, StageError, Topic
from ottla.pipeline.values.formats import BAD, Reader, decoded, explained

if TYPE_CHECKING:
    from ottla.pipeline.checkpoints import StageFolder
    from ottla.pipeline.connectors import Connection
    from ottla.pipeline.exactly_once import BatchTransaction

log = logging.getLogger("ottla.pipeline")

KEPT = 250
"""Bad records of a batch and input that travel with the metric; more of them are read again."""
LARGEST = 2048
"""Bytes of a bad record that travels with the metric; with `KEPT` it bounds what the driver holds."""

_FAILED = "ottla-bad-record"
_FAILURE = re.compile(_FAILED + r" (\S+) (\d+) (\d+) (null|large|=[A-Za-z0-9+/=\s]*)\.")
UNWRITABLE = re.compile(
    r"cannot be written as Avro: field (?P<field>\S+) is null, which its schema does not allow"
)
# Text, because every part of a column that is put together in Python is a call to the JVM.
_SIZE = (
    f"(coalesce(length({SOURCE_COLUMN}.key), 0) + coalesce(length(value), 0) + coalesce(aggregate("
    f"{SOURCE_COLUMN}.headers, 0, (total, each) -> total + 16 + coalesce(length(each.value), 0)), 0))"
)
"""Bytes of a record, asked only of bad ones."""
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_LETTER = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", pa.list_(_HEADER))])


@dataclass(frozen=True)
class Input:
    """One topic input of a stage, as it is read."""

    number: int
    source: Topic
    reader: Reader
    options: Mapping[str, str]

    @property
    def metric(self) -> str:
        return f"ottla.input.{self.number}"


@dataclass(frozen=True)
class Seen:
    """What the metric of one input says about a batch."""

    rows: int
    bad: int
    large: int
    first: list[dict[str, Any]]


def watched(frame: DataFrame, read: Input, stage: Stage) -> DataFrame:
    """The good records of an input. What becomes of the bad ones is what the stage declared."""
    if stage.bad == "fail":
        failure = F.raise_error(
            F.concat_ws(
                " ",
                F.lit(_FAILED),
                F.col(SOURCE_COLUMN).getField("topic"),
                F.col(SOURCE_COLUMN).getField("partition").cast("string"),
                F.col(SOURCE_COLUMN).getField("offset").cast("string"),
                F.when(F.col("value").isNull(), "null.")
                .when(F.length("value") > LARGEST, "large.")
                .otherwise(F.concat(F.lit("="), F.base64("value"), F.lit("."))),
            )
        )
        return frame.where(F.when(F.col(BAD), failure.cast("boolean")).otherwise(F.lit(True)))
    if stage.real_time:
        return frame.where(~F.col(BAD))  # there is no batch whose count could be told
    counts = ["count(1) AS rows", f"count_if({BAD}) AS bad"]
    if stage.bad == "dead-letter":
        small = f"CASE WHEN {BAD} AND {_SIZE} <= {LARGEST} THEN {SOURCE_COLUMN}.offset END"
        counts += [
            f"count_if({BAD} AND {_SIZE} > {LARGEST}) AS large",
            f"min_by(struct({SOURCE_COLUMN} AS source, value), {small}, {KEPT}) AS first",
        ]
    return frame.observe(read.metric, *map(F.expr, counts)).where(~F.col(BAD))


def explain_failure(error: BaseException, stage: Stage, inputs: Sequence[Input]) -> StageError | None:
    """The words for a batch that failed on a bad record because the stage asked for that."""
    found = _FAILURE.search(str(error))
    if found is None:
        return None
    topic, partition, offset, value = found.groups()
    read = next((each for each in inputs if each.source.reads(topic)), None)
    if read is None or value == "large":
        reason = f"it cannot be read; `ottla consume {topic} -p {partition} -o {offset} -n 1` shows it"
    else:
        reason = read.reader.explain(None if value == "null" else base64.b64decode(value[1:]))
    return StageError(
        f"stage {stage.name}: bad record in {topic}, partition {partition}, offset {offset}: {reason}"
        ' (the stage says bad="fail")'
    )


def explain_unwritable(error: BaseException, frame: DataFrame, stage: Stage) -> StageError | None:
    """For a row that has no value where the schema it is written with needs one: which record it came from.

    Found by looking through the batch once more, if the rows still say where they come from.
    """
    found = UNWRITABLE.search(str(error))
    if found is None:
        return None
    text = f"stage {stage.name}: a row {found[0]}"
    field = next((name for name in frame.columns if name.lower() == found["field"].lower()), None)
    if SOURCE_COLUMN in frame.columns and field is not None:
        rows = frame.where(F.col(f"`{field}`").isNull())
        empty = reduce(and_, (F.col(f"`{name}`").isNull() for name in frame.columns if name != SOURCE_COLUMN))
        row = rows.select(F.col(SOURCE_COLUMN).alias("source"), empty.alias("empty")).first()
        if row is not None:
            at = row.source
            text += f"; it comes from {at.topic}, partition {at.partition}, offset {at.offset}"
            if row.empty:
                text += ", a record without a value (a deletion in a compacted topic)"
    return StageError(f'{text}. Leave such rows out in the function: .where("{found["field"]} is not null")')


def seen_in_batch(spark: SparkSession, query_id: str | None) -> dict[str, Seen] | None:
    """What the metrics say about the batch that the query is in; None when they cannot be had.

    Spark hands them out after the batch only, when it is too late for us, so they are taken from its engine.
    """
    from py4j.protocol import Py4JError

    try:
        query = None if query_id is None else spark.streams.get(query_id)
        if query is None:
            return None
        observed = query._jsq.streamingQuery().lastExecution().observedMetrics()
        names = [name for name in _keys(observed) if name.startswith("ottla.input.")]
        return {name: _seen(json.loads(observed.apply(name).json())) for name in names}
    except (Py4JError, AttributeError) as problem:
        log.warning("the counts of bad records cannot be read, so batches are read twice: %s", problem)
        return None


class DeadLetters:
    """Writes the bad records of one stage."""

    def __init__(
        self, stage: Stage, topic: str, inputs: Sequence[Input], connection: Connection, folder: StageFolder
    ) -> None:
        self.topic = topic
        self._stage = stage
        self._inputs = inputs
        self._connection = connection
        self._folder = folder

    def deliver(
        self,
        spark: SparkSession,
        batch_id: int,
        seen: Mapping[str, Seen] | None,
        writes: Connection | BatchTransaction,
        is_done: Callable[[str], bool],
        done: Callable[[str], None],
    ) -> None:
        """Write the dead letters of a batch whose outputs are written; all are acknowledged at the return."""
        for read in self._inputs:
            label = f"dead letters of input {read.number}"
            if not is_done(label):
                self._deliver(spark, read, batch_id, None if seen is None else seen.get(read.metric), writes)
                done(label)

    def _deliver(
        self,
        spark: SparkSession,
        read: Input,
        batch_id: int,
        found: Seen | None,
        writes: Connection | BatchTransaction,
    ) -> None:
        if found is not None and found.rows and not found.bad:
            return
        if found is not None and found.bad and len(found.first) == found.bad:
            # A few: one task writes them, in the order of their offsets.
            letters = spark.createDataFrame(self._letters(read, found.first)).coalesce(1)
            writes.write_letters(letters, self.topic)
            return
        raw = self._connection.read_batch(spark, read.source, read.options, self._folder, batch_id)
        if raw is not None:
            writes.write_letters(self._bad_among(raw, read), self.topic)

    def write_bad(self, bad: DataFrame, reason: Column) -> None:
        """Write these bad records (`_source` and value), each with its reason. At least once."""
        self._connection.write_letters(self._with_headers(bad, reason), self.topic)

    def _letters(self, read: Input, first: list[dict[str, Any]]) -> pa.Table:
        rows = []
        for letter in first:
            source, value = letter["source"], _bytes(letter.get("value"))
            own = [(each["key"], _bytes(each.get("value"))) for each in source.get("headers") or ()]
            told = {
                "reason": read.reader.explain(value),
                "stage": self._stage.name,
                "topic": source["topic"],
                "partition": str(source["partition"]),
                "offset": str(source["offset"]),
            }
            headers = [*own, *((f"ottla.{name}", text.encode()) for name, text in told.items())]
            pairs = [{"key": name, "value": content} for name, content in headers]
            rows.append({"key": _bytes(source.get("key")), "value": value, "headers": pairs})
        return pa.Table.from_pylist(rows, schema=_LETTER)

    def _bad_among(self, raw: DataFrame, read: Input) -> DataFrame:
        bad = decoded(raw, read.reader).where(F.col(BAD))
        return self._with_headers(bad, explained(F.col("value"), read.reader))

    def _with_headers(self, bad: DataFrame, reason: Column) -> DataFrame:
        source = F.col(SOURCE_COLUMN)
        told = {
            "reason": reason,
            "stage": F.lit(self._stage.name),
            "topic": source.getField("topic"),
            "partition": source.getField("partition").cast("string"),
            "offset": source.getField("offset").cast("string"),
        }
        ours = F.array(*(_header(f"ottla.{name}", text) for name, text in told.items()))
        own = F.coalesce(source.getField("headers"), F.array().cast("array<struct<key:string,value:binary>>"))
        return bad.select(source.getField("key").alias("key"), "value", F.concat(own, ours).alias("headers"))


def _header(name: str, text: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), text.cast("binary").alias("value"))


def _seen(metric: Mapping[str, Any]) -> Seen:
    return Seen(
        rows=metric.get("rows") or 0,
        bad=metric.get("bad") or 0,
        large=metric.get("large") or 0,
        first=metric.get("first") or [],
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _keys(scala_map: Any) -> list[str]:
    names, keys = [], scala_map.keysIterator()
    while keys.hasNext():
        names.append(keys.next())
    return names
