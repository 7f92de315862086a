"""Replication from leaders that are away, answer with errors, or lie."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random

import pytest

from ottla.peer.client import PeerUnreachable
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import EpochEndOffset, PartitionData
from ottla.replication.fetch_plan import FetchSettings
from unit.replication.follower_loops import (
    KEY,
    content,
    following,
    led,
    loop_of,
    running,
    until,
)
from unit.replication.leaders import (
    TOPIC_ID,
    ScriptedLeader,
    in_event_loop,
)
from unit.storage.logs import Store, batch


@in_event_loop
async def test_a_leader_that_was_away_is_fetched_from_again(caplog: pytest.LogCaptureFixture) -> None:
    leader, follower = led(), following()
    scripted = ScriptedLeader(leader)
    with caplog.at_level(logging.INFO, "ottla.replication"):
        async with running(scripted, follower):
            await until(lambda: len(scripted.fetches) > 2)
            scripted.failure = PeerUnreachable(("host", 1), "gone", maybe_done=True)
            leader.append(batch(4))
            await until(lambda: len([line for line in caplog.messages if "gone" in line]) == 1)
            asked = len(scripted.requests)
            await until(lambda: len(scripted.requests) > asked + 2)
            scripted.failure = None
            await until(lambda: follower.end_offset == 4)
    lines = [line for line in caplog.messages if "broker 1" in line]
    assert len(lines) == 2, lines


@in_event_loop
async def test_a_lost_session_is_begun_anew() -> None:
    leader, follower = led(), following()
    scripted = ScriptedLeader(leader)
    async with running(scripted, follower):
        await until(lambda: scripted.fetches and scripted.fetches[-1].session_epoch > 3)
        scripted.sessions.close(scripted.fetches[-1].session_id)
        leader.append(batch(4))
        await until(lambda: follower.end_offset == 4)


@in_event_loop
async def test_replication_works_without_a_session() -> None:
    leaders = [led(index=0), led(index=1)]
    followers = [following(index=0), following(index=1)]
    scripted = ScriptedLeader(*leaders)
    scripted.sessions.limit = 0
    for leader in leaders:
        leader.append(batch(5))
    async with running(scripted, *followers):
        await until(lambda: all(follower.end_offset == 5 for follower in followers))
    assert {request.session_id for request in scripted.fetches} == {0}


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    ],
)
@in_event_loop
async def test_an_error_of_one_partition_lets_it_back_off_and_the_others_go_on(code: ErrorCode) -> None:
    leaders = [led(index=0), led(index=1)]
    followers = [following(index=0), following(index=1)]
    for leader in leaders:
        leader.append(batch(5))
    scripted = ScriptedLeader(*leaders)
    erring = True

    def twist(key: tuple[bytes, int], data: PartitionData) -> None:
        if erring and key == KEY:
            data.error_code, data.records = code, b""

    scripted.twist = twist
    async with running(scripted, *followers):
        await until(lambda: followers[1].end_offset == 5)
        assert followers[0].end_offset == 0
        erring = False
        await until(lambda: followers[0].end_offset == 5)


@in_event_loop
async def test_a_partition_that_backs_off_does_not_wait_for_a_long_poll_of_others() -> None:
    scripted = ScriptedLeader(led(index=1))
    loop = loop_of(scripted, following(index=0), following(index=1), settings=FetchSettings(max_wait_ms=500))
    for _ in range(2):
        await loop.step()
    waits = [request.max_wait_ms for request in scripted.fetches]
    assert waits[0] == 500 and 0 < waits[1] <= 20
    scripted.partitions[TOPIC_ID, 0] = led(index=0)
    while len(scripted.fetches[-1].topics) != 1:
        await loop.step()
    await loop.step()
    assert scripted.fetches[-1].max_wait_ms == 500


def _flip(data: PartitionData, rng: Random) -> None:
    records = bytearray(data.records or b"")
    if records:
        records[rng.randrange(len(records))] ^= 1 << rng.randrange(8)
    data.records = memoryview(bytes(records))


def _cut(data: PartitionData, rng: Random) -> None:
    data.records = memoryview(bytes(data.records or b""))[: rng.randrange(len(data.records or b"") + 1)]


def _garbage(data: PartitionData, rng: Random) -> None:
    data.records = memoryview(rng.randbytes(rng.randrange(1, 500)))


def _diverge(data: PartitionData, rng: Random) -> None:
    data.diverging_epoch = EpochEndOffset(
        epoch=rng.choice([1, 5, 2**31 - 1]), end_offset=rng.randrange(-5, 3)
    )


def _wrong_marks(data: PartitionData, rng: Random) -> None:
    data.high_watermark = rng.choice([-1, 10**15, -(2**63)])
    data.log_start_offset = rng.choice([-1, -(2**63)])


def _out_of_range(data: PartitionData, rng: Random) -> None:
    data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("lie", [_flip, _cut, _garbage, _diverge, _wrong_marks, _out_of_range])
@in_event_loop
async def test_a_lying_leader_never_damages_the_log(
    lie: Callable[[PartitionData, Random], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Half of its answers are lies. The follower gets there all the same, with the leader's bytes."""
    rng = Random(4)
    leader, store = led(), Store()
    follower = following(store)
    for number in range(40):
        leader.append(batch(2, value=b"%d" % number))
    leader.state.high_watermark = 80
    scripted = ScriptedLeader(leader)

    def twist(key: tuple[bytes, int], data: PartitionData) -> None:
        if rng.random() < 0.5:
            lie(data, rng)

    scripted.twist = twist
    settings = FetchSettings(max_wait_ms=1, max_bytes=400, backoff=0.002)
    with caplog.at_level(logging.WARNING, "ottla.replication"):
        async with running(scripted, follower, settings=settings):
            await until(lambda: follower.end_offset == 80)
    assert content(follower) == content(leader)
    assert store.crash().failure is None
    if lie not in (_wrong_marks, _cut):
        assert caplog.messages


@in_event_loop
async def test_a_leader_that_answers_nothing_at_once_is_not_asked_without_pause() -> None:
    leader, follower = led(), following()
    scripted = ScriptedLeader(leader)
    async with running(scripted, follower, settings=FetchSettings(max_wait_ms=10_000)):
        await asyncio.sleep(0.2)
    assert len(scripted.requests) < 20
