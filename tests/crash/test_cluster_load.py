"""Many clients at once on a cluster of processes, and twice as much as it can take: it slows down, no more.

Nobody is lost in the crowd: all records are acknowledged, no follower drops out of an in-sync set, no group
loses a member, and the cluster does not take much less in all than it took from half of the clients.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from broker_process import OTTLA
from crash.cluster_load import await_in_time
from crash.load import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOPIC = "t"
NEWS = "news"
"""The topic that the groups read: what they cost is not the bytes but that they are many."""
PARTITIONS = 12
VALUE = bytes(1000)
SECONDS = 10.0
PRODUCERS = 4
READERS = 40
LEAST_SHARE = 0.4
"""Of what half of the clients wrote in the same time: the clients share the processors with the brokers."""
SETTINGS = {
    "offsets.topic.num.partitions": 4,
    "group.initial.rebalance.delay.ms": 100,
    "replica.lag.time.max.ms": 10_000,
    "log.retention.bytes": 16 << 20,
    "log.segment.bytes": 8 << 20,
    "log.retention.check.interval.ms": 1000,
}


class Writer(threading.Thread):
    """Writes as fast as the cluster takes it."""

    def __init__(self, bootstrap: str, number: int) -> None:
        super().__init__(name=f"writer-{number}")
        self._partitions = itertools.cycle(range(PARTITIONS))
        self._ending = threading.Event()
        self.acknowledged = 0
        self.errors: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "queue.buffering.max.messages": 20_000,
                "message.timeout.ms": 120_000,
                "log_level": 0,
            }
        )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(error.str())

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                self._producer.produce(
                    TOPIC, VALUE, partition=next(self._partitions), on_delivery=self._delivered
                )
            except BufferError:
                self._producer.poll(0.05)
            self._producer.poll(0)

    def finish(self) -> None:
        self._ending.set()
        self.join(PATIENCE)
        assert self._producer.flush(PATIENCE) == 0, "records stayed without an answer"
        assert self.errors == []


class Reader(threading.Thread):
    """A group of its own that reads the news and commits."""

    def __init__(self, bootstrap: str, number: int) -> None:
        super().__init__(name=f"reader-{number}")
        self._ending = threading.Event()
        self.assignments = 0
        self.read = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"group-{number}",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 1000,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        self._consumer.subscribe([NEWS], on_assign=lambda *_: self._assigned())
        while not self._ending.is_set():
            for message in self._consumer.consume(1000, 0.5):
                self.read += message.error() is None
        self._consumer.close()

    def _assigned(self) -> None:
        self.assignments += 1

    def finish(self) -> None:
        self._ending.set()
        self.join(PATIENCE)
        assert not self.is_alive(), "a consumer hangs"


def in_sync_sets(folder: Path) -> dict[str, bytes]:
    """The states of all partitions with their epochs, which change with every change of an in-sync set."""
    registry = sqlite3.connect(folder / "cluster.sqlite")
    try:
        return dict(registry.execute("SELECT path, data FROM nodes WHERE parent LIKE '/brokers/topics/%'"))
    finally:
        registry.close()


def written_in(writers: list[Writer], news: Producer, seconds: float) -> float:
    """Records a second that these writers got acknowledged, while there are news for the groups."""
    for writer in writers:
        writer.start()
    await_in_time(lambda: all(writer.acknowledged for writer in writers), "the first records of all writers")
    before, began = sum(writer.acknowledged for writer in writers), time.monotonic()
    while time.monotonic() < began + seconds:
        news.produce(NEWS, b"%f" % time.monotonic())
        news.poll(0.2)
    count, took = sum(writer.acknowledged for writer in writers) - before, time.monotonic() - began
    for writer in writers:
        writer.finish()
    return count / took


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """`ottla serve --brokers 3`, without relays: they would be the first to be too slow."""
    command = [str(OTTLA), "serve", "--brokers", "3", "--listen", "127.0.0.1:0", "--json"]
    command += [f"--data={folder}", *(f"--set={name}={value}" for name, value in SETTINGS.items())]
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["bootstrap"]
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in (folder / "output.txt").read_text()


def test_twice_the_load_and_many_groups_only_slow_a_cluster_down(tmp_path: Path) -> None:
    with serving(tmp_path) as servers:
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        for created in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3), NewTopic(NEWS, 1, 3)]).values():
            created.result(PATIENCE)
        news = Producer({"bootstrap.servers": servers, "log_level": 0})
        readers = [Reader(servers, number) for number in range(READERS)]
        try:
            for reader in readers:
                reader.start()
            await_in_time(lambda: all(reader.assignments for reader in readers), "all groups to begin")
            states = in_sync_sets(tmp_path)
            some = written_in([Writer(servers, number) for number in range(PRODUCERS)], news, SECONDS)
            twice = written_in([Writer(servers, number) for number in range(2 * PRODUCERS)], news, SECONDS)
            print(f"{some:.0f} records/s of {PRODUCERS} producers, {twice:.0f} of {2 * PRODUCERS}")
            assert news.flush(PATIENCE) == 0
            await_in_time(lambda: len({reader.read for reader in readers}) == 1, "all groups to read all")
        finally:
            for reader in readers:
                reader.finish()
        assert in_sync_sets(tmp_path) == states, "a follower dropped out of an in-sync set"
        assert [reader.assignments for reader in readers] == [1] * READERS, "a group lost a member"
        assert twice >= LEAST_SHARE * some
