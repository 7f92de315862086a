"""What an attack is, and how one is measured: how long others wait and how much memory the broker takes.

An attack is a function that gets a `Target`, a running broker, and does to it over sockets what a hostile or
merely careless client could do. It is declared with `@attack` in a module `*_attacks.py` of this folder and
collected in `ATTACKS`. `test_attacks.py` runs each against Ottla with generous bounds; `make bench` runs each
against Ottla and, where Kafka accepts the same bytes, against Apache Kafka, for a table.

Attacks use sockets alone and know nothing of the broker's insides, so that no refactoring rewrites them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from raw_client import RawClient

MB = 1 << 20
_TOPIC_EXISTS = 36
PROBE = Path(__file__).with_name("probe.py")


class Target:
    """A running broker, known by its address and its process id."""

    def __init__(self, address: str, pid: int) -> None:
        self.address = address
        self.pid = pid

    def client(self, *, timeout: float = 60.0, source: str = "") -> RawClient:
        return RawClient(self.address, timeout=timeout, source=source)

    def create_topic(self, name: str, partitions: int = 1, **configs: object) -> None:
        """Create a topic, unless it exists; configuration keys are written with `_` for `.`."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                CreatableTopicConfig(name=k.replace("_", "."), value=str(v)) for k, v in configs.items()
            ],
        )
        with self.client() as client:
            answer = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)
        assert answer.topics[0].error_code in (0, _TOPIC_EXISTS), answer.topics[0].error_message

    @property
    def memory(self) -> int:
        """Bytes of its own that the broker uses now."""
        return self._status("RssAnon:")

    @property
    def peak_memory(self) -> int:
        """The most bytes that it used since `forget_peak`, mapped files included."""
        return self._status("VmHWM:")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def _status(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"no {name} of process {self.pid}")


@dataclass(frozen=True)
class Attack:
    """`longest_wait` (seconds) and `memory` (bytes above what was used before) hold on a busy machine too. A
    tenth of such a wait is aimed at on a quiet one."""

    name: str
    run: Callable[[Target], None]
    longest_wait: float
    memory: int
    prepare: Callable[[Target], None] | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    kafka_takes_it: bool = False


@dataclass(frozen=True)
class Outcome:
    longest_wait: float
    p99: float
    peak_memory: int
    kept_memory: int
    seconds: float
    failures: int


ATTACKS: list[Attack] = []


def attack(
    name: str,
    *,
    longest_wait: float = 0.5,
    memory: int = 64 * MB,
    prepare: Callable[[Target], None] | None = None,
    settings: Mapping[str, object] | None = None,
    kafka_takes_it: bool = False,
) -> Callable[[Callable[[Target], None]], Callable[[Target], None]]:
    """Declare the function below as an attack with these bounds; `name` is its line in the table."""

    def declare(run: Callable[[Target], None]) -> Callable[[Target], None]:
        ATTACKS.append(Attack(name, run, longest_wait, memory, prepare, settings or {}, kafka_takes_it))
        return run

    return declare


class Measurement:
    outcome: Outcome


@contextmanager
def measured(target: Target, *, busy_machine: bool = False) -> Iterator[Measurement]:
    """Probe the broker while the body runs; the outcome is there when the body has ended.

    With `busy_machine` waits are counted without the time that other programs had the processors.
    """
    target.create_topic("probe")
    result = Measurement()
    probe = subprocess.Popen(
        [sys.executable, str(PROBE), target.address, *([str(target.pid)] if busy_machine else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert probe.stdout is not None
        assert probe.stdout.readline().strip() == "ready"
        target.forget_peak()
        before = target.memory
        base = target.peak_memory
        began = time.monotonic()
        yield result
        seconds = time.monotonic() - began
        report = json.loads(probe.communicate(timeout=180)[0])
        result.outcome = Outcome(
            longest_wait=report["longest"],
            p99=report["p99"],
            peak_memory=target.peak_memory - base,
            kept_memory=target.memory - before,
            seconds=seconds,
            failures=report["failures"],
        )
    finally:
        probe.kill()
        probe.wait()


def carry_out(one: Attack, target: Target, *, busy_machine: bool = False) -> Outcome:
    if one.prepare is not None:
        one.prepare(target)
    with measured(target, busy_machine=busy_machine) as result:
        one.run(target)
    return result.outcome
