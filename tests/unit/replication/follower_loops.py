"""A leader's partition, followers of it and the loop that fetches for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from ottla.protocol.batches import headers
from ottla.replication.fetch_loop import FetchLoop
from ottla.replication.fetch_plan import FetchSettings
from ottla.replication.partition import Partition
from unit.replication.leaders import (
    FOLLOWER,
    LEADER,
    TOPIC_ID,
    ScriptedLeader,
    assign,
    replica,
)
from unit.storage.logs import Store

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
