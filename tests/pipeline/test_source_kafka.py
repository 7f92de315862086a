"""The source against Apache Kafka: two brokers, so that partitions have several leaders, and transactions."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.pipeline.topics.offsets import DataLost
from ottla.pipeline.topics.options import SourceOptions
from ottla.pipeline.topics.planning import Range
from ottla.pipeline.topics.source import batch_ranges
from ottla.pipeline.topics.stream_driver import StreamDriver
from ottla.protocol_client.admin import create_topic
from ottla.protocol_client.group_offsets import commit_offsets
from ottla.protocol_client.wire import Wire
from source_topics import committed, delete_before, wait_until, write

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for bench, which carries Apache Kafka

from bench.peers.kafka import kafka_peer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    with kafka_peer(brokers=2) as peer:
        yield peer.bootstrap


def make_topic(bootstrap: str, name: str, partitions: int) -> str:
    with Wire(bootstrap) as wire:
        create_topic(wire, name, partitions=partitions, replication_factor=1)
        wait_until(
            lambda: all(p.leader_id >= 0 for p in wire.topic(name, patience=10).partitions),
            "the topic has leaders",
        )
    return name


def source(bootstrap: str, **options: str) -> SourceOptions:
    given = {name.replace("_", "."): text for name, text in options.items()}
    return SourceOptions.parse({"kafka.bootstrap.servers": bootstrap, **given})


def test_a_record_at_any_leader_ends_the_wait_and_progress_is_committed(kafka: str, tmp_path: Path) -> None:
    topic = make_topic(kafka, "watched", 4)
    options = {"startingOffsets": "earliest", "kafka_fetch_max_wait_ms": "20000"}
    stream = StreamDriver(source(kafka, subscribe=topic, offsetsFile=f"{tmp_path}/file.json", **options))
    try:
        start = stream.initial()
        assert len({leader for leader, _ in stream.brokers.leaders.values()}) == 2, "two leaders are watched"
        for partition in range(4):
            answers: list[tuple[float, dict[str, dict[str, int]]]] = []

            def ask(
                start: dict[str, dict[str, int]] = start,
                answers: list[tuple[float, dict[str, dict[str, int]]]] = answers,
            ) -> None:
                end = stream.latest(start)
                answers.append((time.monotonic(), end))

            asking = threading.Thread(target=ask)
            asking.start()
            done = {(topic, int(p)): offset for p, offset in start[topic].items()}

            def is_committed(done: dict[tuple[str, int], int] = done) -> bool:
                return committed(kafka, stream.progress.group) == done

            wait_until(is_committed, "the stream waits")
            write(kafka, topic, ["x"], partition=partition)
            written = time.monotonic()
            asking.join(30)
            ((seen, end),) = answers
            assert end[topic][str(partition)] == 1
            assert seen - written < 2.0
            assert stream.ranges(start, end) == [Range(topic, partition, 0, 1)]
            start = end
    finally:
        stream.close()


def test_positions_times_groups_and_losses(kafka: str, tmp_path: Path) -> None:
    topic = make_topic(kafka, "positions", 1)
    for moment in (1_000, 2_000, 3_000, 4_000):
        write(kafka, topic, [str(moment)], timestamp=moment)
    assert batch_ranges(source(kafka, subscribe=topic)) == [Range(topic, 0, 0, 4)]
    by_time = source(kafka, subscribe=topic, startingTimestamp="1500", endingTimestamp="3500")
    assert batch_ranges(by_time) == [Range(topic, 0, 1, 3)]
    with Wire(kafka) as wire:
        commit_offsets(wire, "resumed", {(topic, 0): 2})
    by_group = source(kafka, subscribe=topic, startingOffsets="group", kafka_group_id="resumed")
    assert batch_ranges(by_group) == [Range(topic, 0, 2, 4)]
    delete_before(kafka, topic, 3)
    with pytest.raises(DataLost):
        batch_ranges(by_group)
    options = {"startingOffsets": "earliest", "maxBytesPerTrigger": "1"}
    weighed = StreamDriver(source(kafka, subscribe=topic, offsetsFile=f"{tmp_path}/file.json", **options))
    try:
        assert weighed.latest(weighed.initial()) == {topic: {"0": 4}}, "at least one record"
    finally:
        weighed.close()


def test_spark_reads_only_committed_records_and_continues_from_its_checkpoint(
    kafka: str, spark: SparkSession, tmp_path: Path
) -> None:
    from confluent_kafka import Producer

    topic = make_topic(kafka, "transactional", 1)
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": "t"})
    producer.init_transactions(30)
    for value, commit in [("kept", True), ("dropped", False), ("kept too", True)]:
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(30)
        (producer.commit_transaction if commit else producer.abort_transaction)(30)
    seen: list[str] = []

    def run(**options: str) -> list[str]:
        reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", kafka)
        frame = (
            reader.option("subscribe", topic).option("startingOffsets", "earliest").options(**options).load()
        )
        already = len(seen)
        query = (
            frame.writeStream.option("checkpointLocation", str(tmp_path / "c"))
            .foreachBatch(lambda batch, number: seen.extend(r.value.decode() for r in batch.collect()))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        return seen[already:]

    assert run() == ["kept", "kept too"]
    write(kafka, topic, ["later"])
    assert run() == ["later"]
    assert committed(kafka, f"ottla-spark.{topic}") == {(topic, 0): 7}, (
        "markers of transactions have offsets too"
    )
    batch = spark.read.format("ottla").option("kafka.bootstrap.servers", kafka).option("subscribe", topic)
    rows = batch.option("kafka.isolation.level", "read_uncommitted").load().collect()
    assert [row.value.decode() for row in rows] == ["kept", "dropped", "kept too", "later"]
