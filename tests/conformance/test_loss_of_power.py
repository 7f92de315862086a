"""The machine went off, and records that had been read are gone: clients learn so, and miss nothing new.

The loss is staged: the broker is killed, the end of its log is cut off, and the folder is made to look as if
the machine had been started anew since.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

import ottla.testing
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol_client.wire import Wire
from ottla.storage.directory_checkpoints import BOOT_ID_FILE
from ottla.testing.in_process import InProcessBroker

TOPIC = "t"
WRITTEN, KEPT = 10, 7
WITHIN = 30.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[InProcessBroker]:
    with ottla.testing.broker(topics={TOPIC: 1}, data=tmp_path) as broker:
        yield broker


def write(broker: InProcessBroker, *values: str) -> None:
    """Each in a batch of its own."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    for value in values:
        producer.produce(TOPIC, value)
        assert producer.flush(WITHIN) == 0


def lose_power(broker: InProcessBroker, data: Path) -> None:
    broker.kill()
    (segment,) = (data / f"{TOPIC}-0").glob("*.log")
    batch = segment.stat().st_size // WRITTEN
    with segment.open("r+b") as file:
        file.truncate(KEPT * batch)
    (data / BOOT_ID_FILE).write_text("another run of the machine")
    broker.start()


def leader_epoch(wire: Wire) -> int:
    (topic,) = wire.metadata([TOPIC]).topics
    return int(topic.partitions[0].leader_epoch)


def poll(consumer: Consumer, count: int) -> list[Message]:
    found: list[Message] = []
    deadline = time.monotonic() + WITHIN
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} came"
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message)
    return found


def test_a_fetch_beyond_the_log_end_gets_the_diverging_epoch(broker: InProcessBroker, tmp_path: Path) -> None:
    write(broker, *map(str, range(WRITTEN)))
    lose_power(broker, tmp_path)
    with Wire(broker.bootstrap_servers) as wire:
        assert leader_epoch(wire) == 1
        fetch = FetchRequest(
            max_wait_ms=0,
            max_bytes=1000,
            session_epoch=-1,
            topics=[
                FetchTopic(
                    topic=TOPIC,
                    partitions=[
                        FetchPartition(
                            partition=0,
                            current_leader_epoch=0,
                            fetch_offset=WRITTEN,
                            partition_max_bytes=1000,
                        )
                    ],
                )
            ],
        )
        answer = wire.call(fetch, version=12).responses[0].partitions[0]
        assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH
        asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=1, leader_epoch=0)
        request = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderTopic(topic=TOPIC, partitions=[asked])]
        )
        end = wire.call(request).topics[0].partitions[0]
        assert (end.error_code, end.leader_epoch, end.end_offset) == (ErrorCode.NONE, 0, KEPT)


def test_a_consumer_that_had_read_lost_records_misses_no_new_ones(
    broker: InProcessBroker, tmp_path: Path
) -> None:
    write(broker, *map(str, range(WRITTEN)))
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "reconnect.backoff.max.ms": 200,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    try:
        assert [int(m.value() or b"") for m in poll(consumer, WRITTEN)] == list(range(WRITTEN))
        lose_power(broker, tmp_path)
        new = [
            f"new {number}" for number in range(WRITTEN)
        ]  # offsets 7 to 16, of which 7 to 9 stood for others
        write(broker, *new)
        found = [(m.offset(), (m.value() or b"").decode()) for m in poll(consumer, len(new))]
    finally:
        consumer.close()
    assert found == list(enumerate(new, start=KEPT))


def test_a_killed_broker_restarts_in_the_same_leader_epoch(broker: InProcessBroker) -> None:
    write(broker, "a")
    broker.kill()
    broker.start()
    write(broker, "b")
    with Wire(broker.bootstrap_servers) as wire:
        assert leader_epoch(wire) == 0
