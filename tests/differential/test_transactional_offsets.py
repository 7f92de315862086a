"""Offsets that transactions have committed to Apache Kafka are read from its log as Kafka reads them.

Kafka writes the ids of topics with other commits, which would not be those of our topics. So all commits here
are made in transactions.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from bench.peers.kafka import kafka_peer
from confluent_kafka import Consumer, Producer, TopicPartition

import ottla.testing
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from ottla.protocol_client.wire import Wire

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("differential")]

GROUP, TOPIC = "readers", "t"
COMMITTED, ABORTED, OPEN, OVERTAKEN, UNTOUCHED = range(5)
"""Partitions, and what becomes of the transaction that commits an offset of each."""
LOG = "00000000000000000000.log"

Told = list[tuple[int, int, int]]
"""Partition, offset and error code."""


def find(wire: Wire) -> None:
    deadline = time.monotonic() + 60
    request = FindCoordinatorRequest(coordinator_keys=[GROUP])
    while wire.call(request, version=4).coordinators[0].error_code:
        assert time.monotonic() < deadline


def fetched(wire: Wire, *, require_stable: bool) -> Told:
    topics = [OffsetFetchRequestTopics(name=TOPIC, partition_indexes=list(range(5)))]
    group = OffsetFetchRequestGroup(group_id=GROUP, topics=topics)
    request = OffsetFetchRequest(groups=[group], require_stable=require_stable)
    deadline = time.monotonic() + 60
    while (answer := wire.call(request, version=9).groups[0]).error_code:
        assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert time.monotonic() < deadline
    (topic,) = answer.topics
    return [(each.partition_index, each.committed_offset, each.error_code) for each in topic.partitions]


def begin(bootstrap: str, name: str, offset: int, *partitions: int) -> Producer:
    """A transaction that has committed an offset of these partitions, and is open."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(60)
    producer.begin_transaction()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    positions = [TopicPartition(TOPIC, index, offset) for index in partitions]
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 60)
    consumer.close()
    return producer


def write(bootstrap: str) -> tuple[Told, Told]:
    """Commit, abort and leave open; what Kafka tells of it, without and with `require_stable`."""
    with Wire(bootstrap) as wire:
        topic = CreatableTopic(name=TOPIC, num_partitions=5, replication_factor=1)
        wire.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
        find(wire)
        everything = COMMITTED, ABORTED, OPEN, OVERTAKEN, UNTOUCHED
        begin(bootstrap, "first", 1, *everything).commit_transaction(60)
        begin(bootstrap, "committed", 10, COMMITTED).commit_transaction(60)
        begin(bootstrap, "aborted", 11, ABORTED).abort_transaction(60)
        overtaken = begin(bootstrap, "overtaken", 12, OVERTAKEN)
        begin(bootstrap, "overtaking", 99, OVERTAKEN).commit_transaction(60)
        overtaken.commit_transaction(60)
        left_open = begin(bootstrap, "open", 13, OPEN)
        told = fetched(wire, require_stable=False), fetched(wire, require_stable=True)
        del left_open
        return told


def test_transactional_offsets_in_a_data_folder_of_kafka_count_as_in_kafka(tmp_path: Path) -> None:
    with kafka_peer({"offsets.topic.num.partitions": "1"}, data=tmp_path / "kafka") as kafka:
        told, stable = write(kafka.bootstrap)
    assert told == [(COMMITTED, 10, 0), (ABORTED, 1, 0), (OPEN, 1, 0), (OVERTAKEN, 99, 0), (UNTOUCHED, 1, 0)]
    (log,) = (tmp_path / "kafka").glob(f"node-1/**/__consumer_offsets-0/{LOG}")
    with ottla.testing.broker(topics={TOPIC: 5}, settings={"offsets.topic.num.partitions": 1}) as broker:
        with Wire(broker.bootstrap_servers) as wire:
            find(wire)
        broker.stop()
        shutil.copy(log, Path(broker.data) / "__consumer_offsets-0" / LOG)
        broker.start()
        with Wire(broker.bootstrap_servers) as wire:
            assert fetched(wire, require_stable=False) == told
            assert fetched(wire, require_stable=True) == stable
