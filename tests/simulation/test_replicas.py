"""Followers catch up, part from deposed leaders and truncate, and no acknowledged record is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.replication.replica_state import IsrProposal, ReplicaState
from simulation.history import Violation
from simulation.replicas import MIN_ISR, Replica, Run

FOUND_DEFECTS = (5080, 5762, 7459)


@pytest.mark.parametrize("replicas", [2, 3])
def test_acknowledged_records_survive_elections_and_crashes(replicas: int) -> None:
    counts: dict[str, int] = {}
    acknowledged = 0
    for seed in (*range(20), *FOUND_DEFECTS):
        run = Run(seed, replicas)
        try:
            run.run()
        except Violation as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken
        acknowledged += len(run.acknowledged)
        counts = {name: counts.get(name, 0) + count for name, count in run.counts.items()}
    assert acknowledged > 100
    assert min(counts.values()) > 8, counts


def truncating_to_the_high_watermark(run: Run) -> None:
    """What Kafka did before leader epochs (KIP-101)."""

    def truncate(follower: Replica, epoch: int, end: int) -> None:
        follower.log.truncate_to(follower.state.high_watermark)
        follower.state.truncated(follower.log.end_offset)

    run.truncate = truncate  # type: ignore[method-assign]


def never_truncating(run: Run) -> None:
    run.truncate = lambda follower, epoch, end: None  # type: ignore[method-assign]


def counting_reports_of_former_epochs(run: Run) -> None:
    answer = run.answer_fetch

    def answer_any(
        leader: Replica,
        follower: Replica,
        epoch: int,
        offset: int,
        last_epoch: int,
        broker_epoch: int,
        life: object,
    ) -> None:
        if leader.leads and leader.state.leader_epoch != epoch:
            run.count_fetch(leader, follower, leader.state.leader_epoch, offset, broker_epoch)
        answer(leader, follower, epoch, offset, last_epoch, broker_epoch, life)

    run.answer_fetch = answer_any  # type: ignore[method-assign]


def counting_the_committed_isr_alone(run: Run) -> None:
    """What a proposal under way adds is not waited for (KIP-497)."""
    run.replace_states(CommittedIsrAlone)


class CommittedIsrAlone(ReplicaState):
    @property
    def maximal_isr(self) -> frozenset[int]:
        self._joining.clear()
        return frozenset(self.isr)


def taking_a_lost_answer_for_a_refusal(run: Run) -> None:
    """The proposal may have been accepted all the same."""
    propose = run.propose_isr

    def propose_isr() -> None:
        for replica in run.replicas.values():
            if replica.state.proposal is not None:
                replica.state.proposal = None
                replica.state.stop_waiting_for(lambda _, follower: True)
                replica.state.set_min_isr(MIN_ISR)
        propose()

    run.propose_isr = propose_isr  # type: ignore[method-assign]
    run.actions = [propose_isr if action == propose else action for action in run.actions]


def joining_below_the_start_of_the_leader_epoch(run: Run) -> None:
    run.replace_states(AnyEpochStart)


class AnyEpochStart(ReplicaState):
    def assign(self, *args: Any, **options: Any) -> bool:
        begins = super().assign(*args, **options)
        self.epoch_start = 0
        return begins


def taking_members_of_a_former_registration(run: Run) -> None:
    """They have lost their power since, and with it the end of their log (KIP-903)."""
    run.may_be_in_sync = lambda replica, broker_epoch: True  # type: ignore[method-assign]


def naming_members_with_their_present_epochs(run: Run) -> None:
    """A proposal that is sent again would bring in one that has lost its log since."""

    def members_of(leader: Replica, proposal: IsrProposal) -> list[tuple[int, int]]:
        known = {n: leader.state.follower(n) for n in proposal.isr}
        return [(n, follower.broker_epoch if follower else -1) for n, follower in known.items()]

    run.members_of = members_of  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("bug", "first_seed"),
    [
        (truncating_to_the_high_watermark, 0),
        (never_truncating, 0),
        (counting_reports_of_former_epochs, 110),
        (counting_the_committed_isr_alone, 0),
        (taking_a_lost_answer_for_a_refusal, 150),
        (joining_below_the_start_of_the_leader_epoch, 0),
        (taking_members_of_a_former_registration, 0),
        (naming_members_with_their_present_epochs, 5080),
    ],
)
def test_known_bugs_of_replication_are_found(bug: Callable[[Run], None], first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 200):
        run = Run(seed, replicas=3)
        bug(run)
        try:
            run.run()
        except Exception:  # noqa: BLE001 - a violation, or a log that refuses what does not fit
            return
    pytest.fail("no seed found it")
