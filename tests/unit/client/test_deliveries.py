"""Results of a producer for the futures of an event loop."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from ottla.client.deliveries import LoopResults


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
        results = LoopResults(asyncio.get_running_loop())
        first, second = results.loop.create_future(), results.loop.create_future()
        message = cast(Any, Message())

        def poll() -> None:
            results.resolve(first, None, message)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            results.poll(poll)
        results.resolve(second, None, message)
        async with asyncio.timeout(5):
            assert [(await each).offset for each in (first, second)] == [7, 7]

    asyncio.run(program())
