"""The timers of one shard.

A member's session timer is set again with every heartbeat, thousands of times. To move a timer back costs no
new call of the scheduler: the scheduled call stays, sees that the timer is not due and schedules the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from ottla.clock import Clock
from ottla.coordinator.runtime.effects import CoordinatorTimer
from ottla.scheduler import Scheduler, Timer

_EARLY = 0.001
"""Seconds by which a scheduled call may come before the timer is due."""


class ShardTimers:
    def __init__(
        self, clock: Clock, scheduler: Scheduler, expired: Callable[[CoordinatorTimer], None]
    ) -> None:
        """`expired` is called with each timer that is due; the timer is gone by then."""
        self._clock = clock
        self._scheduler = scheduler
        self._expired = expired
        self._timers: dict[Hashable, _Scheduled] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def set(self, key: Hashable, timer: CoordinatorTimer, delay_ms: int) -> None:
        """Start a timer, in place of the one with the same key."""
        delay = delay_ms / 1000
        due = self._clock.monotonic() + delay
        present = self._timers.get(key)
        if present is not None:
            if present.due <= due:
                present.timer, present.due = timer, due
                return
            present.call.cancel()
        self._timers[key] = _Scheduled(timer, due, self._scheduler.call_later(delay, self._check, key))

    def cancel(self, key: Hashable) -> None:
        present = self._timers.pop(key, None)
        if present is not None:
            present.call.cancel()

    def clear(self) -> None:
        for scheduled in self._timers.values():
            scheduled.call.cancel()
        self._timers.clear()

    def _check(self, key: Hashable) -> None:
        present = self._timers[key]
        left = present.due - self._clock.monotonic()
        if left > _EARLY:
            present.call = self._scheduler.call_later(left, self._check, key)
            return
        del self._timers[key]
        self._expired(present.timer)


class _Scheduled:
    __slots__ = ("call", "due", "timer")

    def __init__(self, timer: CoordinatorTimer, due: float, call: Timer) -> None:
        self.timer = timer
        self.due = due
        self.call = call
