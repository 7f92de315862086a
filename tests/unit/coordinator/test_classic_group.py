"""The classic protocol, one rule at a time, as Apache Kafka 4.3 keeps them."""

from __future__ import annotations

import pytest

from ottla.coordinator.classic_group import ClassicGroup
from ottla.coordinator.classic_phases import MIN_INITIAL_DELAY_MS, Phase
from ottla.coordinator.group import GroupSettings
from ottla.coordinator.group_effects import GroupEffects
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.offsets import Committed, commit
from ottla.coordinator.runtime.effects import Reply
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.leave_group import MemberIdentity
from ottla.protocol.messages.sync_group import SyncGroupResponse
from unit.coordinator.simulated import SETTINGS, Answer, Simulated, assignment


@pytest.fixture
def shard() -> Simulated:
    return Simulated()


def group_of(shard: Simulated, group_id: str = "g") -> ClassicGroup:
    group = shard.groups.get(group_id)
    assert isinstance(group, ClassicGroup)
    return group


def test_a_new_member_is_given_an_id_and_joins_with_it(shard: Simulated) -> None:
    first = shard.join()
    assert first.error == ErrorCode.MEMBER_ID_REQUIRED
    member_id = first.value.member_id
    second = shard.join(member_id)
    assert second.waits
    shard.scheduler.run(3000)
    assert (second.error, second.value.generation_id, second.value.leader) == (0, 1, member_id)
    assert [member.member_id for member in second.value.members] == [member_id]


def test_before_version_4_a_member_joins_at_once(shard: Simulated) -> None:
    answer = shard.join(version=3)
    shard.scheduler.run(3000)
    assert answer.value.generation_id == 1


def test_the_initial_rebalance_delay_is_extended_while_members_join(shard: Simulated) -> None:
    _, first = shard.new_member()
    shard.scheduler.run(2000)
    _, second = shard.new_member()
    shard.scheduler.run(2000)
    assert first.waits
    assert second.waits
    shard.scheduler.run(3000)
    assert first.value.generation_id == second.value.generation_id == 1


def test_members_that_join_together_are_one_generation_even_without_an_initial_delay() -> None:
    shard = Simulated(GroupSettings(initial_rebalance_delay_ms=0))
    _, first = shard.new_member()
    shard.scheduler.run(MIN_INITIAL_DELAY_MS // 2)
    _, second = shard.new_member()
    shard.scheduler.run(MIN_INITIAL_DELAY_MS // 2)
    asked = shard.join().value.member_id  # it has an id, and is about to come
    shard.scheduler.run(MIN_INITIAL_DELAY_MS // 2)
    assert first.waits
    assert second.waits
    shard.scheduler.run(MIN_INITIAL_DELAY_MS // 2)
    third = shard.join(asked)
    shard.scheduler.run(2 * MIN_INITIAL_DELAY_MS)
    assert {answer.value.generation_id for answer in (first, second, third)} == {1}


def test_a_member_id_that_is_not_used_delays_a_new_group_only_briefly() -> None:
    shard = Simulated(GroupSettings(initial_rebalance_delay_ms=0))
    _, first = shard.new_member()
    shard.join()
    shard.scheduler.run(2 * MIN_INITIAL_DELAY_MS)
    assert first.value.generation_id == 1


def test_a_new_group_waits_no_longer_than_its_rebalance_timeout(shard: Simulated) -> None:
    answers = [shard.new_member(rebalance_ms=7000)[1]]
    for _ in range(4):
        shard.scheduler.run(2000)
        answers.append(shard.new_member(rebalance_ms=7000)[1])
    shard.scheduler.run(1000)
    assert not answers[0].waits


def test_only_the_leader_is_sent_the_list_of_members(shard: Simulated) -> None:
    joins = [shard.new_member() for _ in range(3)]
    shard.scheduler.run(10_000)
    leader = joins[0][1].value.leader
    for member_id, answer in joins:
        assert len(answer.value.members) == (3 if member_id == leader else 0)
    assert [answer.value.protocol_name for _, answer in joins] == ["range"] * 3


def test_all_members_get_what_the_leader_assigned(shard: Simulated) -> None:
    (a, joined), (b, _) = shard.new_member(), shard.new_member()
    shard.scheduler.run(10_000)
    assert joined.value.leader == a
    waiting = shard.sync(b, 1)
    assert waiting.waits
    leading = shard.sync(a, 1, {a: {0, 1}, b: {2}})
    assert leading.value.assignment == assignment({0, 1})
    assert waiting.value.assignment == assignment({2})
    assert group_of(shard).phase is Phase.STABLE
    assert shard.sync(b, 1).value.assignment == assignment({2})


def test_a_member_without_an_assignment_from_the_leader_gets_an_empty_one(shard: Simulated) -> None:
    (a, _), (b, _) = shard.new_member(), shard.new_member()
    shard.scheduler.run(10_000)
    shard.sync(a, 1, {a: {0}})
    assert shard.sync(b, 1).value.assignment == b""


def test_the_assignor_is_supported_by_all_and_preferred_by_most_members(shard: Simulated) -> None:
    liked = [("range", "sticky"), ("sticky", "range"), ("sticky", "range")]
    joins = [shard.new_member(protocols=protocols) for protocols in liked]
    shard.scheduler.run(10_000)
    assert joins[0][1].value.protocol_name == "sticky"
    assert shard.join(protocols=("cooperative",)).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert shard.join(protocol_type="connect").error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("session_ms", [5999, 1_800_001])
def test_a_session_timeout_out_of_range_is_refused(shard: Simulated, session_ms: int) -> None:
    assert shard.join(session_ms=session_ms).error == ErrorCode.INVALID_SESSION_TIMEOUT
    assert shard.groups.get("g") is None


def test_a_group_takes_no_more_members_than_allowed() -> None:
    shard = Simulated(GroupSettings(max_size=2, initial_rebalance_delay_ms=0))
    shard.stable(2)
    assert shard.join().error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert len(group_of(shard).members) == 2


def test_an_older_generation_is_refused(shard: Simulated) -> None:
    (a,) = shard.stable()
    shard.join(a)  # the leader joins again: a new generation
    assert shard.heartbeat(a, 1) == ErrorCode.ILLEGAL_GENERATION
    assert shard.heartbeat(a, 2) == ErrorCode.NONE
    assert shard.sync(a, 1).error == ErrorCode.ILLEGAL_GENERATION
    assert shard.heartbeat("unknown", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert shard.heartbeat(a, 2, group="other") == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_joining_member_makes_the_others_rejoin(shard: Simulated) -> None:
    a, b = shard.stable(2)
    c, joining = shard.new_member()
    assert shard.heartbeat(a, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert shard.sync(a, 1).error == ErrorCode.REBALANCE_IN_PROGRESS
    again = shard.join(a)
    assert again.waits
    assert joining.waits
    shard.join(b)
    assert joining.value.generation_id == again.value.generation_id == 2
    assert shard.heartbeat(c, 2) == ErrorCode.NONE


def test_a_member_that_does_not_rejoin_in_time_is_removed(shard: Simulated) -> None:
    a, b = shard.stable(2)
    _, joining = shard.new_member()
    shard.join(a)
    for _ in range(6):
        shard.scheduler.run(5000)
        shard.heartbeat(b, 1)  # alive, but it does not rejoin
    assert joining.value.generation_id == 2
    assert b not in group_of(shard).members


def test_a_silent_member_is_removed_after_its_session_timeout(shard: Simulated) -> None:
    a, b = shard.stable(2)
    shard.scheduler.run(9000)
    shard.heartbeat(a, 1)
    shard.scheduler.run(2000)
    assert group_of(shard).phase is Phase.PREPARING
    assert b not in group_of(shard).members
    assert shard.join(a).value.generation_id == 2


def test_a_member_with_a_waiting_request_does_not_expire(shard: Simulated) -> None:
    shard.stable(2)
    waiting = shard.new_member(session_ms=6000, rebalance_ms=60_000)[1]
    shard.scheduler.run(7000)
    assert waiting.waits


def test_a_member_id_that_is_never_used_expires_and_then_delays_no_rebalance(shard: Simulated) -> None:
    (a,) = shard.stable()
    _, joining = shard.new_member()
    shard.join(session_ms=6000)  # is given an id and does not come back
    shard.join(a)
    assert joining.waits
    shard.scheduler.run(6000)
    assert joining.value.generation_id == 2


def test_a_member_that_does_not_sync_in_time_is_removed(shard: Simulated) -> None:
    (a, _), (b, _) = shard.new_member(), shard.new_member()
    shard.scheduler.run(10_000)
    shard.sync(a, 1, {a: {0}, b: {1}})
    for _ in range(7):
        shard.scheduler.run(4500)
        shard.heartbeat(a, 1)
        shard.heartbeat(b, 1)
    assert group_of(shard).phase is Phase.PREPARING
    assert set(group_of(shard).members) == {a}


def test_a_leaving_member_is_removed_at_once_and_the_others_rebalance(shard: Simulated) -> None:
    a, b = shard.stable(2)
    assert shard.leave(MemberIdentity(member_id=b)) == [ErrorCode.NONE]
    assert shard.heartbeat(a, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert shard.leave(MemberIdentity(member_id=b)) == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_when_the_last_member_leaves_the_group_is_empty_in_a_new_generation(shard: Simulated) -> None:
    (a,) = shard.stable()
    shard.leave(MemberIdentity(member_id=a))
    group = group_of(shard)
    assert (group.phase, group.generation, group.protocol_type) == (Phase.EMPTY, 2, "consumer")
    assert (group.leader, group.protocol) == (None, None)


def test_a_waiting_request_of_a_removed_member_is_answered(shard: Simulated) -> None:
    shard.stable()
    b, joining = shard.new_member()
    assert joining.waits
    shard.leave(MemberIdentity(member_id=b))
    assert joining.error == ErrorCode.UNKNOWN_MEMBER_ID


def test_waiting_sync_requests_are_answered_when_another_rebalance_starts(shard: Simulated) -> None:
    (_, _), (b, _) = shard.new_member(), shard.new_member()
    shard.scheduler.run(10_000)
    waiting = shard.sync(b, 1)
    shard.new_member()
    assert waiting.error == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_follower_that_rejoins_unchanged_causes_no_rebalance(shard: Simulated) -> None:
    _, b = shard.stable(2)
    again = shard.join(b)
    assert again.value.generation_id == 1
    assert group_of(shard).phase is Phase.STABLE
    shard.join(b, topics=("t", "u"))
    assert group_of(shard).phase is Phase.PREPARING


# -- static members ---------------------------------------------------------------------------------------


def static_group(shard: Simulated, version: int = 9) -> str:
    joined = shard.join(instance="i", version=version)
    shard.scheduler.run(3000)
    member_id: str = joined.value.member_id
    shard.sync(member_id, 1, {member_id: {0, 1}}, instance="i")
    return member_id


def test_a_restarted_static_member_keeps_its_assignment_without_a_rebalance(shard: Simulated) -> None:
    old = static_group(shard)
    again = shard.join(instance="i")
    new = again.value.member_id
    assert new != old
    assert (again.value.generation_id, again.value.skip_assignment, again.value.leader) == (1, True, new)
    assert group_of(shard).phase is Phase.STABLE
    assert shard.sync(new, 1, instance="i").value.assignment == assignment({0, 1})


def test_before_version_9_a_restarted_static_leader_is_answered_as_a_follower(shard: Simulated) -> None:
    old = static_group(shard, version=8)
    again = shard.join(instance="i", version=8)
    assert (again.value.leader, again.value.members, again.value.skip_assignment) == (old, [], False)


def test_the_previous_member_id_of_a_static_member_is_fenced(shard: Simulated) -> None:
    old = static_group(shard)
    shard.join(instance="i")
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert shard.heartbeat(old, 1, instance="i") == fenced
    assert shard.join(old, instance="i").error == fenced
    assert shard.sync(old, 1, instance="i").error == fenced
    assert shard.leave(MemberIdentity(member_id=old, group_instance_id="i")) == [fenced]
    assert shard.heartbeat(old, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_waiting_static_member_is_fenced_when_its_instance_rejoins(shard: Simulated) -> None:
    shard.stable()
    first = shard.join(instance="i")
    assert first.waits
    second = shard.join(instance="i")
    assert first.error == ErrorCode.FENCED_INSTANCE_ID
    assert second.waits


def test_a_static_member_stays_in_the_group_until_its_session_expires(shard: Simulated) -> None:
    static_group(shard)
    shard.scheduler.run(9_999)
    assert group_of(shard).phase is Phase.STABLE
    shard.scheduler.run(2)
    assert group_of(shard).phase is Phase.EMPTY


def test_an_administrator_removes_static_members_by_instance_id(shard: Simulated) -> None:
    static_group(shard)
    leaving = MemberIdentity(member_id="", group_instance_id="i")
    unknown = MemberIdentity(member_id="", group_instance_id="unknown")
    assert shard.leave(leaving, unknown) == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert group_of(shard).phase is Phase.EMPTY


# -- the log ----------------------------------------------------------------------------------------------


def test_a_new_coordinator_restores_generation_and_assignments(shard: Simulated) -> None:
    a, b = shard.stable(2)
    after = shard.restarted()
    group = group_of(after)
    assert (group.phase, group.generation, group.leader) == (Phase.STABLE, 1, group_of(shard).leader)
    assert after.heartbeat(a, 1) == ErrorCode.NONE
    assert after.sync(b, 1).value.assignment == assignment({1})
    after.scheduler.run(10_001)
    assert group.group_id == "g"
    assert group_of(after).phase is Phase.EMPTY  # no member has come back since


def test_a_refused_append_changes_nothing_and_a_retry_succeeds(shard: Simulated) -> None:
    (a, _), (b, _) = shard.new_member(), shard.new_member()
    shard.scheduler.run(10_000)
    waiting = shard.sync(b, 1)
    shard.partition.refuses = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no space")
    assert shard.sync(a, 1, {a: {0}, b: {1}}).error == ErrorCode.NOT_COORDINATOR
    assert group_of(shard).phase is Phase.COMPLETING
    assert waiting.waits
    shard.partition.refuses = None
    assert shard.sync(a, 1, {a: {0}, b: {1}}).value.assignment == assignment({0})
    assert waiting.value.assignment == assignment({1})


def test_a_timer_that_expires_while_appends_are_refused_is_retried(shard: Simulated) -> None:
    shard.stable()
    shard.partition.refuses = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no space")
    shard.scheduler.run(15_000)
    assert group_of(shard).phase is Phase.STABLE
    shard.partition.refuses = None
    shard.scheduler.run(1_000)
    assert group_of(shard).phase is Phase.EMPTY


def test_assignments_are_sent_only_after_they_are_replicated(shard: Simulated) -> None:
    a, _ = shard.new_member()
    shard.scheduler.run(3_000)
    shard.partition.is_slow = True
    answer = shard.sync(a, 1, {a: {0}})
    assert answer.waits
    reading = shard.ask(lambda groups, reply, effects: effects.answer(reply, SyncGroupResponse()))
    assert reading.waits, "it has seen what is not committed yet"
    shard.commit_all()
    assert answer.value.assignment == assignment({0})
    assert not reading.waits


def test_a_response_that_waits_too_long_for_replication_is_a_retriable_error(shard: Simulated) -> None:
    a, _ = shard.new_member()
    shard.scheduler.run(3_000)
    shard.partition.is_slow = True
    answer = shard.sync(a, 1, {a: {0}})
    shard.scheduler.run(5_000)
    assert answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_losing_leadership_answers_all_waiting_requests(shard: Simulated) -> None:
    shard.stable()
    waiting: list[Answer] = [shard.new_member()[1] for _ in range(3)]
    shard.partition.is_slow = True
    waiting.append(shard.ask(_commit))
    assert all(answer.waits for answer in waiting)
    shard.shard.end()
    assert [answer.error for answer in waiting] == [ErrorCode.NOT_COORDINATOR] * 4


def _commit(groups: GroupShard, reply: Reply, effects: GroupEffects) -> None:
    effects.records.append(commit("other", "t", 0, Committed(1)))
    effects.answer(reply, None)


def test_a_group_above_a_lowered_size_limit_rebalances() -> None:
    before = Simulated()
    before.stable(3)
    after = Simulated(GroupSettings(max_size=2), before.partition.batches)
    assert group_of(after).phase is Phase.PREPARING


def test_default_group_settings_equal_those_of_kafka() -> None:
    assert GroupSettings() == SETTINGS
