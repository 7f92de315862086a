"""Brokers come and go while an idempotent producer writes: what was acknowledged stays, and is there once."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import KafkaError, Message, Producer

from cluster.brokers import Cluster, until
from cluster.test_replication import are_equal, records_of, replicas_of

PARTITIONS = 3
SETTINGS = {
    "replica.fetch.wait.max.ms": 50,
    "replica.fetch.backoff.ms": 100,
    "replica.lag.time.max.ms": 2000,
    "min.insync.replicas": 2,
}


@dataclass
class Writer:
    """Writes numbers, in a thread, until it is told to stop."""

    bootstrap_servers: str
    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)
    errors: list[KafkaError] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 300,
                "topic.metadata.refresh.interval.ms": 1000,
                "log_level": 0,
            }
        )
        number = 0
        while not self.stopping.is_set():
            partition = number % PARTITIONS
            producer.produce("t", b"%d" % number, partition=partition, on_delivery=self._delivered)
            number += 1
            producer.poll(0)
            time.sleep(0.0005)
        assert producer.flush(120) == 0

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
            return
        value, partition, offset = message.value(), message.partition(), message.offset()
        assert value is not None and partition is not None and offset is not None
        self.acknowledged[int(value)] = partition, offset


def describe(cluster: Cluster, writer: Writer) -> None:
    """For a failure: how the brokers see their partitions."""
    print(len(writer.acknowledged), "acknowledged;", "up:", list(cluster.brokers))
    for id, broker in cluster.brokers.items():
        print("broker", id, "controller" if broker.controller.active else "", broker.image.brokers)
        for index in range(PARTITIONS):
            if (held := broker.replicas.held("t", index)) is not None:
                print(index, broker.image.partition("t", index), held.end_offset, held.high_watermark)


async def bounce(folder: Path, seed: int, rounds: int) -> None:
    rng = Random(seed)
    print("seed", seed)
    async with Cluster(folder, settings=SETTINGS) as cluster:
        await cluster.start(1, 2, 3)
        await cluster.settled()
        await cluster.create_topic(1, "t", partitions=PARTITIONS, factor=3)
        writer = Writer(cluster.bootstrap_servers)
        writing = asyncio.create_task(asyncio.to_thread(writer.run))
        try:
            for _ in range(rounds):
                written = len(writer.acknowledged) + rng.randrange(1, 1000)
                await until(lambda written=written: len(writer.acknowledged) >= written)  # type: ignore[misc]
                broker = rng.choice([1, 2, 3])
                await rng.choice([cluster.crash, cluster.stop])(broker)
                await asyncio.sleep(rng.uniform(0, 0.5))
                await cluster.start(broker)
        except BaseException:
            describe(cluster, writer)
            raise
        finally:
            writer.stopping.set()
            await writing
        assert writer.errors == []
        for index in range(PARTITIONS):
            await until(lambda index=index: are_equal(cluster, "t", index))  # type: ignore[misc]
            records = dict(records_of(replicas_of(cluster, "t", index)[0]))
            assert len(set(records.values())) == len(records), "a record is there twice"
            for number, (partition, offset) in writer.acknowledged.items():
                assert partition != index or records.get(offset) == b"%d" % number


async def test_no_acknowledged_record_is_lost_or_doubled_when_brokers_bounce(tmp_path: Path) -> None:
    await bounce(tmp_path, seed=1, rounds=4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
async def test_no_acknowledged_record_is_lost_or_doubled_over_many_bounces(tmp_path: Path, seed: int) -> None:
    await bounce(tmp_path, seed, rounds=15)
