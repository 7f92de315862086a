"""An asyncio event loop with virtual time: a run takes as long as its work, and a seed repeats it exactly.

Time moves only when nothing is left to do: then it jumps to the next timer. Sockets are those of the
simulated network (`network`), which the loop asks for their readiness instead of the kernel. Work for threads
runs on the loop's own thread, a little later in virtual time, one job of an executor after another.

When a host crashes, nothing of it runs again: no `finally`, no last write, as after kill -9. Its tasks are
kept until the run is over, so that the garbage collector does not close their coroutines in the middle of it.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import selectors
import sys
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, TypeVarTuple, cast

from ottla.testing.simulation.virtual_time import VirtualTime

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_MANY_TASKS = 1000
_BETWEEN_JOBS = 1e-6  # timers of the same moment run in no particular order


class NothingToDo(RuntimeError):
    """No timer is pending and no socket can become ready: the simulated system hangs for ever."""


class Sockets(Protocol):
    """What the loop asks the simulated network."""

    def events(self, fd: int) -> int:
        """The `selectors.EVENT_*` bits for which the socket is ready now."""
        ...


class _Selector(selectors.BaseSelector):
    """The place where asyncio asks for ready sockets and waits: here, where virtual time passes."""

    def __init__(self, rng: Random) -> None:
        self.sockets: Sockets | None = None
        self._rng = rng
        self._keys: dict[int, selectors.SelectorKey] = {}
        self.touched: dict[int, None] = {}
        """The sockets that may be ready: something happened to them, or they were ready when last asked."""

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if fd in self._keys:
            raise KeyError(f"{fd} is registered already")
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        self.touched[fd] = None
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def drop(self, fd: int) -> None:
        self._keys.pop(fd, None)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self.unregister(fileobj)
        return self.register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """The sockets that are ready now. Time passes in the loop, not here."""
        sockets = self.sockets
        if sockets is None or not self.touched:
            return []
        ready = []
        for fd in list(self.touched):
            key = self._keys.get(fd)
            events = 0 if key is None else sockets.events(fd) & key.events
            if key is not None and events:
                ready.append((key, events))
            else:
                del self.touched[fd]
        if len(ready) > 1:
            self._rng.shuffle(ready)
        return ready

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return cast("Mapping[Any, selectors.SelectorKey]", self._keys)


class SimulatedLoop(VirtualTime, asyncio.SelectorEventLoop):  # type: ignore[misc]
    if TYPE_CHECKING:  # of asyncio's base class; its stubs leave them out
        _stopping: bool

        def _process_events(self, events: list[tuple[selectors.SelectorKey, int]]) -> None: ...

    def __init__(self, rng: Random) -> None:
        self._virtual = _Selector(rng)
        self._rng = rng
        self._executors: dict[Any, float] = {}  # kept alive: ids of dead ones come again
        self.longest_thread_start = 0.001
        """Seconds until work for a thread is done, at most: longer where a disk is slow."""
        self.after_step: Callable[[], None] | None = None
        """Called after each iteration. What it raises ends the run."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._discarded = False
        self.defects: list[str] = []
        """Unhandled errors: exceptions in callbacks and in tasks whose results were never retrieved."""
        asyncio.SelectorEventLoop.__init__(self, self._virtual)
        VirtualTime.__init__(self)
        self.set_exception_handler(self._note_defect)

    def use(self, sockets: Sockets) -> None:
        """Ask this network for the readiness of sockets."""
        self._virtual.sockets = sockets

    def touch(self, fd: int) -> None:
        """Something happened to a socket: it may be ready now."""
        self._virtual.touched[fd] = None

    def forget(self, fd: int) -> None:
        """A socket is gone without having been closed."""
        self._virtual.drop(fd)

    # -- one iteration --------------------------------------------------------------------------------

    call_exception_handler = asyncio.SelectorEventLoop.call_exception_handler
    get_debug = asyncio.SelectorEventLoop.get_debug

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self._discarded:
            return asyncio.Handle(callback, args, self, context)
        return super().call_soon(callback, *args, context=context)

    def _run_once(self) -> None:
        """Move time if nothing else is left to do, and run what is ready now."""
        virtual = self._virtual
        if virtual.touched:
            events = virtual.select(0)
            if events:
                self._process_events(events)
        if not self._ready and not self._stopping:
            due = self.next_timer()
            if due is None:
                raise NothingToDo("no timer is pending and no socket is ready")
            self.now = max(self.now, due)
        self.run_ready()
        if self.after_step is not None:
            self.after_step()

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        self._tasks.append(task)
        if len(self._tasks) > _MANY_TASKS:
            self._tasks = [each for each in self._tasks if not each.done()]
        return task

    # -- threads --------------------------------------------------------------------------------------

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run `func` a little later, in the order of asking for each executor."""
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as error:  # noqa: BLE001 - as a thread pool, which hands everything over
                future.set_exception(error)
            else:
                future.set_result(result)

        due = self.time() + self._rng.random() * self.longest_thread_start
        due = max(due, self._executors.get(executor, 0.0) + _BETWEEN_JOBS)
        self._executors[executor] = due
        self.call_at(due, work)
        return future

    # -- the end --------------------------------------------------------------------------------------

    def _note_defect(self, loop: asyncio.AbstractEventLoop, details: dict[str, Any]) -> None:
        error = details.get("exception")
        self.defects.append(f"{details.get('message')}: {error!r}" if error else str(details.get("message")))

    def discard(self) -> None:
        """End the run: what still waits is dropped, not finished."""
        self.set_exception_handler(lambda *_: None)
        self._discarded = True
        log_level, unraisable = logging.root.manager.disable, sys.unraisablehook
        logging.disable(logging.CRITICAL)
        sys.unraisablehook = lambda _: None
        try:
            unfinished = [task for task in self._tasks if _dropped(task)]
            if unfinished:
                unfinished.clear()
                self._tasks.clear()
                gc.collect()  # what is left of them goes now, while it can say nothing
            self._tasks.clear()
        finally:
            sys.unraisablehook = unraisable
            logging.disable(log_level)
            self.close()


def _dropped(task: asyncio.Task[Any]) -> bool:
    """Close the coroutine of a task that is not done; true when its `finally` wanted to go on."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    if task.done():
        return False
    try:
        task.get_coro().close()
    except BaseException:  # noqa: BLE001 - whatever the end of a dropped coroutine raises
        return True
    return False
