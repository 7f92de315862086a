"""The measurements: what is done to each side, in which order, and which figure is taken.

A measurement is a pass: so many records produced and consumed, so many requests. A JVM goes on getting faster
for a long time, so how warm it is decides what it costs. Two states are measured:

* second passes: fresh brokers, one whole pass thrown away (the JVM compiles, Python's caches fill, files and
  connections have been seen once), the next one counts; again with fresh brokers, as often as there are
  rounds. This is what the budgets are for.
* late passes: one pair of brokers that goes through everything, each pass after one that is thrown away.

Both brokers run all the time and take turns, the order turned round each time, so that a slow minute of the
machine hits both. A figure is the median over the rounds.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from bench.processes import MachineTime, cpu_seconds, memory_mb, touch_page_cache
from bench.sides import Side, leader_port, topic_on

_ROOT = Path(__file__).resolve().parent.parent
_STEADY_AFTER = 40_000  # single requests after which the JVM's figures for them stand still

Start = Callable[[Path], AbstractContextManager[Side]]
Pass = Callable[[Side], dict[str, float]]
"""Do something to a broker once, and say what was measured."""


@dataclass(frozen=True)
class Bulk:
    """One way to move much data: record size, how much, and librdkafka's settings."""

    name: str
    title: str
    size: int
    megabytes: int
    config: dict[str, Any]


_FULL_BATCHES = {
    "batch.size": 1_000_000,
    "linger.ms": 50,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 262_144,
}
BULKS = [
    Bulk("1kb", "1 KB", 1000, 800, _FULL_BATCHES),
    Bulk("100b", "100 B", 100, 400, _FULL_BATCHES),
    Bulk("100kb", "100 KB", 100_000, 800, _FULL_BATCHES),
    Bulk("defaults", "1 KB, defaults, idempotent", 1000, 800, {"enable.idempotence": True}),
]


@dataclass
class Noise:
    """CPU that neither the brokers nor the clients used while something was measured."""

    shares: list[float] = field(default_factory=list)
    steal: list[float] = field(default_factory=list)


@dataclass
class Bench:
    """How to start the sides and how thoroughly they are measured.

    `results[side][measure]` is a list, one figure per round; late passes have "late " before the measure.
    """

    starts: Mapping[str, Start]
    folder: Path
    rounds: int
    scale: float
    noise: Noise = field(default_factory=Noise)
    results: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    _sides: list[Side] = field(default_factory=list)
    _names: Iterator[int] = field(default_factory=count)

    def note(self, side: str, measure: str, value: float) -> None:
        self.results.setdefault(side, {}).setdefault(measure, []).append(value)

    def figure(self, side: str, measure: str) -> float | None:
        values = self.results.get(side, {}).get(measure)
        return median(values) if values else None

    # -- brokers and turns --------------------------------------------------------------------------------

    @contextmanager
    def brokers(self) -> Iterator[None]:
        """One broker of each side, with nothing in it."""
        with ExitStack() as running:
            for name, start in self.starts.items():
                data = self.folder / f"{name}-{next(self._names)}"
                running.callback(shutil.rmtree, data, ignore_errors=True)
                self._sides.append(running.enter_context(start(data)))
            try:
                yield
                self._note_memory()
            finally:
                self._sides.clear()

    def start_up(self, times: int) -> None:
        """Seconds from the command until ApiVersions is answered, each time in a fresh data folder."""
        for attempt in range(times + 1):
            with self.brokers():
                if attempt:  # the first one reads programs and libraries from the disk
                    for side in self._sides:
                        self.note(side.name, "start-up", side.start_seconds)

    def second_passes(self, measure: Pass) -> None:
        for attempt in range(self.rounds):
            with self.brokers():
                self._turn(attempt, measure, None)
                self._turn(attempt + 1, measure, "")

    def late_passes(self, measure: Pass) -> None:
        """To be called within `brokers()`."""
        for attempt in range(self.rounds + 1):
            self._turn(attempt, measure, "late " if attempt else None)

    def _turn(self, number: int, measure: Pass, prefix: str | None) -> None:
        """One pass on each side; without a prefix its figures are thrown away."""
        for side in self._sides if number % 2 == 0 else self._sides[::-1]:
            for name, value in measure(side).items():
                if prefix is not None:
                    self.note(side.name, prefix + name, value)

    def _note_memory(self) -> None:
        """The most memory each broker had in all that was done to it."""
        for side in self._sides:
            self.note(side.name, "loaded memory", _memory(side, "VmHWM"))

    def most(self, side: str, measure: str) -> float | None:
        return max(self.results.get(side, {}).get(measure, []), default=None)

    # -- passes -------------------------------------------------------------------------------------------

    def bulk(self, case: Bulk) -> Pass:
        """Produce and consume one case; CPU seconds per GB, MB/s and records/s of both."""
        records = max(10, int(case.megabytes * self.scale * 1e6 / case.size))
        total = records * case.size

        def one_pass(side: Side) -> dict[str, float]:
            figures: dict[str, float] = {}
            with topic_on(side, self.topic_name()) as topic:
                touch_page_cache(self.folder, total + total // 4)
                for role, config in (("produce", case.config), ("consume", {})):
                    result = self.client(
                        role,
                        bootstrap=side.bootstrap,
                        pids=side.pids,
                        topic=topic,
                        size=case.size,
                        count=records,
                        config=config,
                    )
                    key = f"{role} {case.name}"
                    figures[f"{key} cpu"] = result["cpu"] / (total / 1e9)
                    figures[f"{key} user"] = result["user"] / (total / 1e9)
                    figures[f"{key} MB/s"] = total / 1e6 / result["seconds"]
                    figures[f"{key} records/s"] = records / result["seconds"]
            return figures

        return one_pass

    def single(self, side: Side, requests: int | None = None) -> dict[str, float]:
        """Single-record requests with acks=all, one at a time on one connection."""
        requests = requests or int(5000 * max(self.scale, 0.4))
        with topic_on(side, self.topic_name()) as topic:
            result = self.client(
                "single",
                port=leader_port(side, topic),
                pids=side.pids,
                topic=topic,
                size=100,
                count=requests,
            )
        times = sorted(result["times"])
        shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
        figures = {f"single {name}": quantile(times, share) / 1e3 for name, share in shares.items()}
        return figures | {"single cpu": result["cpu"] / requests * 1e6}

    def many_singles(self) -> None:
        """As many single requests as it takes until a JVM gets no faster at them; nothing is noted."""
        self._turn(0, lambda side: self.single(side, _STEADY_AFTER), None)

    def end_to_end(self, side: Side, rate: int = 500) -> dict[str, float]:
        """From the send of a record until a consumer that waits in a long poll has it."""
        records = int(10 * rate * max(self.scale, 0.4))
        with topic_on(side, self.topic_name()) as topic:
            # One record in front, by which the producer learns the offset.
            port = leader_port(side, topic)
            consumer = _start_client(
                "waiting", {"port": port, "topic": topic, "start": 0, "count": records + 1}
            )
            try:
                if consumer.stdout is None or consumer.stdout.readline() != b"ready\n":
                    raise RuntimeError("the waiting consumer did not start")
                sent = self.client(
                    "paced",
                    port=port,
                    pids=side.pids,
                    topic=topic,
                    size=100,
                    count=records,
                    rate=rate,
                )
                arrived = _finish_client(consumer)["arrived"][sent["first"] :]
            finally:
                if consumer.poll() is None:
                    consumer.kill()
                    consumer.wait()
        delays = sorted(a - s for s, a in zip(sent["sent"], arrived, strict=True))
        return {
            "end-to-end p50": quantile(delays, 0.5) / 1e3,
            "end-to-end p99": quantile(delays, 0.99) / 1e3,
            "end-to-end cpu": sent["cpu"] / records * 1e6,
        }

    def idle(self, settle: float, seconds: float) -> None:
        """CPU and memory of brokers without clients, all at the same time."""
        with self.brokers():
            time.sleep(settle)
            before = [(side, _cpu(side)) for side in self._sides]
            began = time.monotonic()
            time.sleep(seconds)
            for side, cpu in before:
                used = (_cpu(side) - cpu) / (time.monotonic() - began)
                self.note(side.name, "idle cpu", used * 100)
                self.note(side.name, "idle memory", _memory(side, "VmRSS"))

    # -- clients ------------------------------------------------------------------------------------------

    def topic_name(self) -> str:
        return f"bench-{next(self._names)}"

    def client(self, role: str, **spec: Any) -> Any:
        before, used = MachineTime.now(), self._known_cpu()
        process = _start_client(role, spec)
        answer = _finish_client(process)
        after = MachineTime.now()
        seconds = after.at - before.at
        others = after.busy - before.busy - (self._known_cpu() - used)
        self.noise.shares.append(max(0.0, others / seconds))
        self.noise.steal.append((after.steal - before.steal) / seconds)
        return answer

    def _known_cpu(self) -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = children.ru_utime + children.ru_stime + time.process_time()
        return own + sum(map(_cpu, self._sides))


def _cpu(side: Side) -> float:
    return sum(map(cpu_seconds, side.pids))


def _memory(side: Side, field: str) -> float:
    return sum(memory_mb(pid, field) for pid in side.pids)


def _start_client(role: str, spec: dict[str, Any]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.clients", role, json.dumps(spec)]
    return subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE)


def _finish_client(process: subprocess.Popen[bytes]) -> Any:
    try:
        out, _ = process.communicate(timeout=300)
    except BaseException:  # also a Ctrl-C: no client may outlive the benchmark
        process.kill()
        process.wait()
        raise
    if process.returncode != 0:
        raise RuntimeError(f"a client ended with {process.returncode}: {process.args!r}")
    return json.loads(out.splitlines()[-1])


def quantile(ordered: list[int], share: float) -> float:
    return float(ordered[min(len(ordered) - 1, int(len(ordered) * share))])
