"""When the coordinator aborts a transaction that nobody ends, also where wall clocks are wrong."""

from __future__ import annotations

import pytest

from ottla.coordinator.transactions.transitions import Producer
from ottla.protocol.errors import ErrorCode
from unit.coordinator.transaction_world import T0, T1, TIMEOUT_MS, World


def was_aborted_after(world: World, milliseconds: int) -> bool:
    world.scheduler.run(milliseconds)
    world.run(world.coordinator.abort_overdue())
    return world.described().state.text != "Ongoing"


def test_a_transaction_is_aborted_when_it_ran_out_of_time() -> None:
    world = World()
    producer = world.init()
    world.add(producer)
    world.run(world.coordinator.abort_overdue())
    assert world.described().state.text == "Ongoing"
    world.scheduler.run(TIMEOUT_MS + 1)
    world.run(world.coordinator.abort_overdue())
    (due,) = world.sent
    assert not due.transaction.is_commit
    assert due.transaction.producer_epoch == 1
    assert world.end(producer).error == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("jump_ms", [-600_000, 600_000])
def test_a_wall_clock_that_jumps_changes_nothing_about_when_a_transaction_is_aborted(jump_ms: int) -> None:
    world = World()
    world.add(world.init())
    world.scheduler.host.skew_ms = jump_ms
    assert not was_aborted_after(world, TIMEOUT_MS - 1)
    assert was_aborted_after(world, 2)


def test_a_partition_that_is_added_gives_a_transaction_no_more_time() -> None:
    world = World()
    producer = world.init()
    world.add(producer, T0)
    assert not was_aborted_after(world, 600)
    world.add(producer, T1)
    assert not was_aborted_after(world, 399)
    assert was_aborted_after(world, 2)


def test_a_further_transaction_has_all_its_time() -> None:
    world = World()
    producer = world.init()
    world.add(producer)
    world.scheduler.run(600)
    producer = world.end(producer).value
    assert isinstance(producer, Producer)
    world.sent.pop().settled([T0])
    world.add(producer)
    assert not was_aborted_after(world, TIMEOUT_MS - 1)
    assert was_aborted_after(world, 2)


@pytest.mark.parametrize(
    ("ahead_ms", "remaining_ms"), [(0, 400), (300, 100), (-500, 900), (-600_000, TIMEOUT_MS)]
)
def test_a_coordinator_that_takes_over_grants_what_its_clock_says_but_at_most_the_timeout(
    ahead_ms: int, remaining_ms: int
) -> None:
    world = World()
    world.add(world.init())
    world.scheduler.run(600)
    successor = world.restarted(ahead_ms)
    assert not was_aborted_after(successor, remaining_ms - 1)
    assert was_aborted_after(successor, 2)


@pytest.mark.parametrize("ahead_ms", [401, 600_000])
def test_a_coordinator_that_takes_over_aborts_at_once_what_ran_out_of_time_by_its_clock(
    ahead_ms: int,
) -> None:
    world = World()
    world.add(world.init())
    world.scheduler.run(600)
    assert was_aborted_after(world.restarted(ahead_ms), 1)
