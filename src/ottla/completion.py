"""A result that comes later.

Work that must wait returns a `Completion` and resolves it, or fails it, when it knows the outcome. One
consumer takes the outcome (`then`); steps in between are added with `map`. It is a future reduced to what a
broker needs: the consumer is called at once, in the same iteration of the event loop, which is most of the
difference between a fast and a slow long poll.

Rules. The first outcome counts, later ones are ignored. A consumer that is added after the outcome is called
at once. `cancel` says that the result is not wanted any more: no consumer is called, and `on_cancel`, if
there is one, lets the work clean up. What should be finished regardless simply has no `on_cancel`. Cancelling
a mapped completion cancels the one it was made from.

Everything happens on the thread of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
U = TypeVar("U")

_OPEN, _RESOLVED, _FAILED, _CANCELLED = range(4)


class Completion(Generic[T]):
    __slots__ = ("_on_error", "_on_result", "_outcome", "_state", "on_cancel")

    def __init__(self, on_cancel: Callable[[], object] | None = None) -> None:
        self.on_cancel = on_cancel
        self._state = _OPEN
        self._outcome: Any = None
        self._on_result: Callable[[T], object] | None = None
        self._on_error: Callable[[Exception], object] | None = None

    @classmethod
    def failed(cls, error: Exception) -> Completion[T]:
        """A completion that has failed already."""
        completion: Completion[T] = Completion()
        completion.fail(error)
        return completion

    def __repr__(self) -> str:
        return f"<Completion {('open', 'resolved', 'failed', 'cancelled')[self._state]}>"

    @property
    def is_open(self) -> bool:
        """There is no outcome yet, and it is still wanted."""
        return self._state == _OPEN

    @property
    def cancelled(self) -> bool:
        return self._state == _CANCELLED

    def resolve(self, result: T) -> None:
        """This is the result. Exceptions of the consumer are raised here."""
        if self._state == _OPEN:
            self._state = _RESOLVED
            on_result = self._on_result
            self._drop_references()
            if on_result is None:
                self._outcome = result
            else:
                on_result(result)

    def fail(self, error: Exception) -> None:
        """There will be no result, for this reason."""
        if self._state == _OPEN:
            self._state = _FAILED
            on_error = self._on_error
            self._drop_references()
            if on_error is None:
                self._outcome = error
            else:
                on_error(error)

    def follow(self, outcome: T | Completion[T]) -> None:
        """Resolve with a result, or as another completion does, which is then cancelled with this one."""
        if not isinstance(outcome, Completion):
            self.resolve(outcome)
        elif self._state == _OPEN:
            self.on_cancel = outcome.cancel
            outcome.then(self.resolve, self.fail)
        else:
            outcome.cancel()

    def cancel(self) -> None:
        """The result is not wanted any more."""
        if self._state == _OPEN:
            self._state = _CANCELLED
            on_cancel = self.on_cancel
            self._drop_references()
            if on_cancel is not None:
                on_cancel()

    def then(self, on_result: Callable[[T], object], on_error: Callable[[Exception], object]) -> None:
        """Have one of the two called with the outcome: now, if it is known, or as soon as it is."""
        if self._state == _OPEN:
            self._on_result, self._on_error = on_result, on_error
        elif self._state == _RESOLVED:
            result, self._outcome = self._outcome, None
            on_result(result)
        elif self._state == _FAILED:
            error, self._outcome = self._outcome, None
            on_error(error)

    def map(
        self,
        change: Callable[[T], U | Completion[U]],
        recover: Callable[[Exception], U | Completion[U]] | None = None,
    ) -> Completion[U]:
        """A completion of what `change` makes of the result, which may be a completion itself.

        An error goes to `recover`, which returns a result in its place or raises. What either of them raises
        is an error of the new completion.
        """
        changed: Completion[U] = Completion(self.cancel)
        self.then(
            lambda result: changed._take(change, result),
            changed.fail if recover is None else lambda error: changed._take(recover, error),
        )
        return changed

    def as_future(self) -> asyncio.Future[T]:
        """For coroutines. Cancelling the future cancels the completion."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def cancel_too(_: asyncio.Future[T]) -> None:
            if future.cancelled():
                self.cancel()

        self.then(future.set_result, future.set_exception)
        future.add_done_callback(cancel_too)
        return future

    def _take(self, function: Callable[[Any], T | Completion[T]], argument: Any) -> None:
        try:
            outcome = function(argument)
        except Exception as error:  # noqa: BLE001 - it reaches the consumer
            self.fail(error)
        else:
            self.follow(outcome)

    def _drop_references(self) -> None:
        """Callbacks refer to completions and these to callbacks: break the cycles now."""
        self.on_cancel = self._on_result = self._on_error = None


_running: dict[asyncio.AbstractEventLoop, set[asyncio.Task[Any]]] = {}
"""An event loop itself holds no strong reference to a task. Loops are here while they have such tasks."""


def _running_in(loop: asyncio.AbstractEventLoop) -> set[asyncio.Task[Any]]:
    """The tasks of this loop. Loops that were closed in the middle of their work are forgotten."""
    tasks = _running.get(loop)
    if tasks is None:
        for closed in [each for each in list(_running) if each.is_closed()]:
            _running.pop(closed, None)
        tasks = _running[loop] = set()
    return tasks


def run_coroutine(coroutine: Coroutine[Any, Any, T | Completion[T]]) -> Completion[T]:
    """The result of a coroutine, or of the completion that it returns.

    It runs to its end even if the completion is cancelled: what it has begun is finished. A coroutine that is
    cancelled itself, or by what it waited for, is an error: its consumer would wait for ever.
    """
    completion: Completion[T] = Completion()
    loop = asyncio.get_running_loop()
    task, running = loop.create_task(coroutine), _running_in(loop)
    running.add(task)

    def done(task: asyncio.Task[T | Completion[T]]) -> None:
        running.discard(task)
        if not running:
            _running.pop(loop, None)
        if task.cancelled():
            completion.fail(RuntimeError("the work was cancelled"))
            return
        error = task.exception()
        if error is None:
            completion.follow(task.result())
        else:
            completion.fail(cast(Exception, error))

    task.add_done_callback(done)
    return completion
