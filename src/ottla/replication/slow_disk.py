"""Which logs of a disk are slow to write to, as far as their writes show.

A write normally ends in the page cache and takes microseconds, so it is done on the event loop. A disk that
is overloaded, or a network file system that hangs, makes it wait, and with it every client. So writes to a
log go to a thread once one of them was slow, until a number of them in a row was fast. When several logs are
slow, the disk is: then the writes of all its logs go to threads, before each has held up the event loop.

Pure decisions; time is handed in.
"""

from __future__ import annotations

SLOW_SECONDS = 0.02
"""A write that takes longer is slow, unless it is large."""
_SLOW_BYTES_PER_SECOND = 50e6
"""A large write may take as long as this, in addition."""
LARGE_WRITE = 4 * 1024 * 1024
"""A write of so many bytes takes long on any disk."""
FAST_IN_A_ROW = 16
"""So many fast writes show that a log is slow no longer."""
REMEMBERED_SECONDS = 60.0
"""A log that was not slow for so long is not counted as such, though nothing was written to it."""
_SLOW_LOGS = 3
"""When so many logs are slow, the disk is."""


class SlowDisk:
    def __init__(self) -> None:
        self.is_slow = False
        """All writes go to threads."""
        self._slow: dict[str, _SlowLog] = {}

    def wrote(self, log: str, size: int, seconds: float, now: float) -> bool:
        """A write to the log took so long. Whether the next one should be done in a thread."""
        if seconds > SLOW_SECONDS + size / _SLOW_BYTES_PER_SECOND:
            self._slow.pop(log, None)
            self._slow[log] = _SlowLog(now)
        elif (known := self._slow.get(log)) is not None:
            known.fast_since += 1
            if known.fast_since >= FAST_IN_A_ROW:
                del self._slow[log]
        while self._slow:
            oldest = next(iter(self._slow))
            if now - self._slow[oldest].seen < REMEMBERED_SECONDS:
                break
            del self._slow[oldest]
        self.is_slow = len(self._slow) >= _SLOW_LOGS
        return log in self._slow

    def forget(self, log: str) -> None:
        """The log is gone."""
        self._slow.pop(log, None)


class _SlowLog:
    __slots__ = ("fast_since", "seen")

    def __init__(self, seen: float) -> None:
        self.seen = seen
        self.fast_since = 0
