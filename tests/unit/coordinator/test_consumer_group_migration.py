"""A group changes its protocol while it runs, and no partition is read twice or not at all."""

from __future__ import annotations

import pytest

from ottla.coordinator.classic_group import ClassicGroup
from ottla.coordinator.classic_phases import MIN_INITIAL_DELAY_MS
from ottla.coordinator.consumer_group import ConsumerGroup
from ottla.protocol.errors import ApiError, ErrorCode
from unit.coordinator.consumer_world import GROUP, Client, World
from unit.coordinator.old_client import OldClient, classic_group


@pytest.fixture
def world() -> World:
    world = World()
    world.topic("t", 4)
    return world


def numbers(client: Client) -> set[int]:
    return {partition for _, partition in client.owned}


@pytest.mark.parametrize("eager", [False, True])
def test_classic_and_consumer_members_share_the_partitions(world: World, eager: bool) -> None:
    old = classic_group(world, eager=eager)
    new = Client(world, "new", "t")
    assert isinstance(world.groups.get(GROUP), ConsumerGroup)
    assert numbers(new) == set(), "the old member still reads everything"
    for _ in range(3):
        old.follow()
        new.beat()
        assert not old.owned & numbers(new)
    assert len(old.owned) == len(numbers(new)) == 2
    assert world.group.state_name == "Stable"


def test_the_epoch_continues_from_the_generation_and_replay_gives_the_same_group(world: World) -> None:
    old = classic_group(world)
    Client(world, "new", "t")
    assert world.group.state.epoch == old.generation + 1
    again = world.reloaded().get(GROUP)
    assert isinstance(again, ConsumerGroup)
    assert again.members == world.group.members


def test_the_group_becomes_classic_when_the_last_consumer_member_leaves(world: World) -> None:
    old = classic_group(world)
    new = Client(world, "new", "t")
    for _ in range(3):
        old.follow()
        new.beat()
    kept = set(old.owned)
    new.leave()
    assert isinstance(world.groups.get(GROUP), ClassicGroup)
    assert isinstance(world.reloaded().get(GROUP), ClassicGroup)
    world.advance(MIN_INITIAL_DELAY_MS)
    assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS, "it is not fenced, and reads on meanwhile"
    assert old.owned == kept
    generation = old.generation
    old.join()
    old.joined()
    assert old.generation == generation + 1
    old.sync(take={0, 1, 2, 3})


def test_a_silent_classic_member_is_removed_after_its_own_session_timeout(world: World) -> None:
    old = classic_group(world)
    new = Client(world, "new", "t")
    world.advance(10_001)
    assert set(world.group.members) == {"new"}
    new.beat()
    new.beat()
    assert numbers(new) == {0, 1, 2, 3}
    with pytest.raises(ApiError) as unknown:
        old.heartbeat()
    assert unknown.value.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_classic_member_that_does_not_rejoin_is_removed_after_its_rebalance_timeout(world: World) -> None:
    old = classic_group(world)
    new = Client(world, "new", "t")
    assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(6):
        world.advance(5_100)
        new.beat()
        if old.member_id in world.group.members:
            old.heartbeat()
    assert set(world.group.members) == {"new"}


def test_a_classic_member_can_leave_a_migrated_group(world: World) -> None:
    old = classic_group(world)
    new = Client(world, "new", "t")
    old.leave()
    new.beat()
    assert numbers(new) == {0, 1, 2, 3}


def test_a_classic_member_can_join_a_consumer_group(world: World) -> None:
    new = Client(world, "new", "t")
    old = OldClient(world, "t")
    old.join()
    old.joined()
    old.sync()
    for _ in range(3):
        new.beat()
        old.follow()
        assert not old.owned & numbers(new)
    assert len(old.owned) == len(numbers(new)) == 2


def test_an_empty_group_changes_its_type_at_once_both_ways(world: World) -> None:
    old = classic_group(world)
    old.leave()
    new = Client(world, "new", "t")
    assert numbers(new) == {0, 1, 2, 3}
    new.leave()
    old = OldClient(world, "t")
    old.join()
    assert isinstance(world.groups.get(GROUP), ClassicGroup)
    assert isinstance(world.reloaded().get(GROUP), ClassicGroup | None)


def test_a_group_is_not_upgraded_when_migration_is_forbidden(world: World) -> None:
    world.set(may_upgrade=False)
    classic_group(world)
    with pytest.raises(ApiError, match="online upgrade is disabled") as error:
        world.join("new", "t")
    assert error.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(world.groups.get(GROUP), ClassicGroup)


def test_classic_members_cannot_join_when_migration_is_forbidden(world: World) -> None:
    world.set(may_upgrade=False, may_downgrade=False)
    Client(world, "new", "t")
    with pytest.raises(ApiError) as error:
        OldClient(world, "t").join()
    assert error.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_group_with_a_custom_assignor_is_not_upgraded(world: World) -> None:
    old = OldClient(world, "t")
    old.join()
    world.advance(MIN_INITIAL_DELAY_MS)
    old.joined()
    old.sync(take={0}, user_data=b"for my eyes only")
    with pytest.raises(ApiError, match="custom assignor"):
        world.join("new", "t")


def test_a_group_is_not_downgraded_when_migration_is_forbidden(world: World) -> None:
    world.set(may_downgrade=False)
    old = classic_group(world)
    new = Client(world, "new", "t")
    for _ in range(3):
        old.follow()
        new.beat()
    new.leave()
    assert isinstance(world.groups.get(GROUP), ConsumerGroup)
    old.follow()
    assert old.owned == {0, 1, 2, 3}
