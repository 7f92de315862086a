"""Keeps compaction's reading and writing below `log.cleaner.io.max.bytes.per.second`."""

from __future__ import annotations

import time
from collections.abc import Callable


class Throttle:
    """A caller that has spent bytes sleeps until the rate since the beginning is within the limit again."""

    def __init__(
        self,
        bytes_per_second: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._monotonic = monotonic
        self._sleep = sleep
        self._started = monotonic()
        self._spent = 0

    def spent(self, size: int) -> None:
        self._spent += size
        ahead = self._spent / self._rate - (self._monotonic() - self._started)
        if ahead > 0.001:
            self._sleep(ahead)
