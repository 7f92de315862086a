"""A coordinator whose partition moves to another broker, or may have moved while its broker stood still."""

from __future__ import annotations

import asyncio
from typing import Any

from ottla.broker.handlers.group_admin import list_groups
from ottla.broker.handlers.group_offsets import offset_fetch
from ottla.broker.handlers.groups import heartbeat
from ottla.coordinator.classic_phases import Phase
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest
from unit.coordinator.coordinator_world import World
from unit.coordinator.simulated import Answer, Simulated


def commit(world: World) -> Answer:
    answer = Answer()
    world.commit_offset("g", answer)
    return answer


def fetched(world: World) -> Answer:
    return world.ask(offset_fetch, OffsetFetchRequest(group_id="g", topics=None))


def test_a_commit_under_way_gets_not_coordinator_when_the_leadership_ends() -> None:
    world = World()
    world.partition.is_slow = True
    answer = commit(world)
    assert answer.waits
    world.groups.follow(1, [])
    assert answer.error == ErrorCode.NOT_COORDINATOR
    world.partition.high_watermark = world.partition.end_offset
    world.purgatory.notify(world.partition)
    world.scheduler.run(60_000)  # and is not answered again


def test_a_commit_is_refused_in_another_leader_epoch_before_the_coordinator_was_told() -> None:
    world = World()
    world.partition.leader_epoch += 1
    assert commit(world).error == ErrorCode.NOT_COORDINATOR
    assert not world.partition.batches


def test_what_was_committed_is_known_to_the_next_coordinator() -> None:
    before = World()
    assert not commit(before).value[0]
    after = World(before.partition.batches, topic_exists=True)
    (topic,) = fetched(after).value.topics
    assert [(p.partition_index, p.committed_offset) for p in topic.partitions] == [(0, 5)]


def test_sessions_start_anew_with_the_next_coordinator() -> None:
    before = Simulated()
    (member,) = before.stable()
    before.scheduler.run(9_000)
    after = before.restarted()
    after.scheduler.run(9_000)
    assert after.heartbeat(member, 1) == ErrorCode.NONE


def test_a_heartbeat_is_answered_without_an_error_while_the_group_is_loading() -> None:
    world = World(load=False)

    async def load() -> None:
        world.follow()
        beat = HeartbeatRequest(group_id="g", member_id="m", generation_id=1)
        assert world.ask(heartbeat, beat).error == ErrorCode.NONE
        assert commit(world).error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await world.groups.loading_done()
        assert world.ask(heartbeat, beat).error == ErrorCode.UNKNOWN_MEMBER_ID

    asyncio.run(load())


def test_a_broker_that_may_have_been_replaced_answers_nothing_from_its_state() -> None:
    world = World(topic_exists=True)
    commit(world)
    world.may_be_replaced = True
    assert fetched(world).error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert commit(world).error == ErrorCode.NOT_COORDINATOR
    assert world.ask(list_groups, ListGroupsRequest()).value.groups == []
    assert len(world.partition.batches) == 1
    world.may_be_replaced = False
    assert fetched(world).value.topics
    assert not commit(world).value[0]


def test_a_broker_that_may_have_been_replaced_expires_no_member() -> None:
    simulated = Simulated()
    (member,) = simulated.stable()
    written = len(simulated.partition.batches)
    simulated.runtime.may_be_replaced = lambda: True
    simulated.scheduler.run(20_000)
    assert len(simulated.partition.batches) == written
    group: Any = simulated.groups.get("g")
    assert (group.phase, list(group.members)) == (Phase.STABLE, [member])
    simulated.runtime.may_be_replaced = lambda: False
    simulated.scheduler.run(2_000)
    assert simulated.heartbeat(member, 1) == ErrorCode.UNKNOWN_MEMBER_ID
