"""Opening batches beside the event loop: in which order, and how much of it may wait."""

from __future__ import annotations

import asyncio

import pytest

from ottla.broker.backlog import Backlog
from ottla.broker.inspections import ClientGone, HeldBatch, Inspections
from ottla.protocol.errors import ApiError
from ottla.storage.log_config import LogConfig
from unit.storage.logs import T0, batch

COMPACTED = LogConfig(cleanup_policy=("compact",))
MB = 1 << 20


def _inspections(most_bytes: int = 64 * MB) -> Inspections:
    return Inspections(Backlog(most_bytes), lambda: 0.0)


def _held(inspections: Inspections, records: memoryview, gone: list[str] | None = None) -> HeldBatch:
    held = inspections.admit(records, "10.0.0.1", lambda: bool(gone))
    assert held is not None
    return held


def test_of_simultaneous_batches_the_one_with_the_least_work_is_first() -> None:
    order: list[int] = []

    async def one(inspections: Inspections, count: int) -> None:
        await inspections.prepare(_held(inspections, batch(count)), COMPACTED, T0, "t-0")
        order.append(count)

    async def all_of_them() -> None:
        inspections = _inspections()
        await asyncio.gather(*(one(inspections, count) for count in (5000, 3000, 4000, 10, 2000)))
        inspections.close()

    asyncio.run(all_of_them())
    assert order == [5000, 10, 2000, 3000, 4000]


def test_later_small_batches_do_not_starve_an_older_large_one() -> None:
    order: list[int] = []
    time = [0.0]

    async def one(inspections: Inspections, count: int) -> None:
        await inspections.prepare(_held(inspections, batch(count)), COMPACTED, T0, "t-0")
        order.append(count)

    async def some() -> None:
        inspections = Inspections(Backlog(64 * MB), lambda: time[0])
        tasks = []
        for count in (10, 5000, 20, 30):  # the first is worked on at once, the others wait
            tasks.append(asyncio.ensure_future(one(inspections, count)))
            await asyncio.sleep(0)
            time[0] += 1.0
        await asyncio.gather(*tasks)
        inspections.close()

    asyncio.run(some())
    assert order == [10, 5000, 20, 30]


def test_others_are_served_after_a_batch_was_refused() -> None:
    async def two() -> int:
        inspections = _inspections()
        keyless, good = _held(inspections, batch(500, key=None)), _held(inspections, batch(600))
        refused = asyncio.ensure_future(inspections.prepare(keyless, COMPACTED, T0, "t-0"))
        taken = asyncio.ensure_future(inspections.prepare(good, COMPACTED, T0, "t-0"))
        with pytest.raises(ApiError):
            await refused
        prepared = await taken
        inspections.close()
        return len(prepared)

    assert asyncio.run(two()) == len(batch(600))


def test_a_held_batch_counts_until_it_is_released() -> None:
    backlog = Backlog(64 * MB)
    inspections = Inspections(backlog, lambda: 0.0)
    data = batch(3)
    held = _held(inspections, data)
    assert bytes(held.records) == bytes(data)
    assert backlog.size >= len(data)
    inspections.release(held)
    inspections.release(held)
    inspections.close()
    assert (backlog.size, backlog.seconds) == (0, 0.0)


def test_batches_of_disconnected_clients_free_their_space() -> None:
    data = batch(1000)

    async def overload() -> None:
        inspections = _inspections(20 * (len(data) + 4096))
        gone: list[str] = []
        all_held = []
        while (held := inspections.admit(data, "10.0.0.1", lambda: bool(gone))) is not None:
            all_held.append(held)
        assert len(all_held) == 10  # half of the bound, for one address
        opening = [
            asyncio.ensure_future(inspections.prepare(one, COMPACTED, T0, "t-0")) for one in all_held[:5]
        ]
        await asyncio.sleep(0)
        gone.append("all of them")
        kept = _held(inspections, data)
        outcomes = await asyncio.gather(*opening, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes[1:]] == [ClientGone] * 4
        with pytest.raises(ClientGone):
            await inspections.prepare(all_held[7], COMPACTED, T0, "t-0")
        assert len(await inspections.prepare(kept, COMPACTED, T0, "t-0")) == len(data)
        inspections.close()

    asyncio.run(overload())


def test_a_queued_batch_is_dropped_when_its_client_has_disconnected() -> None:
    async def one() -> None:
        inspections = _inspections()
        with pytest.raises(ClientGone):
            await inspections.prepare(_held(inspections, batch(400), gone=["gone"]), COMPACTED, T0, "t-0")
        await inspections.prepare(_held(inspections, batch(400)), COMPACTED, T0, "t-0")
        inspections.close()

    asyncio.run(one())
