"""The simulated event loop: virtual time, hosts that crash, threads that run inline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from ottla.testing.simulation.loop import NothingToDo, SimulatedLoop
from ottla.testing.simulation.virtual_time import START_MS, Host, SimulatedClock


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    loop = SimulatedLoop(Random(1))
    yield loop
    loop.discard()


def test_a_day_of_sleep_takes_no_time(loop: SimulatedLoop) -> None:
    began = time.monotonic()
    loop.run_until_complete(asyncio.sleep(86_400))
    assert loop.time() == pytest.approx(86_400)
    assert time.monotonic() - began < 5
    assert SimulatedClock(loop).now_ms() == START_MS + 86_400_000


def test_timers_run_in_the_order_of_their_time(loop: SimulatedLoop) -> None:
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, loop.time()))

    async def all_of_them() -> None:
        await asyncio.gather(sleeper("late", 3.0), sleeper("early", 1.0), sleeper("middle", 2.0))

    loop.run_until_complete(all_of_them())
    assert [name for name, _ in seen] == ["early", "middle", "late"]
    assert [moment for _, moment in seen] == pytest.approx([1.0, 2.0, 3.0])


def test_a_timeout_is_virtual_too(loop: SimulatedLoop) -> None:
    async def wait() -> None:
        await asyncio.wait_for(asyncio.Event().wait(), 600)

    with pytest.raises(TimeoutError):
        loop.run_until_complete(wait())
    assert loop.time() == pytest.approx(600)


def test_waiting_without_anything_scheduled_is_an_error(loop: SimulatedLoop) -> None:
    with pytest.raises(NothingToDo):
        loop.run_until_complete(asyncio.Event().wait())


def test_jobs_of_one_executor_run_in_order_on_the_loops_thread(loop: SimulatedLoop) -> None:
    seen: list[int] = []
    with ThreadPoolExecutor(1) as executor:

        async def ask() -> list[int]:
            def job(n: int) -> int:
                seen.append(n)
                return n

            jobs = [loop.run_in_executor(executor, job, n) for n in range(50)]
            return list(await asyncio.gather(*jobs))

        assert loop.run_until_complete(ask()) == list(range(50))
    assert seen == list(range(50))


def test_an_error_in_a_job_reaches_its_caller(loop: SimulatedLoop) -> None:
    async def ask() -> None:
        await loop.run_in_executor(None, lambda: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        loop.run_until_complete(ask())


def test_nothing_of_a_crashed_host_runs_again(loop: SimulatedLoop) -> None:
    host, other = Host("broker 1"), Host("broker 2")
    seen: list[str] = []

    async def work(name: str) -> None:
        try:
            while True:
                await asyncio.sleep(1)
                seen.append(name)
        finally:
            seen.append(f"{name} cleaned up")

    async def scenario() -> None:
        host.run(loop.create_task, work("one"))
        other.run(loop.create_task, work("two"))
        host.run(loop.call_later, 5.0, seen.append, "timer of one")
        await asyncio.sleep(2.5)
        host.crash()
        await asyncio.sleep(3)

    loop.run_until_complete(scenario())
    assert seen == ["one", "two", "one", "two", "two", "two", "two"]


def test_a_paused_host_goes_on_later_with_all_that_came_up(loop: SimulatedLoop) -> None:
    host = Host("a")
    seen: list[float] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(1.0)
            seen.append(loop.time())

    async def main() -> None:
        host.run(loop.create_task, tick())
        await asyncio.sleep(1.5)
        host.pause()
        await asyncio.sleep(10.0)
        assert seen == pytest.approx([1.0])
        loop.resume(host)
        await asyncio.sleep(1.2)

    loop.run_until_complete(main())
    assert seen == pytest.approx([1.0, 11.5, 12.5])


def test_child_tasks_belong_to_the_host_of_their_parent(loop: SimulatedLoop) -> None:
    host = Host("broker 1")
    seen: list[str] = []

    async def child() -> None:
        await asyncio.sleep(2)
        seen.append("child")

    async def parent() -> None:
        asyncio.get_running_loop().create_task(child())
        await asyncio.sleep(1)
        seen.append("parent")

    async def scenario() -> None:
        host.run(loop.create_task, parent())
        await asyncio.sleep(1.5)
        host.crash()
        await asyncio.sleep(5)

    loop.run_until_complete(scenario())
    assert seen == ["parent"]


def test_a_skewed_clock_is_wrong_about_the_wall_time_only(loop: SimulatedLoop) -> None:
    host = Host("broker 1")
    clock = SimulatedClock(loop, host)
    host.skew_ms = -60_000
    assert clock.now_ms() == START_MS - 60_000
    assert clock.monotonic() == 0


def test_uncaught_errors_are_kept_as_defects(loop: SimulatedLoop) -> None:
    async def scenario() -> None:
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    loop.run_until_complete(scenario())
    assert len(loop.defects) == 1
    assert "ZeroDivisionError" in loop.defects[0]
