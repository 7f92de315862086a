"""Results of a producer for the futures of an event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any, cast

import pytest

from ottla.client import RecordMetadata, deliveries
from ottla.client.deliveries import MANY, LoopResults, resolve


class Message:
    """In the place of what librdkafka says of a record that was written."""

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return 0, -1


def test_results_still_come_after_a_poll_that_was_interrupted() -> None:
    async def program() -> None:
        message = cast(Any, Message())

        def poll() -> None:
            results.resolve(first, None, message)
            raise KeyboardInterrupt

        results = LoopResults(asyncio.get_running_loop(), poll)
        first, second = results.loop.create_future(), results.loop.create_future()
        with pytest.raises(KeyboardInterrupt):
            results.poll()
        results.resolve(second, None, message)
        async with asyncio.timeout(5):
            assert [(await each).offset for each in (first, second)] == [7, 7]

    asyncio.run(program())


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes when the first result is looked at."""

    def once(message: Any) -> RecordMetadata:
        monkeypatch.setattr(deliveries, "metadata_of", original)
        raise KeyboardInterrupt

    original = deliveries.metadata_of
    monkeypatch.setattr(deliveries, "metadata_of", once)


@pytest.mark.usefixtures("interrupted")
def test_ctrl_c_loses_no_result_of_a_future() -> None:
    future: Future[RecordMetadata] = Future()
    with pytest.raises(KeyboardInterrupt):
        resolve(future, None, cast(Any, Message()))
    assert future.result(0).offset == 7


@pytest.mark.usefixtures("interrupted")
def test_ctrl_c_loses_no_result_of_a_coroutine() -> None:
    async def program() -> int:
        results = LoopResults(asyncio.get_running_loop(), lambda: None)
        future = results.create_future()
        with pytest.raises(KeyboardInterrupt):
            results.resolve(future, None, cast(Any, Message()))
        async with asyncio.timeout(5):
            return (await future).offset

    assert asyncio.run(program()) == 7


@pytest.mark.parametrize(("count", "polls"), [(1, 0), (MANY, 1)])
def test_the_loop_polls_itself_when_many_results_have_come(count: int, polls: int) -> None:
    async def program() -> None:
        message = cast(Any, Message())
        polled = 0

        def poll() -> None:
            nonlocal polled
            polled += 1
            results.resolve(futures[-1], None, message)

        results = LoopResults(asyncio.get_running_loop(), poll)
        futures = [results.loop.create_future() for _ in range(count + polls)]
        for future in futures[:count]:
            results.resolve(future, None, message)
        async with asyncio.timeout(5):
            assert len(await asyncio.gather(*futures)) == count + polls
        assert polled == polls

    asyncio.run(program())
