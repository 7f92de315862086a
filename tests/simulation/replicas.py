"""Replicas of one partition from a seed: real logs and replica states, a controller, messages that are late.

No broker has a fetch loop yet. This is its protocol in the smallest form, so that what a follower needs of
`Log` and `ReplicaState` (`append_replicated`, `truncate_to`, `fetched`, `learned`) is driven under faults
before the loop is built on it.

A run is a sequence of random steps: a producer appends, a follower sends a fetch, a message arrives, a
replica is killed or loses its power or returns, the controller elects another leader, the leader changes the
in-sync set. An in-sync change reaches the leader at once. Pending changes (KIP-497) and eligible leader
replicas (KIP-966) come with the cluster, so power is lost only where another in-sync replica can lead.

Promise: a record that was acknowledged by an in-sync set of at least `MIN_ISR` is in the log of every later
leader, at its offset, and in the end all logs are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from ottla.replication.replica_state import ReplicaState
from ottla.storage.log import Log
from simulation.history import Violation
from unit.storage.logs import Store, batch, read_all

MIN_ISR = 2
_MAX_FETCH = 2000


@dataclass(frozen=True)
class Assignment:
    """What the controller decided; partition epochs count the decisions."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int


@dataclass
class Replica:
    id: int
    store: Store = field(default_factory=lambda: Store(segment_bytes=600, index_interval_bytes=0))
    up: bool = True
    fetching: bool = False

    def __post_init__(self) -> None:
        self.state = ReplicaState(self.id, 0, 0)

    @property
    def log(self) -> Log:
        return self.store.log

    @property
    def leads(self) -> bool:
        return self.up and self.state.is_leader

    def take(self, assignment: Assignment, replicas: tuple[int, ...]) -> None:
        if self.state.assign(
            assignment.leader, assignment.leader_epoch, replicas, assignment.isr, assignment.partition_epoch
        ):
            self.log.begin_epoch(assignment.leader_epoch)
            self.state.appended(self.log.end_offset)

    def start(self, *, lost_power: bool, rng: Random) -> None:
        if lost_power:
            self.store.directory.abandon()
            self.store.disk.lose_power(rng)
        self.store.crash()
        # The high watermark of a replica that crashed is not known: it learns it again from its leader.
        self.state = ReplicaState(self.id, self.log.end_offset, self.log.log_start_offset)
        self.up, self.fetching = True, False


class Run:
    def __init__(self, seed: int, replicas: int = 2) -> None:
        self.rng = Random(seed)
        self.replicas = {n: Replica(n) for n in range(1, replicas + 1)}
        self.ids = tuple(self.replicas)
        self.assignment = Assignment(1, 0, self.ids, 0)
        self.messages: list[Callable[[], None]] = []
        self.unacknowledged: list[tuple[int, int, int, bytes]] = []  # leader, epoch, offset, value
        self.acknowledged: dict[int, bytes] = {}
        self.lost_power: set[int] = set()
        self.counts = {"appended": 0, "truncated": 0, "elections": 0, "crashes": 0}
        for replica in self.replicas.values():
            replica.take(self.assignment, self.ids)

    def run(self, steps: int = 600) -> None:
        actions = [
            *[self.produce] * 6,
            *[self.send_fetch] * 10,
            *[self.deliver] * 20,
            self.kill,
            self.lose_power,
            *[self.restart] * 2,
            self.elect,
            *[self.change_isr] * 3,
        ]
        for _ in range(steps):
            self.rng.choice(actions)()
            self.acknowledge()
            self.check()
        self.settle()

    # -- clients ----------------------------------------------------------------------------------------

    def produce(self) -> None:
        """To any replica that takes itself for the leader, the deposed one included."""
        leaders = [replica for replica in self.replicas.values() if replica.leads]
        if not leaders:
            return
        leader = self.rng.choice(leaders)
        self.counts["appended"] += 1
        value = b"value %d" % self.counts["appended"]
        info = leader.log.append(batch(1, value=value), leader.state.leader_epoch)
        leader.state.appended(leader.log.end_offset)
        self.unacknowledged.append((leader.id, leader.state.leader_epoch, info.first_offset, value))

    def acknowledge(self) -> None:
        """acks=all: the high watermark passed the record in the leader epoch in which it was appended."""
        for waiting in list(self.unacknowledged):
            leader_id, epoch, offset, value = waiting
            state = self.replicas[leader_id].state
            if not self.replicas[leader_id].leads or state.leader_epoch != epoch:
                self.unacknowledged.remove(waiting)
            elif state.high_watermark > offset and len(state.isr) >= MIN_ISR:
                self.unacknowledged.remove(waiting)
                self.acknowledged[offset] = value

    # -- replication ------------------------------------------------------------------------------------

    def send_fetch(self) -> None:
        follower = self.rng.choice(list(self.replicas.values()))
        leader = self.replicas.get(follower.state.leader)
        if not follower.up or follower.fetching or leader is None or leader is follower:
            return
        follower.fetching = True
        epoch, life = follower.state.leader_epoch, follower.store.directory
        offset, last_epoch = follower.log.end_offset, follower.log.leader_epochs.latest
        self.messages.append(lambda: self.answer_fetch(leader, follower, epoch, offset, last_epoch, life))

    def answer_fetch(
        self, leader: Replica, follower: Replica, epoch: int, offset: int, last_epoch: int, life: object
    ) -> None:
        def arrive(answer: Callable[[], None]) -> None:
            """The response reaches the follower unless it crashed or follows another epoch by then."""
            if follower.up and follower.store.directory is life:
                follower.fetching = False
                if follower.state.leader_epoch == epoch and not follower.state.is_leader:
                    answer()

        def reply(answer: Callable[[], None]) -> None:
            self.messages.append(lambda: arrive(answer))

        if not leader.leads or leader.state.leader_epoch != epoch:
            reply(lambda: None)
            return
        parted, end = self.divergence(leader.log, last_epoch)
        if last_epoch >= 0 and (parted != last_epoch or end < offset):
            reply(lambda: self.truncate(follower, parted, end))
            return
        leader.state.fetched(follower.id, epoch, offset, now_ms=0)
        found = leader.log.read(offset, _MAX_FETCH, leader.log.end_offset)
        data = memoryview(bytearray(found.read())) if found is not None else memoryview(b"")
        high_watermark = leader.state.high_watermark
        reply(lambda: self.append(follower, data, high_watermark))

    def divergence(self, leader: Log, last_epoch: int) -> tuple[int, int]:
        return leader.leader_epochs.end_offset_for(last_epoch, leader.end_offset)

    def truncate(self, follower: Replica, epoch: int, end: int) -> None:
        """Cut where the epochs part, by what both logs know of them."""
        own_end = follower.log.leader_epochs.end_offset_for(epoch, follower.log.end_offset)[1]
        target = end if own_end < 0 else min(end, own_end)
        if follower.log.truncate_to(max(target, 0)):
            self.counts["truncated"] += 1
        follower.state.truncated(follower.log.end_offset)

    def append(self, follower: Replica, data: memoryview, high_watermark: int) -> None:
        if data:
            follower.log.append_replicated(data)
            follower.state.appended(follower.log.end_offset)
        follower.state.learned(high_watermark)

    def deliver(self) -> None:
        if self.messages:
            self.messages.pop(self.rng.randrange(len(self.messages)))()

    # -- the controller ---------------------------------------------------------------------------------

    def decide(self, leader: int, isr: tuple[int, ...], *, at_once: int | None = None) -> None:
        """Write down a decision. It reaches the replicas later, in any order, except one that is told now."""
        epoch = self.assignment.leader_epoch + (leader != self.assignment.leader)
        self.assignment = Assignment(leader, epoch, isr, self.assignment.partition_epoch + 1)
        for replica in self.replicas.values():
            if replica.id == at_once:
                replica.take(self.assignment, self.ids)
            else:
                self.send_assignment(replica)

    def send_assignment(self, replica: Replica) -> None:
        decided, life = self.assignment, replica.store.directory

        def arrive() -> None:
            if replica.up and replica.store.directory is life:
                replica.take(decided, self.ids)

        self.messages.append(arrive)

    def elect(self) -> None:
        """Another in-sync replica, whether the leader is alive or not."""
        others = [n for n in self.assignment.isr if n != self.assignment.leader and self.replicas[n].up]
        if others:
            self.counts["elections"] += 1
            self.decide(self.rng.choice(others), self.assignment.isr)

    def change_isr(self) -> None:
        """The leader drops one follower, or takes one back that has all below the high watermark."""
        leader = self.replicas[self.assignment.leader]
        if not leader.leads or leader.state.partition_epoch != self.assignment.partition_epoch:
            return
        isr = self.assignment.isr
        other = self.rng.choice([n for n in self.ids if n != leader.id])
        if other in isr:
            if not self.replicas[other].up:
                self.decide(leader.id, tuple(n for n in isr if n != other), at_once=leader.id)
            return
        follower = leader.state.follower(other)
        epoch_start = leader.log.leader_epochs.entries[-1][1] if leader.log.leader_epochs.entries else 0
        caught_up = max(leader.state.high_watermark, epoch_start)
        if self.replicas[other].up and follower is not None and follower.log_end_offset >= caught_up:
            self.decide(leader.id, tuple(sorted((*isr, other))), at_once=leader.id)

    # -- faults -----------------------------------------------------------------------------------------

    def kill(self) -> None:
        replica = self.rng.choice(list(self.replicas.values()))
        if replica.up:
            self.crash(replica)

    def lose_power(self) -> None:
        """Of one whose data another in-sync replica has; it leaves the in-sync set with its tail."""
        isr = self.assignment.isr
        ready = [n for n in isr if self.replicas[n].up and n not in self.lost_power]
        if len(ready) < 2:
            return
        replica = self.replicas[self.rng.choice(ready)]
        self.crash(replica)
        self.lost_power.add(replica.id)
        rest = tuple(n for n in isr if n != replica.id)
        leader = self.assignment.leader
        self.decide(
            self.rng.choice([n for n in rest if n in ready]) if leader == replica.id else leader, rest
        )

    def crash(self, replica: Replica) -> None:
        self.counts["crashes"] += 1
        replica.up = False
        replica.store.directory.abandon()

    def restart(self) -> None:
        down = [replica for replica in self.replicas.values() if not replica.up]
        if down:
            self.start(self.rng.choice(down))

    def start(self, replica: Replica) -> None:
        replica.start(lost_power=replica.id in self.lost_power, rng=self.rng)
        self.lost_power.discard(replica.id)
        self.send_assignment(replica)

    # -- promises ---------------------------------------------------------------------------------------

    def check(self) -> None:
        leader = self.replicas[self.assignment.leader]
        if not leader.leads or leader.state.leader_epoch != self.assignment.leader_epoch:
            return
        end = leader.log.end_offset
        for offset in self.acknowledged:
            if offset >= end:
                raise Violation(f"offset {offset} was acknowledged; leader {leader.id} ends at {end}")

    def settle(self) -> None:
        """Everything returns, all messages arrive, and all logs are equal."""
        for _ in range(2000):
            for replica in self.replicas.values():
                if not replica.up:
                    self.start(replica)
            if not self.replicas[self.assignment.leader].leads:
                self.send_assignment(self.replicas[self.assignment.leader])
            self.send_fetch()
            while self.messages:
                self.messages.pop(0)()
            self.acknowledge()
            self.change_isr()
            self.check()
            reached = {replica.log.end_offset for replica in self.replicas.values()}
            reached |= {replica.state.high_watermark for replica in self.replicas.values()}
            if len(reached) == 1 and len(self.assignment.isr) == len(self.ids):
                break
        else:
            raise Violation("the replicas did not become equal")
        logs = {n: read_all(replica.log) for n, replica in self.replicas.items()}
        first, *others = logs.values()
        if any(other != first for other in others):
            raise Violation("replicas of the same length hold different records")
        found = {record.offset: record.value for record in first}
        for offset, value in self.acknowledged.items():
            if found.get(offset) != value:
                raise Violation(
                    f"offset {offset}: {value!r} was acknowledged, {found.get(offset)!r} is there"
                )
