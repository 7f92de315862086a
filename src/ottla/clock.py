"""Time, handed in.

Nothing in Ottla reads the machine's clock by itself: code that needs time gets a `Clock`, so that a test
can move it and a simulated cluster can own it. `now_ms` is wall-clock time in the unit of the protocol
(milliseconds since 1970) and may jump; `monotonic` is for measuring spans, in seconds, and never goes back.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._elapsed = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._elapsed

    def advance(self, milliseconds: int) -> None:
        self._now_ms += milliseconds
        self._elapsed += milliseconds / 1000

    def set_wall(self, now_ms: int) -> None:
        """Set the machine's clock: the wall clock jumps, time itself does not."""
        self._now_ms = now_ms
