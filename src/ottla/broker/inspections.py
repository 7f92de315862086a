"""Opening large batches beside the event loop, for Produce requests that need it.

One thread does it, for one batch at a time, so that the memory for opened records is bounded by
`max.decompressed.message.bytes` however many clients ask. Between short stretches of work it sleeps for a
moment, by which the event loop gets the interpreter whenever it wants it: others wait for a stretch (half a
millisecond), not for the five milliseconds after which Python would make a thread let go.

A batch that waits here lies in the frame of its request, which keeps it. How much may wait, and what is next,
is decided by `backlog`; what may not wait is refused. A batch whose client has gone before it was
acknowledged is dropped when it is next or when its space is needed.
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


class HeldBatch:
    """One batch that waits in its frame, until it is released."""

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
        self._held: dict[HeldBatch, None] = {}
        self._working: HeldBatch | None = None
        self._waiting: list[tuple[float, int, HeldBatch]] = []  # a heap: due time, sequence number
        self._came = count()

    def close(self) -> None:
        """Begin nothing more; what is under way ends by itself."""
        self._stopping = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    def admit(self, records: memoryview, address: str, abandoned: Callable[[], bool]) -> HeldBatch | None:
        """Count the batch as waiting, until `release`; None when too much waits.

        Once `abandoned` says so the batch is not needed any more, and may be dropped.
        """
        size, seconds = len(records), work_seconds(read_header(records))
        holding = self._backlog.admit(address, size, seconds)
        if holding is None and self._drop_abandoned():
            holding = self._backlog.admit(address, size, seconds)
        if holding is None:
            return None
        held = HeldBatch(records, seconds, holding, abandoned)
        self._held[held] = None
        return held

    def release(self, held: HeldBatch) -> None:
        """Nothing happens when it was released before."""
        if held._holding is not None:
            self._backlog.release(held._holding)
            held._holding = None
            held.records = memoryview(b"")
            del self._held[held]

    async def prepare(self, held: HeldBatch, config: LogConfig, now: int, partition: str) -> memoryview:
        """`inspection.prepare` of the batch. ApiError when it is refused, ClientGone when it was dropped."""
        if held._holding is None:
            raise ClientGone
        loop = asyncio.get_running_loop()
        held._turn = turn = loop.create_future()
        heappush(self._waiting, (due(self._now(), held.seconds), next(self._came), held))
        self._call_next()
        await turn
        try:
            if held.abandoned():
                raise ClientGone
            work = partial(prepare, held.records, config, now, partition, pause=self._pause)
            return await loop.run_in_executor(self._thread, work)
        finally:
            self._working = None
            self._call_next()

    def _call_next(self) -> None:
        while self._waiting and self._working is None:
            held = heappop(self._waiting)[2]
            if held._turn is not None and not held._turn.done():
                self._working = held
                held._turn.set_result(None)

    def _drop_abandoned(self) -> bool:
        """Release what is not waited for any more. True when there was something."""
        dropped = [held for held in self._held if held is not self._working and held.abandoned()]
        for held in dropped:
            self.release(held)
            if held._turn is not None and not held._turn.done():
                held._turn.set_exception(ClientGone())
        return bool(dropped)

    def _pause(self) -> None:
        if self._stopping:
            raise asyncio.CancelledError
        time.sleep(_PAUSE)
