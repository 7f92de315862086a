"""What Spark's JVM and its Python processes write to their error output: shown as it comes, the end kept.

A Python process of Spark that cannot start, or dies, says why on its error output only; the JVM reports that
it did not answer. So the error output goes through a pipe of ours: every line reaches the terminal as before,
and the last ones can be put into the log of the stage that failed.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque

KEPT = 200
"""Lines that are kept."""
LONGEST = 2_000
"""Characters of a line that are kept."""


class ErrorOutput:
    """The reading end of a pipe. `descriptor` is for the process whose error output it shall be."""

    def __init__(self) -> None:
        self._reading, self.descriptor = os.pipe()
        self._lines: deque[str] = deque(maxlen=KEPT)
        self._lock = threading.Lock()
        self._copying = threading.Thread(target=self._copy, name="error output of Spark", daemon=True)
        self._copying.start()

    def close(self) -> None:
        """The process has its own copy of the writing end now; ours would keep the pipe open for ever."""
        os.close(self.descriptor)

    def drain(self, seconds: float) -> None:
        """Wait until all is copied of a process that has ended."""
        self._copying.join(seconds)

    def last_lines(self) -> str:
        with self._lock:
            return "\n".join(self._lines)

    def _copy(self) -> None:
        with os.fdopen(self._reading, "rb") as reading:
            for line in reading:
                text = line.decode(errors="replace")
                with self._lock:
                    self._lines.append(text.rstrip()[:LONGEST])
                try:
                    sys.stderr.write(text)
                    sys.stderr.flush()
                except (OSError, ValueError):  # a terminal that is gone; the process must not wait for us
                    continue


_current: ErrorOutput | None = None


def begin() -> ErrorOutput:
    """A new one, for a JVM that is about to be started."""
    global _current
    _current = ErrorOutput()
    return _current


def last_lines() -> str:
    """What the processes of this program's Spark wrote last; nothing when it has none of its own."""
    return "" if _current is None else _current.last_lines()
