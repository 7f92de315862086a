"""Every replica of a partition has the same records, whatever happens to brokers and topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from cluster.brokers import Cluster, until
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.replication.partition import Partition
from unit.storage.logs import batch, read_all

SETTINGS = {"replica.fetch.wait.max.ms": 100, "replica.fetch.backoff.ms": 200}


def replicas_of(cluster: Cluster, topic: str, index: int = 0) -> list[Partition]:
    held = (broker.replicas.held(topic, index) for broker in cluster.brokers.values())
    return [partition for partition in held if partition is not None]


def content(partition: Partition) -> bytes:
    """The bytes of the log, over all its segments."""
    folder = partition.log.folder
    names = sorted(path for path in folder.iterdir() if path.suffix == ".log")
    sizes = [segment.size for segment in partition.log.segments]
    return b"".join(path.read_bytes()[:size] for path, size in zip(names, sizes, strict=True))


def are_equal(cluster: Cluster, topic: str, index: int = 0, count: int = 3) -> bool:
    replicas = replicas_of(cluster, topic, index)
    return (
        len(replicas) == count
        and len({partition.end_offset for partition in replicas}) == 1
        and len({partition.high_watermark for partition in replicas}) == 1
        and replicas[0].high_watermark == replicas[0].end_offset
        and len({content(partition) for partition in replicas}) == 1
    )


async def produce(
    cluster: Cluster,
    topic: str,
    values: Iterable[bytes],
    *,
    partition: int = 0,
    options: Mapping[str, object] | None = None,
) -> None:
    """Send them with acks=all, and return when all have been acknowledged."""
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error)

    def send() -> int:
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 1, **(options or {})}
        )
        for value in values:
            producer.produce(topic, value, partition=partition, on_delivery=delivered)
            producer.poll(0)
        return producer.flush(60)

    assert await asyncio.to_thread(send) == 0
    assert failures == []


async def test_all_replicas_have_the_records_byte_for_byte(tmp_path: Path) -> None:
    async with Cluster(tmp_path, settings=SETTINGS) as cluster:
        await cluster.start(1, 2, 3)
        await cluster.settled()
        await cluster.create_topic(1, "t", partitions=3, factor=3)
        for index in range(3):
            await produce(cluster, "t", (b"%d" % number for number in range(500)), partition=index)
        for index in range(3):
            await until(partial(are_equal, cluster, "t", index))


def leader_of(cluster: Cluster, topic: str, index: int = 0) -> int:
    state = cluster.image.partition(topic, index)
    assert state is not None
    return state.leader


def records_of(partition: Partition) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in read_all(partition.log, max_bytes=1 << 20)]


async def test_a_follower_that_was_away_catches_up(tmp_path: Path) -> None:
    async with Cluster(tmp_path, settings=SETTINGS) as cluster:
        await cluster.start(1, 2, 3)
        await cluster.settled()
        await cluster.create_topic(1, "t", partitions=1, factor=3)
        await produce(cluster, "t", (b"%d" % number for number in range(100)))
        away = next(id for id in cluster.brokers if id not in (leader_of(cluster, "t"), cluster.controller))
        await cluster.stop(away)
        await cluster.settled()
        await produce(cluster, "t", (bytes(5000) + b"%d" % number for number in range(3000)))
        await cluster.start(away)
        await until(lambda: are_equal(cluster, "t"))
        await produce(cluster, "t", (b"%d" % number for number in range(100)))
        await until(lambda: are_equal(cluster, "t"))


async def test_a_follower_that_is_killed_while_records_come_catches_up(tmp_path: Path) -> None:
    async with Cluster(tmp_path, settings=SETTINGS) as cluster:
        await cluster.start(1, 2, 3)
        await cluster.settled()
        await cluster.create_topic(1, "t", partitions=1, factor=3)
        away = next(id for id in cluster.brokers if id not in (leader_of(cluster, "t"), cluster.controller))
        sending = asyncio.create_task(produce(cluster, "t", (b"%d" % number for number in range(20_000))))
        await until(lambda: replicas_of(cluster, "t")[0].end_offset > 100)
        await cluster.crash(away)
        await cluster.start(away)
        await sending
        await until(lambda: are_equal(cluster, "t"))


async def test_records_that_only_a_dead_leader_had_are_cut_off_when_it_returns(tmp_path: Path) -> None:
    async with Cluster(tmp_path, settings=SETTINGS) as cluster:
        await cluster.start(1, 2, 3)
        await cluster.settled()
        await cluster.create_topic(1, "t", partitions=1, factor=3)
        await produce(cluster, "t", (b"%d" % number for number in range(50)))
        first = leader_of(cluster, "t")
        for id, broker in cluster.brokers.items():
            if id != first:
                await broker.fetching.stop()
        alone = cluster.brokers[first].replicas.leader("t", 0)
        await produce(cluster, "t", [b"lost"] * 30, options={"acks": "1"})
        assert alone.end_offset == 80
        await cluster.crash(first)
        await until(lambda: sum(b.controller.active for b in cluster.brokers.values()) == 1)
        await until(lambda: leader_of(cluster, "t") not in (first, -1))
        await produce(cluster, "t", [b"kept"] * 10)
        await cluster.start(first)
        await until(lambda: are_equal(cluster, "t"))
        values = [value for _, value in records_of(replicas_of(cluster, "t")[0])]
        assert values == [b"%d" % number for number in range(50)] + [b"kept"] * 10


async def test_followers_follow_the_log_start_that_delete_records_moves(tmp_path: Path) -> None:
    async with Cluster(tmp_path, settings=SETTINGS) as cluster:
        await cluster.start(1, 2, 3)
        await cluster.settled()
        await cluster.create_topic(1, "t", partitions=1, factor=3)
        await produce(cluster, "t", [b"x"] * 100)
        await delete_records(cluster, "t", 40)
        await until(lambda: {p.log_start_offset for p in replicas_of(cluster, "t")} == {40})


async def test_a_follower_behind_the_leaders_log_start_begins_there(tmp_path: Path) -> None:
    async with Cluster(tmp_path, settings=SETTINGS) as cluster:
        await cluster.start(1, 2, 3)
        await cluster.settled()
        await cluster.create_topic(1, "t", partitions=1, factor=3)
        await produce(cluster, "t", [b"x"] * 10)
        away = next(id for id in cluster.brokers if id not in (leader_of(cluster, "t"), cluster.controller))
        await cluster.stop(away)
        await cluster.settled()
        await produce(cluster, "t", [b"y"] * 200, options={"batch.num.messages": 50})
        await delete_records(cluster, "t", 77)
        await cluster.start(away)
        here = cluster.brokers[away].replicas.get("t", 0)
        await until(lambda: (here.log_start_offset, here.high_watermark) == (77, 210))
        one, *others = map(records_of, replicas_of(cluster, "t"))
        assert len(one) == 133 and all(other == one for other in others)


async def delete_records(cluster: Cluster, topic: str, offset: int) -> None:
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)]
            )
        ],
        timeout_ms=20_000,
    )
    (answer,) = (await cluster.call(leader_of(cluster, topic), request)).topics
    assert [partition.error_code for partition in answer.partitions] == [0]


async def test_a_topic_that_is_deleted_and_made_again_is_replicated_anew(tmp_path: Path) -> None:
    async with Cluster(tmp_path, settings=SETTINGS) as cluster:
        await cluster.start(1, 2, 3)
        await cluster.settled()
        await cluster.create_topic(1, "t", partitions=2, factor=3)
        await produce(cluster, "t", [b"old"] * 100)
        (deleted,) = (
            await cluster.call(1, DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]))
        ).responses
        assert not deleted.error_code
        await until(lambda: not any(broker.directory.logs for broker in cluster.brokers.values()))
        await until(lambda: not any(len(broker.fetching) for broker in cluster.brokers.values()))
        await cluster.create_topic(2, "t", partitions=2, factor=3)
        await produce(cluster, "t", [b"new"] * 10)
        await until(lambda: are_equal(cluster, "t"))
        assert len(records_of(replicas_of(cluster, "t")[0])) == 10


async def test_partitions_that_are_added_are_replicated(tmp_path: Path) -> None:
    async with Cluster(tmp_path, settings=SETTINGS) as cluster:
        await cluster.start(1, 2, 3)
        await cluster.settled()
        await cluster.create_topic(1, "t", partitions=1, factor=3)
        more = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=4, assignments=None)])
        (grown,) = (await cluster.call(2, more)).results
        assert not grown.error_code
        for index in range(4):
            await produce(cluster, "t", [b"x"] * 10, partition=index)
            await until(partial(are_equal, cluster, "t", index))


async def test_a_compacted_log_is_copied_with_its_gaps(tmp_path: Path) -> None:
    async with Cluster(tmp_path, settings=SETTINGS) as cluster:
        await cluster.start(1, 2, 3)
        await cluster.settled()
        await cluster.create_topic(1, "t", partitions=1, factor=3)
        away = next(id for id in cluster.brokers if id not in (leader_of(cluster, "t"), cluster.controller))
        await until(lambda: len(replicas_of(cluster, "t")) == 3)
        await cluster.stop(away)
        await cluster.settled()
        await produce(cluster, "t", [b"x"] * 100, options={"batch.num.messages": 10})
        leader = cluster.brokers[leader_of(cluster, "t")].replicas.leader("t", 0)
        leader.log.may_have_gaps = True
        gap = batch(5, leader_epoch=leader.leader_epoch, value=b"behind a gap")
        gap[:8] = (leader.end_offset + 500).to_bytes(8, "big")
        leader.log.append_replicated(gap)
        leader._count()
        await cluster.start(away)
        await until(lambda: are_equal(cluster, "t"))
        assert [offset for offset, _ in records_of(cluster.brokers[away].replicas.get("t", 0))] == [
            *range(100),
            *range(600, 605),
        ]
