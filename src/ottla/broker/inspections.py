"""Opening large batches beside the event loop, for Produce requests that need it.

One thread does it, for one batch at a time, so that the memory for opened records is bounded by
`max.decompressed.message.bytes` however many clients ask. Between short stretches of work it sleeps for a
moment, by which the event loop gets the interpreter whenever it wants it: others wait for a stretch (half a
millisecond), not for the five milliseconds after which Python would make a thread let go.

Of those that wait the batch with the fewest records is next, so that somebody who sends batches of a million
records holds up others like him, and producers of ordinary ones for no longer than one of his.

A batch that waits here was copied out of its frame; the copy counts as memory lent to requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from heapq import heappop, heappush
from itertools import count

from ottla.protocol.batches import read_header
from ottla.storage.inspection import prepare
from ottla.storage.log_config import LogConfig

_PAUSE = 0.0001  # seconds; a timer of the system makes it a little longer


class Inspections:
    """`held` is told how many bytes more, or fewer, wait or are worked on."""

    def __init__(self, held: Callable[[int], None]) -> None:
        self._held = held
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ottla-inspection")
        self._stopping = False
        self._busy = False
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap: records, who came first
        self._came = count()

    def close(self) -> None:
        """Begin nothing more; what is under way ends by itself."""
        self._stopping = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    def copy(self, records: memoryview) -> memoryview:
        """The records in memory of their own, to be given back with `release`."""
        self._held(len(records))
        return memoryview(bytearray(records))

    def release(self, records: memoryview) -> None:
        self._held(-len(records))

    async def prepare(self, records: memoryview, config: LogConfig, now: int, partition: str) -> memoryview:
        """`inspection.prepare` of the one batch that `records` begin with. ApiError when it is refused."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        heappush(self._waiting, (read_header(records).record_count, next(self._came), turn))
        self._call_next()
        await turn
        try:
            work = partial(prepare, records, config, now, partition, pause=self._pause)
            return await loop.run_in_executor(self._thread, work)
        finally:
            self._busy = False
            self._call_next()

    def _call_next(self) -> None:
        if self._waiting and not self._busy:
            self._busy = True
            heappop(self._waiting)[2].set_result(None)

    def _pause(self) -> None:
        if self._stopping:
            raise asyncio.CancelledError
        time.sleep(_PAUSE)
