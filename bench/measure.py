"""The measurements: what is done to each side, in which order, and which figure is taken.

Every measurement runs one whole round that is thrown away (the JVM compiles, Python's caches fill, files and
connections have been seen once), then rounds that count, with the sides taking turns and the order turned
round each time, so that a slow minute of the machine hits both. The figure is the median over the rounds.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.processes import MachineTime, cpu_seconds, memory_mb, touch_page_cache
from bench.sides import Side, topic_on

_ROOT = Path(__file__).resolve().parent.parent


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
    """The sides and how thoroughly they are measured; `results[side][measure]` is a list, one per round."""

    sides: list[Side]
    folder: Path
    rounds: int
    scale: float
    noise: Noise = field(default_factory=Noise)
    results: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    _topics: int = 0

    def note(self, side: Side, measure: str, value: float) -> None:
        self.results.setdefault(side.name, {}).setdefault(measure, []).append(value)

    def figure(self, side: str, measure: str) -> float | None:
        values = self.results.get(side, {}).get(measure)
        return median(values) if values else None

    def _turns(self) -> list[tuple[bool, Side]]:
        turns: list[tuple[bool, Side]] = []
        for turn in range(self.rounds + 1):
            order = self.sides if turn % 2 == 0 else self.sides[::-1]
            turns += [(turn > 0, side) for side in order]
        return turns

    def _topic_name(self) -> str:
        self._topics += 1
        return f"bench-{self._topics}"

    def _client(self, role: str, **spec: Any) -> Any:
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
        return own + sum(cpu_seconds(side.pid) for side in self.sides)

    def bulk(self, case: Bulk) -> None:
        """Produce and consume one case; CPU seconds per GB, MB/s and records/s of both."""
        count = max(10, int(case.megabytes * self.scale * 1e6 / case.size))
        total = count * case.size
        for counts, side in self._turns():
            with topic_on(side, self._topic_name()) as topic:
                touch_page_cache(self.folder, total + total // 4)
                for role, config in (("produce", case.config), ("consume", {})):
                    result = self._client(
                        role,
                        bootstrap=side.bootstrap,
                        pid=side.pid,
                        topic=topic,
                        size=case.size,
                        count=count,
                        config=config,
                    )
                    if counts:
                        key = f"{role} {case.name}"
                        self.note(side, f"{key} cpu", result["cpu"] / (total / 1e9))
                        self.note(side, f"{key} user", result["user"] / (total / 1e9))
                        self.note(side, f"{key} MB/s", total / 1e6 / result["seconds"])
                        self.note(side, f"{key} records/s", count / result["seconds"])

    def single(self, measure: str = "single", warm_up: int = 0) -> None:
        """Single-record requests with acks=all, one at a time on one connection.

        The thrown-away round is as long as the others, or of `warm_up` requests: the JVM goes on getting
        faster for some 30,000 requests, so both states are worth knowing.
        """
        count = int(5000 * max(self.scale, 0.4))
        with ExitStack() as topics:
            names = {s.name: topics.enter_context(topic_on(s, self._topic_name())) for s in self.sides}
            for counts, side in self._turns():
                requests = count if counts else max(warm_up, count)
                result = self._client(
                    "single", port=side.port, pid=side.pid, topic=names[side.name], size=100, count=requests
                )
                if counts:
                    times = sorted(result["times"])
                    for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
                        self.note(side, f"{measure} {name}", _quantile(times, share) / 1e3)
                    self.note(side, f"{measure} cpu", result["cpu"] / requests * 1e6)

    def end_to_end(self, rate: int = 500) -> None:
        """From the send of a record until a consumer that waits in a long poll has it."""
        count = int(10 * rate * max(self.scale, 0.4))
        with ExitStack() as topics:
            names = {s.name: topics.enter_context(topic_on(s, self._topic_name())) for s in self.sides}
            position = dict.fromkeys(names, 0)
            for counts, side in self._turns():
                # One record in front, by which the producer learns the offset.
                start = position[side.name]
                consumer = _start_client(
                    "waiting",
                    {"port": side.port, "topic": names[side.name], "start": start, "count": count + 1},
                )
                try:
                    if consumer.stdout is None or consumer.stdout.readline() != b"ready\n":
                        raise RuntimeError("the waiting consumer did not start")
                    sent = self._client(
                        "paced",
                        port=side.port,
                        pid=side.pid,
                        topic=names[side.name],
                        size=100,
                        count=count,
                        rate=rate,
                    )
                    arrived = _finish_client(consumer)["arrived"][sent["first"] - start :]
                finally:
                    if consumer.poll() is None:
                        consumer.kill()
                        consumer.wait()
                position[side.name] = sent["first"] + count
                if counts:
                    delays = sorted(a - s for s, a in zip(sent["sent"], arrived, strict=True))
                    for name, share in (("p50", 0.5), ("p99", 0.99)):
                        self.note(side, f"end-to-end {name}", _quantile(delays, share) / 1e3)
                    self.note(side, "end-to-end cpu", sent["cpu"] / count * 1e6)

    def idle(self, settle: float, seconds: float) -> None:
        """CPU and memory of brokers nobody talks to, all at the same time."""
        time.sleep(settle)
        before = [(side, cpu_seconds(side.pid)) for side in self.sides]
        began = time.monotonic()
        time.sleep(seconds)
        for side, cpu in before:
            self.note(side, "idle cpu", (cpu_seconds(side.pid) - cpu) / (time.monotonic() - began) * 100)
            self.note(side, "idle memory", memory_mb(side.pid))

    def loaded_memory(self) -> None:
        """The most memory each broker had in all that was done to it."""
        for side in self.sides:
            self.note(side, "loaded memory", memory_mb(side.pid, "VmHWM"))


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


def _quantile(ordered: list[int], share: float) -> float:
    return float(ordered[min(len(ordered) - 1, int(len(ordered) * share))])
