"""A group changes its protocol while it runs, and no partition is read twice or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.consumer_world import GROUP, Client, World
from ottla.coordinator.classic_group import ClassicGroup
from ottla.coordinator.consumer_group import ConsumerGroup
from ottla.coordinator.group import Caller
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    read_assignment,
    write_assignment,
    write_subscription,
)
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.leave_group import MemberIdentity
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment


class OldClient:
    """A cooperative member of the classic protocol. As the leader of a group of one it takes everything."""

    def __init__(
        self, world: World, topic: str, *, instance_id: str | None = None, eager: bool = False
    ) -> None:
        self.world, self.topic, self.instance_id, self.eager = world, topic, instance_id, eager
        self.member_id = ""
        self.generation = -1
        self.owned: set[int] = set()
        self.waiting: list[Any] = []

    def join(self) -> Any:
        """Send JoinGroup; the answer may come later, in `waiting`."""
        owned = [] if self.eager else [TopicPartition(topic=self.topic, partitions=sorted(self.owned))]
        subscription = ConsumerProtocolSubscription(
            topics=[self.topic], owned_partitions=owned, generation_id=self.generation
        )
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=30_000,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=write_subscription(subscription))],
        )
        caller = Caller("old", "/127.0.0.1", 3)
        new_id = f"old-{id(self)}-{len(self.world.log)}"
        self.waiting = self.world.run(
            lambda groups, reply, effects: groups.join(request, new_id, caller, reply, effects)
        )

    def joined(self) -> None:
        (answer,) = self.waiting
        assert not isinstance(answer, ApiError), answer
        assert answer.error_code == 0, answer
        self.member_id, self.generation = answer.member_id, answer.generation_id

    def sync(self, *, take: set[int] | None = None, user_data: bytes | None = None) -> None:
        """Fetch the assignment; `take` is what a leader gives to itself."""
        assignments = []
        if take is not None:
            mine = [TopicPartition(topic=self.topic, partitions=sorted(take))]
            data = write_assignment(ConsumerProtocolAssignment(assigned_partitions=mine, user_data=user_data))
            assignments = [SyncGroupRequestAssignment(member_id=self.member_id, assignment=data)]
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            assignments=assignments,
        )
        (answer,) = self.world.run(lambda groups, reply, effects: groups.sync(request, reply, effects))
        assert answer.error_code == 0
        assigned = read_assignment(answer.assignment).assigned_partitions
        self.owned = {index for each in assigned for index in each.partitions}

    def heartbeat(self) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        (answer,) = self.world.run(lambda groups, reply, effects: groups.heartbeat(request, reply, effects))
        return ErrorCode(answer.error_code)

    def follow(self) -> None:
        """What a client does: heartbeats, and joins again for as long as it is told to."""
        for _ in range(5):
            if self.heartbeat() is ErrorCode.NONE:
                return
            if self.eager:
                self.owned = set()
            self.join()
            self.joined()
            self.sync()
        raise AssertionError("it is told to join again and again")

    def leave(self) -> None:
        members = [MemberIdentity(member_id=self.member_id)]
        self.world.run(lambda groups, reply, effects: groups.leave(GROUP, members, effects) and None)
        self.owned = set()


@pytest.fixture
def world() -> World:
    world = World()
    world.topic("t", 4)
    return world


def classic_group(world: World, **settings: Any) -> OldClient:
    """A classic group of one member that has everything."""
    old = OldClient(world, "t", **settings)
    old.join()
    world.advance(0)
    old.joined()
    old.sync(take={0, 1, 2, 3})
    assert isinstance(world.groups.get(GROUP), ClassicGroup)
    return old


def numbers(client: Client) -> set[int]:
    return {partition for _, partition in client.owned}


@pytest.mark.parametrize("eager", [False, True])
def test_old_and_new_members_share_the_partitions(world: World, eager: bool) -> None:
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


def test_the_epoch_goes_on_from_the_generation_and_the_log_tells_the_same(world: World) -> None:
    old = classic_group(world)
    Client(world, "new", "t")
    assert world.group.epoch == old.generation + 1
    again = world.reloaded().get(GROUP)
    assert isinstance(again, ConsumerGroup)
    assert again.members == world.group.members


def test_the_group_becomes_classic_again_when_the_last_new_member_leaves(world: World) -> None:
    old = classic_group(world)
    new = Client(world, "new", "t")
    for _ in range(3):
        old.follow()
        new.beat()
    kept = set(old.owned)
    new.leave()
    assert isinstance(world.groups.get(GROUP), ClassicGroup)
    assert isinstance(world.reloaded().get(GROUP), ClassicGroup)
    world.advance(0)
    assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS, "it is not fenced, and reads on meanwhile"
    assert old.owned == kept
    generation = old.generation
    old.join()
    old.joined()
    assert old.generation == generation + 1
    old.sync(take={0, 1, 2, 3})


def test_an_old_member_that_falls_silent_is_removed_after_its_own_session_timeout(world: World) -> None:
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


def test_an_old_member_that_does_not_join_again_is_removed_after_its_rebalance_timeout(world: World) -> None:
    old = classic_group(world)
    new = Client(world, "new", "t")
    assert old.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(6):
        world.advance(5_100)
        new.beat()
        if old.member_id in world.group.members:
            old.heartbeat()
    assert set(world.group.members) == {"new"}


def test_an_old_member_may_leave(world: World) -> None:
    old = classic_group(world)
    new = Client(world, "new", "t")
    old.leave()
    new.beat()
    assert numbers(new) == {0, 1, 2, 3}


def test_an_old_member_may_come_to_a_new_group(world: World) -> None:
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


def test_an_empty_group_changes_at_once_both_ways(world: World) -> None:
    old = classic_group(world)
    old.leave()
    new = Client(world, "new", "t")
    assert numbers(new) == {0, 1, 2, 3}
    new.leave()
    old = OldClient(world, "t")
    old.join()
    assert isinstance(world.groups.get(GROUP), ClassicGroup)
    assert isinstance(world.reloaded().get(GROUP), ClassicGroup | None)


def test_a_group_is_not_changed_when_that_is_forbidden(world: World) -> None:
    world.set(may_upgrade=False)
    classic_group(world)
    with pytest.raises(ApiError, match="online upgrade is disabled") as error:
        world.join("new", "t")
    assert error.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(world.groups.get(GROUP), ClassicGroup)


def test_nobody_comes_with_the_classic_protocol_when_all_change_is_forbidden(world: World) -> None:
    world.set(may_upgrade=False, may_downgrade=False)
    Client(world, "new", "t")
    with pytest.raises(ApiError) as error:
        OldClient(world, "t").join()
    assert error.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_group_whose_assignor_tells_more_than_partitions_is_not_changed(world: World) -> None:
    old = OldClient(world, "t")
    old.join()
    world.advance(0)
    old.joined()
    old.sync(take={0}, user_data=b"for my eyes only")
    with pytest.raises(ApiError, match="custom assignor"):
        world.join("new", "t")


def test_a_group_does_not_become_classic_again_when_that_is_forbidden(world: World) -> None:
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
