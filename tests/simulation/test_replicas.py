"""Followers catch up, part from deposed leaders and truncate, and no acknowledged record is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulation.history import Violation
from simulation.replicas import Replica, Run


@pytest.mark.parametrize("replicas", [2, 3])
def test_acknowledged_records_survive_elections_and_crashes(replicas: int) -> None:
    counts: dict[str, int] = {}
    acknowledged = 0
    for seed in range(20):
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
        leader: Replica, follower: Replica, epoch: int, offset: int, last_epoch: int, life: object
    ) -> None:
        if leader.leads and leader.state.leader_epoch != epoch:
            leader.state.fetched(follower.id, leader.state.leader_epoch, offset, 0)
        answer(leader, follower, epoch, offset, last_epoch, life)

    run.answer_fetch = answer_any  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "bug", [truncating_to_the_high_watermark, never_truncating, counting_reports_of_former_epochs]
)
def test_known_bugs_of_replication_are_found(bug: Callable[[Run], None]) -> None:
    for seed in range(200):
        run = Run(seed, replicas=3)
        bug(run)
        try:
            run.run()
        except Exception:  # noqa: BLE001 - a violation, or a log that refuses what does not fit
            return
    pytest.fail("no seed found it")
