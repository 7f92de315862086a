"""One line on the terminal that says how far the work is, rewritten in place.

It goes to stderr, only when that is a terminal, and is gone when the work is done: pipes, files and logs
never see it.
"""

from __future__ import annotations

import os
import sys
import time

from ottla.cli.output import count_text, seconds_text, size_text

_EVERY = 0.1


def _columns() -> int:
    """The width of the terminal that stderr is, whatever the environment says about another one."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:
        return 80


class Meter:
    """Counts records and bytes, and shows them with their rate while the work goes on."""

    def __init__(self, *, visible: bool) -> None:
        self.records = 0
        self.bytes = 0
        self._visible = visible and sys.stderr.isatty()
        self._began = time.monotonic()
        self._shown_at = 0.0
        self._on_screen = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def update(self, records: int, size: int) -> None:
        """The totals so far; shown at most ten times a second."""
        self.records, self.bytes = records, size
        if not self._visible:
            return
        now = time.monotonic()
        if now - self._shown_at >= _EVERY:
            self._shown_at = now
            line = f"{self.summary()}, {self._rate()}"[: _columns() - 1]
            sys.stderr.write(f"\r\x1b[2K\x1b[2m{line}\x1b[0m")
            sys.stderr.flush()
            self._on_screen = True

    def clear(self) -> None:
        """Take the line away; what is printed next stands on a clean one."""
        if self._on_screen:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._on_screen = False

    def summary(self) -> str:
        return (
            f"{count_text(self.records, 'record')}, {size_text(self.bytes)} in {seconds_text(self.seconds)}"
        )

    def _rate(self) -> str:
        seconds = max(self.seconds, 0.001)
        records, size = round(self.records / seconds), round(self.bytes / seconds)
        return f"{count_text(records)} records/s, {size_text(size)}/s"

    def final(self) -> str:
        """The summary, with the rate when the work took long enough for one to mean something."""
        return (
            f"{self.summary()}, {self._rate()}"
            if self.seconds >= 0.5 and self.records > 1
            else self.summary()
        )
