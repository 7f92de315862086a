"""The controller's side of the image feed: the brokers that ask for news, and how far each of them is.

A broker says in each FetchImage which image it acts on. A change of topics is answered when the leaders of
the new partitions act on it, so that clients do not meet a broker that does not know its partition yet. That
wait is short and bounded: a broker may be gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from ottla.broker.first_of import first_of
from ottla.cluster.feed import ImageFeed
from ottla.cluster.image_wire import News


class ImagePolls:
    def __init__(self, feed: ImageFeed) -> None:
        self._feed = feed
        self._applied: dict[int, int] = {}
        self._waiting: dict[asyncio.Future[None], tuple[int, set[int]]] = {}
        self._closed = asyncio.Event()

    async def news(self, version: int, timeout: float) -> News | None:
        """What is newer than `version`; None if nothing is within `timeout` seconds, or at the end."""
        news = self._feed.since(version)
        if news is not None or timeout <= 0 or self._closed.is_set():
            return news
        return await first_of(self._feed.after(version), self._closed, timeout)

    def applied(self, broker_id: int, version: int) -> None:
        """A broker acts on the image of `version`."""
        self._applied[broker_id] = version
        for future, (awaited, brokers) in self._waiting.items():
            if version >= awaited:
                brokers.discard(broker_id)
                if not brokers and not future.done():
                    future.set_result(None)

    def version_of(self, broker_id: int) -> int:
        """Of the image that a broker acts on; -1 if it has not said so to this controller."""
        return self._applied.get(broker_id, -1)

    async def reached(self, version: int, brokers: Collection[int], timeout: float) -> bool:
        """Whether all these brokers act on the image of `version`; waits `timeout` seconds for it."""
        missing = {each for each in brokers if self.version_of(each) < version}
        if not missing or self._closed.is_set():
            return not missing
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = version, missing
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            return False
        finally:
            del self._waiting[future]
        return not missing

    def close(self) -> None:
        """Let all waiting requests be answered: the broker stops."""
        self._closed.set()
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
