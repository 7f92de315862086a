"""A broker that may have been replaced, or that the controller has fenced, answers for nothing any more."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.brokers import PATIENCE, Cluster, client_of, until
from cluster.test_replication import leader_of, produce, replicas_of
from ottla.broker.broker import Broker
from ottla.clock import SystemClock
from ottla.cluster.registry import Registry
from ottla.cluster.sqlite_registry import SqliteRegistry, SqliteStore
from ottla.protocol.errors import ErrorCode, error_of
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from unit.storage.logs import batch

SESSION_SECONDS = 2.0
LOCKED_STOP_SECONDS = 20.0
"""It takes four, and took forty when each of its calls waited for the lock."""
SETTINGS = {
    "replica.fetch.wait.max.ms": 100,
    "replica.fetch.backoff.ms": 100,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 3,
}


def cluster_in(folder: Path, **settings: object) -> Cluster:
    def registry() -> Registry:
        store = SqliteStore(folder / "shared.sqlite", durable=False)
        return SqliteRegistry(store, SystemClock(), session_timeout=SESSION_SECONDS)

    return Cluster(folder, registry=registry, settings={**SETTINGS, **settings})


async def started(cluster: Cluster) -> int:
    """The leader of a topic of one partition with three replicas; it is not the controller."""
    await cluster.start(1, 2, 3)
    await cluster.settled()
    for number in range(20):
        topic = f"t{number}"
        await cluster.create_topic(1, topic, partitions=1, factor=3)
        await until(lambda topic=topic: len(replicas_of(cluster, topic)) == 3)  # type: ignore[misc]
        if leader_of(cluster, topic) != cluster.controller:
            cluster.topic_name = topic  # type: ignore[attr-defined]
            return leader_of(cluster, topic)
    raise AssertionError("the controller leads everything")


def topic_of(cluster: Cluster) -> str:
    name: str = cluster.topic_name  # type: ignore[attr-defined]
    return name


async def write(cluster: Cluster, broker: int, acks: int, timeout_ms: int = 60_000) -> ErrorCode:
    data = PartitionProduceData(index=0, records=batch(1))
    topic = TopicProduceData(name=topic_of(cluster), partition_data=[data])
    request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[topic])
    response = await cluster.call(broker, request, version=9)
    return error_of(response.responses[0].partition_responses[0].error_code)


async def read(cluster: Cluster, broker: int, offset: int = 0) -> Any:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic=topic_of(cluster), partitions=[wanted])
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[topic])
    return (await cluster.call(broker, request, version=12)).responses[0].partitions[0]


async def newest_offset(cluster: Cluster, broker: int) -> ErrorCode:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=-1)
    topic = ListOffsetsTopic(name=topic_of(cluster), partitions=[wanted])
    response = await cluster.call(broker, ListOffsetsRequest(topics=[topic]), version=7)
    return error_of(response.topics[0].partitions[0].error_code)


OFFSETS_OF_A_GROUP = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])


async def offsets_of_a_group(cluster: Cluster, broker: int) -> ErrorCode:
    response = await cluster.call(broker, OFFSETS_OF_A_GROUP, version=8)
    return error_of(response.groups[0].error_code)


async def until_offsets_are_known(cluster: Cluster, broker: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while await offsets_of_a_group(cluster, broker) is not ErrorCode.NONE:
            await asyncio.sleep(0.05)


class Cut:
    """Keeps a broker from the registry and from images, as a cut network does; clients still reach it."""

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self._registry: Any = cluster._registries[broker_id]
        self._source = cluster.brokers[broker_id]._membership.image_source
        self._mended = asyncio.Event()

    async def begin(self) -> None:
        await self._source.stop()
        self._registry.beat = self._mended.wait

    def end(self) -> None:
        del self._registry.beat
        self._mended.set()
        self._source.start()


def led_by(broker: Broker, topic: str) -> int:
    state = broker.image.partition(topic, 0)
    assert state is not None
    return state.leader


async def test_a_leader_that_cannot_reach_the_registry_is_fenced_before_another_one_leads(
    tmp_path: Path,
) -> None:
    async with cluster_in(tmp_path) as cluster:
        old = await started(cluster)
        topic, other = topic_of(cluster), cluster.brokers[cluster.controller]
        assert await write(cluster, old, acks=-1) is ErrorCode.NONE
        cut = Cut(cluster, old)
        await cut.begin()
        assert await write(cluster, old, acks=-1) is ErrorCode.NONE  # within the time of its session
        await until(lambda: led_by(other, topic) != old)
        assert led_by(cluster.brokers[old], topic) == old, "it must not have heard of it"
        assert await write(cluster, old, acks=1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert error_of((await read(cluster, old)).error_code) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await newest_offset(cluster, old) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        described = (await cluster.topic(old, topic)).partitions[0]
        assert (described.leader_id, described.error_code) == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
        new = led_by(other, topic)
        assert await write(cluster, new, acks=-1) is ErrorCode.NONE
        cut.end()
        await until(lambda: not cluster.brokers[old]._membership.is_fenced())
        await produce(cluster, topic, [b"x"])
        await until(lambda: {p.high_watermark for p in replicas_of(cluster, topic)} == {4})


async def test_a_write_that_waits_for_followers_is_answered_when_the_leader_is_fenced(tmp_path: Path) -> None:
    async with cluster_in(tmp_path) as cluster:
        old = await started(cluster)
        for broker_id, broker in cluster.brokers.items():
            if broker_id != old:
                await broker.fetching.stop()
        cut = Cut(cluster, old)
        await cut.begin()
        async with asyncio.timeout(30):
            assert await write(cluster, old, acks=-1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        cut.end()


async def test_a_coordinator_that_cannot_reach_the_registry_coordinates_no_group(tmp_path: Path) -> None:
    async with cluster_in(tmp_path) as cluster:
        await started(cluster)
        request, found = FindCoordinatorRequest(key="g"), -1
        while found < 0:
            found = (await cluster.call(1, request, version=3)).node_id
        assert await offsets_of_a_group(cluster, found) is ErrorCode.NONE
        cut = Cut(cluster, found)
        await cut.begin()
        await until(lambda: cluster.brokers[found]._fencing.is_fenced())
        assert await offsets_of_a_group(cluster, found) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await until(lambda: cluster.brokers[found]._fencing._was_fenced)  # and its groups have ended
        assert await offsets_of_a_group(cluster, found) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert (await cluster.call(found, request, version=3)).node_id == -1
        assert not cluster.brokers[found].controller.active
        cut.end()
        await until(lambda: not cluster.brokers[found]._membership.is_fenced())


async def test_offsets_that_wait_for_a_commit_may_be_asked_for_again_when_the_coordinator_is_fenced(
    tmp_path: Path,
) -> None:
    """librdkafka would not read the partitions of a request that is answered with NOT_COORDINATOR."""
    async with cluster_in(tmp_path) as cluster:
        await started(cluster)
        request, found = FindCoordinatorRequest(key="g"), -1
        while found < 0:
            found = (await cluster.call(1, request, version=3)).node_id
        await until_offsets_are_known(cluster, found)
        for broker_id, broker in cluster.brokers.items():
            if broker_id != found:
                await broker.fetching.stop()  # nothing is replicated any more
        address = cluster.brokers[found].endpoints[0]
        clients = [client_of((address.host, address.port)) for _ in range(2)]
        commit = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic_of(cluster),
                    partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=0)],
                )
            ],
        )
        shards = cluster.brokers[found].groups._runtime
        committing = asyncio.ensure_future(clients[0].call(commit, timeout=30, version=8))
        await until(lambda: any(len(shard._waiting) == 1 for shard in shards.active_shards()))
        fetching = asyncio.ensure_future(clients[1].call(OFFSETS_OF_A_GROUP, timeout=30, version=8))
        await until(lambda: any(len(shard._waiting) == 2 for shard in shards.active_shards()))
        cut = Cut(cluster, found)
        await cut.begin()
        answer = (await committing).topics[0].partitions[0]
        assert error_of(answer.error_code) is ErrorCode.NOT_COORDINATOR
        code = error_of((await fetching).groups[0].error_code)
        assert code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        cut.end()
        for each in clients:
            await each.close()


async def test_coordinators_are_not_held_back_when_the_image_that_ends_the_fencing_starts_them(
    tmp_path: Path,
) -> None:
    """What a coordinator writes while it loads would be refused, and its groups were away for seconds."""
    async with cluster_in(tmp_path) as cluster:
        old = await started(cluster)
        fencing = cluster.brokers[old]._fencing
        cut = Cut(cluster, old)
        await cut.begin()
        await until(lambda: fencing._was_fenced)
        await fencing.stop()  # it does not look by itself any more
        cut.end()
        await until(lambda: not fencing.is_fenced())
        await until(lambda: not fencing.holds_back())


async def test_a_consumer_that_read_from_the_successor_is_sent_back_to_it(tmp_path: Path) -> None:
    """OFFSET_OUT_OF_RANGE would make it begin anew, at the first record or the last."""
    timers = {"broker.session.timeout.ms": 1500, "broker.heartbeat.interval.ms": 200}
    async with cluster_in(tmp_path, **timers) as cluster:
        old = await started(cluster)
        topic, other = topic_of(cluster), cluster.brokers[cluster.controller]
        assert error_of((await read(cluster, old, offset=1)).error_code) is ErrorCode.OFFSET_OUT_OF_RANGE
        source = cluster.brokers[old]._membership.image_source
        await source.stop()
        await until(lambda: led_by(other, topic) != old)
        new = led_by(other, topic)
        await until(lambda: led_by(cluster.brokers[new], topic) == new)
        assert await write(cluster, new, acks=-1) is ErrorCode.NONE
        assert (await read(cluster, new, offset=1)).error_code == 0
        assert led_by(cluster.brokers[old], topic) == old, "it must not have heard of it"
        assert error_of((await read(cluster, old, offset=1)).error_code) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        source.start()


@pytest.mark.parametrize("acks", [1, -1])
async def test_consumers_read_nothing_that_was_written_to_a_leader_fenced_by_the_controller(
    tmp_path: Path, acks: int
) -> None:
    """Its registry session lives, and it does not hear that it leads no more."""
    timers = {"broker.session.timeout.ms": 1500, "broker.heartbeat.interval.ms": 200}
    async with cluster_in(tmp_path, **timers) as cluster:
        old = await started(cluster)
        topic, other = topic_of(cluster), cluster.brokers[cluster.controller]
        assert await write(cluster, old, acks=-1) is ErrorCode.NONE
        source = cluster.brokers[old]._membership.image_source
        await source.stop()
        await until(lambda: led_by(other, topic) != old)
        await until(lambda: all(led_by(b, topic) != old for id, b in cluster.brokers.items() if id != old))
        async with asyncio.timeout(30):
            answer = await write(cluster, old, acks=acks, timeout_ms=500)
        assert answer is (ErrorCode.NONE if acks == 1 else ErrorCode.REQUEST_TIMED_OUT)
        seen = await read(cluster, old)
        assert (seen.error_code, seen.high_watermark) == (0, 1)
        source.start()
        await until(lambda: led_by(cluster.brokers[old], topic) != old)


async def test_a_broker_stops_soon_while_the_registry_is_locked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By a backup that hangs: nobody takes over then, and nobody has to be waited for."""
    async with cluster_in(tmp_path) as cluster:
        await started(cluster)
        controller = cluster.controller
        lock = sqlite3.connect(tmp_path / "shared.sqlite", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        try:
            began = time.monotonic()
            await cluster.stop(controller)
            assert time.monotonic() - began < LOCKED_STOP_SECONDS
        finally:
            lock.close()
        assert f"broker {controller} stops without a controlled shutdown" in caplog.text
        assert "left the cluster without saying so: database is locked" in caplog.text
