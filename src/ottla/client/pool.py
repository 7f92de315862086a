"""`ottla.client.Pool`: many records at a time, those with the same key in order.

    pool = Pool(handle, consumer, workers=32, dead_letters=DeadLetters("orders.dead"))
    pool.run()

One thread reads and commits: the one that calls `run`. Workers (threads, processes or tasks of an event loop)
take records from `KeyOrderedWork` (pool_core.py), which keeps the order of keys and knows what may be
committed. What is read and not done is bounded; at the bound partitions are paused, while polling goes on, so
that slow handlers do not cost the membership. When partitions are revoked the pool waits for the handlers
that have records of them, drops what waits, and commits what is done; for partitions that are lost nothing is
committed. What a failed handler leads to is in pool_failures.py.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from ottla.client.configuration import LOG
from ottla.client.consumer import Consumer
from ottla.client.dead_letters import DUE, DeadLetters, headers_of
from ottla.client.errors import ClientError, ConfigurationError
from ottla.client.pool_core import KeyOrderedWork, Ordering, Work
from ottla.client.pool_failures import Entry, Failures, OnFailure
from ottla.client.pool_processes import ProcessHandle
from ottla.client.pool_workers import TaskWorkers, ThreadWorkers, Workers
from ottla.client.record_buffer import Position, place_of
from ottla.client.records import ConsumerRecord, Message, TopicPartition
from ottla.client.retries import Retry, RetryTopic

Mode = Literal["threads", "processes", "tasks"]
_WAIT = 0.05
_PATIENCE = 0.2
"""Seconds that a pool waits for space before it goes on, polls, and at its bound pauses partitions, which
throws away what is read ahead."""


class Pool:
    def __init__(
        self,
        handler: Callable[[ConsumerRecord], Any],
        consumer: Consumer,
        *,
        workers: int = 16,
        mode: Mode | None = None,
        ordering: Ordering = "key",
        max_in_flight: int | None = None,
        retry: Retry | None = None,
        retry_topics: Sequence[RetryTopic] = (),
        dead_letters: DeadLetters | str | None = None,
        on_failure: OnFailure = "stop",
        commit_interval: float = 1.0,
        finish_timeout: float = 30.0,
    ) -> None:
        """`mode` is "tasks" for a coroutine function, else "threads". A handler for "processes" must be
        importable.

        `max_in_flight` bounds the records that are read and not done. A record whose handler fails is tried
        again as `retry` says, then goes to the first of `retry_topics` and on to the next each time, and then
        to `dead_letters`; without those, `on_failure` is "stop" (raise, and leave the record uncommitted) or
        "skip".
        """
        if consumer.delivery == "exactly-once":
            raise ConfigurationError("a pool has no transaction: use at-least-once or at-most-once")
        if workers < 1:
            raise ConfigurationError(f"a pool needs workers, not {workers}")
        limit = max(1000, 20 * workers) if max_in_flight is None else max_in_flight
        if limit < workers:
            raise ConfigurationError(f"max_in_flight is {limit}, less than the {workers} workers can have")
        is_async = inspect.iscoroutinefunction(handler)
        self._mode: Mode = mode or ("tasks" if is_async else "threads")
        if is_async != (self._mode == "tasks"):
            raise ConfigurationError("the mode 'tasks' is for coroutine functions, and those need it")
        if isinstance(dead_letters, str):
            dead_letters = DeadLetters(dead_letters)
        self._handler = handler
        self._consumer = consumer
        self._count = workers
        self._core = KeyOrderedWork(limit, ordering)
        self._refill_at = max(limit * 3 // 4, min(limit - 1, 2 * workers))
        """Records are read when so many are left: in portions, since the thread that reads and the workers
        take the time from each other."""
        self._awaited: Callable[[], bool] | None = None
        """What the thread that reads waits for, while it does."""
        self._lock = threading.Lock()
        self._ready = threading.Condition(self._lock)
        self._progress = threading.Condition(self._lock)
        self._failures = Failures(consumer, retry or Retry(), retry_topics, dead_letters, on_failure)
        self._retry_topics = {each.topic for each in retry_topics}
        self._held_back: dict[TopicPartition, float] = {}
        """Partitions of retry topics whose next record is not due: when it will be."""
        self._commit_interval = commit_interval
        self._commit_at = 0.0
        self._committed: dict[TopicPartition, int] = {}
        self._finish_timeout = finish_timeout
        self._workers: Workers | None = None
        self._stopping = self._ended = False
        self._failure: BaseException | None = None
        self.done = 0
        """Records that are done so far, those in dead letters included."""

    @property
    def in_flight(self) -> int:
        """Records that were read and are not done."""
        return self._core.held

    # -- running ------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until `stop()`, Ctrl-C or a failure. What runs then is finished, and what is done is
        committed."""
        self._run(self._make_workers(None))

    async def run_async(self) -> None:
        """The same for an event loop: a coroutine handler runs in this loop. Cancelling it stops the pool."""
        workers = self._make_workers(asyncio.get_running_loop())
        running = asyncio.ensure_future(asyncio.to_thread(self._run, workers))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            self.stop()
            await running
            raise

    def stop(self) -> None:
        """End `run` soon. Any thread, handler or signal may ask for it."""
        self._stopping = True

    def _make_workers(self, loop: asyncio.AbstractEventLoop | None) -> Workers:
        if self._workers is not None:
            raise ConfigurationError("a pool runs once: make a new one")
        if self._mode == "tasks":
            self._workers = TaskWorkers(self, self._count, self._handler, loop)
        else:
            handle = self._handler
            make = partial(ProcessHandle, handle) if self._mode == "processes" else lambda: handle
            self._workers = ThreadWorkers(self, self._count, make)
        return self._workers

    def _run(self, workers: Workers) -> None:
        self._consumer._attach(self._revoked, self._retry_topics)
        workers.start()
        try:
            while not self._stopping:
                self._step(time.monotonic())
        finally:
            try:
                self._finish()
            finally:
                with self._lock:
                    self._ended = True
                    self._ready.notify_all()
                workers.end()
                self._failures.close()
                self._consumer._detach()
        if self._failure is not None:
            raise self._failure

    def _step(self, now: float) -> None:
        """Read what there is space for, hand it to the workers, commit what is done."""
        if now >= self._commit_at:
            self._commit(wait=False)
            self._commit_at = now + self._commit_interval
        with self._lock:
            self._awaited = self._can_refill
            self._progress.wait_for(self._can_refill, _PATIENCE)
            self._awaited = None
            free = self._core.free
        self._set_pauses(now)
        wait = _WAIT if free else 0.0
        # No more than half a partition's share at a time: librdkafka hands out one partition after the other,
        # and a pool that is filled from one alone has few keys to work on.
        share = self._core.share(len(self._consumer._assigned))
        messages = self._consumer._messages(max(1, min(free, share // 2)), wait)
        self._consumer._ends_of(messages)
        if self._consumer._error is not None:
            raise self._consumer._error
        if messages and not free:
            # What librdkafka had handed over before the pause took effect.
            self._push_back(messages)
        elif messages:
            self._take_in(messages)

    def _can_refill(self) -> bool:
        core = self._core
        return core.held <= self._refill_at or (core.free > 0 and not core.ready)

    def _set_pauses(self, now: float) -> None:
        assigned, paused = self._consumer.assignment(), self._consumer.paused()
        self._held_back = {
            name: due for name, due in self._held_back.items() if due > now and name in assigned
        }
        with self._lock:
            wanted = self._core.pauses(assigned)
        wanted |= self._held_back.keys()
        if more := wanted - paused:
            self._consumer.pause(*more)
        if less := (paused & assigned) - wanted:
            self._consumer.resume(*less)

    def _push_back(self, messages: list[Message]) -> None:
        first: dict[TopicPartition, int] = {}
        for message in messages:
            first.setdefault(place_of(message), message.offset() or 0)
        for name, offset in first.items():
            self._consumer._seek(name, offset)

    def _take_in(self, messages: list[Message]) -> None:
        late: dict[TopicPartition, int] = {}
        entries: list[tuple[TopicPartition, int, Entry]] = []
        now = time.time()
        for message in messages:
            name = place_of(message)
            if name in late:
                continue
            if name.topic in self._retry_topics and (due := _due(message)) > now:
                late[name] = message.offset() or 0
                self._held_back[name] = time.monotonic() + due - now
                continue
            record = self._consumer._reader.read_one(message)
            entries.append((name, message.offset() or 0, Entry(record, message)))
        for name, offset in late.items():
            self._consumer._seek(name, offset)
        if self._consumer.delivery == "at-most-once" and not self._commit_first(entries):
            return
        with self._lock:
            for name, offset, entry in entries:
                key = entry.message.key() if entry.record is not None else None
                self._core.add(name, offset, key, entry)
            self._ready.notify(len(entries))
        if self._workers is not None:
            self._workers.wake(len(entries))

    def _commit_first(self, entries: list[tuple[TopicPartition, int, Entry]]) -> bool:
        """At most once: nothing is worked on before the broker knows that it will not be asked for again."""
        ends = {name: Position(offset + 1) for name, offset, _ in entries}
        try:
            self._consumer._committer.commit(self._consumer._consumer, ends, wait=True)
        except ClientError as error:
            LOG.warning("%s; the records were not worked on and are read again", error)
            self._push_back([entry.message for _, _, entry in entries])
            return False
        return True

    # -- for the workers ----------------------------------------------------------------------------------

    def wait_for_work(self) -> Work | None:
        with self._lock:
            while not self._ended:
                work, pause = self._take()
                if work is not None:
                    return work
                self._ready.wait(pause)
        return None

    def take_work(self) -> tuple[Work | None, float | None]:
        with self._lock:
            return (None, None) if self._ended else self._take()

    def _take(self) -> tuple[Work | None, float | None]:
        now = time.monotonic()
        while (work := self._core.take(now)) is not None:
            if work.item.record is not None:
                return work, None
            self._has_done(work)  # skipped by an interceptor, or because it was bad
        self._tell_reader()
        due = self._core.next_due()
        return None, None if due is None else max(0.0, due - now)

    def succeeded(self, work: Work) -> None:
        with self._lock:
            self._has_done(work)

    def _has_done(self, work: Work) -> None:
        if not work.lost:
            self.done += 1
        self._core.done(work)
        self._tell_reader()

    def _tell_reader(self) -> None:
        if self._awaited is not None and self._awaited():
            self._progress.notify()

    def failed(self, work: Work, error: BaseException) -> None:
        try:
            pause = self._failures.failed(work, error)
        except BaseException as failure:  # noqa: BLE001 - it ends the pool, and `run` raises it
            with self._lock:
                self._core.give_up(work)
                if self._failure is None and not work.lost:
                    self._failure = failure
                    self._stopping = True
                self._progress.notify()
            return
        with self._lock:
            if pause is None:
                self._has_done(work)
                return
            self._core.again(work, time.monotonic() + pause)
            self._progress.notify()
            self._ready.notify()
        if self._workers is not None:
            self._workers.wake(1)

    # -- commits and partitions ---------------------------------------------------------------------------

    def _commit(self, *, wait: bool, only: Sequence[TopicPartition] | None = None) -> None:
        if self._consumer.delivery == "at-most-once" or self._consumer.group_id is None:
            return
        with self._lock:
            positions = self._core.positions()
        new = {
            name: Position(offset)
            for name, offset in positions.items()
            if offset > self._committed.get(name, -1) and (only is None or name in only)
        }
        if not new:
            return
        try:
            self._consumer._committer.commit(self._consumer._consumer, new, wait=wait)
        except ClientError as error:
            LOG.warning("%s; records after the last commit may be worked on again", error)
        else:
            self._committed.update((name, position.offset) for name, position in new.items())

    def _revoked(self, partitions: list[TopicPartition], lost: bool) -> None:
        """The consumer is about to give these partitions away, or has lost them."""
        if not lost:
            self._wait_for_running(partitions)
            self._commit(wait=True, only=partitions)
        with self._lock:
            self._core.drop(partitions)
        for name in partitions:
            self._committed.pop(name, None)
            self._held_back.pop(name, None)

    def _finish(self) -> None:
        partitions = list(self._consumer.assignment())
        self._wait_for_running(partitions)
        self._commit(wait=True)
        with self._lock:
            self._core.drop(partitions)

    def _wait_for_running(self, partitions: list[TopicPartition]) -> None:
        deadline = time.monotonic() + self._finish_timeout
        with self._lock:
            self._core.stop(partitions)
            self._awaited = lambda: True
            while running := self._core.running(partitions):
                # In slices, since Ctrl-C is noticed between them.
                self._progress.wait(min(0.1, max(0.0, deadline - time.monotonic())))
                if time.monotonic() >= deadline:
                    LOG.warning(
                        "%d records were not done within %g s; they are not committed and will be read again",
                        running,
                        self._finish_timeout,
                    )
                    break
            self._awaited = None


def _due(message: Message) -> float:
    """When a record of a retry topic may be worked on, in seconds since 1970; one without a time is due."""
    text = headers_of(message).get(DUE)
    try:
        return int(text or b"0") / 1000
    except ValueError:
        return 0.0
