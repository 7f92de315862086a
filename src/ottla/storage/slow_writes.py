"""Writes that took long, counted and reported in the log.

A line names the partition and the milliseconds. There is at most one in `PAUSE` seconds for all logs, which
tells how many were left out since the last one.

The time comes in as an argument; several threads may call.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("ottla.storage")

SLOW = 0.1
"""Seconds from which on a write is slow."""
PAUSE = 5.0


class SlowWrites:
    def __init__(self) -> None:
        self.count = 0
        """How many writes were slow since the start."""
        self.longest = 0.0
        self._told_at = float("-inf")
        self._told = 0

    def note(self, partition: str, seconds: float, size: int, now: float, *, in_thread: bool = False) -> None:
        """A write took longer than `SLOW`. In a thread it delayed only the clients of its partition."""
        self.count += 1
        self.longest = max(self.longest, seconds)
        if now - self._told_at < PAUSE:
            return
        left_out = self.count - self._told - 1
        self._told_at, self._told = now, self.count
        logger.warning(
            "writing %d bytes to %s took %d ms%s%s; is the disk too slow?",
            size,
            partition,
            seconds * 1000,
            "" if in_thread else ", during which no client was served",
            f" ({left_out} more slow writes since the last such line)" if left_out else "",
        )


SLOW_WRITES = SlowWrites()
"""Of this process."""
