"""The watchdog: notices when the event loop was blocked, names the request that blocked it, and counts.

One thread serves all clients, so whatever blocks it makes all clients wait. Two things are measured:

- Each request, when it has been handled: one that kept the loop for more than `STALL_SECONDS` is logged with
  its API, its client and its size. That takes one reading of the clock for a request.
- A timer, several times a second: when it fires too late and no request explains that, there was a stall
  with another cause: housekeeping, another process, a machine that was suspended.

`counts` is for figures about the broker. All stalls are counted, but only so many are logged:
the lines go through the `ClientLog`, which has a limit for each client and one for all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ottla.log_lines import ClientLog
from ottla.scheduler import Scheduler, Timer

logger = logging.getLogger("ottla.watchdog")

STALL_SECONDS = 0.1
_BEAT_SECONDS = 0.1
_NO_CLIENT = "stalls that no single client caused"


class Request(Protocol):
    """What is said about the request that kept the loop."""

    @property
    def address(self) -> str:
        """Where its client is."""

    def describe(self) -> str: ...


@dataclass(slots=True)
class StallCounts:
    by_requests: int = 0
    by_others: int = 0
    seconds: float = 0.0
    longest: float = 0.0

    def add(self, seconds: float) -> None:
        self.seconds += seconds
        self.longest = max(self.longest, seconds)


class Watchdog:
    def __init__(
        self,
        scheduler: Scheduler,
        now: Callable[[], float],
        client_log: Callable[[], ClientLog] | None = None,
    ) -> None:
        self.counts = StallCounts()
        self.now = now
        own_log = ClientLog(now, scheduler.call_later)
        self._client_log = client_log or (lambda: own_log)
        self._scheduler = scheduler
        self._explained = 0.0
        self._due = 0.0
        self._timer: Timer | None = None

    def start(self) -> None:
        self._due = self.now() + _BEAT_SECONDS
        self._explained = 0.0
        self._timer = self._scheduler.call_later(_BEAT_SECONDS, self._beat)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def request_took(self, seconds: float, request: Request | None) -> None:
        """Called when a request, or a slice of one, kept the loop for longer than `STALL_SECONDS`."""
        self._explained += seconds
        self.counts.by_requests += 1
        self.counts.add(seconds)
        self._client_log().warning(
            logger,
            _NO_CLIENT if request is None else request.address,
            "the broker stood still for %.0f ms because of %s",
            seconds * 1000,
            "a request" if request is None else request.describe(),
        )

    def _beat(self) -> None:
        late = self.now() - self._due
        unexplained = late - self._explained
        if unexplained > STALL_SECONDS:
            self.counts.by_others += 1
            self.counts.add(unexplained)
            self._client_log().warning(
                logger,
                _NO_CLIENT,
                "the broker stood still for %.0f ms, not because of a single request: "
                "housekeeping, many requests at once, or a machine that was busy or suspended",
                unexplained * 1000,
            )
        self.start()
