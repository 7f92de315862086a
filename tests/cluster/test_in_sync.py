"""In-sync sets of a real cluster: who leaves, who returns, and what producers and consumers see of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from cluster.brokers import Cluster, until
from cluster.test_replication import are_equal, leader_of, produce, records_of, replicas_of
from ottla.protocol.errors import ErrorCode, error_of
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.replication.partition import Partition
from unit.storage.logs import batch

SETTINGS = {
    "replica.fetch.wait.max.ms": 100,
    "replica.fetch.backoff.ms": 100,
    "replica.lag.time.max.ms": 1000,
}


def isr_of(cluster: Cluster, topic: str = "t") -> set[int]:
    state = cluster.image.partition(topic, 0)
    assert state is not None
    return set(state.isr)


def led(cluster: Cluster, topic: str = "t") -> Partition:
    return cluster.brokers[leader_of(cluster, topic)].replicas.leader(topic, 0)


def follower_away_from_the_controller(cluster: Cluster) -> int:
    others = (leader_of(cluster, "t"), cluster.controller)
    return next(broker_id for broker_id in cluster.brokers if broker_id not in others)


async def produce_once(cluster: Cluster, acks: int = -1) -> ErrorCode:
    data = PartitionProduceData(index=0, records=batch(1))
    request = ProduceRequest(
        acks=acks, timeout_ms=30_000, topic_data=[TopicProduceData(name="t", partition_data=[data])]
    )
    (topic,) = (await cluster.call(leader_of(cluster, "t"), request, version=9)).responses
    return error_of(topic.partition_responses[0].error_code)


async def require_in_sync(cluster: Cluster, count: int) -> None:
    setting = AlterableConfig(name="min.insync.replicas", value=str(count))
    request = IncrementalAlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=2, resource_name="t", configs=[setting])]
    )
    (answer,) = (await cluster.call(cluster.controller, request)).responses
    assert not answer.error_code
    await until(lambda: led(cluster).state._min_isr == count)


async def started(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    await cluster.settled()
    await cluster.create_topic(1, "t", partitions=1, factor=3)
    await until(lambda: len(replicas_of(cluster, "t")) == 3)


async def stop_fetching(cluster: Cluster, broker_id: int) -> Callable[[], Awaitable[None]]:
    """A follower that lives and fetches nothing, whatever images and chores say. The result ends that."""
    broker = cluster.brokers[broker_id]
    fetching = broker.fetching
    place = fetching._place
    fetching._place = lambda topic, index, state: None  # type: ignore[method-assign]
    await fetching.stop()

    async def resume() -> None:
        fetching._place = place  # type: ignore[method-assign]
        await fetching.place_missing(broker.image)

    return resume


async def test_a_follower_that_does_not_fetch_leaves_and_returns_when_it_has_caught_up(
    tmp_path: Path,
) -> None:
    """It is alive for the controller: only its leader can notice."""
    async with Cluster(tmp_path, settings=SETTINGS) as cluster:
        await started(cluster)
        await produce(cluster, "t", [b"x"] * 10)
        silent = follower_away_from_the_controller(cluster)
        resume = await stop_fetching(cluster, silent)
        await produce(cluster, "t", [b"y"] * 10)
        await until(lambda: isr_of(cluster) == {1, 2, 3} - {silent})
        assert led(cluster).high_watermark == 20
        await resume()
        await until(lambda: isr_of(cluster) == {1, 2, 3})
        await until(lambda: are_equal(cluster, "t"))


async def test_an_idle_partition_keeps_its_followers(tmp_path: Path) -> None:
    async with Cluster(tmp_path, settings=SETTINGS) as cluster:
        await started(cluster)
        await produce(cluster, "t", [b"x"] * 10)
        await until(lambda: are_equal(cluster, "t"))
        for broker in cluster.brokers.values():
            for _ in range(3):
                await broker.isr_changes.check_lag()
        await asyncio.sleep(0)
        assert isr_of(cluster) == {1, 2, 3} and led(cluster).state.proposal is None


async def test_a_killed_follower_leaves_and_joins_again_while_records_come(tmp_path: Path) -> None:
    async with Cluster(tmp_path, settings=SETTINGS) as cluster:
        await started(cluster)
        away = follower_away_from_the_controller(cluster)
        sending = asyncio.create_task(produce(cluster, "t", (b"%d" % number for number in range(20_000))))
        await until(lambda: led(cluster).high_watermark > 100)
        await cluster.crash(away)
        await until(lambda: away not in isr_of(cluster))
        await cluster.start(away)
        await sending
        await until(lambda: isr_of(cluster) == {1, 2, 3})
        await until(lambda: are_equal(cluster, "t"))
        assert led(cluster).high_watermark == 20_000


async def test_producers_are_refused_while_too_few_replicas_are_in_sync(tmp_path: Path) -> None:
    async with Cluster(tmp_path, settings=SETTINGS) as cluster:
        await started(cluster)
        assert await produce_once(cluster) is ErrorCode.NONE
        await require_in_sync(cluster, 3)
        silent = follower_away_from_the_controller(cluster)
        resume = await stop_fetching(cluster, silent)
        assert await produce_once(cluster) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        assert await produce_once(cluster) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert await produce_once(cluster, acks=1) is ErrorCode.NONE
        assert (led(cluster).high_watermark, led(cluster).end_offset) == (1, 3), "nothing more is committed"
        await resume()
        await until(lambda: led(cluster).high_watermark == 3)
        assert await produce_once(cluster) is ErrorCode.NONE


async def test_waiting_producers_of_a_killed_leader_find_the_next_one(tmp_path: Path) -> None:
    async with Cluster(tmp_path, settings=SETTINGS) as cluster:
        await started(cluster)
        values = [b"%d" % number for number in range(20_000)]
        sending = asyncio.create_task(produce(cluster, "t", values, options={"enable.idempotence": True}))
        await until(lambda: led(cluster).high_watermark > 100)
        first = leader_of(cluster, "t")
        await cluster.crash(first)
        await sending
        await cluster.start(first)
        await cluster.settled()
        await until(lambda: isr_of(cluster) == {1, 2, 3})
        await until(lambda: are_equal(cluster, "t"))
        assert [value for _, value in records_of(led(cluster))] == values, "each once, and in order"
