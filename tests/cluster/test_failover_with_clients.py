"""A real client on a cluster whose brokers are killed: what was acknowledged stays, and groups go on."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer

import ottla.testing
from ottla.protocol.errors import ApiError
from ottla.protocol_client.wire import BrokerUnreachable
from ottla.testing.in_process_cluster import InProcessCluster
from zookeeper_server import ZooKeeperServer, shared_server

PATIENCE = 120.0


def in_a_file() -> dict[str, object]:
    return {}


def in_zookeeper() -> dict[str, object]:
    return {"ottla.registry": f"zookeeper://{shared_server().address}/{uuid.uuid4().hex}"}


class Writer:
    """Writes numbers with acks=all and keeps those that were acknowledged."""

    def __init__(self, cluster: InProcessCluster, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "enable.idempotence": True,
                "message.timeout.ms": PATIENCE * 1000,
                "linger.ms": 1,
            }
        )
        self.acknowledged: list[int] = []
        self._next = 0

    def write(self, count: int) -> None:
        for _ in range(count):
            self._producer.produce(self._topic, str(self._next).encode(), on_delivery=self._delivered)
            self._next += 1

    def flush(self) -> None:
        assert self._producer.flush(PATIENCE) == 0

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        self.acknowledged.append(int(message.value() or b""))


def read(cluster: InProcessCluster, topic: str, count: int, **settings: Any) -> list[int]:
    """By a group that goes on where it was."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            **settings,
        }
    )
    consumer.subscribe([topic])
    found: list[int] = []
    try:
        while len(found) < count:
            message = consumer.poll(PATIENCE)
            assert message is not None, f"{len(found)} of {count} records"
            if message.error() is None:
                found.append(int(message.value() or b""))
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found


def create_when_possible(cluster: InProcessCluster, topic: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            cluster.create_topic(topic)
        except (ApiError, BrokerUnreachable):
            assert time.monotonic() < deadline, "the controller does not come back"
            time.sleep(0.1)
        else:
            return


@pytest.mark.parametrize("registry", [in_a_file, in_zookeeper])
def test_acknowledged_records_outlive_the_leader_and_the_controller(
    registry: Callable[[], dict[str, object]],
) -> None:
    with ottla.testing.cluster(3, topics={"t": 1}, settings=registry()) as cluster:
        writer = Writer(cluster, "t")
        writer.write(100)
        writer.flush()
        for dead in (cluster.leader("t"), cluster.controller()):
            writer.write(100)
            cluster.kill(dead)
            writer.write(100)
            writer.flush()
            cluster.restart(dead)
            cluster.wait_until_in_sync("t")
        assert writer.acknowledged == list(range(500))
        assert read(cluster, "t", 500) == list(range(500))


def is_fenced(cluster: InProcessCluster, node: int) -> bool:
    broker = cluster[node].broker
    assert broker is not None

    async def look() -> bool:
        return broker._membership.is_fenced()

    return asyncio.run_coroutine_threadsafe(look(), broker._loop).result(PATIENCE)


def wait_until_fenced(cluster: InProcessCluster, *nodes: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while not all(is_fenced(cluster, node) for node in nodes):
        assert time.monotonic() < deadline, "brokers without a registry are not fenced"
        time.sleep(0.05)


def test_records_are_written_while_zookeeper_is_away_for_less_than_a_session(tmp_path: Path) -> None:
    zookeeper = ZooKeeperServer(tmp_path)
    zookeeper.start()
    settings = {"ottla.registry": f"zookeeper://{zookeeper.address}/clusters/one"}
    try:
        with ottla.testing.cluster(3, topics={"t": 1}, settings=settings) as cluster:
            writer = Writer(cluster, "t")
            writer.write(5)
            writer.flush()
            assert read(cluster, "t", 5) == list(range(5))
            zookeeper.stop()
            writer.write(5)
            writer.flush()
            assert writer.acknowledged == list(range(10))
            wait_until_fenced(cluster, 1, 2, 3)
            writer.write(5)  # they wait in the client
            zookeeper.start()
            writer.flush()
            assert writer.acknowledged == list(range(15))
            assert read(cluster, "t", 10) == list(range(5, 15))
            create_when_possible(cluster, "later")
    finally:
        zookeeper.stop()


def test_a_group_goes_on_where_it_was_when_its_coordinator_is_killed() -> None:
    with ottla.testing.cluster(3, topics={"t": 1}, offsets_topic_num_partitions=1) as cluster:
        writer = Writer(cluster, "t")
        writer.write(20)
        writer.flush()
        assert read(cluster, "t", 10, **{"enable.auto.commit": False}) == list(range(10))
        dead = cluster.leader("__consumer_offsets")
        cluster.kill(dead)
        cluster.wait_for_leader("__consumer_offsets", other_than=dead)
        assert read(cluster, "t", 10) == list(range(10, 20))
