"""The two sides of the comparison, as processes: Ottla by its own command, Apache Kafka by bench.peers.

Both get a data folder of their own, a free loopback port and their defaults, but for two settings that only
concern what happens between passes: topics are not made by accident, and the files of a deleted topic go at
once instead of a minute later, so that no pass pays for the writeback of the one before.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.peers.kafka import answers, free_port, kafka_peer

SETTINGS = {"auto.create.topics.enable": "false", "log.segment.delete.delay.ms": "100"}


@dataclass(frozen=True)
class Side:
    """A running broker, or the brokers of a cluster: name in the table, where they listen, processes."""

    name: str
    ports: tuple[int, ...]
    pids: tuple[int, ...]
    """First those of the brokers, in the order of `ports`."""
    start_seconds: float

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def pid(self) -> int:
        return self.pids[0]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)


def ottla_command() -> list[str]:
    """The `ottla` of the environment this benchmark runs in."""
    command = Path(sys.executable).parent / "ottla"
    if not command.exists():
        raise SystemExit(f"bench: {command} is not there; run `make install` first")
    return [str(command)]


@contextmanager
def ottla_side(data: Path, extra: Mapping[str, str] | None = None) -> Iterator[Side]:
    """`ottla serve` on a free port, timed from the command until it answers; ended by its pid."""
    port = free_port()
    data.mkdir(parents=True, exist_ok=True)
    log = data.with_name(data.name + ".out")
    settings = [f"--set={key}={value}" for key, value in (SETTINGS | dict(extra or {})).items()]
    command = [*ottla_command(), "serve", "--data", str(data), "--listen", f"127.0.0.1:{port}", *settings]
    with log.open("wb") as out:
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            while not answers(port):
                if process.poll() is not None or time.monotonic() - began > 30:
                    raise RuntimeError(f"ottla did not start:\n{log.read_text()[-2000:]}")
                time.sleep(0.002)
            yield Side("Ottla", (port,), (process.pid,), time.monotonic() - began)
            if process.poll() is not None:
                raise RuntimeError(f"ottla ended by itself:\n{log.read_text()[-2000:]}")
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def kafka_side(data: Path, name: str = "Kafka", extra: Mapping[str, str] | None = None) -> Iterator[Side]:
    """Apache Kafka on a free port, timed from the start of the JVM until it answers."""
    with kafka_peer(SETTINGS | dict(extra or {}), data=data) as peer:
        yield Side(name, peer.ports, peer.pids, peer.start_seconds)


@contextmanager
def topic_on(side: Side, name: str, partitions: int = 1) -> Iterator[str]:
    """A topic with a replica on every broker, for the length of a measurement."""
    admin = create_topic(side, name, partitions)
    try:
        yield name
    finally:
        admin.delete_topics([name])[name].result(30)


def create_topic(side: Side, name: str, partitions: int = 1) -> AdminClient:
    """The same for as long as the brokers are there."""
    admin = AdminClient({"bootstrap.servers": side.bootstrap, "log_level": 3})
    admin.create_topics([NewTopic(name, partitions, len(side.ports))])[name].result(30)
    return admin


def leader_port(side: Side, topic: str) -> int:
    """Where the leader of the topic's only partition listens."""
    if len(side.ports) == 1:
        return side.port
    admin = AdminClient({"bootstrap.servers": side.bootstrap, "log_level": 3})
    until = time.monotonic() + 30
    while time.monotonic() < until:
        cluster = admin.list_topics(topic, timeout=30)
        partitions = cluster.topics[topic].partitions
        if partitions and partitions[0].leader in cluster.brokers:
            return int(cluster.brokers[partitions[0].leader].port)
        time.sleep(0.02)
    raise RuntimeError(f"{topic} has no leader")
