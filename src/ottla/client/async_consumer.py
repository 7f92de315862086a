"""`ottla.client.AsyncConsumer`: the consumer for programs on an event loop.

    async with AsyncConsumer("orders", bootstrap_servers="127.0.0.1:9092", group_id="billing") as consumer:
        async for record in consumer:
            ...

It is a `Consumer` whose calls run in one thread of their own, one after another. Records are read ahead
there, and handed out by the event loop while the thread has nothing to do, so a record costs little.
Everything that `Consumer` promises holds: a record is finished when the next one is asked for, and cancelling
a task loses nothing. Callbacks and interceptors run in that thread.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from ottla.client.consumer import Consumer
from ottla.client.errors import ClosedError
from ottla.client.records import ConsumerRecord, TopicPartition

P = ParamSpec("P")
R = TypeVar("R")
_WAIT = 0.1
"""Other calls wait at most so long for one that waits for records."""
_READ_AHEAD = 2_000
"""The default of `batch_size`, larger than that of `Consumer`: a way to the thread and back costs more. Not
for at-most-once, where a crash loses what is read ahead."""


class AsyncConsumer:
    def __init__(self, *topics: str | re.Pattern[str], **options: Any) -> None:
        """Topics and options are those of `Consumer`; `batch_size` is 2,000 where records are not read at
        most once.
        """
        if options.get("delivery") != "at-most-once":
            options = {"batch_size": _READ_AHEAD, **options}
        self.consumer = Consumer(*topics, **options)
        """The consumer behind it. It belongs to the thread while `_calls` is not empty, else to the loop."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ottla-consumer")
        self._calls: set[Future[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()
        """Of the tasks of `_loop` that read: one has its records before the next one asks for some."""

    def _submit(self, function: Callable[P, R], *arguments: P.args, **options: P.kwargs) -> Future[R]:
        try:
            call = self._thread.submit(function, *arguments, **options)
        except RuntimeError:  # of a thread that has ended
            raise ClosedError(f"{self.consumer!r} cannot be used any more") from None
        self._calls.add(call)
        return call

    async def _call(self, function: Callable[P, R], *arguments: P.args, **options: P.kwargs) -> R:
        call = self._submit(function, *arguments, **options)
        return await self._answer(call, asyncio.wrap_future(call))

    async def _answer(self, call: Future[R], waited_for: asyncio.Future[R]) -> R:
        try:
            return await waited_for
        finally:
            if call.done():
                self._calls.discard(call)
            else:  # the task was cancelled, and the thread is at it
                call.add_done_callback(partial(self._ended, asyncio.get_running_loop()))

    def _ended(self, loop: asyncio.AbstractEventLoop, call: Future[Any]) -> None:
        try:
            loop.call_soon_threadsafe(self._calls.discard, call)
        except RuntimeError:  # the loop is closed; the consumer may go on with another one
            self._calls.discard(call)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def stop(self) -> None:
        """End the loops over this consumer, after the record that they are at."""
        self.consumer.stop()

    async def close(self) -> None:
        """Commit what is finished, leave the group, release everything."""
        try:
            if not self.consumer._closed:
                # A task that is cancelled here must still leave the group. What is shielded is a future: a
                # task would be cancelled at the end of asyncio.run, and the call with it if it has not begun.
                call = self._submit(self.consumer.close)
                await self._answer(call, asyncio.shield(asyncio.wrap_future(call)))
        finally:
            self._thread.shutdown(wait=False)

    # -- reading ------------------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Records one by one, for ever."""
        consumer, clock = self.consumer, time.monotonic
        buffer = consumer._buffer
        while await self._advance(consumer._batch_size, None):
            records, first, settled = buffer.records, buffer.finished, buffer.settled
            buffer.out = 1
            for buffer.finished, record in enumerate(records[first:] if first else records, first):
                yield record
                if self._calls or buffer.records is not records or buffer.settled != settled:
                    break
                if clock() >= consumer._tick_at or consumer._stopped:
                    break
            del records  # before the next ones are read: see ReceivedRecords

    async def fetch(
        self, max_records: int | None = None, timeout: float | None = None
    ) -> Sequence[ConsumerRecord]:
        """At least one record and at most `max_records` (`batch_size`), or none after `timeout` seconds."""
        size = max_records or self.consumer._batch_size
        if records := self._at_hand(size):
            return records
        ahead = size if self.consumer.delivery == "at-most-once" else max(size, self.consumer._batch_size)
        while await self._advance(ahead, timeout):
            if records := self.consumer._buffer.take(size):
                return records  # none are left when another task has sought meanwhile
        return []

    async def poll(self, timeout: float | None = None) -> ConsumerRecord | None:
        """The next record, or None after `timeout` seconds."""
        records = await self.fetch(1, timeout)
        return records[0] if records else None

    async def batches(self, max_records: int | None = None) -> AsyncIterator[Sequence[ConsumerRecord]]:
        """Records, several at a time, for ever; a batch is finished when the next one is asked for."""
        while records := await self.fetch(max_records):
            yield records
            del records

    def _at_hand(self, count: int) -> Sequence[ConsumerRecord]:
        """The next records if they are read already and the thread is not needed for anything."""
        consumer = self.consumer
        if self._calls or consumer._closed or consumer._stopped or time.monotonic() >= consumer._tick_at:
            return ()
        consumer._buffer.settle()
        return consumer._buffer.take(count)

    async def _advance(self, limit: int, timeout: float | None) -> bool:
        """In short waits: a call that is abandoned must not keep the thread from others."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._loop, self._turn = loop, asyncio.Lock()
        while True:
            async with self._turn:
                wait = _WAIT if deadline is None else min(_WAIT, max(0.0, deadline - time.monotonic()))
                if await self._call(self.consumer._advance, limit, wait):
                    return True
            if self.consumer._stopped or (deadline is not None and time.monotonic() >= deadline):
                return False

    # -- as in Consumer -----------------------------------------------------------------------------------

    async def subscribe(self, *topics: str | re.Pattern[str]) -> None:
        await self._call(self.consumer.subscribe, *topics)

    async def assign(self, partitions: Iterable[TopicPartition] | Mapping[TopicPartition, int]) -> None:
        await self._call(self.consumer.assign, partitions)

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None, *, wait: bool = True) -> None:
        await self._call(self.consumer.commit, offsets, wait=wait)

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        return await self._call(self.consumer.committed, *partitions)

    async def position(self, partition: TopicPartition) -> int | None:
        return await self._call(self.consumer.position, partition)

    async def assignment(self) -> set[TopicPartition]:
        return await self._call(self.consumer.assignment)

    async def lag(self) -> dict[TopicPartition, int]:
        return await self._call(self.consumer.lag)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        await self._call(self.consumer.seek, partition, offset)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        await self._call(self.consumer.seek_to_beginning, *partitions)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        await self._call(self.consumer.seek_to_end, *partitions)

    async def seek_to_time(self, when: datetime | int, *partitions: TopicPartition) -> None:
        await self._call(self.consumer.seek_to_time, when, *partitions)

    async def pause(self, *partitions: TopicPartition) -> None:
        await self._call(self.consumer.pause, *partitions)

    async def resume(self, *partitions: TopicPartition) -> None:
        await self._call(self.consumer.resume, *partitions)

    # -- for ottla.client.transactions: in a thread that may wait -----------------------------------------

    def positions_for_transaction(self) -> list[Any]:
        return self._call_and_wait(self.consumer.positions_for_transaction)

    def group_metadata(self) -> Any:
        return self._call_and_wait(self.consumer.group_metadata)

    def rewind_to_committed(self) -> None:
        with suppress(ClosedError):
            self._call_and_wait(self.consumer.rewind_to_committed)

    def rewind_later(self) -> None:
        with suppress(ClosedError):
            self._call_and_wait(self.consumer.rewind_later)

    def _call_and_wait(self, function: Callable[[], R]) -> R:
        call = self._submit(function)
        try:
            return call.result()
        finally:
            self._calls.discard(call)
