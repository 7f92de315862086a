"""The transaction coordinator over a partition in memory: what is written, answered and sent, and when."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.coordinator.transactions.records import encode_entry
from ottla.coordinator.transactions.shard import _SPARE_BYTES
from ottla.coordinator.transactions.transaction import LAST_EPOCH, Transaction, TransactionState
from ottla.coordinator.transactions.transitions import Producer
from ottla.protocol.errors import ApiError, ErrorCode
from unit.coordinator.simulated import Answer
from unit.coordinator.transaction_world import NAME, T0, T1, World


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


def limited(world: World, max_message_bytes: int) -> None:
    world.partition.config = SimpleNamespace(max_message_bytes=max_message_bytes)


def test_a_partition_that_makes_a_transaction_too_large_is_refused_and_the_transaction_can_end() -> None:
    world = World()
    limited(world, 4000)
    producer = world.init()
    answers = [world.add(producer, (f"topic-{number:04}", 0)).given[0] for number in range(400)]
    refused = [each for each in answers if each is not None]
    assert {each.code for each in refused} == {ErrorCode.RECORD_LIST_TOO_LARGE}
    assert "max.message.bytes=4000" in refused[0].message
    fitting = len(answers) - len(refused)
    assert 100 < fitting < 400 and answers[:fitting] == [None] * fitting
    assert world.end(producer).value == Producer(7, 1)
    (due,) = world.sent
    assert len(due.remaining) == fitting
    due.settled(due.remaining.copy())
    assert world.described().state.text == "CompleteCommit"


def test_a_transaction_ends_even_if_the_limit_of_its_record_was_lowered() -> None:
    world = World()
    producer = world.init()
    world.add(producer, *[("t", number) for number in range(500)])
    limited(world, 1000)
    assert world.end(producer, commit=False).value == Producer(7, 1)
    assert len(world.sent) == 1


def test_a_transaction_of_the_largest_size_can_be_ended_by_a_new_id_of_its_producer() -> None:
    """The record that ends it is the largest: it also holds the next producer id."""
    ongoing = Transaction("tx", 1 << 60, LAST_EPOCH - 1, 1, TransactionState.ONGOING, frozenset({T0}))
    ending = replace(
        ongoing,
        state=TransactionState.PREPARE_COMMIT,
        previous_producer_id=1 << 60,
        next_producer_id=1 << 61,
        client_version=2,
    )
    sizes = [len(b"".join(filter(None, encode_entry(("tx", each))))) for each in (ongoing, ending)]
    assert sizes[1] - sizes[0] < _SPARE_BYTES


def test_expired_ids_are_forgotten_however_long_they_are() -> None:
    world = World()
    for number in range(40):
        world.init(f"{number:05}" * 6000)
    limited(world, 200_000)
    world.scheduler.run(120_000)
    world.run(world.coordinator.forget_expired())
    (shard,) = world.coordinator.all_shards()
    assert shard.state.ids() == []
