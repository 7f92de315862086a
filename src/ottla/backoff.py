"""How long something that failed waits before it is started again: a stage of a pipeline, a broker.

The pause doubles with every failure up to a limit, so that trouble which lasts (a full disk, a broker that is
away) does not spend the machine on starts that fail. What has run well for a while is forgiven: its next
failure begins again with the shortest pause.
"""

from __future__ import annotations

FIRST = 1.0
LIMIT = 60.0
FACTOR = 2.0
HEALTHY = 60.0
"""Seconds of running without a failure after which earlier ones no longer count."""


class BackOff:
    """The pauses of one thing. Times are seconds of any clock that only goes forward."""

    def __init__(
        self,
        first: float = FIRST,
        limit: float = LIMIT,
        factor: float = FACTOR,
        healthy: float = HEALTHY,
    ) -> None:
        self._first = first
        self._limit = limit
        self._factor = factor
        self._healthy = healthy
        self._started_at: float | None = None
        self.failures = 0
        """Failures in a row, without a healthy while between them."""

    def started(self, now: float) -> None:
        """It runs since `now`."""
        self._started_at = now

    def failed(self, now: float) -> float:
        """It failed at `now`: the seconds to wait before the next start."""
        if self._started_at is not None and now - self._started_at >= self._healthy:
            self.failures = 0
        self._started_at = None
        self.failures += 1
        # The exponent is bounded: after a week of failures the power would not fit a float.
        return min(self._first * self._factor ** min(self.failures - 1, 64), self._limit)
