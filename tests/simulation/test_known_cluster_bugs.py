"""The simulation of a cluster can fail: bugs that others had, put back on purpose, are found.

Which seed finds one changes with every change of the code, so they are looked for at length, and slowly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from ottla.broker.controller_channel import ControllerChannel
from ottla.cluster import isr_requests
from ottla.cluster.disk_states import DiskReport
from ottla.cluster.image import PartitionState
from ottla.cluster.layout import CONTROLLER_EPOCH
from ottla.cluster.leadership import Leadership, Term
from ottla.cluster.partition_rules import Brokers, WantedIsr, alter
from ottla.cluster.registry import Unavailable
from ottla.replication.fetch_loop import FetchLoop
from ottla.replication.fetch_plan import Answer
from ottla.replication.following import learn
from ottla.replication.partition import Partition
from ottla.replication.replica_state import ReplicaState
from ottla.testing.simulation.registry import SimulatedRegistry
from simulation.cluster import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

MOST_SEEDS = 200


def violation_found(*kinds: str) -> str:
    """What the first seed found that found something, with faults of these kinds."""
    for seed in range(1, MOST_SEEDS + 1):
        report = run(seed, kinds=kinds, seconds=40)
        if report.violation:
            print(report)
            return report.violation
    return ""


def test_truncation_to_the_high_watermark_loses_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-101: a follower knows the high watermark late, so records above its own may be committed."""
    follow = FetchLoop.follow

    def follow_from_high_watermark(self: FetchLoop, partition: Partition) -> None:
        partition.log.truncate_to(partition.high_watermark)
        partition.state.truncated(partition.log.end_offset)
        follow(self, partition)

    monkeypatch.setattr(FetchLoop, "follow", follow_from_high_watermark)
    monkeypatch.setattr(Partition, "divergence", lambda self, epoch, offset: None)
    assert "were committed" in violation_found("kill", "stop", "expire")


def test_an_acknowledgement_without_a_look_at_the_epoch_is_false(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deposed leader truncates, replicates others' records to the same offset, and answers for them."""

    def acknowledged(self: Partition, end_offset: int, all_replicas: bool, leader_epoch: int) -> bool:
        if self.log.failure is not None:
            raise self.log.failure
        return (self.high_watermark if all_replicas else self.state.local_end) >= end_offset

    monkeypatch.setattr(Partition, "acknowledged", acknowledged)
    assert "was acknowledged" in violation_found("depose")


def test_a_high_watermark_learned_before_truncation_covers_wrong_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """KAFKA-14704."""
    take_one = FetchLoop._take_one

    async def learn_first(self: FetchLoop, partition: Partition, answer: Answer) -> None:
        if not answer.data.error_code and answer.data.diverging_epoch.epoch >= 0:
            learn(partition, answer.data.high_watermark, answer.data.log_start_offset)
            await asyncio.sleep(0)
        await take_one(self, partition, answer)

    monkeypatch.setattr(FetchLoop, "_take_one", learn_first)
    assert "below its high watermark" in violation_found()


def test_a_replica_of_an_earlier_broker_epoch_in_the_isr_lacks_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """KIP-903: it was in sync when the leader asked, and came back with an empty disk before the answer."""
    expand_due = ReplicaState.expand_due

    def alter_any_epoch(
        state: PartitionState,
        wanted: WantedIsr,
        brokers: Brokers,
        epochs: Mapping[int, int],
        *,
        min_isr: int,
        failed: frozenset[int],
    ) -> PartitionState:
        isr = [(broker, epochs.get(broker, -1)) for broker, _ in wanted.isr]
        wanted = WantedIsr(wanted.sender, wanted.leader_epoch, wanted.partition_epoch, isr)
        return alter(state, wanted, brokers, epochs, min_isr=min_isr, failed=failed)

    def expand_due_of_any_epoch(
        self: ReplicaState, broker_epoch: Callable[[int], int | None]
    ) -> tuple[int, ...] | None:
        return expand_due(self, lambda replica: self._followers[replica].broker_epoch)

    monkeypatch.setattr(isr_requests, "alter", alter_any_epoch)
    monkeypatch.setattr(ReplicaState, "expand_due", expand_due_of_any_epoch)
    assert "is in sync or may lead" in violation_found("rejoin")


def test_watches_that_a_reconnection_loses_leave_the_cluster_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lose_watches(self: SimulatedRegistry, session: int) -> None:
        self._watches = [watch for watch in self._watches if watch.session != session]

    monkeypatch.setattr(SimulatedRegistry, "dirty", lose_watches)
    assert "without faults" in violation_found("registry", "isolate", "kill")


def test_a_broker_that_does_not_report_its_bad_disk_keeps_what_others_could_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def heard_by_nobody(self: ControllerChannel, report: DiskReport) -> tuple[int, int]:
        return 1 << 30, 1 << 62

    monkeypatch.setattr(ControllerChannel, "report_disk", heard_by_nobody)
    assert "were too short for a record to be acknowledged" in violation_found("stop")


def test_an_ambiguous_commit_taken_for_failed_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def take_for_failed(self: Leadership, term: Term, data: bytes) -> None:
        term.version = (await self._registry.get(CONTROLLER_EPOCH)).version
        raise Unavailable("the commit failed")

    monkeypatch.setattr(Leadership, "_resolve", take_for_failed)
    assert violation_found("ambiguous", "kill", "expire", "pause")
