"""One broker is elected controller, and it notices when it loses the controllership."""

from __future__ import annotations

import asyncio
import random

import pytest

from ottla.cluster.layout import CONTROLLER, CONTROLLER_EPOCH, from_bytes, prepare
from ottla.cluster.leadership import Leadership, NotController
from ottla.cluster.registry import Create, Delete, Registry, Set, Unavailable
from ottla.cluster.sqlite_registry import SqliteStore
from unit.cluster.members import FaultyRegistry, ambiguous, controller_of, failing, open_session


async def candidates(count: int) -> list[tuple[FaultyRegistry, Leadership]]:
    store = SqliteStore(None)
    sessions = [FaultyRegistry(await open_session(store)) for _ in range(count)]
    await prepare(sessions[0], random.Random(0))
    return [(session, Leadership(session, index)) for index, session in enumerate(sessions, 1)]


async def epoch_in(registry: Registry) -> int:
    return int(from_bytes((await registry.get(CONTROLLER_EPOCH)).data)["epoch"])


async def close(members: list[tuple[FaultyRegistry, Leadership]]) -> None:
    for registry, _ in members:
        await registry.close()


async def test_of_many_candidates_exactly_one_wins() -> None:
    members = await candidates(4)
    terms = await asyncio.gather(*(leadership.campaign() for _, leadership in members))
    assert sum(term is not None for term in terms) == 1
    assert await epoch_in(members[0][0]) == 1
    await close(members)


async def test_each_election_raises_the_controller_epoch() -> None:
    members = await candidates(2)
    (_, first), (_, second) = members
    term = await first.campaign()
    assert term is not None and term.epoch == 1
    assert await second.campaign() is None
    await first.hand_over()
    assert term.over.is_set()
    term = await second.campaign()
    assert term is not None and term.epoch == 2
    await close(members)


async def test_a_replaced_controller_writes_nothing_and_resigns() -> None:
    members = await candidates(2)
    (registry, old), (_, new) = members
    term = await old.campaign()
    await registry.commit([Delete(CONTROLLER)])  # as if its session had been ended while it slept
    assert await new.campaign() is not None
    with pytest.raises(NotController):
        await old.write([Create("/zombie")])
    assert old.term is None and term is not None and term.over.is_set()
    assert not await registry.exists("/zombie")
    await new.write([Create("/alive")])
    await close(members)


@pytest.mark.parametrize("happened", [True, False])
async def test_an_ambiguous_campaign_is_resolved_by_reading(happened: bool) -> None:
    members = await candidates(1)
    ((registry, leadership),) = members
    registry.faults = [ambiguous(happened=happened)]
    term = await leadership.campaign()
    assert (term is not None) == happened
    if not happened:
        term = await leadership.campaign()
    assert term is not None and term.epoch == await epoch_in(registry) == 1
    await leadership.write([Create("/works")])
    await close(members)


async def test_an_ambiguous_write_that_happened_counts_as_done() -> None:
    members = await candidates(1)
    ((registry, leadership),) = members
    await leadership.campaign()
    registry.faults = [ambiguous(happened=True)]
    await leadership.write([Create("/a")])
    await leadership.write([Set("/a", b"next", 0)])
    await close(members)


async def test_an_ambiguous_write_that_did_not_happen_can_be_tried_again() -> None:
    members = await candidates(1)
    ((registry, leadership),) = members
    await leadership.campaign()
    registry.faults = [ambiguous(happened=False)]
    with pytest.raises(Unavailable):
        await leadership.write([Create("/a")])
    assert leadership.term is not None
    await leadership.write([Create("/a")])
    await close(members)


async def test_an_ambiguous_write_overtaken_by_a_successor_ends_the_term() -> None:
    members = await candidates(2)
    (registry, old), (_, new) = members
    await old.campaign()
    await registry.commit([Delete(CONTROLLER)])
    assert await new.campaign() is not None
    registry.faults = [ambiguous(happened=False)]
    with pytest.raises(NotController):
        await old.write([Create("/a")])
    assert old.term is None
    await close(members)


async def test_a_failed_registry_write_does_not_end_controllership() -> None:
    members = await candidates(1)
    ((registry, leadership),) = members
    await leadership.campaign()
    registry.faults = [failing(Unavailable("disk full"))]
    with pytest.raises(Unavailable):
        await leadership.write([Create("/a")])
    await leadership.write([Create("/a")])
    await close(members)


async def test_a_standby_takes_over_when_the_controllers_process_dies() -> None:
    store = SqliteStore(None)
    abandoned, other = await open_session(store), await open_session(store)
    first, second = controller_of(abandoned, broker_id=1), controller_of(other, broker_id=2)
    await first.start()
    await second.start()
    assert first.active and not second.active
    assert first._follower is not None
    first._follower.cancel()
    await abandoned.abandon()
    await second.feed.after(0)
    assert second.active and second.image.controller_id == 2 and second.image.controller_epoch == 2
    await second.stop()
    await other.close()


async def test_a_standby_takes_over_when_the_controller_stops() -> None:
    store = SqliteStore(None)
    one, two = await open_session(store), await open_session(store)
    first, second = controller_of(one, broker_id=1), controller_of(two, broker_id=2)
    await first.start()
    await second.start()
    before = first.image
    await first.stop()
    await second.feed.after(0)
    assert second.image.cluster_id == before.cluster_id != ""
    assert second.image.version > before.version
    await second.stop()
    await one.close()
    await two.close()


async def test_a_controller_whose_session_expired_is_reelected_with_a_new_epoch() -> None:
    store = SqliteStore(None)
    one, two = await open_session(store), await open_session(store)
    controller = controller_of(one)
    await controller.start()
    epoch = controller.image.controller_epoch
    await store.change(store.tree.end_session, one.session_id)
    await one.lost.wait()
    while controller.image.controller_epoch == epoch:
        await controller.feed.after(controller.image.version)
    assert controller.active
    await controller.stop()
    await one.close()
    await two.close()


async def test_a_controller_is_elected_again_while_its_own_earlier_session_still_holds_the_node() -> None:
    store = SqliteStore(None)
    one, two = await open_session(store), await open_session(store)
    for session in (one, two):
        await session._stop_ticking()
    await prepare(one, random.Random(0))
    first, other = Leadership(one, 1), Leadership(two, 2)
    assert await first.campaign() is not None
    former = one.session_id
    one._lose(former)
    first.resign("its session is lost")
    await one.renew()
    assert (await two.get(CONTROLLER)).owner == former
    assert await other.campaign() is None
    term = await first.campaign()
    assert term is not None and term.epoch == 2
    assert (await two.get(CONTROLLER)).owner == one.session_id
    for session in (one, two):
        await session.close()
