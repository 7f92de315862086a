"""A partition as leader: whom its producers wait for, what its followers get, and when its ISR changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.replication.follower_progress import FollowerFetch
from ottla.replication.leading import (
    check_follower,
    follower_fetched,
    isr_altered,
    isr_due,
    isr_refused,
)
from ottla.replication.partition import Partition
from ottla.replication.partition_reading import Isolation
from ottla.replication.purgatory import Purgatory
from ottla.replication.replica_state import ReplicaState
from ottla.testing.simulation.virtual_time import VirtualTime
from unit.replication.assignments import Assigned
from unit.storage.logs import Store, batch

MAX_LAG_MS = 10_000


class Leader:
    """Broker 1 leads in epoch 5, with followers 2 and 3 in sync unless said otherwise."""

    def __init__(self, *, isr: tuple[int, ...] = (1, 2, 3), min_isr: int = 1, **config: Any) -> None:
        self.store = Store(**config)
        self.scheduler = VirtualTime()
        self.purgatory = Purgatory(self.scheduler)
        self.flushes: list[asyncio.Future[int]] = []
        state = ReplicaState(1, 0, 0, min_isr=min_isr)
        self.partition = Partition("t", 0, bytes(16), self.store.log, state, self.purgatory, self._in_thread)
        self.assigned = Assigned(1, 5, (1, 2, 3), isr, 1)
        self.partition.assign(self.assigned)

    def _in_thread(self, work: Callable[[], int]) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.Future()
        self.flushes.append(future)
        return future

    def assign(self, **changes: object) -> None:
        self.assigned = self.assigned.after(**changes)
        self.partition.assign(self.assigned)

    def fetch(self, broker: int, offset: int, *, broker_epoch: int = 0, log_start: int = 0) -> bool:
        now_ms = int(self.store.clock.monotonic() * 1000)
        fetch = FollowerFetch(broker, broker_epoch or broker * 10, True, now_ms, MAX_LAG_MS)
        check_follower(self.partition, fetch)
        return follower_fetched(self.partition, fetch, self.assigned.leader_epoch, offset, log_start)

    def wait(self, key: object, ready: Callable[[], bool]) -> list[bool | Exception]:
        """Wait in the purgatory; the outcome appears in the list."""
        outcome: list[bool | Exception] = []
        self.purgatory.enter([key], ready, 60).then(outcome.append, outcome.append)
        return outcome

    def wait_for_all(self, end: int) -> list[bool | Exception]:
        """A producer with acks=all waits for its records."""
        epoch = self.partition.leader_epoch
        return self.wait(self.partition, lambda: self.partition.acknowledged(end, True, epoch))

    def read(self, isolation: Isolation, offset: int = 0) -> int:
        found = self.partition.read(offset, 10_000, isolation, True).records
        return 0 if found is None else len(found)


def code(outcome: list[bool | Exception]) -> ErrorCode:
    (error,) = outcome
    assert isinstance(error, ApiError)
    return error.code


def test_a_producer_waits_until_all_in_sync_replicas_have_its_records() -> None:
    leader = Leader()
    leader.partition.append(batch(3))
    outcome = leader.wait_for_all(3)
    leader.fetch(2, 3)
    leader.scheduler.run_ready()
    assert outcome == []
    leader.fetch(3, 3)
    leader.scheduler.run_ready()
    assert outcome == [False]


@pytest.mark.parametrize("leader_id", [1, 2])
def test_producers_of_a_leader_epoch_that_ended_are_refused_at_once(leader_id: int) -> None:
    """Even when this broker leads again: what is committed at that offset may be another record."""
    leader = Leader()
    leader.partition.append(batch(3))
    outcome = leader.wait_for_all(3)
    leader.assign(leader=leader_id, leader_epoch=6)
    leader.scheduler.run_ready()
    assert code(outcome) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_producer_is_refused_when_too_few_replicas_are_left_in_sync() -> None:
    leader = Leader(min_isr=2)
    leader.partition.check_in_sync()
    leader.partition.append(batch(3))
    outcome = leader.wait_for_all(3)
    leader.assign(isr=(1,))
    leader.scheduler.run_ready()
    assert code(outcome) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    with pytest.raises(ApiError) as refused:
        leader.partition.check_in_sync()
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert leader.partition.high_watermark == 0


def test_what_is_committed_is_answered_for_though_the_isr_has_shrunk_since() -> None:
    leader = Leader(min_isr=2)
    leader.partition.append(batch(3))
    leader.fetch(2, 3)
    leader.fetch(3, 3)
    leader.assign(isr=(1,))
    assert leader.partition.acknowledged(3, True, 5)


def test_a_raised_min_isr_refuses_who_waits() -> None:
    leader = Leader(isr=(1, 2))
    leader.partition.append(batch(3))
    outcome = leader.wait_for_all(3)
    leader.partition.require_in_sync(3)
    leader.scheduler.run_ready()
    assert code(outcome) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_acks_1_needs_no_follower() -> None:
    leader = Leader()
    leader.partition.append(batch(3))
    assert leader.partition.acknowledged(3, False, 5)


def test_acks_1_waits_for_a_flush_though_the_high_watermark_stands_still() -> None:
    async def run() -> None:
        leader = Leader(flush_messages=1)
        leader.partition.append(batch(3))
        outcome = leader.wait(leader.partition, lambda: leader.partition.acknowledged(3, False, 5))
        (flush,) = leader.flushes
        flush.set_result(leader.store.log.flush())
        await asyncio.sleep(0)
        leader.scheduler.run_ready()
        assert outcome == [False] and leader.partition.high_watermark == 0

    asyncio.run(run())


def test_followers_read_the_whole_log_and_consumers_what_is_committed() -> None:
    leader = Leader()
    size = leader.partition.append(batch(3)).size
    assert leader.read(Isolation.LOG_END) == size
    assert leader.read(Isolation.HIGH_WATERMARK) == leader.read(Isolation.LAST_STABLE_OFFSET) == 0
    leader.fetch(2, 3)
    leader.fetch(3, 3)
    assert leader.read(Isolation.HIGH_WATERMARK) == leader.read(Isolation.LAST_STABLE_OFFSET) == size


def test_an_append_wakes_followers_and_not_consumers() -> None:
    leader = Leader()
    follower = leader.wait(leader.partition.log_end, lambda: True)
    consumer = leader.wait(leader.partition, lambda: True)
    leader.partition.append(batch(1))
    leader.scheduler.run_ready()
    assert (follower, consumer) == ([False], [])
    leader.fetch(2, 1)
    leader.fetch(3, 1)
    leader.scheduler.run_ready()
    assert consumer == [False]


def test_followers_that_wait_learn_of_another_leader() -> None:
    leader = Leader()
    follower = leader.wait(leader.partition.log_end, lambda: True)
    leader.assign(leader=2, leader_epoch=6)
    leader.scheduler.run_ready()
    assert follower == [False]


@pytest.mark.parametrize("offset", [-1, 9])
def test_an_offset_outside_of_the_log_does_not_count(offset: int) -> None:
    leader = Leader(isr=(1, 2))
    leader.partition.append(batch(3))
    assert not leader.fetch(2, offset)
    assert leader.partition.state.follower(2).log_end_offset == -1  # type: ignore[union-attr]


def test_a_fetch_of_a_brokers_former_registration_is_refused() -> None:
    leader = Leader()
    leader.fetch(2, 0, broker_epoch=21)
    with pytest.raises(ApiError) as refused:
        leader.fetch(2, 0, broker_epoch=20)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_new_leader_does_not_know_the_high_watermark_before_its_followers_report() -> None:
    leader = Leader()
    leader.partition.append(batch(3))
    assert leader.partition.knows_high_watermark
    leader.assign(leader_epoch=6)
    assert not leader.partition.knows_high_watermark
    leader.fetch(2, 3)
    leader.fetch(3, 3)
    assert leader.partition.knows_high_watermark


def test_a_leader_without_followers_always_knows_the_high_watermark() -> None:
    leader = Leader(isr=(1,))
    leader.assign(replicas=(1,))
    assert leader.partition.knows_high_watermark


def test_records_above_the_high_watermark_cannot_be_deleted() -> None:
    leader = Leader()
    leader.partition.append(batch(3))
    with pytest.raises(ApiError) as refused:
        leader.partition.delete_records_before(1)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert leader.partition.delete_records_before(-1) == 0


# -- the in-sync set --------------------------------------------------------------------------------------


def due(leader: Leader, *, check_lag: bool = True) -> tuple[int, ...] | None:
    epochs = {2: 20, 3: 30}
    proposal = isr_due(leader.partition, epochs.get, MAX_LAG_MS, check_lag=check_lag)
    return None if proposal is None else proposal.isr


def test_a_follower_that_caught_up_is_proposed() -> None:
    leader = Leader(isr=(1, 2))
    leader.partition.append(batch(3))
    assert not leader.fetch(3, 1)
    assert leader.fetch(3, 3)
    assert due(leader, check_lag=False) == (1, 2, 3)
    assert not leader.fetch(3, 3), "it is under way"


def test_a_follower_that_lags_is_proposed_to_leave_and_its_producers_go_on() -> None:
    leader = Leader()
    leader.partition.append(batch(3))
    outcome = leader.wait_for_all(3)
    leader.store.clock.advance(MAX_LAG_MS)
    leader.fetch(2, 3)
    assert due(leader) is None
    leader.store.clock.advance(100)
    assert due(leader) == (1, 2)
    proposal = leader.partition.state.proposal
    assert proposal is not None and leader.partition.high_watermark == 0
    isr_altered(leader.partition, proposal, 1, 5, [1, 2], 2)
    leader.scheduler.run_ready()
    assert outcome == [False]


def test_a_refused_proposal_leaves_the_isr_as_it_was() -> None:
    leader = Leader(isr=(1, 2))
    leader.fetch(3, 0)
    assert due(leader) == (1, 2, 3)
    proposal = leader.partition.state.proposal
    assert proposal is not None
    isr_refused(leader.partition, proposal)
    assert leader.partition.state.proposal is None and leader.partition.state.isr == (1, 2)


def test_who_waits_for_a_follower_that_is_gone_goes_on() -> None:
    leader = Leader(isr=(1, 2))
    leader.fetch(3, 0)
    leader.partition.append(batch(3))
    outcome = leader.wait_for_all(3)
    leader.fetch(2, 3)
    leader.scheduler.run_ready()
    assert outcome == []
    assert isr_due(leader.partition, {2: 20}.get, MAX_LAG_MS, check_lag=False) is None
    leader.scheduler.run_ready()
    assert outcome == [False]
