"""Consumer groups: how long a rebalance takes, and for how long a partition goes unread meanwhile.

    python -m bench.groups [--rounds 3] [--without-kafka]

Both brokers run and take turns. For each protocol (classic with an eager assignor, classic with the
cooperative one, and the consumer protocol of KIP-848) confluent-kafka members form a group, a newcomer joins,
and a member leaves. A rebalance is over when all partitions have one owner each and no member has more than
one partition above another, in the eyes of the members themselves.

In the small group (12 partitions, 3 members and a fourth) records are produced to every partition all the
time, each with the moment it was sent; how long the oldest record of a partition waited for its reader is how
long the partition went unread. In the large one (100 partitions, 20 members) nothing is produced.

Classic members send heartbeats every half second, since it is at a heartbeat that they learn of a rebalance.
All else is as it comes; so a new classic group waits three seconds for more members, at both brokers. How it
forms without a delay (`group.initial.rebalance.delay.ms=0`) is measured too.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.measure import Noise
from bench.peers.kafka import VERSION
from bench.processes import MachineTime, cpu_seconds
from bench.sides import Side, kafka_side, ottla_side
from bench.table import Line, render

PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {"partition.assignment.strategy": "range", "heartbeat.interval.ms": 500},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky", "heartbeat.interval.ms": 500},
    "consumer protocol": {"group.protocol": "consumer"},
}
AS_FAST = 1.1
"""The budget where the client sets the pace; a tenth for the phase in which the heartbeats happen to be."""
CLEARLY_FASTER = 0.6
"""The budget where the broker does."""

AT_ONCE = {"group.initial.rebalance.delay.ms": "0"}
STAYS_READ = 4.0
"""The budget for partitions that stay where they are: to the longest wait when nothing happens."""

_DEADLINE = 60.0
_PACE = 0.025  # seconds between two records of a partition
_SETTLE = 1.5  # seconds of quiet reading between two rebalances

Note = Callable[[str, float], None]


class Member:
    """A consumer on a thread of its own, which polls all the time."""

    def __init__(self, side: Side, group: str, topic: str, config: dict[str, Any], waits: Waits) -> None:
        self.owned: frozenset[int] = frozenset()
        self._changed = False
        self._over = threading.Event()
        self._waits = waits
        self._consumer = Consumer(
            {
                "bootstrap.servers": side.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "log_level": 3,
                **config,
            }
        )
        self._consumer.subscribe([topic], on_assign=self._moved, on_revoke=self._moved, on_lost=self._moved)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _moved(self, consumer: Consumer, partitions: list[Any]) -> None:
        self._changed = True  # what it owns has changed only when the callback has returned

    def _run(self) -> None:
        while not self._over.is_set():
            message = self._consumer.poll(0.02)
            if message is not None and not message.error():
                self._waits.read(message.partition(), message.offset(), message.value())
            if self._changed:
                self._changed = False
                self.owned = frozenset(each.partition for each in self._consumer.assignment())
        self._consumer.close()

    def leave(self) -> None:
        """Returns at once; the member's own thread says goodbye."""
        self._over.set()

    def ended(self) -> None:
        self._over.set()
        self._thread.join(30)
        if self._thread.is_alive():
            raise RuntimeError("a consumer does not close")


@dataclass
class Waits:
    """How long records waited for their first reader: partition, moment of reading, seconds."""

    seen: list[tuple[int, float, float]] = field(default_factory=list)
    _next: dict[int, int] = field(default_factory=dict)

    def read(self, partition: int | None, offset: int | None, value: bytes | None) -> None:
        if partition is None or offset is None or value is None:
            raise RuntimeError("a message without partition, offset or value")
        if offset >= self._next.get(partition, 0):  # not given a second time
            self._next[partition] = offset + 1
            now = time.perf_counter()
            self.seen.append((partition, now, now - float(value)))

    def longest(self, since: float, until: float, partitions: Iterable[int]) -> list[float]:
        """Of each of these partitions, in milliseconds, for what was read in this span of time."""
        worst = dict.fromkeys(partitions, 0.0)
        for partition, at, waited in list(self.seen):
            if since <= at <= until and partition in worst:
                worst[partition] = max(worst[partition], waited * 1e3)
        return list(worst.values())


class Stream:
    """A record to each partition of a topic every now and then, until it is closed."""

    def __init__(self, side: Side, topic: str, partitions: int) -> None:
        self._over = threading.Event()
        self._producer = Producer({"bootstrap.servers": side.bootstrap, "linger.ms": 0, "log_level": 3})
        self._thread = threading.Thread(target=self._run, args=(topic, partitions), daemon=True)
        self._thread.start()

    def _run(self, topic: str, partitions: int) -> None:
        while not self._over.wait(_PACE):
            for partition in range(partitions):
                self._producer.produce(topic, repr(time.perf_counter()), partition=partition)
            self._producer.poll(0)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._producer.flush(10)


@dataclass
class Figures:
    """Of one side, by the name of the measure: one value per round."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def note(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    def note_of(self, what: str, name: str, value: float) -> None:
        self.note(f"{what} {name}", value)

    def median(self, name: str) -> float | None:
        values = self.values.get(name)
        return median(values) if values else None


Sides = list[tuple[Side, Figures]]


def shared(members: Sequence[Member], partitions: int) -> bool:
    owned = [member.owned for member in members]
    loads = [len(each) for each in owned]
    whole = sum(loads) == partitions and len(frozenset().union(*owned)) == partitions
    return whole and max(loads) - min(loads) <= 1


def await_shared(members: Sequence[Member], partitions: int) -> float:
    """The moment at which the members have the partitions, evenly."""
    deadline = time.perf_counter() + _DEADLINE
    while not shared(members, partitions):
        if time.perf_counter() > deadline:
            raise RuntimeError(f"no rebalance within {_DEADLINE:.0f} s: {[len(m.owned) for m in members]}")
        time.sleep(0.002)
    return time.perf_counter()


def owners(members: Sequence[Member]) -> dict[int, Member]:
    return {partition: member for member in members for partition in member.owned}


def rebalances(
    side: Side,
    protocol: str,
    partitions: int,
    size: int,
    *,
    reading: bool,
    note: Callable[[str, float], None],
) -> None:
    """A group of `size` members forms, one joins, the first one leaves."""
    topic = f"groups-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": side.bootstrap, "log_level": 3})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    waits = Waits()
    config = PROTOCOLS[protocol]

    def join() -> Member:
        member = Member(side, topic, topic, config, waits)
        stack.callback(member.ended)
        return member

    def change(name: str, begin: Callable[[], None], after: list[Member]) -> None:
        before = owners(members)
        began = time.perf_counter()
        begin()
        done = await_shared(after, partitions)
        note(name, done - began)
        if reading:
            time.sleep(_SETTLE)
            now = owners(after)
            stayed = [each for each in now if before.get(each) is now[each]]
            moved = [each for each in now if each not in stayed]
            unread = waits.longest(began, time.perf_counter(), stayed)
            # An eager assignor may move everything.
            if unread:
                note(f"{name} stayed", median(unread))
                note(f"{name} stayed, worst", max(unread))
            note(f"{name} moved", median(waits.longest(began, time.perf_counter(), moved)))

    with ExitStack() as stack:
        if reading:
            stream = Stream(side, topic, partitions)
            stack.callback(stream.close)
        began = time.perf_counter()
        members = [join() for _ in range(size)]
        note("form", await_shared(members, partitions) - began)
        if reading:
            time.sleep(_SETTLE)
            quiet = time.perf_counter()
            time.sleep(_SETTLE)
            note("quiet", median(waits.longest(quiet, time.perf_counter(), range(partitions))))
        everyone = list(members)
        change("join", lambda: everyone.append(join()), everyone)
        members = everyone
        change("leave", members[0].leave, members[1:])
    admin.delete_topics([topic])[topic].result(30)


def lines(ours: Figures, theirs: Figures) -> list[Line]:
    table: list[Line] = []

    def line(title: str, unit: str, name: str, budget: float | None = None) -> None:
        table.append(Line(title, unit, ours.median(name), theirs.median(name), budget))

    for size in ("small", "large"):
        told = "3 to 4 members, 12 partitions" if size == "small" else "20 members, 100 partitions"
        for protocol in PROTOCOLS:
            budget = CLEARLY_FASTER if protocol == "consumer protocol" else AS_FAST
            for what in ("form", "join", "leave"):
                line(f"Group of {told}, {protocol}: {what}", "s", f"{size} {protocol} {what}", budget)
    for protocol in PROTOCOLS:
        line(f"Group of 3 without a delay, {protocol}: form", "s", f"at once {protocol} form")
    for protocol in PROTOCOLS:
        quiet = f"small {protocol} quiet"
        line(f"Longest wait of a record, {protocol}, nothing happens", "ms", quiet)
        for what, told in (("join", "a member joins"), ("leave", "a member leaves")):
            name = f"small {protocol} {what}"
            title = f"... while {told}, partitions that"
            line(f"{title} stay", "ms", f"{name} stayed")
            mine, other = (_quotient(each, f"{name} stayed", quiet) for each in (ours, theirs))
            if protocol != "eager" and mine is not None:
                table.append(
                    Line(f"{title} stay, to when nothing happens", "x", mine, other, STAYS_READ, mine)
                )
            line(f"{title} stay, the worst", "ms", f"{name} stayed, worst")
            line(f"{title} move", "ms", f"{name} moved")
    return [each for each in table if each.ours is not None]


def _quotient(figures: Figures, one: str, other: str) -> float | None:
    above, below = figures.median(one), figures.median(other)
    return above / below if above is not None and below else None


def measure(
    folder: Path,
    *,
    rounds: int,
    large_rounds: int,
    with_kafka: bool,
    noise: Noise,
    say: Callable[[str], None],
) -> list[Line]:
    """The lines of the table."""
    ours, theirs = Figures(), Figures()
    with _both(folder / "groups", {}, ours, theirs, with_kafka) as sides:
        _warm_up(sides, say)
        before, used = MachineTime.now(), _known_cpu(sides)
        cases = [("small", 12, 3, rounds), ("large", 100, 20, large_rounds)]
        for size, partitions, members, times in cases:
            for protocol in PROTOCOLS:
                for side, figures in _turns(sides, times):
                    say(f"groups of {members}, {protocol}, {side.name}")
                    note = partial(figures.note_of, f"{size} {protocol}")
                    rebalances(side, protocol, partitions, members, reading=size == "small", note=note)
        after = MachineTime.now()
        seconds = after.at - before.at
        noise.shares.append(max(0.0, (after.busy - before.busy - (_known_cpu(sides) - used)) / seconds))
        noise.steal.append((after.steal - before.steal) / seconds)
    at_once(folder, ours, theirs, rounds=rounds, with_kafka=with_kafka, say=say)
    return lines(ours, theirs)


def at_once(
    folder: Path,
    ours: Figures,
    theirs: Figures,
    *,
    rounds: int,
    with_kafka: bool,
    say: Callable[[str], None],
) -> None:
    """How long a classic group takes to form at brokers that do not wait for more members."""
    with _both(folder / "at-once", AT_ONCE, ours, theirs, with_kafka) as sides:
        _warm_up(sides, say)
        for protocol in ("eager", "cooperative"):
            for side, figures in _turns(sides, rounds):
                say(f"groups without a delay, {protocol}, {side.name}")
                note = partial(figures.note_of, f"at once {protocol}")
                rebalances(side, protocol, 12, 3, reading=False, note=note)


@contextmanager
def _both(
    folder: Path, settings: Mapping[str, str], ours: Figures, theirs: Figures, with_kafka: bool
) -> Iterator[Sides]:
    with ExitStack() as running:
        sides = [(running.enter_context(ottla_side(folder / "0", settings)), ours)]
        if with_kafka:
            kafka = kafka_side(folder / "1", f"Kafka {VERSION}", settings)
            sides.append((running.enter_context(kafka), theirs))
        yield sides


def _warm_up(sides: Sides, say: Callable[[str], None]) -> None:
    """Thrown away: the topic of the offsets is made, and the JVM compiles."""
    for side, _ in sides:
        say(f"groups, a first one at {side.name}")
        rebalances(side, "eager", 12, 3, reading=True, note=lambda name, value: None)


def _turns(sides: Sides, rounds: int) -> Iterator[tuple[Side, Figures]]:
    for turn in range(rounds):
        yield from sides if turn % 2 == 0 else sides[::-1]


def _known_cpu(sides: Sides) -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime + sum(cpu_seconds(side.pid) for side, _ in sides)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench.groups", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large-rounds", type=int, default=2)
    parser.add_argument("--without-kafka", action="store_true")
    arguments = parser.parse_args()
    noise = Noise()
    with tempfile.TemporaryDirectory(prefix="ottla-bench-", ignore_cleanup_errors=True) as folder:
        table = measure(
            Path(folder),
            rounds=arguments.rounds,
            large_rounds=arguments.large_rounds,
            with_kafka=not arguments.without_kafka,
            noise=noise,
            say=lambda text: print(f"bench: {text}", file=sys.stderr, flush=True),
        )
    print(render(table, "Ottla", f"Kafka {VERSION}"))
    print(f"\nOther programs used {noise.shares[0]:.2f} cores meanwhile.")
    return 1 if any(line.verdict == "FAIL" for line in table) else 0


if __name__ == "__main__":
    raise SystemExit(main())
