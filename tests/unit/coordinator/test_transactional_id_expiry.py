"""When the coordinator forgets transactional ids: after a time without use, or because there are too many."""

from __future__ import annotations

import pytest

from ottla.coordinator.transactions.transitions import Producer
from ottla.protocol.errors import ErrorCode
from unit.coordinator.transaction_world import NAME, T0, World

HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS


def left_after(world: World, milliseconds: int) -> list[str]:
    world.scheduler.run(milliseconds)
    world.run(world.coordinator.forget_expired())
    return world.names()


@pytest.mark.parametrize("jump_ms", [-2 * WEEK_MS, 2 * WEEK_MS])
def test_a_wall_clock_that_jumps_changes_nothing_about_when_an_id_is_forgotten(jump_ms: int) -> None:
    world = World()
    world.init()
    world.scheduler.host.skew_ms = jump_ms
    assert left_after(world, 59_999) == [NAME]
    assert left_after(world, 1) == []


def test_an_id_that_is_used_is_kept() -> None:
    world = World()
    producer = world.init()
    for _ in range(3):
        world.scheduler.run(40_000)
        world.add(producer)
        producer = world.end(producer).value
        world.sent.pop().settled([T0])
        assert left_after(world, 0) == [NAME]
    assert left_after(world, 60_000) == []


def loaded(*, idle_ms: int, ahead_ms: int = 0) -> World:
    """A coordinator that takes over an id that was not used for so long, with a clock that may be ahead."""
    world = World()
    world.init()
    world.scheduler.run(idle_ms)
    successor = world.restarted(ahead_ms)
    successor.expiration_ms = WEEK_MS
    return successor


def test_a_coordinator_that_takes_over_believes_its_wall_clock_after_an_hour() -> None:
    successor = loaded(idle_ms=2 * WEEK_MS)
    assert left_after(successor, HOUR_MS - 1) == [NAME]
    assert left_after(successor, 1) == []


def test_a_coordinator_whose_wall_clock_is_ahead_keeps_ids_that_are_used_within_an_hour() -> None:
    successor = loaded(idle_ms=0, ahead_ms=2 * WEEK_MS)
    assert left_after(successor, HOUR_MS - 1) == [NAME]
    successor.add(Producer(7, 0))
    successor.end(Producer(7, 0))
    successor.sent.pop().settled([T0])
    assert left_after(successor, WEEK_MS - 1) == [NAME]
    assert left_after(successor, 1) == []


def test_a_coordinator_whose_wall_clock_is_behind_forgets_an_id_after_the_whole_time() -> None:
    successor = loaded(idle_ms=0, ahead_ms=-WEEK_MS)
    assert left_after(successor, WEEK_MS - 1) == [NAME]
    assert left_after(successor, 1) == []


def test_of_too_many_ids_those_are_forgotten_that_were_not_used_for_longest() -> None:
    world = World()
    world.most_ids = 3
    producer = world.init()
    for number in range(5):
        world.init(f"invented-{number}")
    world.add(producer)  # the oldest id has a transaction open
    world.init("invented-1")  # and this one was used again
    world.run(world.coordinator.forget_idlest())
    assert sorted(world.names()) == ["invented-1", "invented-4", NAME]
    assert sorted(world.restarted().names()) == ["invented-1", "invented-4", NAME]


def test_long_ids_count_several_times() -> None:
    world = World()
    world.most_ids = 10
    for number in range(3):
        world.init(f"{number}" * 1_000)  # counts as five
    world.run(world.coordinator.forget_idlest())
    assert [name[0] for name in world.names()] == ["1", "2"]


def test_open_transactions_are_not_forgotten_however_many_there_are() -> None:
    world = World()
    world.most_ids = 1
    for name in ("a", "b"):
        world.add(world.init(name), name=name)
    world.run(world.coordinator.forget_idlest())
    assert world.names() == ["a", "b"]


def test_a_producer_whose_id_was_forgotten_is_told_so() -> None:
    world = World()
    world.most_ids = 1
    producer = world.init()
    world.init("invented")
    world.run(world.coordinator.forget_idlest())
    assert world.add(producer).error == ErrorCode.INVALID_PRODUCER_ID_MAPPING
