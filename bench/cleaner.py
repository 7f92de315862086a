"""Compaction and restarts: how fast a log is cleaned, with how much memory, and what others feel of it.

    python -m bench.cleaner [--megabytes 2000] [--keys 5000000] [--partitions 2000] [--without-kafka]

One side after the other: a topic is filled with records of random keys while compaction is held back
(`min.cleanable.dirty.ratio=1`), single records are produced to another topic for a while (quiet), compaction
is let loose, and producing goes on until the closed segments are clean, which both brokers write down in
their `cleaner-offset-checkpoint`. Then many partitions are made, and the broker is started again after a
clean stop and after a `kill -9`.

The processor time and memory of Ottla are those of the broker and of its cleaning process together.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from bench.peers.kafka import VERSION
from bench.processes import cpu_seconds, memory_mb
from bench.sides import Side, kafka_side, ottla_side
from bench.table import Line, render
from bench.wire import Connection, produce_frame, produced_offset, single_record_batch

SETTINGS = {"log.cleaner.backoff.ms": "500", "num.partitions": "1"}
_TOPIC = "cleaned"
_VALUE = 150
_SEGMENT = 100 << 20
_PAUSE = 0.002  # between two of the single records, so that the client leaves the cores to the brokers

StartSide = Callable[[Path, Mapping[str, str]], AbstractContextManager[Side]]


@dataclass
class Load:
    """How much is done."""

    megabytes: int = 2000
    keys: int = 5_000_000
    partitions: int = 2000
    quiet_seconds: float = 10.0


@dataclass
class Figures:
    """Of one side, by the name of the measure."""

    values: dict[str, float] = field(default_factory=dict)


def fill(side: Side, load: Load) -> None:
    """Records of random keys until there are as many bytes."""
    admin = AdminClient({"bootstrap.servers": side.bootstrap, "log_level": 3})
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": str(min(_SEGMENT, load.megabytes * 1_000_000 // 8)),
        "min.cleanable.dirty.ratio": "1",
    }
    topics = [NewTopic(_TOPIC, 1, 1, config=config), NewTopic("beside", 1, 1)]
    for made in admin.create_topics(topics).values():
        made.result(30)
    rng = random.Random(7)
    failures: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": side.bootstrap,
            "linger.ms": 20,
            "batch.size": 500_000,
            "queue.buffering.max.messages": 1_000_000,
            "on_delivery": lambda error, _: failures.append(error) if error else None,
        }
    )
    pool = rng.randbytes(1 << 20)
    for number in range(load.megabytes * 1_000_000 // (_VALUE + 30)):
        at = number * 7 % (len(pool) - _VALUE)
        while True:
            try:
                producer.produce(_TOPIC, pool[at : at + _VALUE], b"key-%011d" % rng.randrange(load.keys))
                break
            except BufferError:
                producer.poll(0.05)
        if number % 5000 == 0:
            producer.poll(0)
    if producer.flush(120) or failures:
        raise RuntimeError(f"the topic could not be filled: {failures[:1]}")


def let_loose(side: Side) -> None:
    """Allow compaction."""
    admin = AdminClient({"bootstrap.servers": side.bootstrap, "log_level": 3})
    entry = ConfigEntry("min.cleanable.dirty.ratio", "0.01", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, _TOPIC, incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


class Beside:
    """Single records to another topic, one after the other; the time of each in microseconds."""

    def __init__(self, side: Side) -> None:
        self._connection = Connection(side.port)
        self._frame = produce_frame("beside", single_record_batch(os.urandom(100), int(time.time() * 1000)))

    def until(self, done: Callable[[], bool]) -> list[float]:
        times = []
        while not done():
            began = time.perf_counter_ns()
            self._connection.send(self._frame)
            answer = self._connection.receive()
            times.append((time.perf_counter_ns() - began) / 1e3)
            produced_offset(answer, "beside")
            time.sleep(_PAUSE)
        return times


def quantile(times: list[float], share: float) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def children(pid: int) -> list[int]:
    """The processes that a process has started, in whichever of its threads."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # the thread may have ended
            found += [int(child) for child in (thread / "children").read_text().split()]
    return found


class Watch:
    """Whether the log is clean, and what its cleaning costs meanwhile."""

    def __init__(self, side: Side, logs: Path) -> None:
        self._side = side
        self._checkpoint = logs / "cleaner-offset-checkpoint"
        closed = sorted((logs / f"{_TOPIC}-0").glob("*.log"))
        self.end = int(closed[-1].stem)
        self.bytes = sum(file.stat().st_size for file in closed[:-1])
        self._looked = 0.0
        self._children: dict[int, tuple[float, float]] = {}
        self._cpu = cpu_seconds(side.pid)
        self.finished_at = 0.0

    def done(self) -> bool:
        now = time.monotonic()
        if now - self._looked < 0.05:
            return False
        self._looked = now
        for child in children(self._side.pid):
            with suppress(OSError, LookupError):
                self._children[child] = cpu_seconds(child), memory_mb(child, "VmHWM")
        lines = self._checkpoint.read_text().splitlines()[2:] if self._checkpoint.exists() else []
        reached = {line.rsplit(" ", 1)[0]: int(line.rsplit(" ", 1)[1]) for line in lines}
        self.finished_at = now
        return reached.get(f"{_TOPIC} 0", -1) >= self.end

    @property
    def cpu(self) -> float:
        return cpu_seconds(self._side.pid) - self._cpu + sum(cpu for cpu, _ in self._children.values())

    @property
    def memory(self) -> float:
        return memory_mb(self._side.pid, "VmHWM") + sum(memory for _, memory in self._children.values())


def clean(side: Side, logs: Path, load: Load, figures: Figures) -> None:
    fill(side, load)
    beside = Beside(side)
    end = time.monotonic() + 2
    beside.until(lambda: time.monotonic() > end)  # thrown away
    end = time.monotonic() + load.quiet_seconds
    quiet = beside.until(lambda: time.monotonic() > end)
    watch = Watch(side, logs)
    began = time.monotonic()
    let_loose(side)
    busy = beside.until(watch.done)
    seconds = watch.finished_at - began
    size = sum(f.stat().st_size for f in (logs / f"{_TOPIC}-0").glob("*.log"))
    figures.values |= {
        "MB/s": watch.bytes / 1e6 / seconds,
        "seconds": seconds,
        "left": size / 1e6,
        "cpu": watch.cpu / (watch.bytes / 1e9),
        "memory": watch.memory,
        "quiet p50": quantile(quiet, 0.5),
        "quiet p99": quantile(quiet, 0.99),
        "busy p50": quantile(busy, 0.5),
        "busy p99": quantile(busy, 0.99),
        "p99 ratio": quantile(busy, 0.99) / quantile(quiet, 0.99),
    }


def restarts(start: StartSide, folder: Path, load: Load, figures: Figures) -> None:
    """Seconds from the command to the first answer, with many partitions, some of them written to."""
    topics = max(load.partitions // 100, 1)
    with start(folder, SETTINGS) as side:
        admin = AdminClient({"bootstrap.servers": side.bootstrap, "log_level": 3})
        for number in range(topics):
            each = NewTopic(f"many-{number}", load.partitions // topics, 1)
            admin.create_topics([each], operation_timeout=60, request_timeout=60)[each.topic].result(90)
        _write_to_many(side, topics, load)
    killed = False
    try:
        with start(folder, SETTINGS) as side:
            figures.values["clean restart"] = side.start_seconds
            _write_to_many(side, topics, load)
            os.kill(side.pid, signal.SIGKILL)
            killed = True
            time.sleep(0.5)
    except RuntimeError:
        if not killed:  # it complains that the broker has ended
            raise
    with start(folder, SETTINGS) as side:
        figures.values["unclean restart"] = side.start_seconds


def _write_to_many(side: Side, topics: int, load: Load) -> None:
    producer = Producer({"bootstrap.servers": side.bootstrap, "linger.ms": 5})
    for number in range(topics):
        for partition in range(load.partitions // topics):
            producer.produce(f"many-{number}", b"x" * 200, partition=partition)
    if producer.flush(120):
        raise RuntimeError("not all records were delivered")


def lines(ours: Figures, theirs: Figures) -> list[Line]:
    def line(title: str, unit: str, name: str, budget: float | None = None) -> Line:
        return Line(title, unit, ours.values.get(name), theirs.values.get(name), budget)

    mine = ours.values.get("p99 ratio")
    table = [
        line("Compaction", "MB/s", "MB/s"),
        line("Compaction, CPU", "s/GB", "cpu"),
        line("Compaction, memory (highest)", "MB", "memory"),
        line("Compaction, left of the log", "MB", "left"),
        line("Single record, quiet, p99", "us", "quiet p99"),
        line("Single record, while compacting, p50", "us", "busy p50"),
        line("Single record, while compacting, p99", "us", "busy p99"),
        Line("... to the quiet p99", "x", mine, theirs.values.get("p99 ratio"), 2.0, mine),
        line("Start with many partitions, clean", "s", "clean restart"),
        line("Start with many partitions, after kill -9", "s", "unclean restart"),
    ]
    return [each for each in table if each.ours is not None]


def measure(load: Load, folder: Path, *, with_kafka: bool, say: Callable[[str], None]) -> list[Line]:
    """The lines of the table."""
    sides: list[tuple[Figures, StartSide, Callable[[Path], Path]]] = [
        (Figures(), lambda data, settings: ottla_side(data, settings), lambda data: data)
    ]
    if with_kafka:
        sides.append(
            (
                Figures(),
                lambda data, settings: kafka_side(data, f"Kafka {VERSION}", settings),
                lambda data: data / "node-1",
            )
        )
    for number, (figures, start, logs) in enumerate(sides):
        name = ("Ottla", "Kafka")[number]
        say(f"compaction of {load.megabytes} MB, {name}")
        data = folder / f"cleaner-{number}"
        with start(data, SETTINGS) as side:
            clean(side, logs(data), load, figures)
        say(f"restarts with {load.partitions} partitions, {name}")
        restarts(start, folder / f"restarts-{number}", load, figures)
    return lines(sides[0][0], sides[1][0] if with_kafka else Figures())


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench.cleaner", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=Load.megabytes)
    parser.add_argument("--keys", type=int, default=Load.keys)
    parser.add_argument("--partitions", type=int, default=Load.partitions)
    parser.add_argument("--without-kafka", action="store_true")
    parser.add_argument("--data", type=Path, help="a folder on the disk to use (default: a temporary one)")
    arguments = parser.parse_args()
    load = Load(arguments.megabytes, arguments.keys, arguments.partitions)
    with tempfile.TemporaryDirectory(
        prefix="ottla-bench-", dir=arguments.data, ignore_cleanup_errors=True
    ) as folder:
        table = measure(
            load,
            Path(folder),
            with_kafka=not arguments.without_kafka,
            say=lambda text: print(f"bench: {text}", file=sys.stderr, flush=True),
        )
    print(render(table, "Ottla", f"Kafka {VERSION}"))
    return 1 if any(line.verdict == "FAIL" for line in table) else 0


if __name__ == "__main__":
    raise SystemExit(main())
