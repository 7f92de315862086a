"""Who does the work of a pool: threads, or tasks of an event loop.

Both ask the pool for the next record that may be worked on, and tell it the outcome. Threads wait for records
by themselves; the tasks of a loop are started when there are some, never more at once than `count`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from ottla.client.pool_core import Work
from ottla.client.records import ConsumerRecord


class Source(Protocol):
    """What workers need of the pool. All of it may be called from any thread."""

    def wait_for_work(self) -> Work | None:
        """The next record, when there is one; None when the pool has ended."""

    def take_work(self) -> tuple[Work | None, float | None]:
        """The next record if there is one now, or in how many seconds to ask again."""

    def succeeded(self, work: Work) -> None: ...

    def failed(self, work: Work, error: BaseException) -> None:
        """The handler raised; may block while a record is written elsewhere."""


class Workers(Protocol):
    def start(self) -> None: ...

    def wake(self, records: int) -> None:
        """So many records became ready, or the time of the next delayed one changed."""

    def end(self) -> None:
        """The pool has ended. What still runs is abandoned."""


Handle = Callable[[ConsumerRecord], Any]


class ThreadWorkers:
    """Threads; each has its own `Handle`, made when it starts and closed at its end if it can be."""

    def __init__(self, source: Source, count: int, make_handle: Callable[[], Handle]) -> None:
        self._source = source
        self._make_handle = make_handle
        self._handles: list[Handle] = []
        self._threads = [
            threading.Thread(target=self._run, name=f"ottla-pool-{number}", daemon=True)
            for number in range(count)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wake(self, records: int) -> None:
        """The pool's condition wakes threads."""

    def end(self) -> None:
        for handle in self._handles:
            close = getattr(handle, "close", None)
            if close is not None:
                close()

    def _run(self) -> None:
        handle = self._make_handle()
        self._handles.append(handle)
        while (work := self._source.wait_for_work()) is not None:
            if work.item.error is not None:
                self._source.failed(work, work.item.error)
                continue
            try:
                handle(work.item.record)
            except BaseException as error:  # noqa: BLE001 - also SystemExit: a handler must not end its worker
                self._source.failed(work, error)
            else:
                self._source.succeeded(work)


class TaskWorkers:
    """Tasks of an event loop: the one given, or one in a thread of its own."""

    def __init__(
        self,
        source: Source,
        count: int,
        handler: Callable[[ConsumerRecord], Awaitable[Any]],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._source = source
        self._count = count
        self._handler = handler
        self._own_thread: threading.Thread | None = None
        if loop is None:
            loop = asyncio.new_event_loop()
            self._own_thread = threading.Thread(target=loop.run_forever, name="ottla-pool-loop", daemon=True)
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    def start(self) -> None:
        if self._own_thread is not None:
            self._own_thread.start()

    def wake(self, records: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the application ended in the middle
            self._loop.call_soon_threadsafe(self._dispatch)

    def end(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._cancel)
        if self._own_thread is not None:
            self._own_thread.join(timeout=10.0)

    def _dispatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while len(self._tasks) < self._count and not self._ended:
            work, pause = self._source.take_work()
            if work is None:
                if pause is not None:
                    self._timer = self._loop.call_later(pause, self._dispatch)
                return
            task = self._loop.create_task(self._handle(work))
            self._tasks.add(task)
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._dispatch()

    async def _handle(self, work: Work) -> None:
        if work.item.error is not None:
            await asyncio.to_thread(self._source.failed, work, work.item.error)
            return
        try:
            await self._handler(work.item.record)
        except asyncio.CancelledError:
            if self._ended:
                return
            await asyncio.to_thread(self._source.failed, work, RuntimeError("the handler was cancelled"))
        except Exception as error:  # noqa: BLE001 - the pool decides what follows
            await asyncio.to_thread(self._source.failed, work, error)
        else:
            self._source.succeeded(work)

    def _cancel(self) -> None:
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        if self._own_thread is not None:
            self._loop.call_soon(self._loop.stop)
