#!/usr/bin/env python3
"""`python -m bench.cluster`: three brokers of Ottla and of Apache Kafka side by side, replication factor 3.

    python -m bench.cluster [--quick] [--only NAME]... [--json FILE] [--without-kafka] [--data DIR]

Both run three brokers on this machine with `min.insync.replicas=2`: Ottla by `ottla serve --brokers 3`, whose
supervisor counts as well, Kafka as three combined nodes. Passes are those of `bench.measure`, second passes
of fresh brokers. CPU and memory are those of all processes of a side together.

`failover` kills the leader of a partition (never Kafka's active controller) under a producer with acks=all
and a consumer, and notes for how long each of them had nothing. `partitions`, `restarts` and `controller` are
those of `bench.many_partitions`: 3,000 partitions created, restarted with, and left without their controller,
once, and 600 of them in a quick run. What one side does not get done in its time is named below the table,
and the exit code is 1.
Both sides have their default session timeouts, which are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from bench import many_partitions
from bench.measure import Bench, Bulk, Start
from bench.peers.kafka import VERSION, classpath, free_port, kafka_peer
from bench.peers.maven import PeerMissing
from bench.sides import SETTINGS, Side, create_topic, leader_port, ottla_command
from bench.table import Line, render

BROKERS = 3
IDEMPOTENT = Bulk("1kb", "1 KB, idempotent", 1000, 400, {"enable.idempotence": True})
MEASURES = ["start-up", "idle", "single", "bulk", "failover", *many_partitions.MEASURES]
_REPLICATED = SETTINGS | {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
}
_KILLED_AFTER = 4.0
_GOES_ON = 20.0
_ATTEMPTS = 6
"""To have a leader that is not the controller."""


@contextmanager
def ottla_cluster(data: Path) -> Iterator[Side]:
    """`ottla serve --brokers 3`, timed from the command until all brokers are ready."""
    data.mkdir(parents=True, exist_ok=True)
    settings = [f"--set={key}={value}" for key, value in _REPLICATED.items()]
    port = _free_ports()
    command = [*ottla_command(), "serve", "--json", f"--brokers={BROKERS}", f"--data={data}"]
    log = data.with_name(data.name + ".out")
    with log.open("wb") as errors:
        began = time.monotonic()
        process = subprocess.Popen(
            [*command, f"--listen=127.0.0.1:{port}", *settings],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        if not ready:
            raise RuntimeError(f"ottla did not start:\n{log.read_text()[-2000:]}")
        seconds = time.monotonic() - began
        brokers = json.loads(ready)["brokers"]
        ports = tuple(int(broker["bootstrap"].rpartition(":")[2]) for broker in brokers)
        yield Side("Ottla", ports, (*(broker["pid"] for broker in brokers), process.pid), seconds)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def kafka_cluster(data: Path, name: str) -> Iterator[Side]:
    settings = _REPLICATED | {"transaction.state.log.replication.factor": "3"}
    with kafka_peer(settings, brokers=BROKERS, data=data) as peer:
        yield Side(name, peer.ports, peer.pids, peer.start_seconds)


def _free_ports() -> int:
    """The first of three ports in a row that are free now."""
    while True:
        first = free_port()
        try:
            for port in range(first, first + BROKERS):
                _check_free(port)
        except OSError:
            continue
        return first


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


# -- a leader that dies -------------------------------------------------------------------------------------


def failover(side: Side) -> dict[str, float]:
    """The longest time without an acknowledgement, and without a record, when the leader is killed."""
    topic = f"failover-{time.monotonic_ns()}"
    create_topic(side, topic)
    port = _leader_that_may_die(side, topic)
    seconds = _KILLED_AFTER + _GOES_ON
    watch = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.failover", role, side.bootstrap, topic, str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for role in ("produce", "consume")
    ]
    try:
        for each in watch:
            assert each.stdout is not None
            if each.stdout.readline() != "ready\n":
                raise RuntimeError("a client did not start")
        time.sleep(_KILLED_AFTER)
        os.kill(side.pids[side.ports.index(port)], signal.SIGKILL)
        found = [json.loads(each.communicate(timeout=seconds + 60)[0]) for each in watch]
    finally:
        for each in watch:
            if each.poll() is None:
                each.kill()
                each.wait()
    produced, consumed = found
    if produced["failed"] or consumed["wrong"]:
        raise RuntimeError(f"{side.name} lost records or order: {found}")
    return {"failover produce": produced["longest"], "failover consume": consumed["longest"]}


def _leader_that_may_die(side: Side, topic: str) -> int:
    """The port of the leader; Kafka's active controller, whose loss costs another election, is spared."""
    port = leader_port(side, topic)
    if side.name.startswith("Kafka"):
        tool = ["java", "-cp", classpath(), "org.apache.kafka.tools.MetadataQuorumCommand"]
        status = subprocess.run(
            [*tool, "--bootstrap-server", side.bootstrap, "describe", "--status"],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        leader = next(line.split()[1] for line in status.splitlines() if line.startswith("LeaderId"))
        admin = AdminClient({"bootstrap.servers": side.bootstrap, "log_level": 3})
        if int(admin.list_topics(timeout=30).brokers[int(leader)].port) == port:
            raise _Again
    return port


class _Again(Exception):
    """The leader of the topic is the active controller."""


def _measure_failover(bench: Bench, rounds: int) -> None:
    """Each side alone, with fresh brokers: they do not all survive it."""
    for number in range(rounds):
        for name, start in bench.starts.items():
            for _ in range(_ATTEMPTS):
                data = bench.folder / f"{name}-failover-{number}-{time.monotonic_ns()}"
                try:
                    with start(data) as side:
                        for measure, value in failover(side).items():
                            bench.note(name, measure, value)
                    break
                except _Again:
                    continue
            else:
                raise RuntimeError(f"{name}: the leader was the controller in {_ATTEMPTS} attempts")


# -- the table ----------------------------------------------------------------------------------------------


def lines(bench: Bench, ours: str, theirs: str) -> list[Line]:
    def line(title: str, unit: str, measure: str, budget: float | None = None) -> Line:
        return Line(title, unit, bench.figure(ours, measure), bench.figure(theirs, measure), budget)

    name = IDEMPOTENT.name
    return [
        line("CPU to produce, 1 KB, idempotent", "s/GB", f"produce {name} cpu", 0.35),
        line("CPU to consume, 1 KB", "s/GB", f"consume {name} cpu"),
        line("produce, 1 KB, idempotent", "MB/s", f"produce {name} MB/s"),
        line("consume, 1 KB", "MB/s", f"consume {name} MB/s"),
        line("Single record, acks=all, p50", "us", "single p50", 1.0),
        line("Single record, acks=all, p99", "us", "single p99", 0.5),
        line("Single record, CPU per request", "us", "single cpu"),
        line("Start-up", "s", "start-up", 0.2),
        line("Idle memory", "MB", "idle memory", 0.15),
        line("Idle CPU", "%", "idle cpu"),
        Line(
            "Loaded memory (highest)",
            "MB",
            bench.most(ours, "loaded memory"),
            bench.most(theirs, "loaded memory"),
            0.12,
        ),
        line("Leader killed: producer without an answer", "s", "failover produce", 1.0),
        line("Leader killed: consumer without a record", "s", "failover consume", 1.0),
    ]


def _measure(bench: Bench, wanted: set[str], quick: bool) -> list[str]:
    """One measure after the other. What could not be measured is returned, and the others go on."""
    partitions = many_partitions.MANY_QUICK if quick else many_partitions.MANY
    measures: dict[str, Callable[[], None]] = {
        "start-up": lambda: bench.start_up(1 if quick else 3),
        "idle": lambda: bench.idle(settle=5, seconds=5 if quick else 10),
        "single": lambda: bench.second_passes(bench.single),
        "bulk": lambda: bench.second_passes(bench.bulk(IDEMPOTENT)),
        "failover": lambda: _measure_failover(bench, 1 if quick else 3),
    }
    missed = []
    began = time.monotonic()
    for name, measure in measures.items():
        if name not in wanted:
            continue
        print(f"{time.monotonic() - began:.0f} s: {name}", file=sys.stderr, flush=True)
        try:
            measure()
        except (RuntimeError, subprocess.SubprocessError) as problem:
            missed.append(f"{name}: {problem}")
    if wanted.intersection(many_partitions.MEASURES):
        missed += many_partitions.measure(bench, wanted, partitions)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench.cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="less data and fewer rounds")
    parser.add_argument("--only", action="append", choices=MEASURES, metavar="NAME", help=", ".join(MEASURES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of every round there")
    parser.add_argument("--without-kafka", action="store_true", help="only Ottla: figures, but no ratios")
    parser.add_argument("--data", type=Path, help="a folder on the disk to use (default: a temporary one)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    ours, theirs = "Ottla", f"Kafka {VERSION}"
    starts: dict[str, Start] = {ours: ottla_cluster}
    wanted, quick = set(arguments.only or MEASURES), arguments.quick
    try:
        if not arguments.without_kafka:
            classpath()
            starts[theirs] = lambda data: kafka_cluster(data, theirs)
        with tempfile.TemporaryDirectory(
            prefix="ottla-bench-", dir=arguments.data, ignore_cleanup_errors=True
        ) as folder:
            bench = Bench(starts, Path(folder), rounds=1 if quick else 3, scale=0.25 if quick else 1.0)
            missed = _measure(bench, wanted, quick)
    except (PeerMissing, RuntimeError, subprocess.SubprocessError) as problem:
        print(f"bench.cluster: could not be measured: {problem}", file=sys.stderr)
        return 2
    partitions = many_partitions.MANY_QUICK if quick else many_partitions.MANY
    table = [*lines(bench, ours, theirs), *many_partitions.lines(bench, ours, theirs, partitions)]
    table = [line for line in table if line.ours is not None or line.theirs is not None]
    print(render(table, ours, theirs))
    for each in missed:
        print(f"Not measured: {each}")
    if arguments.json:
        arguments.json.write_text(json.dumps(bench.results, indent=1) + "\n")
    return 1 if missed or any(line.verdict == "FAIL" for line in table) else 0


if __name__ == "__main__":
    raise SystemExit(main())
