"""Log lines for what may happen many times a second, to every record or at every attempt to connect: one now,
then one every ten seconds with the number of times.
"""

from __future__ import annotations

import logging
import re
import threading
import time

_SECONDS = 10.0
_DIFFERENT_LINES = 200
_DETAIL = re.compile(r" \(after \d+ms in state \w+\)")
"""How long an attempt took: the one part in which librdkafka's lines on a broker that is away differ."""


class LogThrottle:
    """`times()` says how often it happened since the last line, or 0 if it is too early for another one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._next = 0.0

    def times(self) -> int:
        with self._lock:
            self._count += 1
            now = time.monotonic()
            if now < self._next:
                return 0
            count, self._count, self._next = self._count, 0, now + _SECONDS
            return count


class RepeatedLines(logging.Filter):
    """Lets a line of a logger pass, and again after ten seconds with the number of times it came."""

    def __init__(self) -> None:
        super().__init__()
        self._throttles: dict[str, LogThrottle] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        line = _DETAIL.sub("", record.getMessage())
        if len(self._throttles) >= _DIFFERENT_LINES:
            self._throttles.clear()
        times = self._throttles.setdefault(line, LogThrottle()).times()
        if times:
            record.msg, record.args = f"{line} ({times} times)" if times > 1 else line, ()
        return times > 0
