#!/usr/bin/env python3
"""Apache Kafka as a peer: resolved by its Maven coordinates, started in KRaft mode, ended by its pids.

    kafka.py start [--brokers N] [--port P] [--data DIR] [--version V] [--set key=value]...
        Starts N combined broker+controller nodes with Kafka's own start-up flags (1 GB heap, G1) and prints
        one JSON line when all answer: bootstrap, pids, seconds to start. Runs until SIGTERM or Ctrl-C.
    kafka.py tool CLASS ARGS...
        Runs one of Kafka's own tools, for example
        `tool org.apache.kafka.tools.DumpLogSegments --files 00000000000000000000.log --print-data-log`.
    kafka.py classpath
        Prints the class path, for a Java client of your own.

From Python, `with kafka_peer({"num.partitions": "3"}) as k:` gives the same with `k.bootstrap`, `k.pids` and
`k.start_seconds`. Needs Java 17 or newer and, the first time, Maven; says so (`PeerMissing`) when they are
not there. The jars are kept in ~/.cache/ottla-peers (or OTTLA_PEERS). Standard library only.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

if not __package__:  # run as a script: `python bench/peers/kafka.py ...`
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.peers.maven import PeerMissing, require, resolve

VERSION = "4.3.1"
HEAP = ["-Xms1G", "-Xmx1G"]
JVM = [
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
]
# ApiVersions v0 with correlation id 1 and no client id: what every broker of every age answers.
_API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000001 ffff")


@dataclass(frozen=True)
class KafkaPeer:
    """A running Kafka: one entry per node in `pids` and `ports`, and where its data is."""

    bootstrap: str
    ports: tuple[int, ...]
    pids: tuple[int, ...]
    start_seconds: float
    version: str
    data: Path


def classpath(version: str = VERSION) -> str:
    """The class path with Kafka's broker, clients and tools; resolves them on first use."""
    require("java")
    folder = resolve(
        f"kafka-{version}",
        f"org.apache.kafka:kafka_2.13:{version}",
        f"org.apache.kafka:kafka-tools:{version}",
        "org.slf4j:slf4j-nop:1.7.36",
    )
    return f"{folder}/*"


def free_port() -> int:
    """A port that is free at this moment."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def answers(port: int) -> bool:
    """True when a broker on this port answers ApiVersions, so that a client can use it."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as s:
            s.settimeout(2)
            s.sendall(_API_VERSIONS)
            return len(s.recv(4)) == 4
    except OSError:
        return False


def _node_settings(node: int, ports: list[int], controllers: list[int], data: Path) -> dict[str, str]:
    brokers = len(ports)
    replicas, in_sync = str(min(3, brokers)), str(min(2, brokers))
    listeners = f"PLAINTEXT://127.0.0.1:{ports[node]}"
    return {
        "process.roles": "broker,controller",
        "node.id": str(node + 1),
        "controller.quorum.voters": ",".join(f"{n + 1}@127.0.0.1:{p}" for n, p in enumerate(controllers)),
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controllers[node]}",
        "advertised.listeners": listeners,
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(data / f"node-{node + 1}"),
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "default.replication.factor": replicas,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
    }


def _format(cp: str, config: Path, cluster: str) -> None:
    tool = ["java", "-Xmx256M", "-cp", cp, "kafka.tools.StorageTool", "format"]
    done = subprocess.run(
        [*tool, "-t", cluster, "-c", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"Kafka's StorageTool refused {config}:\n{done.stdout[-2000:]}")


def _end(nodes: list[subprocess.Popen[bytes]]) -> None:
    for node in nodes:
        node.terminate()
    for node in nodes:
        try:
            node.wait(20)
        except subprocess.TimeoutExpired:
            node.kill()
            node.wait()


@contextmanager
def kafka_peer(
    settings: Mapping[str, str] | None = None,
    *,
    brokers: int = 1,
    port: int = 0,
    data: Path | None = None,
    version: str = VERSION,
) -> Iterator[KafkaPeer]:
    """Kafka nodes that answer, for the length of a `with`; ended and (without `data`) removed afterwards.

    With `data` the folder is kept, and a later start on it finds the same cluster. `port` is the first
    broker's, 0 for free ones.
    """
    if data is None:
        with (
            tempfile.TemporaryDirectory(prefix="kafka-peer-", ignore_cleanup_errors=True) as folder,
            kafka_peer(settings, brokers=brokers, port=port, data=Path(folder), version=version) as peer,
        ):
            yield peer
        return
    cp = classpath(version)
    ports = [port + i if port else free_port() for i in range(brokers)]
    controllers = [free_port() for _ in range(brokers)]
    cluster = "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]  # never a leading dash
    data.mkdir(parents=True, exist_ok=True)
    configs: list[Path] = []
    for node in range(brokers):
        lines = _node_settings(node, ports, controllers, data) | dict(settings or {})
        config = data / f"node-{node + 1}.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        configs.append(config)
        if not (data / f"node-{node + 1}" / "meta.properties").exists():
            _format(cp, config, cluster)
    nodes: list[subprocess.Popen[bytes]] = []
    began = time.monotonic()
    try:
        for config in configs:
            command = ["java", *HEAP, *JVM, "-cp", cp, "kafka.Kafka", str(config)]
            nodes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        while not all(answers(p) for p in ports):
            if any(node.poll() is not None for node in nodes):
                raise RuntimeError(f"a Kafka node ended while starting (settings: {configs[0]})")
            if time.monotonic() - began > 120:
                raise RuntimeError("Kafka did not answer within 120 s")
            time.sleep(0.02)
        yield KafkaPeer(
            bootstrap=",".join(f"127.0.0.1:{p}" for p in ports),
            ports=tuple(ports),
            pids=tuple(node.pid for node in nodes),
            start_seconds=round(time.monotonic() - began, 3),
            version=version,
            data=data,
        )
    finally:
        _end(nodes)


def _start(arguments: argparse.Namespace) -> None:
    settings = dict(pair.split("=", 1) for pair in arguments.set)
    data = arguments.data.resolve() if arguments.data else None
    # Turned into SystemExit at once, so that a SIGTERM while starting ends the nodes too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with kafka_peer(
            settings, brokers=arguments.brokers, port=arguments.port, data=data, version=arguments.version
        ) as peer:
            line = {"bootstrap": peer.bootstrap, "pids": peer.pids, "start_seconds": peer.start_seconds}
            print(json.dumps(line | {"version": peer.version, "data": str(peer.data)}), flush=True)
            signal.pause()
    except KeyboardInterrupt:
        return


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("start")
    start.add_argument("--brokers", type=int, default=1)
    start.add_argument("--port", type=int, default=0)
    start.add_argument("--data", type=Path)
    start.add_argument("--version", default=VERSION)
    start.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    tool = commands.add_parser("tool")
    tool.add_argument("cls")
    tool.add_argument("args", nargs=argparse.REMAINDER)
    commands.add_parser("classpath")
    arguments = parser.parse_args()
    try:
        if arguments.command == "classpath":
            print(classpath())
        elif arguments.command == "tool":
            os.execvp("java", ["java", "-cp", classpath(), arguments.cls, *arguments.args])
        else:
            _start(arguments)
    except (PeerMissing, RuntimeError) as problem:
        raise SystemExit(f"kafka.py: {problem}") from None


if __name__ == "__main__":
    main()
