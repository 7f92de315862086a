"""The part of an event loop that timers and deferred work need.

An asyncio loop is one, the request scheduler of a broker is another, and tests hand in one of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Protocol):
    def call_soon(self, callback: Callable[..., object], *args: object) -> object: ...

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> Timer: ...
