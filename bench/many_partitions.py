"""Many partitions on three brokers: creation, idle brokers, restarts, and the loss of the controller.

All is seen by `bench.cluster_state`, the same way for both sides. The same brokers and partitions go through
what is wanted, in this order: they are created and left alone, stopped and started, killed and started, and
lose their controller. A restart is timed from the command until all brokers show all partitions with a leader
and every replica in sync, and the leaders answer for them. Each partition gets a record before each stop, so
that there is something to recover.

The controller that is killed is a broker too; before, each partition gets the leader that its replicas name
first. Two times start with the kill: until a broker answers that a new topic is there, and until the
partitions that it led have new leaders. Kafka has nothing that starts a dead broker again, so Ottla's
supervisor is stopped meanwhile and does not do so either.

Each measure has a time that a side may take for it. One that takes longer gets no figure, and what it did not
get done is said instead (`measure` returns it); what would come after it is left out.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.cluster_state import (
    complete,
    controller_id,
    create_when_possible,
    elect_preferred,
    led_by_others,
    view_of,
    wait_for_view,
)
from bench.measure import Bench, Start
from bench.processes import cpu_seconds
from bench.sides import Side
from bench.table import Line

MANY, MANY_QUICK = 3_000, 600
_BROKERS = 3
_OF_A_TOPIC = 100
_SETTLE, _ELECTION = 15.0, 20.0
_CREATION, _RESTARTS, _CONTROLLER = "partitions", "restarts", "controller"
MEASURES = (_CREATION, _RESTARTS, _CONTROLLER)
_SECONDS = {_CREATION: 150.0, _RESTARTS: 300.0, _CONTROLLER: 120.0}
"""What a side may take for each, the preparations included."""


class _TooSlow(RuntimeError):
    """The time for a measure is over."""


class _Progress:
    """Says what is being done, and how much time is left for it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._measure = ""
        self._doing = "started"
        self._until = 0.0

    def begin(self, measure: str) -> None:
        self._measure, self._until = measure, time.monotonic() + _SECONDS[measure]

    def left(self, doing: str) -> float:
        """The seconds left for this; _TooSlow if there are none."""
        self._doing = doing
        left = self._until - time.monotonic()
        if left <= 0:
            raise _TooSlow("too slow")
        used = _SECONDS[self._measure] - left
        print(f"{self._name}: {self._measure}: {used:.0f} s: {doing}", file=sys.stderr, flush=True)
        return left

    def missed(self, why: object) -> str:
        limit = f"not within {_SECONDS[self._measure]:.0f} s"
        return f"{self._name}: {self._measure}: {limit}: {self._doing} ({why})"


def measure(bench: Bench, wanted: Collection[str], partitions: int) -> list[str]:
    """Each side after the other, with fresh brokers; returns what did not get done."""
    missed = []
    for name, start in bench.starts.items():
        progress = _Progress(name)
        try:
            _measure_side(
                bench, name, start, [each for each in MEASURES if each in wanted], partitions, progress
            )
        except (RuntimeError, KafkaException, OSError, subprocess.SubprocessError) as problem:
            missed.append(progress.missed(problem))
            print(missed[-1], file=sys.stderr, flush=True)
    return missed


def _measure_side(
    bench: Bench, name: str, start: Start, wanted: list[str], partitions: int, progress: _Progress
) -> None:
    many = _Many(partitions, progress)
    data = bench.folder / f"{name}-many"
    with ExitStack() as running:
        progress.begin(wanted[0])
        progress.left("start brokers")
        side = running.enter_context(start(data))
        created = many.create(side)
        if _CREATION in wanted:
            bench.note(name, "partitions created", created)
            bench.note(name, "partitions idle cpu", many.idle_cpu(side))
        if _RESTARTS in wanted:
            progress.begin(_RESTARTS)
            many.wait_until_complete(side)
            many.write_to_all(side)
            many.stop(side)
            running.close()
            side = running.enter_context(start(data))
            bench.note(name, "restart clean", many.seconds_until_complete(side))
            many.write_to_all(side)
            many.kill(side)
            running.close()
            side = running.enter_context(start(data))
            bench.note(name, "restart killed", many.seconds_until_complete(side))
        if _CONTROLLER in wanted:
            progress.begin(_CONTROLLER)
            many.wait_until_complete(side)
            many.write_to_all(side)
            many.elect_preferred(side)
            time.sleep(min(_SETTLE, progress.left("settle")))
            for figure, value in many.kill_controller(side).items():
                bench.note(name, figure, value)


class _Many:
    """So many partitions, and what is done to them."""

    def __init__(self, partitions: int, progress: _Progress) -> None:
        self._count = partitions
        self._topics = [f"many-{n}" for n in range(partitions // _OF_A_TOPIC)]
        self._progress = progress

    def create(self, side: Side) -> float:
        """Seconds until CreateTopics was answered for all of them."""
        left = self._progress.left(f"create {self._count:,} partitions")
        admin = _admin(side)
        began = time.monotonic()
        topics = [NewTopic(topic, _OF_A_TOPIC, _BROKERS) for topic in self._topics]
        for created in admin.create_topics(topics, request_timeout=left).values():
            created.result(left)
        return time.monotonic() - began

    def idle_cpu(self, side: Side) -> float:
        """Percent of a core, some time after the creation."""
        time.sleep(min(_SETTLE, self._progress.left("settle")))
        self._progress.left("watch the idle brokers")
        cpu, began = sum(map(cpu_seconds, side.pids)), time.monotonic()
        time.sleep(10)
        return (sum(map(cpu_seconds, side.pids)) - cpu) / (time.monotonic() - began) * 100

    def wait_until_complete(self, side: Side) -> None:
        left = self._progress.left("wait until all partitions are led and in sync")
        wait_for_view(side.ports, complete(self._count, _BROKERS), left)

    def seconds_until_complete(self, side: Side) -> float:
        """To be called at once when the brokers answer, `start_seconds` after the command."""
        began = time.monotonic()
        self.wait_until_complete(side)
        return side.start_seconds + time.monotonic() - began

    def write_to_all(self, side: Side) -> None:
        """One record to each partition.

        librdkafka makes a request for each partition, and a broker answers those of a connection one after
        the other. With acks=all each would wait for the followers: that takes long, and is not measured here.
        """
        left = self._progress.left("write a record to each partition")
        producer = Producer({"bootstrap.servers": side.bootstrap, "linger.ms": 5, "acks": 1, "log_level": 0})
        for topic in self._topics:
            for partition in range(_OF_A_TOPIC):
                producer.produce(topic, b"x" * 200, partition=partition)
        if missing := producer.flush(left):
            raise _TooSlow(f"{missing} records were not taken")

    # -- stops --------------------------------------------------------------------------------------------

    def stop(self, side: Side) -> None:
        """A clean stop of all brokers at once; one that has to be killed in the end would not be clean."""
        for pid in side.pids[_BROKERS:] or side.pids:
            os.kill(pid, signal.SIGTERM)
        self._wait_for_end(side, "stop all brokers")

    def kill(self, side: Side) -> None:
        for pid in reversed(side.pids):  # a supervisor first, which would start brokers again
            os.kill(pid, signal.SIGKILL)
        self._wait_for_end(side, "kill all brokers")

    def _wait_for_end(self, side: Side, doing: str) -> None:
        until = time.monotonic() + self._progress.left(doing)
        while any(map(_runs, side.pids)):
            if time.monotonic() > until:
                raise _TooSlow("they still run")
            time.sleep(0.05)

    # -- the controller dies ------------------------------------------------------------------------------

    def elect_preferred(self, side: Side) -> None:
        elect_preferred(side.port, min(_ELECTION, self._progress.left("elect preferred leaders")))
        self.wait_until_complete(side)

    def kill_controller(self, side: Side) -> dict[str, float]:
        left = self._progress.left("kill the controller")
        controller, before = controller_id(side.port), view_of(side.port)
        port = before.ports[controller]
        led = [each for each, state in before.partitions.items() if state.leader == controller]
        if not led:
            raise RuntimeError("the controller leads no partition")
        survivors = [each for each in side.ports if each != port]
        with _supervisor_stopped(side), ThreadPoolExecutor(1) as other:
            began = time.monotonic()
            os.kill(side.pids[side.ports.index(port)], signal.SIGKILL)
            created = other.submit(_seconds_until_created, survivors, began, left)
            wait_for_view(survivors, led_by_others(led, controller), left, only=led)
            seconds = time.monotonic() - began
            return {
                "controller leaders": seconds,
                "controller topic": created.result(left),
                "controller led": float(len(led)),
            }


def _admin(side: Side) -> AdminClient:
    return AdminClient({"bootstrap.servers": side.bootstrap, "log_level": 0})


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _seconds_until_created(ports: list[int], began: float, seconds: float) -> float:
    create_when_possible(ports, "after-the-kill", len(ports), seconds)
    return time.monotonic() - began


@contextmanager
def _supervisor_stopped(side: Side) -> Iterator[None]:
    for pid in side.pids[_BROKERS:]:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in side.pids[_BROKERS:]:
            os.kill(pid, signal.SIGCONT)


# -- the table ----------------------------------------------------------------------------------------------


def lines(bench: Bench, ours: str, theirs: str, partitions: int) -> list[Line]:
    def line(title: str, unit: str, measure: str) -> Line:
        figures = bench.figure(ours, measure), bench.figure(theirs, measure)
        return Line(f"{partitions:,} partitions: {title}", unit, *figures)

    return [
        line("creation", "s", "partitions created"),
        line("idle CPU", "%", "partitions idle cpu"),
        line("all led and in sync after a clean restart", "s", "restart clean"),
        line("all led and in sync after kill -9 of all", "s", "restart killed"),
        line("controller killed, until a topic is created", "s", "controller topic"),
        line("controller killed, until all it led are led", "s", "controller leaders"),
    ]
