"""Callbacks and timers on a clock that moves only when it is told to, or when nothing is left to do.

`VirtualTime` is a `Scheduler` for tests of anything that takes one. A test moves it by hand:

    time = VirtualTime()
    purgatory = Purgatory(time)
    ...
    time.run_ready()      # one iteration of an event loop
    time.advance(5.0)     # five seconds pass, and all that is due happens

`SimulatedLoop` adds sockets, tasks and threads, and moves time by itself.

Every callback belongs to the `Host` in whose context it was scheduled. When a host crashes, nothing of it
runs again. What comes up for a paused host waits until it is resumed, as on a machine that swaps or a virtual
machine that is moved.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack, cast

from ottla.clock import Clock

if TYPE_CHECKING:

    class _Handle(asyncio.Handle):
        """asyncio's stubs leave the context out."""

        _context: contextvars.Context
        _callback: Callable[..., object]
        _args: tuple[Any, ...]


T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START_MS = 1_700_000_000_000
"""Wall-clock time at which every simulation begins."""

_MANY_TIMERS = 1000
_ROUNDING = 1e-6  # milliseconds: 2.9999999999 s are 3000 ms
_host: contextvars.ContextVar[Host | None] = contextvars.ContextVar("simulated host", default=None)


class Host:
    """One simulated machine or process. `skew_ms` shifts its wall clock."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.runs = True
        """Neither crashed nor paused."""
        self.held: list[asyncio.Handle] = []
        """What came up while it was paused, in order."""
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
        self.alive = self.runs = False
        self.held.clear()

    def pause(self) -> None:
        """Let nothing of this host run, while time goes on, until `VirtualTime.resume`."""
        self.runs = False


class VirtualTime:
    """asyncio's scheduling without what virtual time does not need: it is a third of a simulated run."""

    def __init__(self) -> None:
        self.now = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._many_timers = _MANY_TIMERS
        self.ran: set[Host | None] = set()
        """The hosts of which something ran in the last iteration; None for what belongs to no host."""

    def time(self) -> float:
        return self.now

    @property
    def is_idle(self) -> bool:
        """Nothing is ready; timers may be pending."""
        return not self._ready

    @property
    def ready(self) -> int:
        """How many callbacks run in the next iteration, not counting timers."""
        return len(self._ready)

    def call_soon(
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, cast(asyncio.AbstractEventLoop, self), context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, cast(asyncio.AbstractEventLoop, self), context)
        self._timer_count += 1  # timers of the same moment run in the order in which they were set
        heapq.heappush(self._timers, (when, self._timer_count, timer))
        if len(self._timers) > self._many_timers:
            self._timers[:] = [each for each in self._timers if not each[2].cancelled()]
            heapq.heapify(self._timers)
            self._many_timers = max(_MANY_TIMERS, 2 * len(self._timers))
        return timer

    def spend(self, seconds: float) -> None:
        """Time passes while a callback works."""
        self.now += seconds

    def run_ready(self) -> None:
        """One iteration: what was ready before it, and the timers that are due."""
        ready, timers, now, ran = self._ready, self._timers, self.now, self.ran
        ran.clear()
        while timers and timers[0][0] <= now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = cast("_Handle", ready.popleft())
            if handle._cancelled:
                continue
            context = handle._context
            host = context.get(_host)
            if host is not None and not host.runs:
                if host.alive:
                    host.held.append(handle)
            else:
                ran.add(host)
                # As `Handle._run`, without its call: a run makes 15,000 of them.
                try:
                    context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - as asyncio, which reports everything
                    self.call_exception_handler(
                        {
                            "message": f"Exception in callback {handle._callback!r}",
                            "exception": error,
                            "handle": handle,
                        }
                    )

    def resume(self, host: Host) -> None:
        """Let a paused host go on with all that came up meanwhile."""
        if host.alive and not host.runs:
            host.runs = True
            self._ready.extend(host.held)
            host.held.clear()

    def advance(self, seconds: float) -> None:
        """Let time pass, and all that is due until then happen."""
        end = self.now + seconds
        while True:
            while self._ready:
                self.run_ready()
            due = self.next_timer()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.run_ready()
        self.now = max(self.now, end)

    def next_timer(self) -> float | None:
        """When the next timer is due; None when there is none."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    # What asyncio's handles ask of their loop.

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A callback raised: in a test by hand that reaches the test."""
        raise context["exception"]

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """asyncio counts these to clean up its own heap."""


class SimulatedClock(Clock):
    """The time of one host: virtual time, and a wall clock that may be wrong."""

    def __init__(self, time: VirtualTime, host: Host | None = None) -> None:
        self._time = time
        self._host = host

    def now_ms(self) -> int:
        skew = self._host.skew_ms if self._host is not None else 0
        return START_MS + skew + int(self._time.now * 1000 + _ROUNDING)

    def monotonic(self) -> float:
        return self._time.now
