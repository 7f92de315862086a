"""Purgatory: requests that cannot be answered yet wait here for offsets to arrive.

A produce with acks=all waits for the high watermark to pass its records, a long-poll fetch for enough bytes,
a DeleteRecords for every replica's log start. Each enters under the keys (partitions) that could make it
ready, with a deadline, and leaves exactly once: ready, or expired.

An append checks the operations that wait for its partition; nothing polls. The check is put off to the next
iteration of the event loop, so that the producer's answer goes out first and a burst of appends checks a
reader once, however many of its keys changed. When very many wait for one key, they are checked over several
iterations. The scheduler is handed in, which lets a simulation drive the purgatory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable

from ottla.completion import Completion
from ottla.scheduler import Scheduler, Timer

logger = logging.getLogger("ottla.purgatory")

_CHECKED_AT_A_TIME = 64
"""Operations that are checked in one iteration of the event loop."""


def _never() -> bool:
    return False


class DelayedOperation(Completion[bool]):
    """One request in the purgatory. It is resolved when it leaves: with True when it has expired."""

    __slots__ = ("_keys", "_noticed", "_purgatory", "_ready", "_timer")

    def __init__(
        self,
        purgatory: Purgatory,
        keys: tuple[Hashable, ...],
        ready: Callable[[], bool],
        noticed: Callable[[Hashable], None] | None,
    ) -> None:
        super().__init__(self._remove)
        self._purgatory = purgatory
        self._keys = keys
        self._ready = ready
        self._noticed = noticed
        self._timer: Timer | None = None

    def _remove(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._purgatory._remove(self)
        # They refer to this and to each other: free them now, not at a garbage collection.
        self._ready, self._noticed = _never, None

    def _leave(self, outcome: bool | Exception) -> None:
        """A defect in one consumer may not keep the others from their outcome."""
        self._remove()
        try:
            if isinstance(outcome, Exception):
                self.fail(outcome)
            else:
                self.resolve(outcome)
        except Exception:
            logger.exception("a request that left the purgatory could not be answered")

    def _check(self, notified: Iterable[Hashable]) -> None:
        """Leave if ready. A defect in one operation may not keep the others from being checked."""
        if not self.is_open:
            return  # it left already, because of another one that was checked in this iteration
        try:
            if self._noticed is not None:
                for key in notified:
                    self._noticed(key)
            ready = self._ready()
        except Exception as error:  # noqa: BLE001 - it reaches the consumer
            self._leave(error)
            return
        if ready:
            self._leave(False)


class Purgatory:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        # Insertion order is kept, so that the operations of one partition leave in the order they came.
        self._operations: dict[Hashable, dict[DelayedOperation, None]] = {}
        self._notified: dict[Hashable, None] = {}
        self._to_check: dict[DelayedOperation, list[Hashable]] = {}

    def __len__(self) -> int:
        return len({one for operations in self._operations.values() for one in operations})

    def enter(
        self,
        keys: Iterable[Hashable],
        ready: Callable[[], bool],
        timeout: float,
        noticed: Callable[[Hashable], None] | None = None,
    ) -> Completion[bool]:
        """Wait until `ready()` holds, checked whenever one of `keys` is notified, or `timeout` seconds pass.

        The result says whether the time has expired. An operation with many keys may need to know which of
        them changed: `noticed` is called with each of these before `ready` is.

        The caller has found the request not ready in this same iteration of the event loop, so no change
        can be missed in between.
        """
        operation = DelayedOperation(self, tuple(dict.fromkeys(keys)), ready, noticed)
        for key in operation._keys:
            self._operations.setdefault(key, {})[operation] = None
        operation._timer = self._scheduler.call_later(timeout, operation._leave, True)
        return operation

    def notify(self, key: Hashable) -> None:
        """Something about `key` changed. Costs one look-up when no operation waits for it."""
        if key in self._operations:
            if not self._notified:
                self._scheduler.call_soon(self._check_notified)
            self._notified[key] = None

    def expire_all(self) -> None:
        """Let all operations expire now: the broker is stopping."""
        while self._operations:
            for operation in list(next(iter(self._operations.values()))):
                operation._leave(True)

    def _check_notified(self) -> None:
        """Check each operation that waits for what changed, once; many of them in several iterations."""
        notified, self._notified = self._notified, {}
        is_under_way = bool(self._to_check)
        for key in notified:
            for operation in self._operations.get(key, ()):
                self._to_check.setdefault(operation, []).append(key)
        if not is_under_way:
            self._check_some()

    def _check_some(self) -> None:
        for _ in range(min(len(self._to_check), _CHECKED_AT_A_TIME)):
            operation = next(iter(self._to_check))
            operation._check(self._to_check.pop(operation))
        if self._to_check:
            self._scheduler.call_soon(self._check_some)

    def _remove(self, operation: DelayedOperation) -> None:
        for key in operation._keys:
            operations = self._operations.get(key)
            if operations is not None:
                operations.pop(operation, None)
                if not operations:
                    del self._operations[key]
