"""An asyncio event loop with virtual time: a run takes as long as its work, and a seed repeats it exactly.

Time moves only when nothing is left to do: then it jumps to the next timer. Sockets are those of the
simulated network (`network`), which the loop asks for their readiness instead of the kernel. Work for threads
runs on the loop's own thread, a little later in virtual time, one job of an executor after another.

Every task and callback belongs to the `Host` in whose context it was made. When a host crashes, nothing of it
runs again: no `finally`, no last write, as after kill -9. Its tasks are kept until the run is over, so that
the garbage collector does not close their coroutines in the middle of it.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import logging
import selectors
import sys
from collections import deque
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, TypeVarTuple, Unpack, cast

from ottla.clock import Clock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START_MS = 1_700_000_000_000
"""Wall-clock time at which every simulation begins."""

_LONGEST_THREAD_START = 0.001
_MANY_TASKS = _MANY_TIMERS = 1000
_BETWEEN_JOBS = 1e-6  # timers of the same moment run in no particular order
_host: contextvars.ContextVar[Host | None] = contextvars.ContextVar("simulated host", default=None)


class NothingToDo(RuntimeError):
    """No timer is pending and no socket can become ready: the simulated system hangs for ever."""


class Host:
    """One simulated machine or process. `skew_ms` shifts its wall clock."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.skew_ms = 0

    def __repr__(self) -> str:
        return f"<host {self.name}{'' if self.alive else ', crashed'}>"

    def run(self, function: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """Call `function` so that what it starts belongs to this host."""
        context = contextvars.copy_context()
        context.run(_host.set, self)
        return context.run(function, *args)

    def crash(self) -> None:
        """Stop everything that belongs to this host, at once and for good."""
        self.alive = False


class Sockets(Protocol):
    """What the loop asks the simulated network."""

    def events(self, fd: int) -> int:
        """The `selectors.EVENT_*` bits for which the socket is ready now."""
        ...


class _Selector(selectors.BaseSelector):
    """The place where asyncio asks for ready sockets and waits: here, where virtual time passes."""

    def __init__(self, rng: Random) -> None:
        self.sockets: Sockets | None = None
        self.now = 0.0
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


class SimulatedLoop(asyncio.SelectorEventLoop):
    if TYPE_CHECKING:  # of asyncio's base class; its stubs leave them out
        _ready: deque[asyncio.Handle]
        _stopping: bool

        def _process_events(self, events: list[tuple[selectors.SelectorKey, int]]) -> None: ...

    def __init__(self, rng: Random) -> None:
        self._virtual = _Selector(rng)
        self._rng = rng
        self._executors: dict[int, float] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._many_timers = _MANY_TIMERS
        self._discarded = False
        self.defects: list[str] = []
        """Unhandled errors: exceptions in callbacks and in tasks whose results were never retrieved."""
        super().__init__(self._virtual)
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

    def time(self) -> float:
        return self._virtual.now

    # -- one iteration --------------------------------------------------------------------------------

    # The scheduler of asyncio, written again without what virtual time does not need (slow callbacks, debug
    # mode, clocks with a resolution): a third of a simulated run is spent here. A handle carries the context
    # in which it was made, and with it its host.

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self._discarded:
            self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, timer))
        if len(self._timers) > self._many_timers:
            self._timers[:] = [each for each in self._timers if not each[2].cancelled()]
            heapq.heapify(self._timers)
            self._many_timers = max(_MANY_TIMERS, 2 * len(self._timers))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """asyncio counts these to clean up its own heap."""

    def _run_once(self) -> None:
        """Move time if nothing else is left to do, and run what is ready now."""
        virtual, ready, timers = self._virtual, self._ready, self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if virtual.touched:
            events = virtual.select(0)
            if events:
                self._process_events(events)
        if not ready and not self._stopping:
            if not timers:
                raise NothingToDo("no timer is pending and no socket is ready")
            virtual.now = max(virtual.now, timers[0][0])
        now = virtual.now
        while timers and timers[0][0] <= now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            host = handle._context.get(_host)  # type: ignore[attr-defined]
            if host is None or host.alive:
                handle._run()

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

        due = self.time() + self._rng.random() * _LONGEST_THREAD_START
        due = max(due, self._executors.get(id(executor), 0.0) + _BETWEEN_JOBS)
        self._executors[id(executor)] = due
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


class SimulatedClock(Clock):
    """The time of one host: the loop's, and a wall clock that may be wrong."""

    def __init__(self, loop: SimulatedLoop, host: Host | None = None) -> None:
        self._loop = loop
        self._host = host

    def now_ms(self) -> int:
        skew = self._host.skew_ms if self._host is not None else 0
        return START_MS + skew + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()
