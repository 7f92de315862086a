"""Ctrl-C at safe points only.

A command that writes must not be torn out of the middle of a request. While it waits for input an interrupt
takes effect at once; while it works the interrupt is remembered, and the command looks for it between two
steps. A second one always ends the command where it stands.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


class Interruptible:
    """While entered, SIGINT and SIGTERM set `requested` and raise KeyboardInterrupt only in `waiting`."""

    def __init__(self) -> None:
        self.requested = False
        self._waiting = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruptible:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._came)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a call that may block for long and loses nothing when it is left."""
        self._waiting = True
        try:
            if self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._waiting = False

    def _came(self, number: int, frame: FrameType | None) -> None:
        again, self.requested = self.requested, True
        if self._waiting or again:
            raise KeyboardInterrupt
