"""The request scheduler: delays other requests a little, so that Produce and Fetch need not wait for them.

One thread serves all clients in the order in which requests arrive. When a thousand consumers join their
groups at the same moment, or as many clients reconnect after a restart, a producer behind them would wait
until all of them have been served. So requests other than Produce and Fetch are answered at once only while
there are few of them. Under load they are queued here, in order, and served in slices, one per iteration of
the event loop. A slice takes as long as the rest of the iteration took, so that these requests get half of
the time however busy the broker is.

One request can be as much work as a thousand: it names 100,000 partitions, or its answer holds every topic.
Such work is a generator that yields wherever it may be interrupted, every millisecond or two. It begins at
once; what is not finished within its slice becomes a job. Jobs get half of the scheduler's time, one step
each in rotation, a few at a time, so that their memory is bounded too. A job whose client has disconnected
is dropped, unless it has to be finished (a Produce).

Timers of group members (sessions) run here too (`call_later`). When one expires, the requests that have
arrived by then are read and served before it, so that a heartbeat that is queued, or that arrived while the
loop was blocked, is in time.
"""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from types import GeneratorType
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from ottla.broker.connection import Answer, Refused
from ottla.broker.watchdog import STALL_SECONDS, Request, Watchdog
from ottla.completion import Completion
from ottla.scheduler import Scheduler, Timer

logger = logging.getLogger("ottla.request_scheduler")

AT_ONCE = 0.002
"""Seconds of work that are done at once in each window; also the shortest slice of an iteration."""
WINDOW = 0.01
LONGEST_SLICE = 0.05
"""The longest slice in seconds, however long the rest of the iteration took."""
LARGEST = 64 * 1024
"""A frame up to this is copied to wait, unless its request has kept it."""
SMALL = 4 * 1024
"""A frame below this holds a request that takes little memory, whatever its answer is."""
OPEN_JOBS = 2
"""Jobs that are worked on round-robin. The others wait, so that few hold much memory at a time."""
_SECONDS_TO_FINISH = 1.0
"""A broker that stops gives its jobs this long."""

T = TypeVar("T")
Steps: TypeAlias = Generator[Any, None, T]
"""Work in small steps. It yields where it may be interrupted, and returns its result."""

Work = Callable[[memoryview], "Answer | Steps[Answer]"]
"""From a frame to its answer, or to the steps that lead there."""


class Owner(Request, Protocol):
    """A request that may own the memory of its frame."""

    def release_frame(self) -> None:
        """Give the memory back, if it has not been given back before."""


class RequestScheduler:
    """Also a `Scheduler` itself, whose timers do not overtake queued requests."""

    def __init__(self, loop: Scheduler, now: Callable[[], float], watchdog: Watchdog | None = None) -> None:
        self._loop = loop
        self._now = now
        self._watchdog = watchdog or Watchdog(loop, now)
        self._waiting: deque[_QueuedRequest | _Timer] = deque()
        self._jobs: deque[_Job[Any]] = deque()
        self._later_jobs: deque[_Job[Any]] = deque()
        self._window = 0.0
        self._used = 0.0
        self._scheduled_at = 0.0
        self._is_scheduled = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._jobs) + len(self._later_jobs)

    def take(
        self,
        work: Work,
        frame: memoryview,
        request: Owner | None = None,
        *,
        kept: bool = False,
        to_the_end: bool = False,
    ) -> Answer:
        """The answer of `work`, now or, under load, later. `request` is for the watchdog to name.

        `kept`: the request owns its frame, so it need not be copied to wait. It is released when the work
        ends or is dropped, unless the answer comes still later: then what answers releases it.
        """
        now = self._now()
        if now - self._window > WINDOW:
            self._window, self._used = now, 0.0
        if len(frame) > SMALL and len(self._jobs) >= OPEN_JOBS:
            return self._not_yet(work, frame if kept else _copy(frame), request, to_the_end)
        if len(frame) > LARGEST or (not self._waiting and self._used < AT_ONCE):
            try:
                answer = work(frame)
                if isinstance(answer, GeneratorType):
                    return self._begin(answer, now + AT_ONCE, request, to_the_end)
                return answer  # type: ignore[return-value]
            finally:
                seconds = self._now() - now
                self._used += seconds
                if seconds > STALL_SECONDS:
                    self._watchdog.request_took(seconds, request)
        queued = _QueuedRequest(self, work, frame if kept else _copy(frame), request, to_the_end)
        self._put(queued)
        return queued.answer

    def _not_yet(self, work: Work, frame: memoryview, request: Owner | None, to_the_end: bool) -> Answer:
        """There are jobs enough. One more that may be large does not even begin: then it takes no memory."""
        answer = work(frame)
        if not isinstance(answer, GeneratorType):
            return answer  # type: ignore[return-value]
        job = _Job(self, answer, request, to_the_end)
        self._open(job)
        return job.answer

    def run(
        self, steps: Steps[T | Completion[T]], request: Owner | None = None, *, to_the_end: bool = False
    ) -> T | Completion[T]:
        """The result of work that may be long: now or later. Defects are raised."""
        return self._begin(steps, self._now() + AT_ONCE, request, to_the_end)

    async def in_slices(self, steps: Steps[T], request: Owner | None = None) -> T:
        """For coroutines: the result of work that may be long."""
        result = self.run(steps, request)
        return await result.as_future() if isinstance(result, Completion) else result

    def _begin(
        self, steps: Steps[T | Completion[T]], end: float, request: Owner | None, to_the_end: bool
    ) -> T | Completion[T]:
        try:
            while True:
                next(steps)
                if self._now() >= end:
                    break
        except StopIteration as finished:
            result: T | Completion[T] = finished.value
            return result
        job = _Job(self, steps, request, to_the_end)
        self._open(job)
        return job.answer

    def _open(self, job: _Job[Any]) -> None:
        (self._jobs if len(self._jobs) < OPEN_JOBS else self._later_jobs).append(job)
        self._schedule()

    def _drop(self, job: _Job[Any]) -> None:
        if job in self._jobs:
            self._jobs.remove(job)
            self._open_next()
        elif job in self._later_jobs:
            self._later_jobs.remove(job)

    def _open_next(self) -> None:
        if self._later_jobs:
            self._jobs.append(self._later_jobs.popleft())

    # -- timers -------------------------------------------------------------------------------------------

    def call_soon(self, callback: Callable[..., object], *args: object) -> object:
        return self._loop.call_soon(callback, *args)

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> _Timer:
        """As the loop's, but what has come in by that time is served first."""
        timer = _Timer(partial(callback, *args))
        timer.handle = self._loop.call_later(delay, self._read_first, timer)
        return timer

    def _read_first(self, timer: _Timer) -> None:
        """Give the loop one iteration to poll its sockets, and another to read from them."""
        self._loop.call_soon(self._loop.call_soon, self._in_time, timer)

    def _in_time(self, timer: _Timer) -> None:
        if self._waiting:
            self._put(timer)
        else:
            timer.run()

    # -- serving ------------------------------------------------------------------------------------------

    def _put(self, one: _QueuedRequest | _Timer) -> None:
        self._waiting.append(one)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._scheduled_at = self._now()
            self._loop.call_soon(self._serve)

    def finish(self) -> None:
        """Serve all queued requests: the broker is stopping. Jobs that take too long are abandoned."""
        while self._waiting:
            self._serve_next()
        end = self._now() + _SECONDS_TO_FINISH
        while self._jobs and self._now() < end:
            self._work_on_next()
        for job in [*self._jobs, *self._later_jobs]:
            _release(job.request)
            job.answer.fail(Refused("the broker stops, and the request takes too long"))
        self.clear()

    def clear(self) -> None:
        """Forget all queued requests: the broker is gone."""
        self._waiting.clear()
        self._jobs.clear()
        self._later_jobs.clear()

    def _serve(self) -> None:
        began = now = self._now()
        end = began + min(max(began - self._scheduled_at, AT_ONCE), LONGEST_SLICE)
        half = began + (end - began) / 2 if self._jobs else end
        while self._waiting and now < half:
            now = self._watched(self._serve_next(), now)
        while self._jobs and now < end:
            now = self._watched(self._work_on_next(), now)
        while self._waiting and now < end:
            now = self._watched(self._serve_next(), now)
        # Only now: a response may bring the next request, which belongs to the slice after this one.
        self._is_scheduled = False
        if self._waiting or self._jobs:
            self._schedule()

    def _watched(self, request: Request | None, before: float) -> float:
        """The time, after something was done for `request`."""
        now = self._now()
        if now - before > STALL_SECONDS:
            self._watchdog.request_took(now - before, request)
        return now

    def _serve_next(self) -> Request | None:
        """A defect in one request or timer may not keep the others from being served."""
        one = self._waiting.popleft()
        try:
            one.run()
        except Exception:
            logger.exception("a queued request or timer failed")
        return one.request

    def _work_on_next(self) -> Request | None:
        """One step of the next job. A defect in its answer may not keep the others from being served."""
        job = self._jobs.popleft()
        if job.step():
            self._open_next()
            try:
                job.finish()
            except Exception:
                logger.exception("the answer of a long request could not be sent")
        else:
            self._jobs.append(job)
        return job.request


class _Job(Generic[T]):
    """Work that has begun and goes on in slices. `answer` gets the result or the exception."""

    __slots__ = ("_error", "_result", "_scheduler", "_steps", "_to_the_end", "answer", "request")

    def __init__(
        self,
        scheduler: RequestScheduler,
        steps: Steps[T | Completion[T]],
        request: Owner | None,
        to_the_end: bool,
    ) -> None:
        self._scheduler = scheduler
        self._steps = steps
        self._to_the_end = to_the_end
        self.request = request
        self._result: Any = None
        self._error: Exception | None = None
        self.answer: Completion[T] = Completion(self._cancel)

    def _cancel(self) -> None:
        if not self._to_the_end:
            self._scheduler._drop(self)
            if inspect.getgeneratorstate(self._steps) != inspect.GEN_RUNNING:
                self._steps.close()
            _release(self.request)

    def step(self) -> bool:
        """True when it has ended."""
        try:
            next(self._steps)
            return self.answer.cancelled and not self._to_the_end
        except StopIteration as finished:
            self._result = finished.value
        except Exception as error:  # noqa: BLE001 - it reaches the consumer of the answer
            self._error = error
        return True

    def finish(self) -> None:
        if not isinstance(self._result, Completion):
            _release(self.request)
        if self._error is not None:
            self.answer.fail(self._error)
        else:
            self.answer.follow(self._result)


def _release(request: Owner | None) -> None:
    if request is not None:
        request.release_frame()


def _copy(frame: memoryview) -> memoryview:
    return memoryview(bytearray(frame))


class _QueuedRequest:
    """A queued request. It is handled even if its client has gone: a member that leaves awaits no answer."""

    __slots__ = ("_frame", "_scheduler", "_to_the_end", "_work", "answer", "request")

    def __init__(
        self,
        scheduler: RequestScheduler,
        work: Work,
        frame: memoryview,
        request: Owner | None,
        to_the_end: bool,
    ) -> None:
        self._scheduler = scheduler
        self._to_the_end = to_the_end
        self.request = request
        self._work = work
        self._frame = frame
        self.answer: Completion[Any] = Completion()

    def run(self) -> None:
        answer: Any
        try:
            answer = self._work(self._frame)
            if isinstance(answer, GeneratorType):
                answer = self._scheduler.run(answer, self.request, to_the_end=self._to_the_end)
        except Exception as error:  # noqa: BLE001 - it reaches the consumer of the answer
            _release(self.request)
            self.answer.fail(error)
        else:
            if not isinstance(answer, Completion):
                _release(self.request)
            self.answer.follow(answer)


class _Timer:
    """A timer that has expired or will, unless it is cancelled before it runs."""

    __slots__ = ("_callback", "handle")
    request = None

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback: Callable[[], object] | None = callback
        self.handle: Timer | None = None

    def cancel(self) -> None:
        self._callback = None
        if self.handle is not None:
            self.handle.cancel()

    def run(self) -> None:
        if self._callback is not None:
            self._callback()
