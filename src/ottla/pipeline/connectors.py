"""How stages reach topics and lakes: what a built stage reads from and writes to.

Topics are read through `format("ottla")` or, where its jars are there, Spark's JVM connector. Both take the
same options, so this is one small class; what differs is how a stage's progress is shown. Ours commits it to
the stage's consumer group. Spark's connector must not be given a group of that kind (its readers would take
partitions from each other) and gets the name as a prefix. The test driver (`testing`) has a connection of
its own, to topics and lakes in memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ottla.pipeline.declarations import Lake, Topic
from ottla.pipeline.topics.cutting import CUT

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from ottla.pipeline.checkpoints import StageFolder
    from ottla.pipeline.tables.versions import Span

CONNECTORS = ("ottla", "kafka")

MOST_OFFSETS = 1_000_000
"""Offsets of an input in one batch, unless the declaration gives a limit. The first batch of a stage would
otherwise be its whole topic: hours without a commit, and all of it again after a failure."""
_LIMITS = ("maxoffsetspertrigger", "maxbytespertrigger", "minoffsetspertrigger")

CUT_LETTERS = {"oversized": "cut"}
"""Options to write dead letters: those that are larger than the topic takes are cut."""

Offsets = dict[tuple[str, int], int]
_EARLIEST = -2

_KAFKA_REQUEST_SIZE = 1 << 20
"""What Kafka's producer sends at most in one request unless told otherwise."""
_AROUND_A_RECORD = 256
"""Bytes of a batch's header, a record's lengths and the header that says that the value was cut."""

_ONLY_FOR_STREAMS = {
    "subscribe",
    "subscribepattern",
    "assign",
    "maxoffsetspertrigger",
    "minoffsetspertrigger",
    "maxbytespertrigger",
    "maxtriggerdelay",
    "commitoffsets",
    "offsetsfile",
    "kafka.group.id",
    "groupidprefix",
    "failondataloss",
}


@dataclass(frozen=True)
class Connection:
    """A broker, a connector and the `kafka.*` settings of a run."""

    connector: str
    bootstrap: str
    settings: Mapping[str, str] = field(default_factory=dict)

    in_memory: ClassVar[bool] = False
    """Whether there is no broker, and nothing that could be there twice."""

    def source_options(
        self, source: Topic, group: str, start: Mapping[str, str], offsets_file: str, *, bounded: bool = True
    ) -> dict[str, str]:
        """Options to read an input. `start`: where a stage that was reset begins, whatever is declared.

        `bounded` batches have a limit also where the declaration gives none.
        """
        found = {**self._always(), **self._settings()}
        if source.name is not None:
            found["subscribe"] = source.name
        else:
            assert source.pattern is not None
            found["subscribePattern"] = source.pattern
        if self.connector == "ottla":
            found |= {"kafka.group.id": group, "offsetsFile": offsets_file}
        else:  # Spark's connector writes its start into the checkpoint by itself
            found["groupIdPrefix"] = group
        found.update(source.options)
        if start:
            found = {name: value for name, value in found.items() if not _says_start(name)} | dict(start)
        elif not any(_says_start(name) for name in found):
            # A stage reads its topic from the beginning unless told otherwise: what it writes then holds all.
            found["startingOffsets"] = "earliest"
        if bounded and not any(name.lower() in _LIMITS for name in found):
            found["maxOffsetsPerTrigger"] = str(MOST_OFFSETS)
        return found

    def table_options(self, source: Topic) -> dict[str, str]:
        """Options to read parts of a topic that is a table."""
        return {**self._always(), **self._settings(), **source.options}

    def table_span(self, source: Topic) -> Span:
        """What a topic that is a table holds now."""
        from ottla.pipeline.tables.versions import Span
        from ottla.pipeline.topics.brokers import Brokers
        from ottla.pipeline.topics.offsets import find_all
        from ottla.pipeline.topics.options import SourceOptions

        assert source.name is not None
        given = {name: value for name, value in self.table_options(source).items() if not _says_start(name)}
        brokers = Brokers(SourceOptions.parse({**given, "subscribe": source.name}))
        try:
            spans = brokers.spans(find_all(brokers).places)
            topic_ids = {topic_id for _, topic_id in brokers.leaders.values()}
        finally:
            brokers.close()
        return Span(
            ",".join(sorted(each.hex() for each in topic_ids)),
            {partition: span.start for (_, partition), span in spans.items()},
            {partition: span.end for (_, partition), span in spans.items()},
        )

    def stream(self, spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
        """The records of a topic as they come."""
        return spark.readStream.format(self.connector).options(**options).load()

    def read_batch(
        self,
        spark: SparkSession,
        source: Topic,
        options: Mapping[str, str],
        folder: StageFolder,
        batch_id: int,
    ) -> DataFrame | None:
        """The records of one input that are in the current batch, read once more; None for none."""
        start, end = batch_range(source, folder, batch_id)
        return self.read_range(spark, options, start, end) if end else None

    def read_range(
        self, spark: SparkSession, options: Mapping[str, str], start: Offsets, end: Offsets
    ) -> DataFrame:
        """The records between two positions, read with the options of a stream.

        They were read a moment ago. Should some be gone by now, then the others still count.
        """
        kept = {
            name: value
            for name, value in options.items()
            if name.lower() not in _ONLY_FOR_STREAMS and not _says_start(name)
        }
        partitions: dict[str, list[int]] = {}
        for topic, partition in end:
            partitions.setdefault(topic, []).append(partition)
        kept["assign"] = json.dumps(partitions)
        kept["startingOffsets"] = _offsets_json(start)
        kept["endingOffsets"] = _offsets_json(end)
        kept["failOnDataLoss"] = "false"
        return spark.read.format(self.connector).options(**kept).load()

    def writer(self, rows: DataFrame, topic: str, options: Mapping[str, str]) -> DataStreamWriter:
        """Write a stream of rows to a topic without a function for its batches."""
        given = self.sink_options(topic, options)
        return rows.writeStream.format(self.connector).options(**given)

    def write(self, rows: DataFrame, topic: str, options: Mapping[str, str]) -> None:
        """Write rows to a topic; all are acknowledged when this returns."""
        given = self.sink_options(topic, options)
        rows.write.format(self.connector).options(**given).mode("append").save()

    def sink_options(self, topic: str, options: Mapping[str, str]) -> dict[str, str]:
        """Options to write to a topic."""
        return {"kafka.bootstrap.servers": self.bootstrap, **self._settings(), **options, "topic": topic}

    def write_lake(self, rows: DataFrame, target: Lake, query_id: str, batch_id: int) -> None:
        """Write the rows of a batch to a lake, in place of what an earlier run of the batch wrote."""
        from ottla.pipeline.lakes.batches import write_lake

        write_lake(rows, target, query_id=query_id, batch_id=batch_id)

    def write_letters(self, letters: DataFrame, topic: str) -> None:
        """Write dead letters, cut where they are larger than the topic takes.

        Our own sink finds that out from the broker. Spark's connector fails on the record, so for it they are
        cut beforehand to what its producer sends.
        """
        if self.connector == "ottla":
            self.write(letters, topic, CUT_LETTERS)
            return
        limit = int(self._settings().get("kafka.max.request.size", _KAFKA_REQUEST_SIZE))
        self.write(cut_to(letters, limit), topic, {})

    def _always(self) -> dict[str, str]:
        """Options to read topics. Stages write in transactions, so their readers skip what was aborted."""
        always = {"kafka.bootstrap.servers": self.bootstrap, "includeHeaders": "true"}
        # Our own source does so by itself.
        return always if self.connector == "ottla" else {**always, "kafka.isolation.level": "read_committed"}

    def _settings(self) -> dict[str, str]:
        return {name: value for name, value in self.settings.items() if name.startswith("kafka.")}


def batch_range(source: Topic, folder: StageFolder, batch_id: int) -> tuple[Offsets, Offsets]:
    """The offsets of an input's partitions where the batch starts and ends, empty partitions left out.

    Spark numbers its sources by their place in the plan, so an input's are known by their topics.
    """
    before = folder.offsets_of(batch_id - 1) if batch_id else folder.started_at()
    starts = _of_input(before, source, min)
    ends = _of_input(folder.offsets_of(batch_id), source, max)
    # A partition that the batch is the first to read is read from its beginning.
    some = {place: end for place, end in ends.items() if starts.get(place, _EARLIEST) < end}
    return {place: starts.get(place, _EARLIEST) for place in some}, some


def _of_input(offsets: Mapping[str, Any] | None, source: Topic, choose: Any) -> Offsets:
    found: Offsets = {}
    for of_source in (offsets or {}).values():
        for topic, partitions in (of_source or {}).items():
            if source.reads(topic):
                for partition, offset in partitions.items():
                    place = (topic, int(partition))
                    found[place] = choose(found.get(place, offset), offset)
    return found


def cut_to(letters: DataFrame, limit: int) -> DataFrame:
    """Letters (key, value, headers) with values cut so that their records have at most `limit` bytes."""
    of_headers = F.aggregate(
        "headers",
        F.lit(0),
        lambda total, each: (
            total
            + F.lit(10)
            + F.length(each.getField("key").cast("binary"))
            + F.coalesce(F.length(each.getField("value")), F.lit(0))
        ),
    )
    had = F.coalesce(F.length("value"), F.lit(0))
    space = F.lit(limit - _AROUND_A_RECORD) - F.coalesce(F.length("key"), F.lit(0)) - of_headers
    kept = F.greatest(F.lit(0), F.least(had, space))
    told = F.concat_ws(" ", F.lit("value cut to"), kept, F.lit("of"), had, F.lit("bytes"))
    mark = F.array(F.struct(F.lit(CUT).alias("key"), told.cast("binary").alias("value")))
    cut = F.substring(F.col("value"), F.lit(1), kept)
    return letters.select(
        "key",
        F.when(kept < had, cut).otherwise(F.col("value")).alias("value"),
        F.when(kept < had, F.concat("headers", mark)).otherwise(F.col("headers")).alias("headers"),
    )


def _says_start(option: str) -> bool:
    return option.lower().startswith("starting")


def _offsets_json(offsets: Offsets) -> str:
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        found.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(found)
