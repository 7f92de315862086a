"""What groups keep of their members is accounted for, however the members come and go."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.broker.client_memory import MIN_IDLE, ClientMemory
from ottla.completion import Completion
from ottla.coordinator.group import Caller, GroupSettings
from ottla.coordinator.group_effects import GroupEffects
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.member_memory import MemberMemory
from ottla.log_lines import ClientLog
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.leave_group import MemberIdentity
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from unit.coordinator.simulated import NO_TOPICS

KB = 1000


class World:
    """Groups without a log: what they write is replayed at once, as the runtime does it."""

    def __init__(self, limit: int = 1000 * KB) -> None:
        self.time = 100.0
        log = ClientLog(lambda: self.time)
        self.account = ClientMemory(limit, limit // 2, lambda: self.time, lambda: log)
        self.evicted: list[tuple[str, str]] = []
        self.memory = MemberMemory(self.account, lambda *names: self.evicted.append(names))
        self.groups = GroupShard(GroupSettings(initial_rebalance_delay_ms=0), NO_TOPICS, log, self.memory)
        self.timers: dict[Any, Any] = {}

    def run(self, command: Any) -> GroupEffects:
        effects = GroupEffects(int(self.time * 1000))
        command(effects)
        self.groups.adopt(effects)
        for entry in effects.records:
            self.groups.replay(0, -1, -1, entry)
        self.groups.settled(effects)
        self.timers |= effects.timers
        return effects

    def join(self, group: str, member: str, size: int, *, version: int = 3, id_: str = "") -> None:
        request = JoinGroupRequest(
            group_id=group,
            member_id=id_,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"x" * size)],
        )
        caller = Caller("client", "/10.0.0.1", version)
        self.run(lambda effects: self.groups.join(request, member, caller, Completion(), effects))

    def expire(self, group: str, kind: str, member: str = "") -> None:
        timer = self.timers.pop((group, kind, member))
        self.run(lambda effects: self.groups.on_timer(timer, effects))

    def leave(self, group: str, member: str) -> None:
        self.run(lambda effects: self.groups.leave(group, [MemberIdentity(member_id=member)], effects))


def test_members_use_client_memory_from_join_to_leave() -> None:
    world = World()
    world.join("g", "m1", 100 * KB)
    world.join("g", "m2", 200 * KB)
    assert 300 * KB < world.account.used < 310 * KB
    assert world.account.usage().by_address == {"10.0.0.1": world.account.used}
    world.expire("g", "join")  # more have come since: it waits for others a little longer
    world.expire("g", "join")
    sync = SyncGroupRequest(
        group_id="g",
        member_id="m1",
        generation_id=1,
        assignments=[SyncGroupRequestAssignment(member_id="m1", assignment=b"y" * 50 * KB)],
    )
    world.run(lambda effects: world.groups.sync(sync, Completion(), effects))
    assert 350 * KB < world.account.used < 360 * KB
    world.leave("g", "m1")
    world.leave("g", "m2")
    assert set(world.account.usage().by_kind) <= {"group"}


def test_a_join_without_free_client_memory_gets_a_retriable_error() -> None:
    world = World()
    world.join("g", "m1", 600 * KB)
    with pytest.raises(ApiError) as refused:
        world.join("h", "m2", 600 * KB)
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not world.evicted
    assert world.groups.get("h") is None


def test_members_that_were_idle_for_longest_are_evicted_first() -> None:
    world = World()
    world.join("g", "m1", 300 * KB)
    world.join("h", "m2", 300 * KB)
    world.join("i", "m3", 300 * KB)
    world.expire("g", "join")
    world.time += MIN_IDLE
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m1")
    world.run(lambda effects: world.groups.heartbeat(heartbeat, Completion(), effects))
    world.join("j", "m4", 300 * KB)
    assert world.evicted == [("h", "m2")]


def test_a_waiting_member_whose_client_disconnected_is_evicted_first() -> None:
    world = World()
    for number in range(3):
        world.join(f"g{number}", f"m{number}", 300 * KB)
    world.memory.abandoned("g2", "m2")
    world.join("h", "m", 300 * KB)
    assert world.evicted == [("g2", "m2")]


def test_unused_member_ids_use_memory_until_they_expire() -> None:
    world = World()
    world.join("g", "m" * 10 * KB, 10, version=4)
    assert world.account.used > 10 * KB
    world.expire("g", "session", "m" * 10 * KB)
    assert world.groups.get("g") is None
    assert world.account.used == 0


def test_a_shard_that_ends_releases_its_memory() -> None:
    world = World()
    world.join("g", "m1", 300 * KB)
    world.join("h", "m2", 300 * KB)
    world.groups.close()
    assert world.account.used == 0
