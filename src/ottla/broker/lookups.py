"""Searches by time beside the event loop, for ListOffsets requests that ask for them.

Most of them end in a small batch that the index leads to, and are done on the event loop. The others, also
those that turn out to take too long there, run in one thread of their own, one segment of one log at a time,
so that requests alternate and a client with costly searches delays only other costly searches. Between short
stretches of work the thread sleeps for a moment, so that the event loop gets the interpreter when it needs
it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.replication.partition import Partition
from ottla.storage.results import OffsetAndTime
from ottla.storage.time_search import TimeSearch, TooLong

_PAUSE = 0.0001  # seconds; a timer of the system makes it a little longer
_ITERATION_SECONDS = 0.002  # seconds of work in one iteration of the event loop


class Lookups:
    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ottla-lookups")
        self._stopping = False

    def close(self) -> None:
        """Begin nothing more; what is under way ends in a moment, with an error."""
        self._stopping = True
        self._thread.shutdown(wait=False)

    async def since(self, partition: Partition, timestamp: int) -> OffsetAndTime | None:
        """The first record whose timestamp is at least that. ApiError when the log is offline."""
        return await self._first(partition, partition.searches_since(timestamp))

    async def newest(self, partition: Partition) -> OffsetAndTime | None:
        """The first record that carries the largest timestamp."""
        return await self._first(partition, partition.searches_newest())

    async def _first(
        self, partition: Partition, searches: Iterator[TimeSearch | None]
    ) -> OffsetAndTime | None:
        began = self._monotonic()
        for search in searches:
            found = None if search is None else await self._run(partition, search, began + _ITERATION_SECONDS)
            if found is not None:
                return found
            if self._monotonic() - began > _ITERATION_SECONDS:
                await asyncio.sleep(0)
                began = self._monotonic()
        return None

    async def _run(self, partition: Partition, search: TimeSearch, deadline: float) -> OffsetAndTime | None:
        try:
            return partition.run_search(search, only_small=True, is_late=lambda: self._monotonic() > deadline)
        except TooLong:
            self._check_running()
            work = partial(partition.run_search, search, pause=self._pause)
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _pause(self) -> None:
        self._check_running()
        time.sleep(_PAUSE)

    def _check_running(self) -> None:
        if self._stopping:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker is stopping")
