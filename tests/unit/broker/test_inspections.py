"""Opening batches beside the event loop: in which order, and what it counts as memory."""

from __future__ import annotations

import asyncio

import pytest

from ottla.broker.inspections import Inspections
from ottla.protocol.errors import ApiError
from ottla.storage.log_config import LogConfig
from unit.storage.logs import T0, batch

COMPACTED = LogConfig(cleanup_policy=("compact",))


def test_the_batch_with_the_fewest_records_is_next() -> None:
    order: list[int] = []

    async def one(inspections: Inspections, count: int) -> None:
        await inspections.prepare(batch(count), COMPACTED, T0, "t-0")
        order.append(count)

    async def all_of_them() -> None:
        inspections = Inspections(lambda size: None)
        await asyncio.gather(*(one(inspections, count) for count in (5000, 3000, 4000, 10, 2000)))
        inspections.close()

    asyncio.run(all_of_them())
    assert order == [5000, 10, 2000, 3000, 4000]


def test_others_are_served_after_a_batch_was_refused() -> None:
    async def two() -> int:
        inspections = Inspections(lambda size: None)
        refused = asyncio.ensure_future(inspections.prepare(batch(500, key=None), COMPACTED, T0, "t-0"))
        taken = asyncio.ensure_future(inspections.prepare(batch(600), COMPACTED, T0, "t-0"))
        with pytest.raises(ApiError):
            await refused
        prepared = await taken
        inspections.close()
        return len(prepared)

    assert asyncio.run(two()) == len(batch(600))


def test_a_copy_counts_as_memory_until_it_is_released() -> None:
    held: list[int] = []
    inspections = Inspections(held.append)
    data = batch(3)
    copy = inspections.copy(data)
    assert bytes(copy) == bytes(data)
    copy[0] ^= 1
    assert bytes(copy) != bytes(data)
    inspections.release(copy)
    inspections.close()
    assert held == [len(data), -len(data)]
