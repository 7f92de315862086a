"""A follower copies its leader's log, while its partitions come, change their roles and go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.peer.client import PeerUnreachable
from ottla.replication.fetch_plan import FetchSettings
from ottla.replication.partition import Partition
from unit.replication.follower_loops import (
    KEY,
    are_equal,
    following,
    led,
    loop_of,
    running,
    until,
)
from unit.replication.leaders import (
    FOLLOWER,
    LEADER,
    TOPIC_ID,
    ScriptedLeader,
    assign,
    in_event_loop,
)
from unit.storage.logs import Store, batch, from_producer


@in_event_loop
async def test_a_follower_copies_its_leader_byte_for_byte_and_learns_the_high_watermark() -> None:
    leader, follower = led(), following()
    for number in range(20):
        leader.append(from_producer(number * 3, 3))
    leader.state.high_watermark = 30
    async with running(ScriptedLeader(leader), follower):
        await until(lambda: follower.high_watermark == 30)
        assert are_equal(leader, follower)
        assert [p.producer_id for p in follower.producers] == [7]
        leader.append(from_producer(60, 3))
        leader.state.high_watermark = 63
        await until(lambda: follower.high_watermark == 63)
    assert are_equal(leader, follower)


@in_event_loop
async def test_a_follower_far_behind_gets_there_in_portions_of_the_response_limit() -> None:
    leader, follower = led(), following(Store(segment_bytes=20_000))
    for _ in range(300):
        leader.append(batch(1, value=bytes(1000)))
    scripted = ScriptedLeader(leader)
    async with running(scripted, follower, settings=FetchSettings(max_wait_ms=1, max_bytes=10_000)):
        await until(lambda: follower.end_offset == 300)
    assert are_equal(leader, follower)
    assert len(scripted.fetches) >= 30


@in_event_loop
async def test_idle_partitions_are_not_named_again() -> None:
    leaders = [led(index=index) for index in range(1000)]
    followers = [following(index=index) for index in range(1000)]
    scripted = ScriptedLeader(*leaders)
    loop = loop_of(scripted, *followers)
    for _ in range(3):
        await loop.step()
    assert [len(request.topics) for request in scripted.fetches] == [1, 0, 0]
    assert len(scripted.fetches[0].topics[0].partitions) == 1000


@in_event_loop
async def test_only_partitions_with_news_are_named() -> None:
    leaders = [led(index=index) for index in range(50)]
    followers = [following(index=index) for index in range(50)]
    scripted = ScriptedLeader(*leaders)
    loop = loop_of(scripted, *followers)
    for _ in range(3):
        await loop.step()
    leaders[7].append(batch(3))
    await loop.step()
    await loop.step()
    (topic,) = scripted.fetches[-1].topics
    assert [(p.partition, p.fetch_offset) for p in topic.partitions] == [(7, 3)]


class SlowLeader(ScriptedLeader):
    """Holds its answers back until it is told to go on."""

    def __init__(self, *partitions: Partition) -> None:
        super().__init__(*partitions)
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def call(self, request: Any, *, timeout: float) -> Any:
        response = await super().call(request, timeout=timeout)
        self.asked.set()
        await self.go_on.wait()
        return response


@pytest.mark.parametrize("change", ["new epoch", "leads itself", "forgotten", "closed"])
@in_event_loop
async def test_an_answer_for_an_earlier_role_is_dropped(change: str) -> None:
    leader, follower = led(), following()
    leader.append(batch(5))
    scripted = SlowLeader(leader)
    async with running(scripted, follower) as loop:
        await scripted.asked.wait()
        if change == "new epoch":
            assign(follower, LEADER, 1)
            loop.follow(follower)
        elif change == "leads itself":
            assign(follower, FOLLOWER, 1)
        elif change == "forgotten":
            loop.forget(KEY)
        else:
            follower.close()
        scripted.asked.clear()
        scripted.go_on.set()
        await asyncio.sleep(0.02)
        assert follower.end_offset == 0
        if change == "new epoch":
            assign(leader, LEADER, 1)
            await until(lambda: follower.end_offset == 5)


@in_event_loop
async def test_a_partition_added_during_a_fetch_is_asked_for_next() -> None:
    leaders = [led(index=0), led(index=1)]
    followers = [following(index=0), following(index=1)]
    leaders[1].append(batch(3))
    scripted = SlowLeader(*leaders)
    async with running(scripted, followers[0]) as loop:
        await scripted.asked.wait()
        loop.follow(followers[1])
        await until(lambda: len(scripted.fetches) == 2)  # though the leader has not answered the first one
        (topic,) = scripted.fetches[1].topics
        assert [each.partition for each in topic.partitions] == [0, 1]
        scripted.go_on.set()
        await until(lambda: followers[1].end_offset == 3)


@in_event_loop
async def test_partitions_that_come_one_after_the_other_give_up_one_request() -> None:
    followers = [following(index=index) for index in range(20)]
    scripted = SlowLeader(*(led(index=index) for index in range(20)))
    async with running(scripted, followers[0], settings=FetchSettings(max_wait_ms=60_000)) as loop:
        await scripted.asked.wait()
        for follower in followers[1:]:
            loop.follow(follower)
            await asyncio.sleep(0.001)
    assert len(scripted.fetches) == 2


@in_event_loop
async def test_a_loop_stops_in_the_moment_in_which_a_request_is_given_up() -> None:
    followers = [following(index=0), following(index=1)]
    scripted = SlowLeader(led(index=0), led(index=1))
    loop = loop_of(scripted, followers[0])
    loop.start()
    await scripted.asked.wait()
    loop.follow(followers[1])
    await asyncio.wait_for(loop.stop(), 10)


class BreakingLeader(SlowLeader):
    """Its connection breaks in the moment in which a request is given up."""

    breaks = True

    async def call(self, request: Any, *, timeout: float) -> Any:
        try:
            return await super().call(request, timeout=timeout)
        except asyncio.CancelledError:
            if not self.breaks:
                raise
            raise PeerUnreachable(("leader", 9092), "it broke", maybe_done=True) from None


@in_event_loop
async def test_requests_are_given_up_again_after_a_connection_broke_meanwhile() -> None:
    followers = [following(index=index) for index in range(3)]
    scripted = BreakingLeader(*(led(index=index) for index in range(3)))
    async with running(scripted, followers[0], settings=FetchSettings(max_wait_ms=0, backoff=0.0)) as loop:
        for follower in followers[1:]:
            await scripted.asked.wait()
            scripted.asked.clear()
            loop.follow(follower)
        await scripted.asked.wait()
        scripted.breaks = False
        (topic,) = scripted.fetches[2].topics
        assert [each.partition for each in topic.partitions] == [0, 1, 2]


@in_event_loop
async def test_a_deleted_topic_leaves_the_session() -> None:
    leaders = [led(index=0), led(index=1)]
    followers = [following(index=0), following(index=1)]
    scripted = ScriptedLeader(*leaders)
    async with running(scripted, *followers) as loop:
        await until(lambda: len(scripted.fetches) > 3)
        loop.forget((TOPIC_ID, 0))
        await until(lambda: any(request.forgotten_topics_data for request in scripted.fetches))
        leaders[1].append(batch(2))
        await until(lambda: followers[1].end_offset == 2)
        loop.forget((TOPIC_ID, 1))
        await until(lambda: not loop._plan._told)
        asked = len(scripted.requests)
        await asyncio.sleep(0.02)
        assert len(scripted.requests) <= asked + 1, "nothing is followed, so nothing is asked for"
