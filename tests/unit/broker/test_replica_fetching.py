"""Partitions are fetched from the broker that the image names as their leader, and from no other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import MappingProxyType

from ottla.broker.image_follower import ImageChange
from ottla.broker.replica_fetching import ReplicaFetching
from ottla.cluster.image import ClusterImage, PartitionState, TopicImage, difference
from ottla.config.values import BrokerConfig
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.replication.partition import Partition
from unit.replication.leaders import FOLLOWER, TOPIC_ID, ScriptedLeader, assign, in_event_loop, replica
from unit.storage.logs import batch

CONFIG = BrokerConfig.load(
    overrides={"replica.fetch.wait.max.ms": "1", "replica.fetch.backoff.ms": "10", "log.dirs": "unused"}
)


class Cluster:
    """Brokers 1, 2 and 3; this one is 2, and the others lead partitions with replicas here."""

    def __init__(self, partitions: int) -> None:
        self.leaders = {id: [replica(id, index=index) for index in range(partitions)] for id in (1, 3)}
        self.here = [replica(FOLLOWER, index=index) for index in range(partitions)]
        self.brokers = {id: ScriptedLeader(*replicas) for id, replicas in self.leaders.items()}
        self.fetching = ReplicaFetching(FOLLOWER, self, self.brokers.__getitem__, lambda: 1, lambda: CONFIG)
        self.image = ClusterImage()

    def held(self, topic: str, index: int) -> Partition | None:
        return self.here[index] if index < len(self.here) else None

    async def decide(self, *states: tuple[int, int], topic_id: bytes = TOPIC_ID) -> None:
        """Who leads each partition, and in which epoch; all replicas take it over."""
        replicas = (1, 2, 3)
        partitions = tuple(
            PartitionState(replicas, replicas, leader, epoch, epoch) for leader, epoch in states
        )
        for index, (leader, epoch) in enumerate(states):
            for each in (self.here, *self.leaders.values()):
                assign(each[index], leader, epoch)
        await self.take({"topic": TopicImage("topic", topic_id, partitions)})

    async def take(self, topics: dict[str, TopicImage]) -> None:
        image = replace(self.image, version=self.image.version + 1, topics=MappingProxyType(topics))
        change = ImageChange(self.image, image, difference(self.image, image))
        self.image = image
        await self.fetching.follow(change)

    async def reaches(self, index: int, end: int) -> None:
        async with asyncio.timeout(10):
            while self.here[index].end_offset != end:
                await asyncio.sleep(0.001)

    async def is_quiet(self, broker: int) -> None:
        """No request is sent to the broker any more."""
        seen = -1
        async with asyncio.timeout(10):
            while seen != len(self.brokers[broker].requests):
                seen = len(self.brokers[broker].requests)
                await asyncio.sleep(0.05)


@in_event_loop
async def test_partitions_are_fetched_from_their_leaders() -> None:
    cluster = Cluster(4)
    await cluster.decide((1, 0), (3, 0), (FOLLOWER, 0), (-1, 0))
    assert len(cluster.fetching) == 2
    cluster.leaders[1][0].append(batch(3))
    cluster.leaders[3][1].append(batch(5))
    await cluster.reaches(0, 3)
    await cluster.reaches(1, 5)
    await cluster.fetching.stop()
    asked = {
        (broker, each.partition)
        for broker, leader in cluster.brokers.items()
        for request in leader.fetches
        for topic in request.topics
        for each in topic.partitions
    }
    assert asked == {(1, 0), (3, 1)}


@in_event_loop
async def test_nothing_is_fetched_after_the_end_though_the_image_changes() -> None:
    cluster = Cluster(1)
    await cluster.decide((1, 0))
    await cluster.fetching.close()
    await cluster.decide((3, 1))
    assert len(cluster.fetching) == 0
    assert not cluster.brokers[3].requests
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("fetch-from")]


@in_event_loop
async def test_a_new_leader_is_fetched_from_and_the_old_one_is_not() -> None:
    cluster = Cluster(1)
    await cluster.decide((1, 0))
    cluster.leaders[1][0].append(batch(3))
    await cluster.reaches(0, 3)
    await cluster.decide((3, 1))
    cluster.leaders[3][0].append(batch(2))
    await cluster.reaches(0, 2)
    await cluster.is_quiet(1)
    await cluster.decide((-1, 2))
    await cluster.is_quiet(3)
    assert len(cluster.fetching) == 0
    await cluster.fetching.stop()


@in_event_loop
async def test_a_replica_that_becomes_leader_is_fetched_no_more() -> None:
    cluster = Cluster(2)
    await cluster.decide((1, 0), (1, 0))
    cluster.leaders[1][0].append(batch(3))
    await cluster.reaches(0, 3)
    await cluster.decide((FOLLOWER, 1), (1, 0))
    cluster.here[0].append(batch(1))
    cluster.leaders[1][1].append(batch(4))
    await cluster.reaches(1, 4)
    assert cluster.here[0].end_offset == 4
    await cluster.fetching.stop()


@in_event_loop
async def test_partitions_of_a_deleted_topic_are_fetched_no_more() -> None:
    cluster = Cluster(1)
    await cluster.decide((1, 0))
    await cluster.take({})
    assert len(cluster.fetching) == 0
    await cluster.is_quiet(1)
    await cluster.fetching.stop()


@in_event_loop
async def test_a_topic_that_grows_is_fetched_with_its_new_partitions() -> None:
    cluster = Cluster(3)
    await cluster.decide((1, 0))
    await cluster.decide((1, 0), (1, 0), (3, 0))
    assert len(cluster.fetching) == 3
    cluster.leaders[3][2].append(batch(2))
    await cluster.reaches(2, 2)
    await cluster.fetching.stop()


@in_event_loop
async def test_a_log_that_is_made_late_is_fetched_from_then_on() -> None:
    cluster = Cluster(1)
    here = cluster.here.pop()
    cluster.here = []
    assign(here, 1, 0)
    assign(cluster.leaders[1][0], 1, 0)
    await cluster.take({"topic": TopicImage("topic", TOPIC_ID, (PartitionState((1, 2), (1,), 1),))})
    assert len(cluster.fetching) == 0
    cluster.here.append(here)
    cluster.leaders[1][0].append(batch(2))
    await cluster.fetching.place_missing(cluster.image)
    await cluster.reaches(0, 2)
    await cluster.fetching.stop()


@in_event_loop
async def test_a_damaged_log_is_not_fetched() -> None:
    cluster = Cluster(1)
    cluster.here[0].log.failure = ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
    await cluster.decide((1, 0))
    assert len(cluster.fetching) == 0
