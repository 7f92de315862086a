"""A broker's registration: one per id, a new epoch each time, renewed when its session was lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from ottla.cluster.image import BrokerNode
from ottla.cluster.layout import broker_path, prepare
from ottla.cluster.registration import BrokerIdInUse, Registration
from ottla.cluster.registry import Unavailable
from ottla.cluster.sqlite_registry import SqliteStore
from unit.cluster.members import (
    FaultyRegistry,
    ambiguous,
    cluster_of_one,
    controller_of,
    has_brokers,
    open_session,
)

BROKER = BrokerNode(7, "localhost", 9092, "rack-a")


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def test_the_controller_follows_registered_and_unregistered_brokers() -> None:
    async with cluster_of_one() as (_, controller):
        assert controller.image.brokers[1].port == 9092
    store = SqliteStore(None)
    one, two = await open_session(store), await open_session(store)
    controller = controller_of(one)
    await controller.start()
    registration = Registration(two, BROKER)
    epoch = await registration.start()
    await has_brokers(controller, 7)
    assert controller.image.brokers[7] == BrokerNode(7, "localhost", 9092, "rack-a", epoch, fenced=True)
    controller.polled(7, epoch, controller.image.version)
    await until(lambda: not controller.image.brokers[7].fenced)
    await registration.stop()
    await two.close()
    await has_brokers(controller)
    await controller.stop()
    await one.close()


async def test_the_broker_epoch_grows_with_each_registration() -> None:
    store = SqliteStore(None)
    keeper = await open_session(store)
    await prepare(keeper, random.Random(0))
    epochs = []
    for _ in range(3):
        session = await open_session(store)
        registration = Registration(session, BROKER)
        epochs.append(await registration.start())
        await registration.stop()
        await session.close()
    assert epochs == sorted(set(epochs))
    await keeper.close()


async def test_an_id_in_use_is_refused_with_the_address_of_its_owner() -> None:
    store = SqliteStore(None)
    one, two = await open_session(store), await open_session(store)
    await prepare(one, random.Random(0))
    registration = Registration(one, BROKER)
    await registration.start()
    with pytest.raises(BrokerIdInUse, match=r"broker 7 is already registered.*9092"):
        await Registration(two, BROKER).start()
    await registration.stop()
    await one.close()
    await two.close()


async def test_registering_again_in_the_same_session_moves_the_broker() -> None:
    session = await open_session()
    await prepare(session, random.Random(0))
    first, second = Registration(session, BROKER), Registration(session, BrokerNode(7, "localhost", 9093))
    epoch = await first.start()
    assert await second.start() > epoch
    assert b"9093" in (await session.get(broker_path(7))).data
    await first.stop()
    await second.stop()
    await session.close()


@pytest.mark.parametrize("happened", [True, False])
async def test_an_ambiguous_registration_is_resolved(happened: bool) -> None:
    session = FaultyRegistry(await open_session())
    await prepare(session, random.Random(0))
    session.faults = [ambiguous(happened=happened)]
    registration = Registration(session, BROKER)
    assert await registration.start() == (await session.get(broker_path(7))).creation_id
    await registration.stop()
    await session.close()


async def test_a_broker_whose_session_expired_registers_with_a_new_epoch() -> None:
    store = SqliteStore(None)
    one, two = await open_session(store), await open_session(store)
    await prepare(one, random.Random(0))
    registration = Registration(one, BROKER)
    epoch = await registration.start()
    await store.change(store.tree.end_session, one.session_id)
    await until(lambda: registration.broker.epoch > epoch)
    assert (await two.get(broker_path(7))).owner == one.session_id
    await registration.stop()
    await one.close()
    await two.close()


async def test_a_broker_takes_the_node_of_its_own_earlier_session_back() -> None:
    """The registry need not have noticed the end of that session."""
    store = SqliteStore(None)
    one, two = await open_session(store), await open_session(store)
    await prepare(one, random.Random(0))
    for session in (one, two):
        await session._stop_ticking()
    registration = Registration(one, BROKER)
    epoch = await registration.start()
    former = one.session_id
    one._lose(former)
    assert not registration.is_held
    assert (await two.get(broker_path(7))).owner == former
    await until(lambda: registration.broker.epoch > epoch)
    assert registration.is_held
    assert (await two.get(broker_path(7))).owner == one.session_id != former
    await registration.stop()
    await one.close()
    await two.close()


async def test_a_new_session_alone_is_no_registration() -> None:
    session = await open_session()
    await prepare(session, random.Random(0))
    registration = Registration(session, BROKER)
    await registration.start()
    await registration.stop()
    session._lose(session.session_id)
    await session.renew()
    assert not session.may_be_over() and not registration.is_held
    await session.close()


async def test_a_broker_that_cannot_register_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ottla.cluster.registration._RETRY_SECONDS", 0.001)
    session = await open_session()
    await prepare(session, random.Random(0))
    registration = Registration(session, BROKER)
    await registration.start()
    attempts = 0

    async def refused() -> int:
        nonlocal attempts
        attempts += 1
        raise Unavailable("the registry is away")

    renew, session.renew = session.renew, refused  # type: ignore[method-assign]
    session._lose(session.session_id)
    await until(lambda: attempts > 20)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "broker 7 cannot register again yet: the registry is away"
    ]
    session.renew = renew  # type: ignore[method-assign]
    await until(lambda: registration.is_held)
    await registration.stop()
    await session.close()


async def test_a_registry_that_is_away_at_the_start_is_reported_as_such() -> None:
    session = await open_session()
    await prepare(session, random.Random(0))
    registry = FaultyRegistry(session)

    async def away(path: str) -> asyncio.Future[None]:
        raise Unavailable("not connected")

    registry.watch = away  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="not connected"):
        await Registration(registry, BROKER).start()
    await session.close()
