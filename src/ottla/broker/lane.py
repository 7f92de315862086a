"""The slow lane: requests that may wait a little, so that those who write and read records need not.

One thread serves everybody in the order they come. When a thousand consumers join their groups in the same
moment, or as many clients come back after a restart, a producer behind them would wait until all of them have
been served. So whatever is neither Produce nor Fetch is answered at once only while there is little of it; in
a crowd it waits here, in its order, and is served between the turns of the event loop: for as long as the
rest of the loop took, so that half of the time is the lane's however busy the broker is, and nobody starves.

Timers of those who are served here (a member's session) are the lane's too (`call_later`). When one is up,
what has come in by then is read and served before it, so that a heartbeat that waits in the lane, or that
came while the broker stood still, is in time.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from ottla.broker.connection import Parts, Refused
from ottla.broker.pending import Pending
from ottla.replication.waiting_room import Timer, Turns

logger = logging.getLogger("ottla.lane")

AT_ONCE = 0.002
"""Seconds of work that are done at once in each window; also the least that is done between two turns."""
WINDOW = 0.01
LARGEST = 64 * 1024
"""A frame above this is worked on at once: to wait, it would have to be copied."""

Answer: TypeAlias = "Parts | Pending | None"
Work = Callable[[memoryview], Answer]
"""From a frame to its answer."""


class Lane:
    """`turns` is the event loop. The lane is one itself, for those whose timers are not to overtake it."""

    def __init__(self, turns: Turns, now: Callable[[], float]) -> None:
        self._turns = turns
        self._now = now
        self._waiting: deque[_Late | _Timer] = deque()
        self._window = 0.0
        self._used = 0.0
        self._turn_began = 0.0
        self._comes_again = False

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, work: Work, frame: memoryview) -> Answer:
        """The answer of `work`, now or, in a crowd, later. The frame need not outlive the call."""
        now = self._now()
        if now - self._window > WINDOW:
            self._window, self._used = now, 0.0
        if (not self._waiting and self._used < AT_ONCE) or len(frame) > LARGEST:
            try:
                return work(frame)
            finally:
                self._used += self._now() - now
        late = _Late(work, memoryview(bytearray(frame)))
        self._put(late)
        return late.pending

    def call_soon(self, callback: Callable[..., object], *args: object) -> object:
        return self._turns.call_soon(callback, *args)

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> _Timer:
        """As the loop's, but what has come in by that time is served first."""
        timer = _Timer(partial(callback, *args))
        timer.handle = self._turns.call_later(delay, self._read_first, timer)
        return timer

    def _read_first(self, timer: _Timer) -> None:
        """Give the loop a turn to look at its sockets, and another to read what it found."""
        self._turns.call_soon(self._turns.call_soon, self._in_time, timer)

    def _in_time(self, timer: _Timer) -> None:
        if self._waiting:
            self._put(timer)
        else:
            timer.run()

    def _put(self, one: _Late | _Timer) -> None:
        self._waiting.append(one)
        self._come_again()

    def _come_again(self) -> None:
        if not self._comes_again:
            self._comes_again = True
            self._turn_began = self._now()
            self._turns.call_soon(self._serve)

    def finish(self) -> None:
        """Serve all who wait: the broker is stopping."""
        while self._waiting:
            self._serve_next()

    def clear(self) -> None:
        """Forget all who wait: the broker is gone."""
        self._waiting.clear()

    def _serve(self) -> None:
        began = now = self._now()
        end = began + max(began - self._turn_began, AT_ONCE)
        while self._waiting and now < end:
            self._serve_next()
            now = self._now()
        # Only now: what is served here may bring the next request, and its turn begins when this one ends.
        self._comes_again = False
        if self._waiting:
            self._come_again()

    def _serve_next(self) -> None:
        """A defect in one who waits may not keep the others from being served."""
        try:
            self._waiting.popleft().run()
        except Exception:
            logger.exception("one who waited could not be served")


class _Late:
    """One who waits. It is served even if its client has gone: a member that leaves does not stay to hear."""

    __slots__ = ("_frame", "_gone", "_inner", "_work", "pending")

    def __init__(self, work: Work, frame: memoryview) -> None:
        self._work = work
        self._frame = frame
        self._gone = False
        self._inner: Pending | None = None
        self.pending = Pending(self._cancel)
        self.pending.encode_by(lambda answer: answer)  # `work` gives whole frames

    def _cancel(self) -> None:
        self._gone = True
        if self._inner is not None:
            self._inner.cancel()

    def run(self) -> None:
        answer: Answer | Refused
        try:
            answer = self._work(self._frame)
        except Refused as refusal:
            answer = refusal
        except Exception:
            logger.exception("a request could not be taken")
            answer = Refused("an internal error")
        if not isinstance(answer, Pending):
            self.pending.resolve(answer)
        elif self._gone:
            answer.cancel()
        else:
            self._inner = answer
            answer.deliver_to(self.pending.resolve)


class _Timer:
    """Something that is due, unless it is cancelled before its turn."""

    __slots__ = ("_callback", "handle")

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
