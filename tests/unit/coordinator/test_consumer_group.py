"""The rules of a group of the consumer protocol, one by one."""

from __future__ import annotations

import pytest

from ottla.coordinator.consumer_member import MemberState
from ottla.coordinator.group import NewOffset, OffsetCommit
from ottla.coordinator.group_effects import GroupEffects
from ottla.protocol.errors import ApiError, ErrorCode
from unit.coordinator.consumer_world import GROUP, Client, World, numbers, places, settle


@pytest.fixture
def world() -> World:
    world = World()
    world.topic("t", 6)
    return world


def refused(code: ErrorCode) -> pytest.RaisesExc[ApiError]:
    return pytest.RaisesExc(ApiError, check=lambda error: error.code is code)


# -- joining and leaving ----------------------------------------------------------------------------------


def test_the_first_member_gets_all_partitions_in_its_first_response(world: World) -> None:
    client = Client(world, "a", "t")
    assert numbers(client) == [0, 1, 2, 3, 4, 5]
    assert client.epoch == 2
    assert world.group.state_name == "Stable"


def test_a_member_without_subscription_gets_a_member_epoch(world: World) -> None:
    assert world.join("a").member_epoch == 1
    assert world.group.state_name == "Stable"


def test_a_new_member_waits_until_the_owner_has_confirmed_the_revocation(world: World) -> None:
    a, b = Client(world, "a", "t"), Client(world, "b", "t")
    assert numbers(b) == [] and world.group.members["b"].state is MemberState.UNRELEASED
    told = places(world.beat("a", a.epoch))  # a keep-alive says nothing about what it owns
    assert told is not None and len(told) == 3
    b.beat()
    assert numbers(b) == [], "a has been told, but has not confirmed"
    world.beat("a", a.epoch, owned=told)
    b.beat()
    assert numbers(b) == [3, 4, 5]
    assert world.group.state_name == "Stable"


def test_a_member_that_keeps_its_partitions_is_sent_no_assignment(world: World) -> None:
    a, b = Client(world, "a", "t"), Client(world, "b", "t")
    settle(a, b)
    assert world.beat("a", a.epoch).assignment is None
    assert world.beat("a", a.epoch, owned=a.owned).assignment is None


def test_a_full_heartbeat_request_gets_a_full_response(world: World) -> None:
    a = Client(world, "a", "t")
    response = world.beat(
        "a", a.epoch, owned=a.owned, rebalance_timeout_ms=60_000, subscribed_topic_names=["t"]
    )
    assert places(response) == a.owned


def test_partitions_of_a_leaving_member_are_assigned_with_one_heartbeat(world: World) -> None:
    a, b = Client(world, "a", "t"), Client(world, "b", "t")
    settle(a, b)
    b.leave()
    assert world.group.state_name == "Assigning"
    a.beat()
    assert numbers(a) == [0, 1, 2, 3, 4, 5]


def test_more_members_than_partitions_leaves_the_rest_idle(world: World) -> None:
    world.topic("small", 2)
    clients = [Client(world, name, "small") for name in "abcd"]
    settle(*clients)
    assert sorted(len(client.owned) for client in clients) == [0, 0, 1, 1]


def test_a_group_that_all_members_left_is_empty_and_may_be_deleted(world: World) -> None:
    Client(world, "a", "t").leave()
    assert world.group.state_name == "Empty"
    world.run(lambda groups, reply, effects: groups.delete(GROUP, effects))
    assert world.groups.get(GROUP) is None
    assert world.reloaded().get(GROUP) is None


def test_a_group_has_no_more_members_than_allowed(world: World) -> None:
    world.set(max_size=1)
    Client(world, "a", "t")
    with refused(ErrorCode.GROUP_MAX_SIZE_REACHED):
        world.join("b", "t")
    world.join("a", "t")


def test_target_assignments_are_limited_by_the_assignment_interval(world: World) -> None:
    world.set(assignment_interval_ms=1000)
    a, b = Client(world, "a", "t"), Client(world, "b", "t")
    assert world.group.state_name == "Assigning"
    world.advance(1000)
    settle(a, b)
    assert [len(a.owned), len(b.owned)] == [3, 3]


# -- epochs and fencing -----------------------------------------------------------------------------------


def test_a_member_with_a_wrong_epoch_is_fenced(world: World) -> None:
    a = Client(world, "a", "t")
    with pytest.raises(ApiError, match="greater member epoch") as greater:
        world.beat("a", a.epoch + 1)
    with pytest.raises(ApiError, match="smaller member epoch"):
        world.beat("a", a.epoch - 1)
    assert greater.value.code is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_member_may_repeat_a_heartbeat_whose_response_was_lost(world: World) -> None:
    a = Client(world, "a", "t")
    world.topic("t", 8)
    world.beat("a", a.epoch)  # the answer brings a new epoch and does not arrive
    response = world.beat("a", a.epoch, owned=a.owned)
    assert response.member_epoch == a.epoch + 1


def test_unknown_members_are_refused(world: World) -> None:
    with refused(ErrorCode.GROUP_ID_NOT_FOUND):
        world.beat("a", 3)
    Client(world, "a", "t")
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        world.beat("b", 3)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        world.beat("b", -1)


def test_a_silent_member_is_removed_after_its_session(world: World) -> None:
    a, b = Client(world, "a", "t"), Client(world, "b", "t")
    settle(a, b)
    world.advance(30_000)
    a.beat()
    world.advance(30_000)
    assert set(world.group.members) == {"a"}
    settle(a)
    assert numbers(a) == [0, 1, 2, 3, 4, 5]
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        b.beat()


def test_a_member_that_does_not_revoke_in_time_is_removed(world: World) -> None:
    a = Client(world, "a", "t", rebalance_timeout_ms=10_000)
    b = Client(world, "b", "t")
    for _ in range(5):
        world.beat("a", a.epoch, owned=a.owned)  # it lives, but it holds on to all
        b.beat()
        world.advance(1_900)
    assert numbers(b) == []
    world.advance(1_000)
    assert set(world.group.members) == {"b"}
    settle(b)
    assert numbers(b) == [0, 1, 2, 3, 4, 5]


def test_commits_are_accepted_from_the_epoch_of_the_partition_assignment(world: World) -> None:
    a, b = Client(world, "a", "t"), Client(world, "b", "t")
    old = a.epoch
    settle(a, b)
    (topic,) = {topic for topic, _ in a.owned}

    def commit(epoch: int, partition: int, version: int = 9) -> None:
        new = NewOffset("t", topic, partition, 5, -1, "")
        world.group.check_commit(
            OffsetCommit(GROUP, "a", None, epoch, [new], version=version), GroupEffects(world.now_ms)
        )

    commit(a.epoch, 0)
    commit(old, 0)  # it has had this one all the time
    with refused(ErrorCode.STALE_MEMBER_EPOCH):
        commit(old, 5)  # that one it has given away since
    with refused(ErrorCode.STALE_MEMBER_EPOCH):
        commit(a.epoch + 1, 0)
    with refused(ErrorCode.UNSUPPORTED_VERSION):
        commit(a.epoch, 0, version=8)


def test_offsets_are_read_by_members_in_their_epoch_or_without_a_member_id(world: World) -> None:
    a = Client(world, "a", "t")
    world.group.check_fetch("a", a.epoch)
    world.group.check_fetch(None, -1)
    with refused(ErrorCode.STALE_MEMBER_EPOCH):
        world.group.check_fetch("a", a.epoch - 1)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        world.group.check_fetch("b", 1)


# -- static members ---------------------------------------------------------------------------------------


def test_a_returning_static_member_gets_its_partitions_without_a_rebalance(world: World) -> None:
    a = Client(world, "a", "t", instance_id="i")
    b = Client(world, "b", "t")
    settle(a, b)
    epoch, had = world.group.state.epoch, a.owned
    world.beat("a", -2, instance_id="i")
    b.beat()
    assert len(b.owned) == 3, "the partitions of a static member wait for it"
    back = Client(world, "a2", "t", instance_id="i")
    assert (back.owned, world.group.state.epoch) == (had, epoch)
    assert world.group.state_name == "Stable"
    with refused(ErrorCode.FENCED_INSTANCE_ID):
        world.beat("a", epoch, instance_id="i")


def test_a_static_member_that_does_not_return_loses_its_partitions(world: World) -> None:
    a = Client(world, "a", "t", instance_id="i")
    b = Client(world, "b", "t")
    settle(a, b)
    world.beat("a", -2, instance_id="i")
    for _ in range(5):
        world.advance(10_000)
        b.beat()
    settle(b)
    assert numbers(b) == [0, 1, 2, 3, 4, 5]


def test_an_instance_id_in_use_is_refused(world: World) -> None:
    Client(world, "a", "t", instance_id="i")
    with refused(ErrorCode.UNRELEASED_INSTANCE_ID):
        world.join("b", "t", instance_id="i")
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        world.beat("a", 2, instance_id="other")


# -- topics -----------------------------------------------------------------------------------------------


def test_new_partitions_are_assigned(world: World) -> None:
    a, b = Client(world, "a", "t"), Client(world, "b", "t")
    settle(a, b)
    world.topic("t", 8)
    a.beat()
    settle(a, b)
    assert [len(a.owned), len(b.owned)] == [4, 4]


def test_a_deleted_topic_is_revoked_and_its_recreated_topic_is_assigned_anew(world: World) -> None:
    a = Client(world, "a", "t")
    old = a.owned
    world.drop_topic("t")
    a.beat()
    settle(a)
    assert a.owned == set()
    world.topic("t", 6)
    a.beat()
    settle(a)
    assert len(a.owned) == 6 and not a.owned & old


def test_a_subscribed_topic_is_assigned_when_it_is_created(world: World) -> None:
    a = Client(world, "a", "later")
    assert a.owned == set()
    world.topic("later", 2)
    a.beat()
    assert numbers(a) == [0, 1]


def test_regex_subscriptions_follow_created_and_deleted_topics(world: World) -> None:
    world.topic("orders-eu", 2)
    a = Client(world, "a", regex="orders-.*")
    assert len(a.owned) == 2
    world.topic("orders-us", 3)
    a.beat()
    assert len(a.owned) == 5
    world.drop_topic("orders-eu")
    a.beat()
    settle(a)
    assert len(a.owned) == 3


def test_regex_subscriptions_do_not_match_internal_topics(world: World) -> None:
    world.topic("__consumer_offsets", 50)
    assert len(Client(world, "a", regex=".*").owned) == 6


def test_an_invalid_regex_is_refused_and_changes_nothing(world: World) -> None:
    with refused(ErrorCode.INVALID_REGULAR_EXPRESSION):
        world.join("a", regex="(")
    assert world.groups.get(GROUP) is None


def test_an_unused_regex_is_removed(world: World) -> None:
    a = Client(world, "a", regex="t.*")
    assert set(world.group.state.regexes) == {"t.*"}
    world.beat("a", a.epoch, subscribed_topic_names=["t"], subscribed_topic_regex="")
    assert not world.group.state.regexes


def test_a_changed_subscription_changes_the_assignment(world: World) -> None:
    other = world.topic("other", 2)
    a = Client(world, "a", "t")
    told = places(world.beat("a", a.epoch, owned=a.owned, subscribed_topic_names=["other"]))
    assert told == set(), "first it must give back what it does not want any more"
    a.owned = told
    a.beat()
    assert {topic for topic, _ in a.owned} == {other}


def test_the_assignor_that_members_ask_for_is_used(world: World) -> None:
    a = Client(world, "a", "t", server_assignor="range")
    b = Client(world, "b", "t", server_assignor="range")
    settle(a, b)
    assert world.group.assignor_name == "range"
    assert (numbers(a), numbers(b)) == ([0, 1, 2], [3, 4, 5])


# -- the log, the rebalance history and the heartbeat interval -------------------------------------------


def test_a_new_coordinator_restores_groups_and_starts_session_timers(world: World) -> None:
    a, b = Client(world, "a", "t"), Client(world, "b", "t")
    settle(a, b)
    world.fail_over()
    a.beat()
    b.beat()
    assert world.group.state_name == "Stable"
    world.advance(46_000)
    assert not world.group.members


def test_the_rebalance_history_says_why_and_what_moved(world: World) -> None:
    a, b = Client(world, "a", "t"), Client(world, "b", "t")
    world.advance(300)
    settle(a, b)
    last = world.groups.history.of(GROUP)[0]
    assert [cause.what for cause in last.causes] == ["a member joined"]
    assert last.duration_ms == 300
    assert {(move.partition, move.before, move.after) for move in last.moves} == {
        (3, "a", "b"),
        (4, "a", "b"),
        (5, "a", "b"),
    }
    assert last.joined == ("b",)


def test_the_heartbeat_interval_is_short_during_a_rebalance_and_longer_when_stable(world: World) -> None:
    a, b = Client(world, "a", "t"), Client(world, "b", "t")
    assert world.beat("b", b.epoch).heartbeat_interval_ms == 100
    settle(a, b)
    assert world.beat("b", b.epoch).heartbeat_interval_ms == 500
    world.set(heartbeat_interval_ms=300)
    assert world.beat("b", b.epoch).heartbeat_interval_ms == 300
