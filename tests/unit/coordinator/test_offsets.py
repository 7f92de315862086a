"""Committed offsets: which members may commit, what is read back, and when an offset expires."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from ottla.completion import Completion
from ottla.coordinator.group import GroupSettings, NewOffset, OffsetCommit
from ottla.coordinator.group_effects import GroupEffects
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.offsets import Committed
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.leave_group import MemberIdentity
from unit.coordinator.simulated import Simulated

TOPIC_ID = b"t" * 16
HOUR = 3_600_000


@pytest.fixture
def shard() -> Simulated:
    return Simulated(GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=HOUR))


def commit(
    shard: Simulated,
    offset: int = 5,
    *,
    group: str = "g",
    member: str = "",
    generation: int = -1,
    instance: str | None = None,
    topic: str = "t",
    partition: int = 0,
    metadata: str = "",
    retention_ms: int = -1,
    version: int = 9,
) -> ErrorCode:
    new = NewOffset(topic, TOPIC_ID, partition, offset, 3, metadata)
    answer = shard.ask(
        lambda groups, reply, effects: effects.answer(
            reply,
            groups.commit(
                OffsetCommit(group, member, instance, generation, [new], retention_ms, version),
                effects,
            ),
        )
    )
    if isinstance(answer.given[0], ApiError):
        return answer.given[0].code
    (code,) = answer.value
    return ErrorCode(code)  # type: ignore[call-arg]


def offset_of(shard: Simulated, group: str = "g", topic: str = "t", partition: int = 0) -> int | None:
    found = shard.groups.offsets.get(group, topic, partition)
    return None if found is None else found.offset


def _expire(group_id: str, groups: GroupShard, effects: GroupEffects) -> None:
    groups.expire(group_id, 100, effects)


def expire(shard: Simulated) -> None:
    for group_id in shard.groups.group_ids():
        shard.shard.execute(partial(_expire, group_id))


def test_a_simple_consumer_commits_without_a_group(shard: Simulated) -> None:
    assert commit(shard, 7) == ErrorCode.NONE
    now = shard.clock.now_ms()
    assert shard.groups.offsets.get("g", "t", 0) == Committed(7, 3, "", now, -1, TOPIC_ID, record_offset=0)
    group = shard.groups.get("g")
    assert group is not None
    assert (group.state_name, group.protocol_type) == ("Empty", None)


def test_committed_offsets_survive_a_failover(shard: Simulated) -> None:
    for offset in (1, 2, 3):
        commit(shard, offset, partition=offset % 2, metadata=f"note {offset}")
    after = shard.restarted()
    assert after.groups.offsets.of("g") == shard.groups.offsets.of("g")
    assert offset_of(after, partition=1) == 3


def test_a_refused_commit_changes_nothing(shard: Simulated) -> None:
    commit(shard, 1)
    shard.partition.refuses = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no space")
    assert commit(shard, 2) == ErrorCode.NOT_COORDINATOR
    assert offset_of(shard) == 1


def test_a_commit_for_a_generation_needs_a_group(shard: Simulated) -> None:
    assert commit(shard, generation=1, member="m", version=9) == ErrorCode.GROUP_ID_NOT_FOUND
    assert commit(shard, generation=1, member="m", version=8) == ErrorCode.ILLEGAL_GENERATION


def test_only_members_of_the_current_generation_may_commit(shard: Simulated) -> None:
    (a,) = shard.stable()
    assert commit(shard, member=a, generation=1) == ErrorCode.NONE
    assert commit(shard, member=a, generation=2) == ErrorCode.ILLEGAL_GENERATION
    assert commit(shard, member="b", generation=1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(shard) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(shard, member=a, generation=1, instance="i") == ErrorCode.UNKNOWN_MEMBER_ID
    shard.join(a)
    assert commit(shard, member=a, generation=2) == ErrorCode.REBALANCE_IN_PROGRESS


def test_members_may_commit_while_the_group_prepares_a_rebalance(shard: Simulated) -> None:
    a, b = shard.stable(2)
    shard.leave(MemberIdentity(member_id=b))
    assert commit(shard, member=a, generation=1) == ErrorCode.NONE


def test_a_commit_restarts_the_session_of_a_member(shard: Simulated) -> None:
    (a,) = shard.stable()
    for _ in range(3):
        shard.scheduler.run(9_000)
        assert commit(shard, member=a, generation=1) == ErrorCode.NONE
    group = shard.groups.get("g")
    assert group is not None
    assert group.state_name == "Stable"


def test_commit_metadata_above_the_size_limit_is_refused(shard: Simulated) -> None:
    assert commit(shard, metadata="x" * 4096) == ErrorCode.NONE
    assert commit(shard, metadata="x" * 4097) == ErrorCode.OFFSET_METADATA_TOO_LARGE


def test_offsets_of_an_empty_group_are_forgotten_after_the_retention_time(shard: Simulated) -> None:
    (a,) = shard.stable()
    commit(shard, member=a, generation=1)
    for _ in range(20):
        shard.scheduler.run(HOUR // 10)
        shard.heartbeat(a, 1)
    shard.scheduler.run(20_000)  # the member has fallen silent long ago: the group is empty since
    expire(shard)
    assert offset_of(shard) is None
    assert shard.groups.get("g") is None, "the group goes with its last offset"
    assert shard.restarted().groups.get("g") is None


def test_the_retention_time_begins_when_the_group_becomes_empty(shard: Simulated) -> None:
    (a,) = shard.stable()
    commit(shard, member=a, generation=1)
    shard.scheduler.run(5_000)
    shard.leave(MemberIdentity(member_id=a))
    shard.scheduler.run(HOUR - 1)
    expire(shard)
    assert offset_of(shard) == 5
    shard.scheduler.run(1)
    expire(shard)
    assert offset_of(shard) is None


def test_an_active_group_expires_only_offsets_of_unsubscribed_topics(shard: Simulated) -> None:
    (a,) = shard.stable()
    commit(shard, member=a, generation=1, topic="t")
    commit(shard, member=a, generation=1, topic="old")
    end = shard.clock.now_ms() + HOUR
    while shard.clock.now_ms() < end:
        shard.scheduler.run(5_000)
        shard.heartbeat(a, 1)
    expire(shard)
    assert offset_of(shard, topic="t") == 5
    assert offset_of(shard, topic="old") is None


def test_an_old_client_sets_the_retention_time_of_its_offset(shard: Simulated) -> None:
    commit(shard, retention_ms=1000, version=4)
    assert shard.restarted().groups.offsets.of("g") == shard.groups.offsets.of("g")
    shard.scheduler.run(1000)
    expire(shard)
    assert offset_of(shard) is None


def test_offsets_of_a_subscribed_topic_are_not_deleted(shard: Simulated) -> None:
    (a,) = shard.stable()
    for topic in ("t", "old"):
        commit(shard, member=a, generation=1, topic=topic)
    answer = shard.ask(
        lambda groups, reply, effects: effects.answer(
            reply, groups.delete_offsets("g", [("t", 0), ("old", 0), ("old", 9)], effects)
        )
    )
    assert answer.value == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE, ErrorCode.NONE]
    assert (offset_of(shard), offset_of(shard, topic="old")) == (5, None)


def test_a_group_is_deleted_with_its_offsets_when_it_is_empty(shard: Simulated) -> None:
    (a,) = shard.stable()
    commit(shard, member=a, generation=1)

    def delete(group: str = "g") -> int:
        def command(groups: GroupShard, reply: Completion[Any], effects: GroupEffects) -> None:
            groups.delete(group, effects)
            effects.answer(reply, None)

        answer = shard.ask(command)
        given = answer.given[0]
        return 0 if given is None else given.code

    assert delete() == ErrorCode.NON_EMPTY_GROUP
    shard.leave(MemberIdentity(member_id=a))
    assert delete() == 0
    assert delete() == ErrorCode.GROUP_ID_NOT_FOUND
    assert (offset_of(shard), len(shard.restarted().groups)) == (None, 0)


def test_offsets_of_deleted_and_recreated_topics_are_stale(shard: Simulated) -> None:
    for topic in ("kept", "gone", "made-again"):
        commit(shard, topic=topic)
    present = {"kept": TOPIC_ID, "made-again": b"n" * 16}
    shard.shard.execute(lambda groups, effects: groups.forget_stale("g", present.get, 100, effects))
    assert set(shard.groups.offsets.of("g")) == {"kept"}
