"""The transaction coordinator over a partition in memory: what is written, answered and sent, and when."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest

from ottla.coordinator.transactions.coordinator import TransactionCoordinator, TransactionSettings
from ottla.coordinator.transactions.endings import MarkersDue
from ottla.coordinator.transactions.transaction import Transaction
from ottla.coordinator.transactions.transitions import Producer
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.replication.partition import Partition
from ottla.replication.purgatory import Purgatory
from unit.coordinator.simulated import Answer, ManualScheduler, MemoryPartition

NAME = "tx"
T0, T1 = ("t", 0), ("t", 1)


class World:
    """A coordinator of one partition, and the markers that it wants to be sent."""

    def __init__(self, batches: list[bytes] | None = None) -> None:
        self.scheduler = ManualScheduler()
        self.partition = MemoryPartition(batches)
        self.purgatory = Purgatory(self.scheduler)
        self.sent: list[MarkersDue] = []
        self.server_version = 2
        self._ids = itertools.count(7)

        async def in_thread(work: Callable[[], int]) -> int:
            return work()

        self.coordinator = TransactionCoordinator(
            TransactionSettings(
                commit_timeout_ms=lambda: 5000,
                expiration_ms=lambda: 60_000,
                server_version=lambda: self.server_version,
            ),
            clock=self.scheduler.clock,
            scheduler=self.scheduler,
            purgatory=self.purgatory,
            in_thread=in_thread,
            next_producer_id=self._next_id,
            send_markers=self.sent.append,
        )
        asyncio.run(self._load())

    async def _load(self) -> None:
        self.coordinator.follow(1, [cast(Partition, self.partition)])
        await self.coordinator.loading_done()

    async def _next_id(self) -> int:
        return next(self._ids)

    def restarted(self) -> World:
        """What a new coordinator makes of the same log."""
        return World(self.partition.batches)

    def init(self, name: str = NAME) -> Producer:
        async def ask() -> Producer:
            return await self.coordinator.initialize(name, 1000, None).as_future()

        return asyncio.run(ask())

    def add(self, producer: Producer, *partitions: tuple[str, int], name: str = NAME) -> Answer:
        answer = Answer()
        added = self.coordinator.add_partitions(name, producer, partitions or [T0], client_version=2)
        added.then(answer, answer)
        return answer

    def end(self, producer: Producer, *, commit: bool = True) -> Answer:
        answer = Answer()
        self.coordinator.end(NAME, producer, commit=commit, client_version=2).then(answer, answer)
        self.scheduler.run()
        return answer

    def described(self, name: str = NAME) -> Transaction:
        answer = Answer()
        self.coordinator.describe(name).then(answer, answer)
        found = answer.value
        assert isinstance(found, Transaction), found
        return found

    def caught_up(self) -> None:
        self.partition.is_slow = False
        self.partition.high_watermark = self.partition.end_offset
        self.purgatory.notify(self.partition)
        self.scheduler.run()

    def run(self, chore: Any) -> None:
        asyncio.run(chore)
        self.scheduler.run()


def test_a_transaction_is_complete_when_all_its_markers_are_written() -> None:
    world = World()
    producer = world.init()
    world.add(producer, T0, T1)
    assert world.end(producer).value == Producer(7, 1)
    (due,) = world.sent
    assert due.remaining == {T0, T1}
    assert (due.transaction.producer_epoch, due.transaction.is_commit, due.coordinator_epoch) == (1, True, 1)
    due.settled([T0])
    assert world.described().state.text == "PrepareCommit"
    assert world.coordinator.unmarked(world.described()) == {T1}
    due.settled([T1])
    assert world.described().state.text == "CompleteCommit"
    due.settled([T1])  # an answer that came twice
    assert world.described().state.text == "CompleteCommit"


def test_neither_the_answer_nor_the_markers_leave_before_the_outcome_is_committed() -> None:
    world = World()
    producer = world.init()
    world.add(producer)
    world.partition.is_slow = True
    answer = world.end(producer)
    assert answer.waits
    assert not world.sent
    world.caught_up()
    assert answer.value == Producer(7, 1)
    assert len(world.sent) == 1


def test_the_markers_leave_at_last_when_the_commit_took_too_long() -> None:
    world = World()
    producer = world.init()
    world.add(producer)
    world.partition.is_slow = True
    answer = world.end(producer)
    world.scheduler.run(6000)
    assert answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not world.sent
    world.caught_up()
    world.scheduler.run(1000)
    assert len(world.sent) == 1
    assert world.end(producer).error == ErrorCode.CONCURRENT_TRANSACTIONS
    world.sent[0].settled([T0])
    assert world.end(producer).value == Producer(7, 1)


def test_a_coordinator_that_takes_over_sends_the_markers_again() -> None:
    world = World()
    producer = world.init()
    world.add(producer, T0, T1)
    world.end(producer, commit=False)
    world.sent[0].settled([T0])
    successor = world.restarted()
    successor.scheduler.run()
    (due,) = successor.sent
    assert due.remaining == {T0, T1}
    assert not due.transaction.is_commit
    due.settled([T0, T1])
    assert successor.described().state.text == "CompleteAbort"
    assert not successor.restarted().sent


def test_a_coordinator_that_was_replaced_completes_nothing() -> None:
    world = World()
    producer = world.init()
    world.add(producer)
    world.end(producer)
    written = len(world.partition.batches)
    world.coordinator.follow(1, [])
    (due,) = world.sent
    assert not due.is_wanted
    due.settled([T0])
    assert len(world.partition.batches) == written


def test_completion_is_tried_again_when_the_log_refuses() -> None:
    world = World()
    producer = world.init()
    world.add(producer)
    world.end(producer)
    world.partition.refuses = ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.sent[0].settled([T0])
    assert world.described().state.text == "PrepareCommit"
    world.partition.refuses = None
    world.scheduler.run(1000)
    assert world.described().state.text == "CompleteCommit"


def test_an_abort_without_partitions_needs_no_markers() -> None:
    world = World()
    producer = world.init()
    assert world.end(producer, commit=False).value == Producer(7, 1)
    assert not world.sent
    assert world.described().state.text == "CompleteAbort"


def test_the_next_transaction_waits_a_moment_for_the_markers_of_the_one_before() -> None:
    world = World()
    producer = world.init()
    world.add(producer)
    world.end(producer)
    following = Producer(7, 1)
    added, too_early = Answer(), Answer()
    world.coordinator.add_partitions_soon(NAME, following, [T1]).then(added, added)
    world.sent[0].settled([T0])
    assert added.value is None
    assert world.described().partitions == {T1}
    world.end(following)
    world.coordinator.add_partitions_soon(NAME, Producer(7, 2), [T1]).then(too_early, too_early)
    assert too_early.waits
    world.scheduler.run(1000)
    assert too_early.error == ErrorCode.CONCURRENT_TRANSACTIONS


def test_a_refused_end_changes_nothing() -> None:
    world = World()
    producer = world.init()
    world.add(producer)
    world.partition.refuses = ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert world.end(producer).error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not world.sent
    assert world.described().state.text == "Ongoing"


def test_init_aborts_an_open_transaction_and_asks_the_client_to_come_again() -> None:
    world = World()
    world.add(world.init())
    with pytest.raises(ApiError) as refused:
        world.init()
    assert refused.value.code is ErrorCode.CONCURRENT_TRANSACTIONS
    world.scheduler.run()
    world.sent[0].settled([T0])
    assert world.init() == Producer(7, 2)


def test_a_transaction_is_aborted_when_it_ran_out_of_time() -> None:
    world = World()
    producer = world.init()
    world.add(producer)
    world.run(world.coordinator.abort_overdue())
    assert world.described().state.text == "Ongoing"
    world.scheduler.run(1001)
    world.run(world.coordinator.abort_overdue())
    (due,) = world.sent
    assert not due.transaction.is_commit
    assert due.transaction.producer_epoch == 1
    assert world.end(producer).error == ErrorCode.INVALID_TXN_STATE


def test_transactional_ids_expire_unless_a_transaction_is_open() -> None:
    world = World()
    world.init("idle")
    world.add(world.init())
    world.scheduler.run(60_000)
    world.run(world.coordinator.forget_expired())
    answer = Answer()
    world.coordinator.describe("idle").then(answer, answer)
    assert answer.error == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert world.restarted().described().state.text == "Ongoing"


@pytest.mark.parametrize("chore", ["abort_overdue", "forget_expired"])
def test_other_work_is_done_after_each_shard_that_was_looked_through(chore: str) -> None:
    world = World()
    world.init()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def both() -> None:
        task = asyncio.create_task(others())
        await getattr(world.coordinator, chore)()
        task.cancel()

    asyncio.run(both())
    assert turns > 0


def test_verification_answers_for_every_partition() -> None:
    world = World()
    producer = world.init()

    def ask(partitions: list[tuple[str, int]], *, add: bool, epoch: int = 0) -> Any:
        answer = Answer()
        outcome = world.coordinator.verify_or_add(NAME, producer.producer_id, epoch, partitions, add)
        outcome.then(answer, answer)
        return answer.value

    assert ask([T0], add=False) == {T0: ErrorCode.TRANSACTION_ABORTABLE}
    assert ask([T0], add=True) == {T0: ErrorCode.NONE}
    assert ask([T0, T1], add=False) == {T0: ErrorCode.NONE, T1: ErrorCode.TRANSACTION_ABORTABLE}
    assert ask([T0, T1], add=True, epoch=3) == dict.fromkeys([T0, T1], ErrorCode.PRODUCER_FENCED)
    assert world.described().client_version == 2
