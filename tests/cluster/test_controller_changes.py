"""The controller stops, dies or moves: another broker takes over, and requests find it."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from cluster.brokers import Cluster, client_of, until
from ottla.clock import SystemClock
from ottla.cluster.registry import Registry
from ottla.cluster.zookeeper_registry import ZooKeeperRegistry
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from ottla.protocol.messages.alter_partition import AlterPartitionRequest
from ottla.protocol.messages.begin_shutdown import BeginShutdownRequest
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, ElectTopic
from ottla.protocol.messages.fetch_image import FetchImageRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.forward import ForwardRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.schema import Request
from zookeeper_server import SESSION_SECONDS, shared_server


async def _produce(cluster: Cluster, topic: str, partitions: int, each: int) -> None:
    def send() -> int:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 1})
        for number in range(each):
            for partition in range(partitions):
                producer.produce(topic, f"{partition}/{number}".encode(), partition=partition)
        return producer.flush(60)

    assert await asyncio.to_thread(send) == 0


async def _consume(cluster: Cluster, topic: str, partitions: int, count: int) -> set[bytes]:
    def read() -> set[bytes]:
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "unused"})
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
        values: set[bytes] = set()
        try:
            while len(values) < count:
                message = consumer.poll(60)
                assert message is not None and message.error() is None
                values.add(message.value() or b"")
        finally:
            consumer.close()
        return values

    return await asyncio.to_thread(read)


async def test_another_broker_takes_over_when_the_controller_stops(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start(1, 2, 3)
        await cluster.settled()
        await cluster.create_topic(1, "before")
        stopped = cluster.controller
        await cluster.stop(stopped)
        await cluster.settled()
        for through in cluster.brokers:
            await cluster.create_topic(through, f"after-{through}")
        await cluster.start(stopped)
        await cluster.settled()
        assert len(cluster.brokers[stopped].image.topics) == 3
        await cluster.create_topic(stopped, "last")


async def test_another_broker_takes_over_when_the_controller_dies(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start(1, 2, 3)
        await cluster.settled()
        ask = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        ids = [(await cluster.call(broker, ask)).producer_id for broker in (1, 2, 3)]
        await cluster.crash(cluster.controller)
        for through in list(cluster.brokers):  # at once: the request waits for the next controller
            await cluster.create_topic(through, f"after-{through}", partitions=2)
            ids.append((await cluster.call(through, ask)).producer_id)
        assert len(set(ids)) == 5


async def test_requests_wait_for_the_next_controller(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start(1, 2)
        await cluster.settled()
        (other,) = cluster.others
        stopping = asyncio.create_task(cluster.stop(cluster.controller))
        await asyncio.gather(*(cluster.create_topic(other, f"t{number}", 1) for number in range(20)))
        await stopping
        assert len(cluster.brokers[other].image.topics) == 20


async def test_a_broker_that_returns_keeps_its_records(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start(1, 2, 3)
        await cluster.settled()
        await cluster.create_topic(1, "t", partitions=6)
        await _produce(cluster, "t", partitions=6, each=10)
        for broker in (*cluster.others, cluster.controller):
            await cluster.stop(broker)
            await cluster.start(broker)
        await cluster.settled()
        values = await _consume(cluster, "t", partitions=6, count=60)
        assert values == {f"{index}/{number}".encode() for index in range(6) for number in range(10)}
        assert not list(tmp_path.glob("broker-*/*-stray"))


async def test_a_cluster_that_was_stopped_starts_again_with_everything(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start(1, 2, 3)
        await cluster.settled()
        await cluster.create_topic(2, "t", partitions=6)
        await _produce(cluster, "t", partitions=6, each=5)
        for broker in (1, 2, 3):
            await cluster.stop(broker)
        await cluster.start(3, 2, 1)
        await cluster.settled()
        assert len(await _consume(cluster, "t", partitions=6, count=30)) == 30
        assert not list(tmp_path.glob("broker-*/*-stray"))


async def test_a_broker_comes_back_while_there_is_no_controller(tmp_path: Path) -> None:
    """What it starts from is the registry, never an empty image."""
    async with Cluster(tmp_path) as cluster:
        await cluster.start(1, 2)
        await cluster.settled()
        await cluster.create_topic(1, "t", partitions=4)
        await _produce(cluster, "t", partitions=4, each=5)
        (other,) = cluster.others
        await cluster.stop(other)
        crashed = cluster.controller
        await cluster.crash(crashed)
        await cluster.start(other)
        assert "t" in cluster.brokers[other].image.topics
        await cluster.start(crashed)
        await cluster.settled()
        assert len(await _consume(cluster, "t", partitions=4, count=20)) == 20


async def test_preferred_leaders_are_elected_through_any_broker(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start(1, 2)
        await cluster.settled()
        await cluster.create_topic(1, "t", partitions=2)
        request = ElectLeadersRequest(topic_partitions=[ElectTopic(topic="t", partitions=[0, 1, 2])])
        for broker in (1, 2):
            (topic,) = (await cluster.call(broker, request)).replica_election_results
            assert {each.partition_id: each.error_code for each in topic.partition_result} == {
                0: ErrorCode.ELECTION_NOT_NEEDED,
                1: ErrorCode.ELECTION_NOT_NEEDED,
                2: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            }


def _requests(broker_id: int, epoch: int) -> list[Request]:
    return [
        FetchImageRequest(broker_id=broker_id, broker_epoch=epoch),
        AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch),
        AlterPartitionRequest(broker_id=broker_id, broker_epoch=epoch),
        BeginShutdownRequest(broker_id=broker_id, broker_epoch=epoch),
        ForwardRequest(broker_id=broker_id, broker_epoch=epoch, request_key=19, request_version=7),
    ]


async def test_brokers_are_refused_by_others_than_the_controller_and_under_old_epochs(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start(1, 2)
        await cluster.settled()
        (other,) = cluster.others
        asked = {
            broker_id: client_of((broker.endpoints[-1].host, broker.endpoints[-1].port))
            for broker_id, broker in cluster.brokers.items()
        }
        epoch = cluster.brokers[other].image.brokers[other].epoch
        for request in _requests(other, epoch):
            answer = await asked[other].call(request, timeout=30)
            assert answer.error_code == ErrorCode.NOT_CONTROLLER
        for request in _requests(other, epoch - 1):
            answer = await asked[cluster.controller].call(request, timeout=30)
            assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH
        for client in asked.values():
            await client.close()


async def test_a_cluster_on_zookeeper_survives_its_controller(tmp_path: Path) -> None:
    hosts = f"{shared_server().address}/{uuid.uuid4().hex}"

    def registry() -> Registry:
        return ZooKeeperRegistry(hosts, clock=SystemClock(), session_timeout=SESSION_SECONDS)

    async with Cluster(tmp_path, registry=registry) as cluster:
        await cluster.start(1, 2, 3)
        await cluster.settled()
        await cluster.create_topic(cluster.others[0], "t", partitions=6)
        await _produce(cluster, "t", partitions=6, each=5)
        stopped = cluster.controller
        await cluster.stop(stopped)
        await cluster.settled()
        await cluster.create_topic(cluster.others[0], "u", partitions=2)
        await cluster.start(stopped)
        await cluster.settled()
        await until(lambda: set(cluster.brokers[stopped].image.topics) == {"t", "u"})
        assert len(await _consume(cluster, "t", partitions=6, count=30)) == 30


async def test_a_client_that_looks_for_a_coordinator_is_answered_soon_without_a_controller(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start(1, 2, 3)
        await cluster.settled()
        for broker in cluster.brokers.values():
            await broker.stop_electing()
        request = FindCoordinatorRequest(key="g")
        async with asyncio.timeout(20):
            answers = await asyncio.gather(
                *(cluster.call(broker_id, request, version=3) for broker_id in cluster.brokers)
            )
        assert {answer.error_code for answer in answers} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
