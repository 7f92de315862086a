"""`spark.readStream.format("ottla")` on a real Spark and a real broker: checkpoints, triggers, topics that
change, brokers that restart, and the lag that every tool sees."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

import ottla.testing
from ottla.protocol_client.admin import grow_topic
from ottla.protocol_client.group_offsets import commit_offsets
from ottla.protocol_client.lag import lags, total_records
from ottla.protocol_client.wire import Wire
from source_topics import committed, delete_before, wait_until, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from ottla.testing.in_process import InProcessBroker

pytestmark = pytest.mark.timeout(300)


class Streams:
    """Starts streams that collect the values they see, batch by batch."""

    def __init__(self, spark: SparkSession, bootstrap: str, checkpoints: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.checkpoints = checkpoints
        self.batches: list[list[str]] = []
        self.queries: list[StreamingQuery] = []

    @property
    def values(self) -> list[str]:
        return [value for batch in self.batches for value in batch]

    def frame(self, **options: str) -> DataFrame:
        reader = self.spark.readStream.format("ottla").option("kafka.bootstrap.servers", self.bootstrap)
        return reader.options(**{name.replace("_", "."): text for name, text in options.items()}).load()

    def start(
        self,
        name: str = "stream",
        frame: DataFrame | None = None,
        trigger: dict[str, Any] | None = None,
        **options: str,
    ) -> StreamingQuery:
        rows = self.frame(**options) if frame is None else frame

        def take(batch: DataFrame, number: int) -> None:
            self.batches.append(sorted(row.value.decode() for row in batch.collect()))

        writer = rows.writeStream.option("checkpointLocation", str(self.checkpoints / name)).foreachBatch(
            take
        )
        query = (writer.trigger(**trigger) if trigger else writer).start()
        self.queries.append(query)
        return query

    def run(self, name: str = "stream", **options: str) -> list[list[str]]:
        """All that is there now; the batches that it came in, without empty ones."""
        already = len(self.batches)
        self.start(name, None, {"availableNow": True}, **options).awaitTermination(60)
        return [batch for batch in self.batches[already:] if batch]

    def expect(self, *values: str) -> None:
        wait_until(lambda: set(values) <= set(self.values), f"the stream sees {values}")


@pytest.fixture
def streams(spark: SparkSession, broker: InProcessBroker, tmp_path: Path) -> Iterator[Streams]:
    made = Streams(spark, broker.bootstrap_servers, tmp_path)
    yield made
    for query in made.queries:
        query.stop()


@pytest.fixture
def topic(broker: InProcessBroker) -> str:
    name = f"stream-{uuid4().hex[:8]}"
    broker.create_topic(name, 1)
    return name


def last_offsets(checkpoint: Path) -> Any:
    newest = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return json.loads(newest.read_text().splitlines()[-1])


def test_runs_go_on_where_the_last_one_ended(streams: Streams, topic: str, tmp_path: Path) -> None:
    write(streams.bootstrap, topic, "abcde")
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "2"}
    assert streams.run(**options) == [["a", "b"], ["c", "d"], ["e"]]
    assert last_offsets(tmp_path / "stream") == {topic: {"0": 5}}, "the form of Spark's own source"
    assert committed(streams.bootstrap, f"ottla-spark.{topic}") == {(topic, 0): 5}
    write(streams.bootstrap, topic, "fg")
    assert streams.run(**options) == [["f", "g"]]
    assert streams.run(**options) == []


def test_a_checkpoint_of_sparks_kafka_source_is_taken_over(
    streams: Streams, topic: str, tmp_path: Path
) -> None:
    write(streams.bootstrap, topic, "abc")
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    assert streams.run(**options) == [["a", "b", "c"]]
    log = max((tmp_path / "stream" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    lines = log.read_text().splitlines()
    log.write_text("\n".join([*lines[:-1], f'{{"{topic}":{{"0":2}}}}']))
    log.with_name(f".{log.name}.crc").unlink(missing_ok=True)
    write(streams.bootstrap, topic, "d")
    assert streams.run(**options) == [["c", "d"]]


def test_a_stream_begins_with_what_comes_after_its_start_and_its_lag_shows(
    streams: Streams, topic: str
) -> None:
    group = f"{topic}-shown"
    write(streams.bootstrap, topic, ["before"])
    query = streams.start(subscribe=topic, kafka_group_id=group)
    wait_until(lambda: query.lastProgress or query.recentProgress, "the first batch is done")
    write(streams.bootstrap, topic, ["after"])
    streams.expect("after")
    assert streams.values == ["after"]

    def lag() -> int | None:
        with Wire(streams.bootstrap) as wire:
            return total_records(lags(wire, dict(committed(streams.bootstrap, group))))

    wait_until(lambda: lag() == 0, "the idle stream shows no lag")
    began = time.monotonic()
    query.stop()
    assert time.monotonic() - began < 5, "a stream that waits for records can be stopped"
    write(streams.bootstrap, topic, "xy")
    assert lag() == 2


def test_new_partitions_and_new_topics_are_read_while_the_stream_runs(
    streams: Streams, broker: InProcessBroker, topic: str
) -> None:
    query = streams.start(subscribePattern=f"^{topic}", kafka_metadata_max_age_ms="100")
    wait_until(lambda: query.recentProgress, "the first batch is done")
    with Wire(streams.bootstrap) as wire:
        grow_topic(wire, topic, 2)
    write(streams.bootstrap, topic, ["new partition"], partition=1)
    broker.create_topic(f"{topic}-more")
    write(streams.bootstrap, f"{topic}-more", ["new topic"])
    streams.expect("new partition", "new topic")


def test_records_deleted_meanwhile_end_the_query_with_what_to_do_or_are_skipped(
    streams: Streams, topic: str
) -> None:
    write(streams.bootstrap, topic, "ab")
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    assert streams.run(**options) == [["a", "b"]]
    write(streams.bootstrap, topic, "cdef")
    delete_before(streams.bootstrap, topic, 4)
    with pytest.raises(
        Exception, match=f"partition 0 of topic '{topic}': offsets 2 to 3 were deleted"
    ) as failure:
        streams.run(**options)
    assert "set failOnDataLoss to false" in str(failure.value)
    assert streams.run(**options, failOnDataLoss="false") == [["e", "f"]]


def test_a_broker_that_restarts_does_not_end_the_query(spark: SparkSession, tmp_path: Path) -> None:
    with ottla.testing.broker(topics=["t"]) as broker:
        streams = Streams(spark, broker.bootstrap_servers, tmp_path)
        query = streams.start(subscribe="t", startingOffsets="earliest")
        write(broker.bootstrap_servers, "t", ["before"])
        streams.expect("before")
        broker.restart()
        write(broker.bootstrap_servers, "t", ["after"])
        streams.expect("after")
        assert query.exception() is None
        query.stop()


def test_once_reads_everything_in_one_batch(streams: Streams, topic: str) -> None:
    write(streams.bootstrap, topic, "abc", timestamp=5_000)
    options = {"subscribe": topic, "startingTimestamp": "1", "maxOffsetsPerTrigger": "1"}
    streams.start("stream", None, {"once": True}, **options).awaitTermination(60)
    assert streams.batches == [["a", "b", "c"]]


def test_a_stream_resumes_from_a_group_and_takes_its_place(streams: Streams, topic: str) -> None:
    write(streams.bootstrap, topic, "abc")
    with Wire(streams.bootstrap) as wire:
        commit_offsets(wire, topic, {(topic, 0): 1})
    options = {"subscribe": topic, "startingOffsets": "group", "kafka_group_id": topic}
    assert streams.run(**options, maxBytesPerTrigger="1m") == [["b", "c"]]
    assert committed(streams.bootstrap, topic) == {(topic, 0): 3}
    write(streams.bootstrap, topic, "d")
    assert streams.run("another", **options) == [["d"]], "a new checkpoint goes on where the group is"


def test_an_idle_source_does_not_hold_up_another_of_the_same_query(
    streams: Streams, broker: InProcessBroker, topic: str
) -> None:
    quiet = f"{topic}-quiet"
    broker.create_topic(quiet)
    both = streams.frame(subscribe=topic, startingOffsets="earliest").unionAll(
        streams.frame(subscribe=quiet, startingOffsets="earliest", kafka_fetch_max_wait_ms="2000")
    )
    query = streams.start(frame=both)
    for number in range(5):
        write(streams.bootstrap, topic, [f"value {number}"])
        streams.expect(f"value {number}")
    wait_until(lambda: sum(p.numInputRows for p in query.recentProgress) == 5, "all batches are reported")
    asking = [p.durationMs["latestOffset"] for p in query.recentProgress if p.numInputRows][2:]
    assert min(asking) < 2000, f"the quiet source waits for two seconds: {asking}"


def test_streams_refuse_an_end(streams: Streams, topic: str) -> None:
    with pytest.raises(Exception, match="endingOffsets cannot be given for a stream"):
        streams.run(subscribe=topic, endingOffsets="latest")
