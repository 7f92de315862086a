"""Producer ids for this broker's clients, out of blocks that the controller gives out durably.

What is left of a block at the end is never used: no id is given twice, whatever crashes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class ProducerIdBlock:
    def __init__(self, allocate: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        """`allocate` gets the next block: its first id, and how many they are."""
        self._allocate = allocate
        self._ids = range(0)
        self._refilling = asyncio.Lock()

    async def next(self) -> int:
        if not self._ids:
            async with self._refilling:  # one of the callers that find it used up gets the next
                if not self._ids:
                    first, count = await self._allocate()
                    self._ids = range(first, first + count)
                return self._take()
        return self._take()

    def _take(self) -> int:
        producer_id = self._ids[0]
        self._ids = self._ids[1:]
        return producer_id
