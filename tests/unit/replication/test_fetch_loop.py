"""A follower's log becomes its leader's, whatever happened to the two before and whatever the leader says."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from ottla.peer.client import PeerUnreachable
from ottla.protocol.batches import headers
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.fetch import EpochEndOffset, PartitionData
from ottla.replication.fetch_loop import FetchLoop
from ottla.replication.fetch_plan import FetchSettings
from ottla.replication.partition import Partition
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.memory_disk import MemoryDisk
from unit.replication.leaders import (
    FOLLOWER,
    LEADER,
    TOPIC_ID,
    ScriptedLeader,
    assign,
    in_event_loop,
    replica,
)
from unit.storage.logs import Store, batch, from_producer, offsets

KEY = TOPIC_ID, 0
SETTINGS = FetchSettings(max_wait_ms=1, backoff=0.02)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def led(store: Store | None = None, epoch: int = 0, index: int = 0, **options: Any) -> Partition:
    partition = replica(LEADER, store, index, **options)
    assign(partition, LEADER, epoch)
    return partition


def following(store: Store | None = None, epoch: int = 0, index: int = 0, **options: Any) -> Partition:
    partition = replica(FOLLOWER, store, index, **options)
    assign(partition, LEADER, epoch)
    return partition


def loop_of(leader: ScriptedLeader, *followers: Partition, settings: FetchSettings = SETTINGS) -> FetchLoop:
    loop = FetchLoop(LEADER, leader, FOLLOWER, replica_epoch=lambda: 5, settings=lambda: settings)
    for follower in followers:
        loop.follow(follower)
    return loop


@asynccontextmanager
async def running(
    leader: ScriptedLeader, *followers: Partition, settings: FetchSettings = SETTINGS
) -> AsyncIterator[FetchLoop]:
    loop = loop_of(leader, *followers, settings=settings)
    loop.start()
    try:
        yield loop
    finally:
        await loop.stop()


def content(partition: Partition) -> bytes:
    """The bytes from the log's start on."""
    log = partition.log
    found = log.read(log.log_start_offset, 1 << 30, log.end_offset)
    data = found.read() if found else b""
    while found and (end := log.end_offset) and (rest := _next(partition, data, end)):
        data += rest
    return data


def _next(partition: Partition, data: bytes, end: int) -> bytes:
    *_, (_, last) = headers(data)
    found = partition.log.read(last.next_offset, 1 << 30, end) if last.next_offset < end else None
    return found.read() if found else b""


def are_equal(leader: Partition, follower: Partition) -> bool:
    return (
        leader.end_offset == follower.end_offset
        and content(leader) == content(follower)
        and [e for e in leader.log.leader_epochs.entries if e[1] < leader.end_offset]
        == follower.log.leader_epochs.entries
    )


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


# -- logs that parted ---------------------------------------------------------------------------------------


@in_event_loop
async def test_records_that_the_new_leader_does_not_have_are_cut_off() -> None:
    leader, follower = led(), following()
    scripted = ScriptedLeader(leader)
    leader.append(batch(5))
    async with running(scripted, follower) as loop:
        await until(lambda: follower.end_offset == 5)
        assign(follower, FOLLOWER, 1)  # it leads for a while, and nobody gets what is written to it
        loop.forget(KEY)
        follower.append(batch(4))
        assign(leader, LEADER, 2)
        leader.append(batch(2, value=b"other"))
        assign(follower, LEADER, 2)
        loop.follow(follower)
        await until(lambda: follower.end_offset == 7)
    assert are_equal(leader, follower)
    assert follower.log.leader_epochs.entries == [(0, 0), (2, 5)]


@in_event_loop
async def test_several_epochs_that_the_leader_never_saw_are_cut_off() -> None:
    """KIP-279: after fast failovers the place where the logs part is found step by step."""
    leader_store, follower_store = Store(), Store()
    for epoch, count in ((0, 3), (2, 3), (4, 3)):
        leader_store.log.append(batch(count), epoch)
    for epoch, count in ((0, 4), (1, 2), (3, 5)):
        follower_store.log.append(batch(count), epoch)
    leader, follower = led(leader_store, 5), following(follower_store, 5)
    async with running(ScriptedLeader(leader), follower):
        await until(lambda: follower.log.leader_epochs.latest == 4 and follower.end_offset == 9)
    # The batch of four records reached across the place where the logs parted, so it went as a whole.
    assert are_equal(leader, follower)


@in_event_loop
async def test_the_high_watermark_is_not_learned_before_the_log_is_cut() -> None:
    """KAFKA-14704."""
    leader_store, follower_store = Store(), Store()
    leader_store.log.append(batch(2), 0)
    follower_store.log.append(batch(2), 0)
    follower_store.log.append(batch(3), 1)
    leader, follower = led(leader_store, 2), following(follower_store, 2)
    leader.append(batch(6))
    leader.state.high_watermark = 8
    loop = loop_of(ScriptedLeader(leader), follower)
    await loop.step()
    assert (follower.end_offset, follower.high_watermark) == (2, 0)
    await loop.step()
    assert (follower.end_offset, follower.high_watermark) == (8, 8)


@in_event_loop
async def test_the_high_watermark_is_learned_after_a_cut_though_no_record_follows() -> None:
    leader_store, follower_store = Store(), Store()
    for store in (leader_store, follower_store):
        store.log.append(batch(2), 0)
    follower_store.log.append(batch(3), 1)
    leader, follower = led(leader_store, 2), following(follower_store, 2)
    leader.state.high_watermark = 2
    async with running(ScriptedLeader(leader), follower):
        await until(lambda: (follower.end_offset, follower.high_watermark) == (2, 2))


@in_event_loop
async def test_an_epoch_in_which_nothing_was_written_does_not_stop_replication() -> None:
    leader, follower = led(), following()
    async with running(ScriptedLeader(leader), follower) as loop:
        leader.append(batch(5))
        await until(lambda: follower.end_offset == 5)
        loop.forget(KEY)
        assign(follower, FOLLOWER, 1)
        assign(leader, LEADER, 2)
        assign(follower, LEADER, 2)
        loop.follow(follower)
        leader.append(batch(1))
        await until(lambda: follower.end_offset == 6)
    assert are_equal(leader, follower)


@in_event_loop
async def test_a_cut_survives_a_kill() -> None:
    leader_store, follower_store = Store(), Store()
    leader_store.log.append(batch(2), 0)
    for epoch, count in ((0, 2), (1, 3)):
        follower_store.log.append(batch(count), epoch)
    follower_store.log.flush()
    follower_store.directory.checkpoint()
    leader, follower = led(leader_store, 2), following(follower_store, 2)
    await loop_of(ScriptedLeader(leader), follower).step()
    assert follower.end_offset == 2
    log = follower_store.crash()
    assert (log.end_offset, log.failure, log.leader_epochs.entries) == (2, None, [(0, 0)])


# -- offsets that the leader does not have ------------------------------------------------------------------


@in_event_loop
async def test_a_new_replica_begins_at_the_leaders_log_start() -> None:
    leader, follower = led(), following()
    for _ in range(5):
        leader.append(batch(10))
    leader.state.high_watermark = 50
    leader.delete_records_before(20)
    async with running(ScriptedLeader(leader), follower):
        await until(lambda: follower.high_watermark == 50)
    assert (follower.log_start_offset, offsets(follower.log)[:1]) == (20, [20])
    assert are_equal(leader, follower)


@in_event_loop
async def test_a_new_replica_takes_the_batch_in_which_the_leaders_log_starts() -> None:
    leader, follower = led(), following()
    for _ in range(5):
        leader.append(batch(10))
    leader.state.high_watermark = 50
    leader.delete_records_before(25)
    async with running(ScriptedLeader(leader), follower):
        await until(lambda: follower.high_watermark == 50)
    assert (follower.log_start_offset, follower.end_offset) == (25, 50)
    assert offsets(follower.log) == list(range(25, 50))


@in_event_loop
async def test_the_log_start_of_the_leader_is_followed() -> None:
    leader, follower = led(), following()
    leader.append(batch(10))
    leader.state.high_watermark = 10
    scripted = ScriptedLeader(leader)
    async with running(scripted, follower):
        await until(lambda: follower.high_watermark == 10)
        leader.delete_records_before(7)
        await until(lambda: follower.log_start_offset == 7)
        await until(lambda: scripted.fetches[-1].topics == [])
    told = [topic.partitions[0].log_start_offset for request in scripted.fetches for topic in request.topics]
    assert told[-1] == 7, "the leader learns it, for the low watermark of DeleteRecords"


@in_event_loop
async def test_the_high_watermark_is_not_below_the_start_of_a_log_that_begins_anew() -> None:
    """KAFKA-9491."""
    leader, follower = led(), following()
    leader.append(batch(10))
    leader.state.high_watermark = 10
    leader.delete_records_before(10)
    await loop_of(ScriptedLeader(leader), follower).step()
    assert (follower.log_start_offset, follower.end_offset, follower.high_watermark) == (10, 10, 10)


@in_event_loop
async def test_a_follower_ahead_of_its_leader_without_a_common_epoch_is_cut_to_the_leaders_end() -> None:
    """The leader was elected although it had lost its log."""
    follower_store = Store()
    follower_store.log.append(batch(5), 3)
    leader, follower = led(epoch=4), following(follower_store, 4)
    leader.append(batch(2, value=b"new"))
    async with running(ScriptedLeader(leader), follower):
        await until(lambda: follower.end_offset == 2)
    assert are_equal(leader, follower)


@in_event_loop
async def test_gaps_of_a_compacted_log_are_copied() -> None:
    leader_store = Store(cleanup_policy=("compact",))
    for base in (0, 40, 41, 900):
        data = batch(2, leader_epoch=0) if base != 40 else batch(1, leader_epoch=0)
        data[:8] = base.to_bytes(8, "big")
        leader_store.log.append_replicated(data)
    leader, follower = led(leader_store), following()
    async with running(ScriptedLeader(leader), follower):
        await until(lambda: follower.end_offset == 902)
    assert are_equal(leader, follower)


# -- changes while a fetch is under way ---------------------------------------------------------------------


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


# -- leaders that fail, err or lie --------------------------------------------------------------------------


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


# -- slow disks ---------------------------------------------------------------------------------------------


class HeldWrites:
    """Threads that write when they are let."""

    def __init__(self) -> None:
        self.waiting = 0
        self.go_on = asyncio.Event()

    async def __call__(self, write: Callable[[], None]) -> None:
        self.waiting += 1
        await self.go_on.wait()
        write()


def slow_follower(writes: HeldWrites, epoch: int = 0, store: Store | None = None) -> Partition:
    follower = following(store, epoch, write_in_thread=writes)
    follower._is_slow = True
    return follower


@in_event_loop
async def test_a_write_that_hangs_holds_up_its_own_partition_alone() -> None:
    writes = HeldWrites()
    leaders = [led(index=0), led(index=1)]
    followers = [slow_follower(writes), following(index=1)]
    for leader in leaders:
        leader.append(batch(5))
    scripted = ScriptedLeader(*leaders)
    async with running(scripted, *followers):
        await until(lambda: writes.waiting == 1 and followers[1].end_offset == 5)
        began = asyncio.get_running_loop().time()
        for end in range(10, 110, 5):
            leaders[1].append(batch(5))
            await until(lambda end=end: followers[1].end_offset == end)  # type: ignore[misc]
        assert asyncio.get_running_loop().time() - began < 1.9, "others wait for it in each round"
        assert followers[0].end_offset == 0
        writes.go_on.set()
        await until(lambda: followers[0].end_offset == 5)
    assert content(followers[0]) == content(leaders[0])


@in_event_loop
async def test_a_full_disk_lets_a_follower_wait_until_there_is_space() -> None:
    disk = FaultyDisk(MemoryDisk())
    leader, follower = led(), following(Store(disk))
    leader.append(batch(5))
    scripted = ScriptedLeader(leader)
    disk.fail("write", errno.ENOSPC)
    async with running(scripted, follower):
        await until(lambda: len(scripted.fetches) > 5)
        assert follower.end_offset == 0 and follower.log.failure is None
        disk.heal()
        await until(lambda: follower.end_offset == 5)
    assert are_equal(leader, follower)


@in_event_loop
async def test_a_write_that_ends_in_another_epoch_is_given_up() -> None:
    writes = HeldWrites()
    leader, follower = led(), slow_follower(writes)
    leader.append(batch(5))
    async with running(ScriptedLeader(leader), follower) as loop:
        await until(lambda: writes.waiting == 1)
        assign(follower, FOLLOWER, 1)
        loop.forget(KEY)
        writes.go_on.set()
        await until(lambda: not follower.turn.locked())
    assert follower.end_offset == 0
    follower._is_slow = False
    assert follower.append(batch(1)).first_offset == 0


@in_event_loop
async def test_a_log_is_cut_after_a_write_that_is_under_way() -> None:
    writes = HeldWrites()
    store = Store()
    store.log.append(batch(3), 0)
    leader, follower = led(), slow_follower(writes, store=store)
    leader.append(batch(3))
    leader.append(batch(5))
    async with running(ScriptedLeader(leader), follower) as loop:
        await until(lambda: writes.waiting == 1)
        assign(follower, LEADER, 2)
        assign(leader, LEADER, 2)
        leader.log.truncate_to(3)
        leader.log.begin_epoch(2)
        leader.append(batch(2, value=b"other"))
        loop.follow(follower)
        writes.go_on.set()
        await until(lambda: follower.end_offset == 5)
    assert are_equal(leader, follower)


@in_event_loop
async def test_a_partition_is_asked_for_again_when_its_records_are_flushed() -> None:
    """A leader takes what a follower does not ask for any more for safe there."""
    leader, store = led(), Store(flush_messages=1)
    follower = following(store)
    scripted = ScriptedLeader(leader)
    leader.append(batch(5))
    async with running(scripted, follower):
        await until(lambda: follower.end_offset == 5)
        await until(
            lambda: any(
                part.fetch_offset == 5 for r in scripted.fetches for t in r.topics for part in t.partitions
            )
        )
        assert store.log.recovery_point == 5


@in_event_loop
async def test_a_log_that_fails_is_not_asked_for_any_more(caplog: pytest.LogCaptureFixture) -> None:
    leader, follower = led(), following()
    scripted = ScriptedLeader(leader)
    leader.append(batch(5))
    follower.log.failure = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone")
    loop = loop_of(scripted, follower)
    await loop.step()
    assert follower.end_offset == 0


@in_event_loop
async def test_a_flush_that_fails_is_tried_again_before_the_partition_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader, store = led(), Store(flush_messages=1)
    follower = following(store)
    scripted = ScriptedLeader(leader)
    leader.append(batch(5))
    flush, failures = store.log.flush, 0

    def fail() -> int:
        nonlocal failures
        failures += 1
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")

    monkeypatch.setattr(store.log, "flush", fail)
    async with running(scripted, follower):
        await until(lambda: failures > 3)
        asked = [p.fetch_offset for r in scripted.fetches for t in r.topics for p in t.partitions]
        assert follower.end_offset == 5 and set(asked) == {0}
        monkeypatch.setattr(store.log, "flush", flush)
        leader.append(batch(1))
        await until(lambda: follower.end_offset == 6)


@in_event_loop
async def test_records_that_a_crash_left_are_flushed_before_the_partition_is_asked_for() -> None:
    store = Store(flush_messages=1)
    store.log.append(batch(3), 0)
    leader = led()
    leader.append(batch(3))
    leader.append(batch(2))
    follower = following(store)
    follower.state.truncated(0)  # as far as they count
    async with running(ScriptedLeader(leader), follower):
        await until(lambda: follower.end_offset == 5)
    assert store.log.recovery_point == 5
