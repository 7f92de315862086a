"""Purgatory: requests that cannot be answered yet wait here for offsets to arrive.

A produce with acks=all waits for the high watermark to pass its records, a long-poll fetch for enough bytes,
a DeleteRecords for every replica's log start. Each enters under the keys (partitions) that could make it
ready, with a deadline, and leaves exactly once: ready, or expired.

The append itself wakes those who wait, never a timer that looks around. Waking is put off to the next turn of
the event loop, so that the producer's answer goes out first and a burst of appends wakes a reader once,
however many of its keys changed. When very many wait for one key, they are woken over several turns.
Time and turns are handed in, which lets a simulation drive the purgatory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable

from ottla.scheduler import Scheduler, Timer

logger = logging.getLogger("ottla.purgatory")

_CHECKED_IN_A_TURN = 64
"""Requests that are asked whether they are ready before others have a turn of the loop."""


def _nothing(expired: bool) -> None:
    """What is left to be done for who has left."""


def _never() -> bool:
    return False


class DelayedOperation:
    """One request in the purgatory. `done(expired)` is called once, unless it is cancelled before."""

    __slots__ = ("_done", "_keys", "_noticed", "_purgatory", "_ready", "_timer")

    def __init__(
        self,
        purgatory: Purgatory,
        keys: tuple[Hashable, ...],
        ready: Callable[[], bool],
        done: Callable[[bool], None],
        noticed: Callable[[Hashable], None] | None,
    ) -> None:
        self._purgatory = purgatory
        self._keys = keys
        self._ready = ready
        self._done = done
        self._noticed = noticed
        self._timer: Timer | None = None

    def cancel(self) -> None:
        """Leave without being called: the client is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._purgatory._remove(self)
        # They refer to this and to each other: let them all go now, not when garbage is collected.
        self._done, self._ready, self._noticed = _nothing, _never, None

    def _leave(self, expired: bool) -> None:
        done = self._done
        self.cancel()
        try:
            done(expired)
        except Exception:
            logger.exception("a request that waited could not be answered")

    def _check(self, woken: Iterable[Hashable]) -> None:
        """Leave if ready. A defect in one who waits may not keep the others from being woken."""
        if self._timer is None:
            return  # left already, because of another who was woken in this turn
        try:
            if self._noticed is not None:
                for key in woken:
                    self._noticed(key)
            ready = self._ready()
        except Exception:
            logger.exception("a request that waits cannot tell whether it is ready")
            self._leave(expired=True)
            return
        if ready:
            self._leave(expired=False)


class Purgatory:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        # Insertion order is kept, so that among those who wait for one partition the first comes first.
        self._waits: dict[Hashable, dict[DelayedOperation, None]] = {}
        self._woken: dict[Hashable, None] = {}
        self._to_check: dict[DelayedOperation, list[Hashable]] = {}

    def __len__(self) -> int:
        return len({wait for waits in self._waits.values() for wait in waits})

    def enter(
        self,
        keys: Iterable[Hashable],
        ready: Callable[[], bool],
        done: Callable[[bool], None],
        timeout: float,
        noticed: Callable[[Hashable], None] | None = None,
    ) -> DelayedOperation:
        """Wait until `ready()` holds, asked whenever one of `keys` is notified, or `timeout` seconds pass.

        Who waits for many keys may want to know which of them were: `noticed` is called with each of these
        before `ready` is asked.

        The caller has found the request not ready in this same turn, so nothing can be missed in between.
        """
        wait = DelayedOperation(self, tuple(dict.fromkeys(keys)), ready, done, noticed)
        for key in wait._keys:
            self._waits.setdefault(key, {})[wait] = None
        wait._timer = self._scheduler.call_later(timeout, wait._leave, True)
        return wait

    def notify(self, key: Hashable) -> None:
        """Something about `key` changed. Costs one look-up when nobody waits for it."""
        if key in self._waits:
            if not self._woken:
                self._scheduler.call_soon(self._wake)
            self._woken[key] = None

    def expire_all(self) -> None:
        """Answer everybody now, as if their time were over: the broker is stopping."""
        while self._waits:
            for wait in list(next(iter(self._waits.values()))):
                wait._leave(expired=True)

    def _wake(self) -> None:
        """Ask each of those who wait for what changed, once; a crowd of them in several turns."""
        woken, self._woken = self._woken, {}
        is_under_way = bool(self._to_check)
        for key in woken:
            for wait in self._waits.get(key, ()):
                self._to_check.setdefault(wait, []).append(key)
        if not is_under_way:
            self._check_some()

    def _check_some(self) -> None:
        for _ in range(min(len(self._to_check), _CHECKED_IN_A_TURN)):
            wait = next(iter(self._to_check))
            wait._check(self._to_check.pop(wait))
        if self._to_check:
            self._scheduler.call_soon(self._check_some)

    def _remove(self, wait: DelayedOperation) -> None:
        for key in wait._keys:
            waits = self._waits.get(key)
            if waits is not None:
                waits.pop(wait, None)
                if not waits:
                    del self._waits[key]
