"""Opening large batches beside the event loop, for Produce requests that need it.

One thread does it, for one batch at a time, so that the memory for opened records is bounded by
`max.decompressed.message.bytes` however many clients ask. Between short stretches of work it sleeps for a
moment, by which the event loop gets the interpreter whenever it wants it: others wait for a stretch (half a
millisecond), not for the five milliseconds after which Python would make a thread let go.

A batch that waits here was copied out of its frame. How much may wait, and who is next, is decided by
`backlog`; what may not wait is refused. A batch that nobody waits for any more, because its client has gone
before it was acknowledged, is dropped when its turn comes or when its room is needed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from heapq import heappop, heappush
from itertools import count

from ottla.broker.backlog import Backlog, Holding, due, work_seconds
from ottla.protocol.batches import read_header
from ottla.storage.inspection import prepare
from ottla.storage.log_config import LogConfig

_PAUSE = 0.0001  # seconds; a timer of the system makes it a little longer


class ClientGone(Exception):
    """The batch was dropped: its client has closed the connection and will send it again."""


class Copy:
    """One batch in memory of its own, until it is released."""

    __slots__ = ("_holding", "_turn", "abandoned", "records", "seconds")

    def __init__(
        self, records: memoryview, seconds: float, holding: Holding, abandoned: Callable[[], bool]
    ) -> None:
        self.records = records
        self.seconds = seconds
        self.abandoned = abandoned
        self._holding: Holding | None = holding
        self._turn: asyncio.Future[None] | None = None


class Inspections:
    def __init__(self, backlog: Backlog, now: Callable[[], float]) -> None:
        self._backlog = backlog
        self._now = now
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ottla-inspection")
        self._stopping = False
        self._copies: dict[Copy, None] = {}
        self._working: Copy | None = None
        self._waiting: list[tuple[float, int, Copy]] = []  # a heap: when it is due, who came first
        self._came = count()

    def close(self) -> None:
        """Begin nothing more; what is under way ends by itself."""
        self._stopping = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    def copy(self, records: memoryview, address: str, abandoned: Callable[[], bool]) -> Copy | None:
        """The batch in memory of its own, to be given back with `release`; None when too much waits.

        Once `abandoned` says so nobody needs the batch any more, and it may be dropped.
        """
        size, seconds = len(records), work_seconds(read_header(records))
        holding = self._backlog.admit(address, size, seconds)
        if holding is None and self._drop_abandoned():
            holding = self._backlog.admit(address, size, seconds)
        if holding is None:
            return None
        copy = Copy(memoryview(bytearray(records)), seconds, holding, abandoned)
        self._copies[copy] = None
        return copy

    def release(self, copy: Copy) -> None:
        """Nothing happens when it was released before."""
        if copy._holding is not None:
            self._backlog.release(copy._holding)
            copy._holding = None
            copy.records = memoryview(b"")
            del self._copies[copy]

    async def prepare(self, copy: Copy, config: LogConfig, now: int, partition: str) -> memoryview:
        """`inspection.prepare` of the batch. ApiError when it is refused, ClientGone when it was dropped."""
        if copy._holding is None:
            raise ClientGone
        loop = asyncio.get_running_loop()
        copy._turn = turn = loop.create_future()
        heappush(self._waiting, (due(self._now(), copy.seconds), next(self._came), copy))
        self._call_next()
        await turn
        try:
            if copy.abandoned():
                raise ClientGone
            work = partial(prepare, copy.records, config, now, partition, pause=self._pause)
            return await loop.run_in_executor(self._thread, work)
        finally:
            self._working = None
            self._call_next()

    def _call_next(self) -> None:
        while self._waiting and self._working is None:
            copy = heappop(self._waiting)[2]
            if copy._turn is not None and not copy._turn.done():
                self._working = copy
                copy._turn.set_result(None)

    def _drop_abandoned(self) -> bool:
        """Release what nobody waits for. True when there was something."""
        dropped = [copy for copy in self._copies if copy is not self._working and copy.abandoned()]
        for copy in dropped:
            self.release(copy)
            if copy._turn is not None and not copy._turn.done():
                copy._turn.set_exception(ClientGone())
        return bool(dropped)

    def _pause(self) -> None:
        if self._stopping:
            raise asyncio.CancelledError
        time.sleep(_PAUSE)
