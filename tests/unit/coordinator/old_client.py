"""A member of the classic protocol, for groups that are of the other protocol or become so."""

from __future__ import annotations

from typing import Any

from ottla.completion import Completion
from ottla.coordinator.classic_phases import MIN_INITIAL_DELAY_MS
from ottla.coordinator.group import Caller
from ottla.coordinator.group_effects import GroupEffects
from ottla.coordinator.group_shard import GroupShard
from ottla.protocol.errors import ApiError, ErrorCode, error_of
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
from unit.coordinator.consumer_world import GROUP, World


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
        self.synced = False

    def join(self) -> Any:
        """Send JoinGroup; the answer may come later, in `waiting`."""
        self.synced = False
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
        new_id = f"old-{len(self.world.log)}"
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
        if answer.error_code:
            raise ApiError(ErrorCode(answer.error_code))  # type: ignore[call-arg]
        assigned = read_assignment(answer.assignment).assigned_partitions
        self.owned = {index for each in assigned for index in each.partitions}
        self.synced = True

    def heartbeat(self) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        (answer,) = self.world.run(lambda groups, reply, effects: groups.heartbeat(request, reply, effects))
        return error_of(answer.error_code)

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

        def command(groups: GroupShard, reply: Completion[Any], effects: GroupEffects) -> None:
            groups.leave(GROUP, members, effects)

        self.world.run(command)
        self.owned = set()


def classic_group(world: World, **settings: Any) -> OldClient:
    """A classic group of one member that has the four partitions of the topic t."""
    old = OldClient(world, "t", **settings)
    old.join()
    world.advance(MIN_INITIAL_DELAY_MS)
    old.joined()
    old.sync(take={0, 1, 2, 3})
    return old
