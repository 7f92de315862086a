"""The simulated registry behind links that can be cut: what calls, sessions and watches come to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from ottla.cluster.registry import Ambiguous, Create, SessionLost, Unavailable
from ottla.testing.simulation.registry import SimulatedSession
from ottla.testing.simulation.world import World

Scenario = Callable[[SimulatedSession, SimulatedSession], Awaitable[None]]


@pytest.fixture
def world() -> Iterator[World]:
    world = World(1)
    yield world
    world.end()


def run(world: World, scenario: Scenario) -> None:
    """Run with sessions of the hosts a and b, each on its own."""

    async def main() -> None:
        sessions = [world.registry.connect(name) for name in ("a", "b")]
        for session, name in zip(sessions, ("a", "b"), strict=True):
            await world.host(name).run(world.loop.create_task, session.open())
        await scenario(*sessions)

    world.run(main())


def test_a_commit_that_does_not_arrive_is_not_done(world: World) -> None:
    async def scenario(a: SimulatedSession, b: SimulatedSession) -> None:
        world.cut_from_registry(world.host("a"), back=False)
        with pytest.raises(Unavailable):
            await a.commit([Create("/x")])
        assert not await b.exists("/x")

    run(world, scenario)


def test_a_commit_whose_answer_does_not_arrive_is_ambiguous(world: World) -> None:
    async def scenario(a: SimulatedSession, b: SimulatedSession) -> None:
        world.cut_from_registry(world.host("a"), there=False)
        with pytest.raises(Ambiguous):
            await a.commit([Create("/x")])
        assert await b.exists("/x")

    run(world, scenario)


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_host_that_is_cut_off_or_paused_knows_first_that_its_session_is_over(
    world: World, is_cut: bool
) -> None:
    async def scenario(a: SimulatedSession, b: SimulatedSession) -> None:
        host = world.host("a")
        await a.commit([Create("/x", ephemeral=True)])
        if is_cut:
            world.cut_from_registry(host)
            await a.lost.wait()
            assert await b.exists("/x")
        else:
            host.pause()
        while await b.exists("/x"):
            await asyncio.sleep(0.1)
        world.mend_registry(host)
        world.resume(host)
        with pytest.raises(SessionLost):
            await a.commit([Create("/y")])

    run(world, scenario)


@pytest.mark.parametrize("seconds", [0.2, 4.0])
def test_a_watch_over_a_cut_link_fires_when_it_is_mended(world: World, seconds: float) -> None:
    async def scenario(a: SimulatedSession, b: SimulatedSession) -> None:
        watch = await a.watch("/x")
        world.cut_from_registry(world.host("a"))
        await b.commit([Create("/x")])
        await asyncio.sleep(seconds)
        assert not watch.done()
        world.mend_registry(world.host("a"))
        await asyncio.wait_for(watch, 3.0)

    run(world, scenario)
