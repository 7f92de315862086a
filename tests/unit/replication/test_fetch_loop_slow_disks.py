"""A follower whose disk is slow, full or fails."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

import pytest

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.replication.partition import Partition
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.memory_disk import MemoryDisk
from unit.replication.follower_loops import (
    KEY,
    are_equal,
    content,
    following,
    led,
    loop_of,
    running,
    until,
)
from unit.replication.leaders import (
    FOLLOWER,
    LEADER,
    ScriptedLeader,
    assign,
    in_event_loop,
)
from unit.storage.logs import Store, batch


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
