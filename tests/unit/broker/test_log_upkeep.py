"""Retention and deletion in a running broker: settings changed on the way, impossible times, names reused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

import ottla.testing

MB = 1 << 20
DEADLINE = 20.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Any]:
    settings = {"log.retention.check.interval.ms": 50, "log.cleaner.backoff.ms": 50}
    with ottla.testing.broker(settings=settings) as broker:
        yield broker


@pytest.fixture
def admin(broker: Any) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def produce(broker: Any, topic: str, count: int, size: int = 100_000, **options: Any) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    for number in range(count):
        producer.produce(topic, b"%06d" % number + b"x" * size, key=b"k%d" % (number % 3), **options)
        assert producer.flush(10) == 0


def span(broker: Any, topic: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "nobody"})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    finally:
        consumer.close()
    return low, high


def alter(admin: AdminClient, topic: str, **settings: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(10)


def test_a_smaller_retention_takes_effect_while_the_broker_runs(broker: Any, admin: AdminClient) -> None:
    broker.create_topic("by-size", config={"segment.bytes": MB})
    produce(broker, "by-size", 45)
    assert span(broker, "by-size")[0] == 0
    alter(admin, "by-size", retention_bytes=str(2 * MB))
    wait_for(lambda: span(broker, "by-size")[0] > 0, "old segments must go")
    assert span(broker, "by-size")[1] == 45
    broker.create_topic("by-time", config={"segment.bytes": MB})
    produce(broker, "by-time", 25, timestamp=int(time.time() * 1000) - 3_600_000)
    assert span(broker, "by-time")[0] == 0
    alter(admin, "by-time", retention_ms="60000")
    wait_for(lambda: span(broker, "by-time") == (25, 25), "all of it is older than a minute")


def test_deleted_segments_stay_for_their_delay(broker: Any) -> None:
    broker.create_topic("delayed", config={"segment.bytes": MB, "retention.bytes": MB})
    produce(broker, "delayed", 25)
    folder = broker.data / "delayed-0"
    wait_for(lambda: bool(list(folder.glob("*.log.deleted"))), "a deleted segment is renamed first")


def test_a_timestamp_in_the_future_does_not_keep_a_segment_for_ever(broker: Any) -> None:
    """The topic allows such times; the segment then counts as old as its last write."""
    ahead = int(time.time() * 1000) + 365 * 24 * 3_600_000
    broker.create_topic(
        "ahead",
        config={
            "segment.bytes": MB,
            "retention.ms": 500,
            "message.timestamp.after.max.ms": 2 * 365 * 24 * 3_600_000,
        },
    )
    produce(broker, "ahead", 25, timestamp=ahead)
    wait_for(lambda: span(broker, "ahead") == (25, 25), "segments older than half a second must go")


def test_a_timestamp_too_far_in_the_future_is_refused(broker: Any) -> None:
    broker.create_topic("strict")
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(
        "strict",
        b"v",
        timestamp=int(time.time() * 1000) + 2 * 3_600_000,
        on_delivery=lambda error, _: errors.append(error),
    )
    assert producer.flush(10) == 0
    assert "INVALID_TIMESTAMP" in errors[0].name()


def _is_small(folder: Path) -> bool:
    """Whether all segments but the active one are below 1 MB. A file swapped away meanwhile: look again."""
    try:
        return sum(file.stat().st_size for file in sorted(folder.glob("*.log"))[:-1]) < MB
    except FileNotFoundError:
        return False


def test_compact_and_delete_together_do_both(broker: Any) -> None:
    broker.create_topic(
        "both",
        config={
            "cleanup.policy": "compact,delete",
            "segment.bytes": MB,
            "min.cleanable.dirty.ratio": 0.01,
            "retention.ms": 3_600_000,
        },
    )
    produce(broker, "both", 15, timestamp=int(time.time() * 1000) - 7_200_000)
    # Before newer records come: compaction might put both into one segment, which is as old as its newest.
    wait_for(lambda: span(broker, "both")[0] >= 10, "what is older than an hour goes")
    produce(broker, "both", 40)
    folder = broker.data / "both-0"
    wait_for(lambda: _is_small(folder), "of the rest one record a key is left")


def test_the_active_segment_is_closed_after_its_time(broker: Any) -> None:
    broker.create_topic("rolled", config={"segment.ms": 100})
    start = int(time.time() * 1000) - 10_000
    for number in range(3):
        produce(broker, "rolled", 1, size=10, timestamp=start + number * 1000)
    assert len(list((broker.data / "rolled-0").glob("*.log"))) == 3


def test_a_recreated_topic_contains_no_old_records(broker: Any, admin: AdminClient) -> None:
    """Not now, not after a restart, and compaction begins anew."""
    config = {"cleanup.policy": "compact", "segment.bytes": MB, "min.cleanable.dirty.ratio": 0.01}
    broker.create_topic("again", config=config)
    produce(broker, "again", 25)
    checkpoint = broker.data / "cleaner-offset-checkpoint"
    wait_for(lambda: checkpoint.exists() and "again 0" in checkpoint.read_text(), "it must be compacted")
    admin.delete_topics(["again"])["again"].result(10)
    wait_for(lambda: "again 0" not in checkpoint.read_text(), "nothing is left of it")
    broker.create_topic("again", config=config)
    assert span(broker, "again") == (0, 0)
    produce(broker, "again", 2, size=10)
    broker.restart()
    assert span(broker, "again") == (0, 2)
    produce(broker, "again", 25)
    wait_for(lambda: "again 0" in checkpoint.read_text(), "it is compacted as any other")
    assert span(broker, "again") == (0, 27)
