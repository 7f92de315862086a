"""What the broker's log looks like: one printable line a record, and only so many lines about one client.

`LineFormatter` is the last guard: whatever a message holds, its line has no control characters and is not
endless, so no client can forge a line or repaint the terminal on which the log is read. Tracebacks keep their
lines, indented, so that none of them can be taken for a record. Names that clients chose are cut where they
are logged, by `ottla.printable.shown`; the formatter catches what was forgotten.

`LineLimit` decides how many lines one client may cause: a few in each window of time, and not more than so
many for all clients together; what was left out is counted and reported at the end of the window. It is pure,
time is handed in. `ClientLog` writes by it, for the connections and handlers of a broker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from ottla.printable import escaped, shown

MAX_MESSAGE = 2_000
MAX_TRACEBACK = 20_000
MAX_TRACEBACK_LINE = 500
_OTHERS = "other addresses"

logger = logging.getLogger("ottla.clients")


class LineFormatter(logging.Formatter):
    """One line a record; the lines of a traceback below it are indented."""

    def __init__(self, of: str = "") -> None:
        """`of` names the process in each line, where several write to the same place."""
        named = f"{of.replace('%', '%%')} " if of else ""
        super().__init__(f"%(asctime)s {named}%(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = shown(record.message, MAX_MESSAGE)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        text = super().formatException(ei)
        if len(text) > MAX_TRACEBACK:  # its end names the error, its beginning the way there
            half = MAX_TRACEBACK // 2
            text = f"{text[:half]}\n... ({len(text):,} characters)\n{text[-half:]}"
        return "\n".join("  " + shown(line, MAX_TRACEBACK_LINE) for line in text.split("\n"))

    def formatStack(self, stack_info: str) -> str:
        return "\n".join("  " + escaped(line) for line in stack_info.split("\n"))


class LineLimit:
    """Which lines about clients are written: `per_client` for each, `in_all` for all, in every `window`."""

    def __init__(
        self, *, per_client: int = 10, in_all: int = 100, window: float = 10.0, named: int = 20
    ) -> None:
        self._per_client = per_client
        self._in_all = in_all
        self.window = window
        self._named = named
        self._ends: float | None = None
        self._written: dict[str, int] = {}
        self._total = 0
        self._left_out: dict[str, int] = {}

    def take(self, client: str, now: float) -> bool:
        """Whether a line about `client` may be written now. Ask `ended` before."""
        if self._ends is None:
            self._ends = now + self.window
        written = self._written.get(client, 0)
        if written < self._per_client and self._total < self._in_all:
            self._written[client] = written + 1
            self._total += 1
            return True
        if client not in self._left_out and len(self._left_out) >= self._named:
            client = _OTHERS
        self._left_out[client] = self._left_out.get(client, 0) + 1
        return False

    def ended(self, now: float) -> dict[str, int]:
        """How many lines about each client were left out in a window that has ended; begins a new one."""
        return self.end() if self._ends is not None and now >= self._ends else {}

    def end(self) -> dict[str, int]:
        """End the window at once, with what was left out in it."""
        left_out, self._left_out = self._left_out, {}
        self._ends = None
        self._written.clear()
        self._total = 0
        return left_out

    def remaining(self, now: float) -> float:
        """Seconds until the window is over."""
        return 0.0 if self._ends is None else max(self._ends - now, 0.0)

    @property
    def has_left_out(self) -> bool:
        return bool(self._left_out)


class _Timer(Protocol):
    def cancel(self) -> None: ...


class ClientLog:
    """Lines about what clients do, so many of them. Belongs to one event loop."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], None]], _Timer] | None = None,
        limit: LineLimit | None = None,
    ) -> None:
        self._now = now
        self._call_later = call_later
        self._limit = limit or LineLimit()
        self._timer: _Timer | None = None

    def log(
        self,
        to: logging.Logger,
        level: int,
        client: str,
        text: str,
        *arguments: object,
        error: BaseException | None = None,
    ) -> None:
        """Log a line about the client at the address `client`, unless there were many about it just now."""
        if not to.isEnabledFor(level):
            return
        now = self._now()
        self._tell(self._limit.ended(now))
        if self._limit.take(client, now):
            to.log(level, text, *arguments, exc_info=error)
        elif self._timer is None and self._call_later is not None:
            self._timer = self._call_later(self._limit.remaining(now), self._window_over)

    def warning(self, to: logging.Logger, client: str, text: str, *arguments: object) -> None:
        self.log(to, logging.WARNING, client, text, *arguments)

    def info(self, to: logging.Logger, client: str, text: str, *arguments: object) -> None:
        self.log(to, logging.INFO, client, text, *arguments)

    def close(self) -> None:
        """Report what was left out so far."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._tell(self._limit.end())

    def _window_over(self) -> None:
        self._timer = None
        now = self._now()
        self._tell(self._limit.ended(now))
        if self._limit.has_left_out and self._call_later is not None:  # another window has begun meanwhile
            self._timer = self._call_later(self._limit.remaining(now), self._window_over)

    def _tell(self, left_out: dict[str, int]) -> None:
        for client, count in left_out.items():
            logger.warning(
                "and %s more lines about %s in the last %.0f s, which are left out",
                f"{count:,}",
                shown(client),
                self._limit.window,
            )
