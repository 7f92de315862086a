"""What a network does to the requests of one client: some come late, some twice.

A request that is held back gets no answer, so the client asks again or goes on without it, and then it
arrives. A doubled one arrives a second time. Either comes by another connection, up to many seconds later: in
the middle of a later transaction of the same client, or after its end. This is how Jepsen found that Kafka's
first protocol can end a transaction with the request of another one (KAFKA-17754).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from random import Random
from typing import Any

from ottla.peer.client import PeerUnreachable
from simulation.clients import Caller

_HELD_BACK, _DOUBLED = 0.04, 0.06
_LATE_SECONDS = (0.1, 1.0, 5.0, 15.0)
_HEARD_NOTHING_SECONDS = 1.0
_TIMEOUT = 5.0


class LateNetwork:
    """A `Caller` by way of another one; `late` is where the second arrivals go."""

    def __init__(self, client: Caller, late: Caller, rng: Random, may_be_late: Callable[[Any], bool]) -> None:
        self._client = client
        self._late = late
        self._rng = rng
        self._may_be_late = may_be_late
        self._under_way: set[asyncio.Task[None]] = set()
        self.is_reliable = False
        self.copies = 0
        """How many requests arrived late or twice, or will."""

    async def call(self, request: Any, *, timeout: float, version: int | None = None) -> Any:
        drawn = self._rng.random()
        if not self.is_reliable and drawn < _HELD_BACK + _DOUBLED and self._may_be_late(request):
            self.copies += 1
            task = asyncio.create_task(self._arrive_late(request, version))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            if drawn < _HELD_BACK:
                await asyncio.sleep(min(timeout, _HEARD_NOTHING_SECONDS))
                raise PeerUnreachable(("network", 0), "no response", maybe_done=True)
        return await self._client.call(request, timeout=timeout, version=version)

    async def _arrive_late(self, request: Any, version: int | None) -> None:
        await asyncio.sleep(self._rng.choice(_LATE_SECONDS) * self._rng.random())
        with contextlib.suppress(PeerUnreachable):
            await self._late.call(request, timeout=_TIMEOUT, version=version)

    async def everything_arrived(self) -> None:
        while self._under_way:
            await asyncio.wait(set(self._under_way))
