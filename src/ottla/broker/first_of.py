"""Waiting for a result or for an event, whichever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def first_of(
    work: Coroutine[Any, Any, T] | asyncio.Future[T], event: asyncio.Event, timeout: float | None = None
) -> T | None:
    """The result of `work`; None, and the work is cancelled, when the event comes first or the time is up."""
    working = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((working, waiting), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        waiting.cancel()
