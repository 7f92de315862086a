"""Random lives of one partition: the rules against a model of its logs.

The model knows how long each replica's log is, and which records are committed: those that all replicas in
sync have, counted while enough of them are in sync. A clean election must never give the lead to a log that
lacks one.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.cluster.disk_states import NOBODY
from ottla.cluster.image import NO_LEADER, PartitionState
from ottla.cluster.partition_rules import (
    Brokers,
    WantedIsr,
    alter,
    is_unclean,
    prefer,
    settle,
    with_replicas,
    without_stale_elr,
)
from ottla.protocol.errors import ApiError, ErrorCode

IDS = (1, 2, 3, 4)
broker_ids = st.sampled_from(IDS)


class PartitionLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = PartitionState(IDS, IDS, 1)
        self.min_isr = 1
        self.unclean_allowed = False
        self.epochs = dict.fromkeys(IDS, 1)
        self.registered = set(IDS)
        self.fenced: set[int] = set()
        self.stopping: set[int] = set()
        self.emptied: set[int] = set()
        self.impaired: set[int] = set()
        self.failed: set[int] = set()
        """They have no sound log."""
        self.controller_knows = True
        """Of failed logs and impaired disks."""
        self.ends = dict.fromkeys(IDS, 0)
        self.committed = 0

    @initialize(
        replicas=st.lists(broker_ids, min_size=1, max_size=4, unique=True),
        min_isr=st.integers(1, 3),
        unclean_allowed=st.booleans(),
    )
    def create(self, replicas: list[int], min_isr: int, unclean_allowed: bool) -> None:
        self.state = PartitionState(tuple(replicas), tuple(replicas), replicas[0])
        self.min_isr, self.unclean_allowed = min_isr, unclean_allowed

    # The model

    def brokers(self, *, unclean: int | None = None, waiting: bool = False) -> Brokers:
        alive = self.registered - self.fenced
        return Brokers(
            active=frozenset(alive - self.stopping),
            stopping=frozenset(alive & self.stopping),
            unclean=frozenset(() if unclean is None else {unclean}),
            emptied=frozenset(self.emptied),
            seen=frozenset(self.registered),
            waiting=waiting,
            impaired=frozenset(self.impaired) if self.controller_knows else NOBODY,
        )

    @property
    def known_failed(self) -> frozenset[int]:
        return frozenset(self.failed) if self.controller_knows else NOBODY

    def take(self, new: PartitionState, brokers: Brokers) -> None:
        old = self.state
        if new is old:
            return
        if len(old.replicas) > 1:
            failed = self.known_failed
            brokers = replace(brokers, active=brokers.active - failed, unclean=brokers.unclean | failed)
        assert new != old
        assert new.replicas == old.replicas
        assert new.partition_epoch == old.partition_epoch + 1
        if new.leader == old.leader and new.leader_epoch == old.leader_epoch:
            assert old.leader == NO_LEADER or old.leader not in brokers.unclean
        else:
            assert new.leader_epoch == old.leader_epoch + 1
            assert new.leader == NO_LEADER or new.leader in brokers.active
        entered = set(new.isr) - set(old.isr)
        assert entered <= brokers.active
        assert not brokers.unclean & {*new.isr, *new.elr} - {new.leader}
        if is_unclean(old, new, brokers):
            complete = {*old.isr, *old.elr} - brokers.unclean
            assert not complete & brokers.active
            assert self.unclean_allowed or not complete, "nobody who is complete is left to wait for"
            assert new.isr == (new.leader,) and not new.elr
            if not self.unclean_allowed and new.leader in self.emptied:
                assert len(new.replicas) == 1, "an empty log makes others throw theirs away"
            self.committed = min(self.committed, self.ends[new.leader])
        self.state = new

    def settle(self, *, unclean: int | None = None, waiting: bool = False) -> None:
        brokers = self.brokers(unclean=unclean, waiting=waiting)
        self.take(self.decided(brokers), brokers)
        settled = self.decided(replace(brokers, unclean=frozenset()))
        assert settled is self.state, "deciding again changes nothing"

    def decided(self, brokers: Brokers) -> PartitionState:
        return settle(
            self.state,
            brokers,
            min_isr=self.min_isr,
            unclean_allowed=self.unclean_allowed,
            failed=self.known_failed,
        )

    @property
    def leads(self) -> bool:
        return self.state.leader in self.registered - self.failed

    @property
    def least(self) -> int:
        return min(self.min_isr, len(self.state.replicas))

    # Records

    @precondition(lambda self: self.leads)
    @rule(count=st.integers(1, 3))
    def produce(self, count: int) -> None:
        self.ends[self.state.leader] += count

    @precondition(lambda self: self.leads)
    @rule(follower=broker_ids, count=st.integers(1, 5))
    def replicate(self, follower: int, count: int) -> None:
        if follower in self.state.replicas and follower in self.registered - self.failed:
            self.ends[follower] = min(self.ends[self.state.leader], self.ends[follower] + count)

    @precondition(lambda self: self.leads)
    @rule()
    def commit(self) -> None:
        if len(self.state.isr) >= self.least:
            self.committed = max(self.committed, min(self.ends[broker] for broker in self.state.isr))

    # Leaders

    @precondition(lambda self: self.leads)
    @rule(follower=broker_ids, epoch_is_old=st.booleans())
    def expand(self, follower: int, epoch_is_old: bool) -> None:
        """Also by a leader that does not know yet that it or the follower is fenced."""
        if follower not in self.state.replicas or follower in {*self.state.isr, *self.failed}:
            return
        if self.ends[follower] >= self.committed:
            members = [(each, self.epochs[each]) for each in self.state.isr]
            self.alter([*members, (follower, self.epochs[follower] - epoch_is_old)], epoch_is_old)

    @precondition(lambda self: self.leads)
    @rule(epoch_is_old=st.booleans())
    def catch_up(self, epoch_is_old: bool) -> None:
        """All that are there fetch to the end, and their leader asks for them all to be in sync."""
        for follower in self.state.replicas:
            if follower in self.registered - self.failed:
                self.ends[follower] = self.ends[self.state.leader]
                self.expand(follower, epoch_is_old)
        self.produce(1)

    @precondition(lambda self: self.leads)
    @rule(follower=broker_ids)
    def shrink(self, follower: int) -> None:
        if follower != self.state.leader and follower in self.state.isr:
            self.alter([(each, self.epochs[each]) for each in self.state.isr if each != follower], False)

    def alter(self, isr: list[tuple[int, int]], epoch_is_old: bool) -> None:
        state, brokers = self.state, self.brokers()
        wanted = WantedIsr(state.leader, state.leader_epoch, state.partition_epoch, isr)
        try:
            new = alter(state, wanted, brokers, self.epochs, min_isr=self.min_isr, failed=self.known_failed)
        except ApiError as refusal:
            assert refusal.code is ErrorCode.INELIGIBLE_REPLICA
        else:
            assert not epoch_is_old
            assert new.leader_epoch == state.leader_epoch
            assert not (set(new.isr) - set(state.isr)) & brokers.impaired
            self.take(new, brokers)
            self.settle()

    # Brokers

    @rule(broker=broker_ids)
    def fence(self, broker: int) -> None:
        self.fenced.add(broker)
        self.settle()

    @rule(broker=broker_ids)
    def unfence(self, broker: int) -> None:
        self.fenced.discard(broker)
        self.settle()

    @rule()
    def unfence_all(self) -> None:
        for broker in IDS:
            self.unfence(broker)

    @rule(broker=broker_ids)
    def begin_shutdown(self, broker: int) -> None:
        if broker in self.registered:
            self.stopping.add(broker)
            self.settle()

    @rule(broker=broker_ids)
    def leave(self, broker: int) -> None:
        self.registered.discard(broker)
        self.stopping.discard(broker)
        self.emptied.discard(broker)
        self.impaired.discard(broker)
        self.settle()

    @rule(broker=broker_ids, kept=st.integers(0, 3), unclean=st.booleans(), fenced=st.booleans())
    def register(self, broker: int, kept: int, unclean: bool, fenced: bool) -> None:
        """It comes back, fenced or as the controller's own. Uncleanly: with some of its records, or none."""
        self.registered.add(broker)
        (self.fenced.add if fenced else self.fenced.discard)(broker)
        self.stopping.discard(broker)
        self.emptied.discard(broker)
        self.impaired.discard(broker)
        self.failed.discard(broker)
        self.epochs[broker] += 1
        if unclean:
            self.ends[broker] = min(kept, self.ends[broker])
            if kept == 0:
                self.emptied.add(broker)
        self.settle(unclean=broker if unclean else None)

    @rule()
    def cluster_starts(self) -> None:
        """Nobody is registered: all have stopped or lost their sessions."""
        self.registered.clear()
        self.stopping.clear()
        self.emptied.clear()
        before = self.state
        self.settle(waiting=True)
        assert self.state.leader == before.leader and self.state.leader_epoch == before.leader_epoch

    # Disks

    @rule(broker=broker_ids)
    def impair_disk(self, broker: int) -> None:
        if broker in self.registered:
            self.impaired.add(broker)
            self.settle()

    @rule(broker=broker_ids)
    def mend_disk(self, broker: int) -> None:
        self.impaired.discard(broker)
        self.settle()

    @rule(broker=broker_ids, kept=st.integers(0, 3))
    def fail_log(self, broker: int, kept: int) -> None:
        """What was not synced may be gone. The only replica of a partition has nobody to lose it to."""
        if broker in self.registered:
            self.failed.add(broker)
            self.settle()
            if len(self.state.replicas) > 1:
                self.ends[broker] = min(kept, self.ends[broker])

    @rule()
    def change_controller(self) -> None:
        """The next one knows nothing of disks until brokers tell it."""
        self.controller_knows = False
        self.settle()
        self.controller_knows = True
        self.settle()

    # Administration

    @rule()
    def elect_preferred(self) -> None:
        brokers = self.brokers()
        self.take(prefer(self.state, brokers, min_isr=self.min_isr), brokers)

    @rule(min_isr=st.integers(1, 4))
    def set_min_isr(self, min_isr: int) -> None:
        self.take(without_stale_elr(self.state, min_isr), self.brokers())
        self.min_isr = min_isr
        self.settle()

    @rule(broker=broker_ids, in_front=st.booleans())
    def add_replica(self, broker: int, in_front: bool) -> None:
        """Its log may be anything: it held the partition once, or nothing."""
        old = self.state
        if broker in old.replicas:
            return
        replicas = (broker, *old.replicas) if in_front else (*old.replicas, broker)
        new = with_replicas(old, replicas, min_isr=self.min_isr)
        assert (new.isr, new.leader, new.leader_epoch) == (old.isr, old.leader, old.leader_epoch)
        assert new.partition_epoch == old.partition_epoch + 1
        self.state = new
        self.settle()

    @rule()
    def toggle_unclean(self) -> None:
        self.unclean_allowed = not self.unclean_allowed
        self.settle()

    # What holds at any time

    @invariant()
    def the_sets_fit(self) -> None:
        state = self.state
        replicas = set(state.replicas)
        assert {*state.isr, *state.elr, *state.last_known_elr} <= replicas
        assert len(set(state.isr)) == len(state.isr) and len(set(state.elr)) == len(state.elr)
        assert not set(state.isr) & set(state.elr)
        if state.leader != NO_LEADER:
            assert state.leader in state.isr, "so the ISR is not empty"
            assert not state.last_known_elr
        if len(state.isr) >= self.least:
            assert not state.elr

    @invariant()
    def whoever_may_lead_has_all_committed_records(self) -> None:
        for broker in {*self.state.isr, *self.state.elr}:
            assert self.ends[broker] >= self.committed

    @invariant()
    def who_is_fenced_is_in_sync_only_where_nobody_else_may_lead(self) -> None:
        state = self.state
        away = set(state.isr) - (self.registered - self.fenced)
        if away and state.leader in self.registered - self.fenced:
            raise AssertionError(f"{away} are away and hold up the leader of {state}")

    @invariant()
    def an_impaired_broker_leads_or_is_in_sync_only_where_others_do_not_suffice(self) -> None:
        state, alive = self.state, self.registered - self.fenced - self.stopping - self.failed
        if state.leader in alive and set(state.isr) & self.impaired:
            able = set(state.isr) - self.impaired
            assert len(able) < self.least
            assert state.leader not in self.impaired or not able & alive


TestPartitionLife = PartitionLife.TestCase
TestPartitionLife.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
