"""Writing log starts to disk before a DeleteRecords request is answered.

The checkpoint file holds the starts of all logs, so one write serves everybody whose deletion came before it
began. Requests that come while one is under way share the next: however many clients delete, at most one
thread writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class LogStarts:
    """`write` writes the starts that all logs have now. It blocks, and may raise OSError."""

    def __init__(
        self, write: Callable[[], None], in_thread: Callable[[Callable[[], None]], asyncio.Future[None]]
    ) -> None:
        self._write = write
        self._in_thread = in_thread
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None

    async def written(self) -> None:
        """Return when the starts that the logs have now are on disk. OSError when they cannot be written."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._write_in_turn(), name="log-starts")
        await asyncio.shield(self._next)

    async def _write_in_turn(self) -> None:
        async with self._turn:
            self._next = None  # a deletion from now on may come too late for this write
            await self._in_thread(self._write)
