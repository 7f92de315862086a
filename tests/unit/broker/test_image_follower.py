"""A broker follows the cluster image: listeners in order, and again when one of them failed."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from ottla.broker.broker import Broker
from ottla.broker.image_follower import ImageChange, ImageFollower
from ottla.cluster import layout
from ottla.cluster.feed import ImageFeed
from ottla.cluster.image import ClusterImage
from ottla.cluster.layout import CONTROLLER, to_bytes
from ottla.cluster.registry import Create
from ottla.config.values import BrokerConfig
from ottla.testing.simulation.registry import SimulatedRegistry

PATIENCE = 30.0


def test_listeners_run_in_order_and_see_the_new_image() -> None:
    async def main() -> None:
        feed = ImageFeed()
        told: list[tuple[str, int]] = []

        async def first(change: ImageChange) -> None:
            told.append(("first", follower.image.version))

        async def second(change: ImageChange) -> None:
            told.append(("second", follower.image.version))

        async def third(change: ImageChange) -> None:
            told.append(("third", follower.image.version))

        follower = ImageFollower([first, second], [third])
        follower.start(feed)
        waiting = asyncio.create_task(follower.caught_up(5))
        feed.reset(replace(ClusterImage(), version=5))
        await asyncio.wait_for(waiting, PATIENCE)
        assert told == [("first", 0), ("second", 0), ("third", 5)]
        await follower.stop()

    asyncio.run(main())


def test_after_a_failed_listener_all_listeners_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.broker.image_follower._RETRY_SECONDS", 0.0)

    async def main() -> None:
        feed = ImageFeed()
        told: list[str] = []

        async def first(change: ImageChange) -> None:
            told.append("first")

        async def failing(change: ImageChange) -> None:
            told.append("failing")
            if len(told) < 4:
                raise OSError("the disk is full")

        follower = ImageFollower([first, failing], [])
        follower.start(feed)
        feed.reset(replace(ClusterImage(), version=1))
        await asyncio.wait_for(follower.caught_up(1), PATIENCE)
        assert told == ["first", "failing"] * 2
        await follower.stop()

    asyncio.run(main())


def test_a_listener_that_fails_when_the_image_counts_keeps_nobody_else_from_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        feed = ImageFeed()
        told: list[int] = []

        async def failing(change: ImageChange) -> None:
            raise OSError("no memory")

        async def behind(change: ImageChange) -> None:
            told.append(change.image.version)

        follower = ImageFollower([], [failing, behind])
        follower.start(feed)
        waiting = asyncio.create_task(follower.caught_up(5))
        feed.reset(replace(ClusterImage(), version=5))
        await asyncio.wait_for(waiting, PATIENCE)
        assert told == [5]
        await follower.stop()

    asyncio.run(main())
    assert "a part of the broker could not take over image 5" in caplog.text


def test_a_change_in_progress_is_finished_before_the_follower_stops() -> None:
    async def main() -> None:
        feed = ImageFeed()
        began, go_on = asyncio.Event(), asyncio.Event()
        finished: list[bool] = []

        async def slow(change: ImageChange) -> None:
            began.set()
            await go_on.wait()
            finished.append(True)

        follower = ImageFollower([slow], [])
        follower.start(feed)
        feed.reset(replace(ClusterImage(), version=1))
        await asyncio.wait_for(began.wait(), PATIENCE)
        stopping = asyncio.create_task(follower.stop())
        asyncio.get_running_loop().call_soon(go_on.set)
        await asyncio.wait_for(stopping, PATIENCE)
        assert finished == [True]

    asyncio.run(main())


def test_a_broker_that_restarts_within_its_registry_session_waits_for_the_image(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The controller node of its last run is there until that session expires."""
    caplog.set_level(logging.INFO)

    async def main() -> None:
        registry = SimulatedRegistry(Random(1), session_timeout=3600.0)
        earlier = registry.connect("broker")
        await earlier.open()
        await layout.prepare(earlier, Random(1))
        await earlier.commit([Create(CONTROLLER, to_bytes({"broker": 1}), ephemeral=True)])
        config = BrokerConfig.load(
            overrides={"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
        )
        broker = Broker(config, registry=lambda: registry.connect("broker"))
        starting = asyncio.create_task(broker.start())
        async with asyncio.timeout(PATIENCE):
            while "waits until the registry has ended an earlier session" not in caplog.text:
                assert not starting.done()
                await asyncio.sleep(0.001)
            registry.expire(earlier.session_id)
            await starting
        assert broker.image.version > 0
        await broker.stop()

    asyncio.run(main())
