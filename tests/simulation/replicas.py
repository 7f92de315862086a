"""Replicas of one partition from a seed: real logs and replica states, a controller, messages that are late.

This is the protocol of replication in its smallest form: what leaders and followers need of `Log` and
`ReplicaState` is driven under faults without brokers around it.

A run is a sequence of random steps: a producer appends, a follower sends a fetch, a message arrives, a
replica is killed or loses its power or returns, the controller elects another leader, a leader proposes
another in-sync set (KIP-497). Every message may come late; proposals and their answers may get lost, and are
sent again. Leaders that were deposed and do not know it go on. The controller takes a proposal under the
present epochs only, and no member that has started again since it fetched (KIP-903). Eligible leader replicas
(KIP-966) are not part of this, so power is lost only where another in-sync replica can lead.

Promises: a record that was acknowledged is in the log of every replica in sync and of every later leader, at
its offset, and in the end all logs are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from ottla.replication.follower_progress import FollowerFetch
from ottla.replication.replica_state import IsrProposal, ReplicaState
from ottla.storage.log import Log
from simulation.history import Violation
from unit.storage.logs import Store, batch, read_all

MIN_ISR = 2
_MAX_FETCH = 2000
_MAX_LAG_MS = 400
_STEP_MS = 10


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
    broker_epoch: int = 0
    """Grows with each start."""
    state_type: type[ReplicaState] = ReplicaState

    def __post_init__(self) -> None:
        self.state = self.state_type(self.id, 0, 0, min_isr=MIN_ISR)

    @property
    def log(self) -> Log:
        return self.store.log

    @property
    def leads(self) -> bool:
        return self.up and self.state.is_leader

    def take(self, assignment: Assignment, replicas: tuple[int, ...], now_ms: int) -> None:
        if self.state.assign(
            assignment.leader,
            assignment.leader_epoch,
            replicas,
            assignment.isr,
            assignment.partition_epoch,
            log_end=self.log.end_offset,
            now_ms=now_ms,
        ):
            self.log.begin_epoch(assignment.leader_epoch)
            self.state.appended(self.log.end_offset)

    def start(self, *, lost_power: bool, rng: Random) -> None:
        if lost_power:
            self.store.directory.abandon()
            self.store.disk.lose_power(rng)
        self.store.crash()
        # The high watermark of a replica that crashed is not known: it learns it again from its leader.
        end, start = self.log.end_offset, self.log.log_start_offset
        self.state = self.state_type(self.id, end, start, min_isr=MIN_ISR)
        self.up, self.fetching = True, False
        self.broker_epoch += 1


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
        self.now_ms = 0
        self.counts = {"appended": 0, "truncated": 0, "elections": 0, "crashes": 0, "isr": 0, "refused": 0}
        for replica in self.replicas.values():
            replica.take(self.assignment, self.ids, self.now_ms)

        self.actions: list[Callable[[], None]] = [
            *[self.produce] * 6,
            *[self.send_fetch] * 10,
            *[self.deliver] * 20,
            self.kill,
            self.lose_power,
            *[self.restart] * 2,
            self.elect,
            *[self.propose_isr] * 4,
            *[self.ask_controller] * 3,
        ]

    def replace_states(self, kind: type[ReplicaState]) -> None:
        """Let replicas decide by other rules, from the beginning."""
        for replica in self.replicas.values():
            replica.state_type = kind
            replica.state = kind(replica.id, 0, 0, min_isr=MIN_ISR)
            replica.take(self.assignment, self.ids, self.now_ms)

    def run(self, steps: int = 600) -> None:
        for _ in range(steps):
            self.now_ms += _STEP_MS
            self.rng.choice(self.actions)()
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
            elif state.high_watermark > offset:
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
        broker_epoch = follower.broker_epoch
        self.messages.append(
            lambda: self.answer_fetch(leader, follower, epoch, offset, last_epoch, broker_epoch, life)
        )

    def count_fetch(
        self, leader: Replica, follower: Replica, epoch: int, offset: int, broker_epoch: int
    ) -> None:
        fetch = FollowerFetch(follower.id, broker_epoch, True, self.now_ms, _MAX_LAG_MS)
        leader.state.fetched(fetch, epoch, offset, log_end=leader.log.end_offset)

    def answer_fetch(
        self,
        leader: Replica,
        follower: Replica,
        epoch: int,
        offset: int,
        last_epoch: int,
        broker_epoch: int,
        life: object,
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
        self.count_fetch(leader, follower, epoch, offset, broker_epoch)
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

    def decide(self, leader: int, isr: tuple[int, ...]) -> None:
        """Write down a decision. It reaches the replicas later, in any order."""
        epoch = self.assignment.leader_epoch + (leader != self.assignment.leader)
        self.assignment = Assignment(leader, epoch, isr, self.assignment.partition_epoch + 1)
        for replica in self.replicas.values():
            self.send_assignment(replica)

    def send_assignment(self, replica: Replica) -> None:
        decided, life = self.assignment, replica.store.directory

        def arrive() -> None:
            if replica.up and replica.store.directory is life:
                replica.take(decided, self.ids, self.now_ms)

        self.messages.append(arrive)

    def elect(self) -> None:
        """Another in-sync replica, whether the leader is alive or not."""
        others = [n for n in self.assignment.isr if n != self.assignment.leader and self.replicas[n].up]
        if others:
            self.counts["elections"] += 1
            self.decide(self.rng.choice(others), self.assignment.isr)

    def propose_isr(self) -> None:
        """A leader, or one that was, finds that a follower lags or has caught up."""
        leader = self.rng.choice(list(self.replicas.values()))
        if not leader.leads:
            return
        state, now, end = leader.state, self.now_ms, leader.log.end_offset
        due = state.shrink_due(now, _MAX_LAG_MS, end) or state.expand_due(
            lambda n: follower.broker_epoch if (follower := state.follower(n)) else None
        )
        if due is not None:
            state.propose(due)
            self.send_proposal(leader)
        state.stop_waiting_for(lambda _, follower: not follower.is_caught_up(end, now, _MAX_LAG_MS))

    def ask_controller(self) -> None:
        """Once more: the proposal or its answer may have been lost."""
        leader = self.rng.choice(list(self.replicas.values()))
        if leader.leads and leader.state.proposal is not None:
            self.send_proposal(leader)

    def send_proposal(self, leader: Replica) -> None:
        proposal, life = leader.state.proposal, leader.store.directory
        assert proposal is not None
        members = self.members_of(leader, proposal)

        def arrive(decided: Assignment) -> None:
            if leader.up and leader.store.directory is life:
                leader.state.altered(
                    proposal, decided.leader, decided.leader_epoch, decided.isr, decided.partition_epoch
                )

        def ask() -> None:
            self.alter(leader.id, proposal, members)
            decided = self.assignment
            if self.rng.random() < 0.8:
                self.messages.append(lambda: arrive(decided))

        if self.rng.random() < 0.8:
            self.messages.append(ask)

    def members_of(self, leader: Replica, proposal: IsrProposal) -> list[tuple[int, int]]:
        return list(zip(proposal.isr, proposal.broker_epochs, strict=True))

    def alter(self, leader: int, proposal: IsrProposal, members: list[tuple[int, int]]) -> None:
        """What the controller does with a proposal."""
        now = self.assignment
        if (leader, *proposal[1:3]) != (now.leader, now.leader_epoch, now.partition_epoch):
            self.counts["refused"] += 1
        elif all(self.may_be_in_sync(n, epoch) for n, epoch in members if n not in now.isr):
            self.counts["isr"] += 1
            self.decide(leader, proposal.isr)
        else:
            self.counts["refused"] += 1

    def may_be_in_sync(self, replica: int, broker_epoch: int) -> bool:
        return self.replicas[replica].up and self.replicas[replica].broker_epoch == broker_epoch

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
        last = max(self.acknowledged, default=-1)
        for member in {self.assignment.leader, *self.assignment.isr}:
            replica = self.replicas[member]
            if replica.up and replica.log.end_offset <= last:
                end = replica.log.end_offset
                raise Violation(f"offset {last} was acknowledged; {member}, in sync, ends at {end}")

    def settle(self) -> None:
        """Everything returns, all messages arrive, and all logs are equal."""
        for _ in range(2000):
            for replica in self.replicas.values():
                if not replica.up:
                    self.start(replica)
            if not self.replicas[self.assignment.leader].leads:
                self.send_assignment(self.replicas[self.assignment.leader])
            self.now_ms += _STEP_MS
            self.send_fetch()
            self.propose_isr()
            self.ask_controller()
            while self.messages:
                self.messages.pop(0)()
            self.acknowledge()
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
