"""What the coordinator removes by itself is removed in portions, between which requests are served."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ottla.coordinator.offsets import Committed, commit
from ottla.coordinator.records import Entry
from ottla.protocol.batches import read_header
from unit.coordinator.coordinator_world import World
from unit.coordinator.forged_batches import entries

GROUPS = 100
MANY = 2500
"""Offsets of one group: more than fit into two batches."""


def written() -> list[bytes]:
    """Many groups with one offset each, and one with many."""
    commits: list[Entry] = [commit(f"g{n}", "t", 0, Committed(1, committed_ms=0)) for n in range(GROUPS)]
    commits += [commit("large", "t", index, Committed(1, committed_ms=0)) for index in range(MANY)]
    return [entries(0, commits)]


async def iterations_during(work: Awaitable[None]) -> int:
    """How often the event loop served others while the work was done."""
    count = 0

    async def others() -> None:
        nonlocal count
        while True:
            count += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(others())
    await work
    task.cancel()
    return count


def _forget(world: World) -> Awaitable[None]:
    return world.groups.forget_topics(["t"])


def _expire(world: World) -> Awaitable[None]:
    world.scheduler.run(8 * 24 * 3_600_000)  # the default retention time is seven days
    return world.groups.expire_offsets()


@pytest.mark.parametrize("remove", [_forget, _expire])
def test_requests_are_served_while_offsets_are_removed(remove: Callable[[World], Awaitable[None]]) -> None:
    world = World(written(), topic_exists=True)
    state = world.groups.all_shards()[0].state
    assert len(state.offsets) == GROUPS + MANY
    loaded = len(world.partition.batches)
    assert asyncio.run(iterations_during(remove(world))) > GROUPS // 20
    assert len(state.offsets) == 0
    assert len(state) == 0
    sizes = [read_header(batch).record_count for batch in world.partition.batches[loaded:]]
    assert sum(sizes) >= GROUPS + MANY
    assert max(sizes) <= 1001, "a portion, and the tombstone of the group"


def test_offsets_of_deleted_topics_are_removed_before_a_loaded_shard_serves_requests() -> None:
    world = World(written(), topic_exists=False)
    assert len(world.groups.all_shards()[0].state.offsets) == 0


def test_a_refused_append_leaves_the_offsets_for_the_next_removal(caplog: pytest.LogCaptureFixture) -> None:
    world = World(written(), topic_exists=True)
    world.partition.refuses = world.refusal
    asyncio.run(iterations_during(_forget(world)))
    state = world.groups.all_shards()[0].state
    assert len(state.offsets) == GROUPS + MANY
    assert "trying again later" in caplog.text
    world.partition.refuses = None
    asyncio.run(iterations_during(_forget(world)))
    assert len(state.offsets) == 0


def test_topics_that_are_deleted_while_a_shard_is_loaded_are_not_missed() -> None:
    async def scenario() -> None:
        world = World(written(), topic_exists=True, load=False)
        world.follow()
        while not world.asked_for_topics:
            await asyncio.sleep(0)
        world.topic_exists = False
        await world.groups.forget_topics(["t"])
        await world.groups.loading_done()
        assert len(world.groups.all_shards()[0].state.offsets) == 0

    asyncio.run(scenario())
