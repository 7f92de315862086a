"""What becomes of records that were sent: results for those who wait, a count of failures for those who do
not.

librdkafka calls back for each record, in the thread that polls. `metadata_of` reads what it says. `Failures`
keeps the records that failed and that nobody waits for, so that `flush` can raise. `LoopResults` hands
results to an event loop, many with one wake-up.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from ottla.client.configuration import LOG
from ottla.client.errors import ClientError, SendError, error_from
from ottla.client.librdkafka import confluent_kafka
from ottla.client.log_throttle import LogThrottle
from ottla.client.records import RecordMetadata

_NEW = tuple.__new__
"""Makes a named tuple in half the time that its own constructor takes: there is one for each record."""
MANY = 8
"""When so many results have come, the event loop takes the rest of them itself."""


def metadata_of(message: confluent_kafka.Message) -> RecordMetadata:
    kind, timestamp = message.timestamp()
    offset = message.offset()
    return _NEW(
        RecordMetadata,
        (
            message.topic() or "",
            message.partition() or 0,
            -1 if offset is None else offset,
            timestamp if kind else None,
        ),
    )


def send_error(error: confluent_kafka.KafkaError, topic: str | None) -> ClientError:
    return error_from(error, f"cannot send to {topic!r}", SendError)


def resolve(
    future: Future[RecordMetadata], error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
) -> None:
    try:
        _resolve(future, error, message)
    except BaseException:  # Ctrl-C between two lines: librdkafka tells the result only once
        if not future.done():
            _resolve(future, error, message)
        raise


def _resolve(
    future: Future[RecordMetadata], error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
) -> None:
    if error is None:
        future.set_result(metadata_of(message))
    else:
        future.set_exception(send_error(error, message.topic()))


class Failures:
    """Records that were not written although nobody waits to hear of it: logged, counted, raised by
    `flush`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._first: ClientError | None = None
        self._log = LogThrottle()

    def add(self, error: ClientError) -> None:
        with self._lock:
            self._count += 1
            self._first = self._first or error
        if count := self._log.times():
            LOG.error("%d record(s) were not written: %s", count, error)

    def raise_new(self) -> None:
        """Raise if there were any since the last call."""
        with self._lock:
            count, first, self._count, self._first = self._count, self._first, 0, None
        if first is not None:
            raise SendError(
                f"{count} record(s) were not written; the first one: {first}",
                code=first.code,
                name=first.name,
                retriable=first.retriable,
                fatal=first.fatal,
            ) from first


class LoopResults:
    """Results for the futures of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, poll: Callable[[], None]) -> None:
        """`poll` lets librdkafka call back with the results that are there."""
        self.loop = loop
        self.create_future: Callable[[], asyncio.Future[RecordMetadata]] = partial(asyncio.Future, loop=loop)
        """`loop.create_future()`, which is a call of Python code more."""
        self.gate = asyncio.Lock()
        """Held by the task that waits for the producer's buffer; others wait behind it, in order."""
        self.resolve = self._resolve
        """Called in the thread that polls. One bound method for all records."""
        self._poll = poll
        self._ready: deque[tuple[asyncio.Future[RecordMetadata], RecordMetadata | ClientError]] = deque()
        self._waking = False

    def _resolve(
        self,
        future: asyncio.Future[RecordMetadata],
        error: confluent_kafka.KafkaError | None,
        message: confluent_kafka.Message,
    ) -> None:
        try:
            self._ready.append(
                (future, metadata_of(message) if error is None else send_error(error, message.topic()))
            )
            if not self._waking:
                self._wake(message)
        except BaseException:  # Ctrl-C between two lines: librdkafka tells the result only once
            self._ready.append(
                (future, metadata_of(message) if error is None else send_error(error, message.topic()))
            )
            self._wake(message)
            raise

    def _wake(self, message: confluent_kafka.Message) -> None:
        self._waking = True
        try:
            self.loop.call_soon_threadsafe(self._woken)
        except RuntimeError:  # the loop is closed, and with it everybody who waited
            LOG.warning("the event loop closed before the result of a send to %r", message.topic())

    def poll(self) -> None:
        """Within the event loop: deal with the results that are there."""
        self._waking = True
        try:
            self._poll()
        finally:  # also on Ctrl-C: without it no result would wake the loop any more
            self._hand_over()

    def _woken(self) -> None:
        """Where many results come, thread and loop would take Python's lock from each other for each one."""
        if len(self._ready) >= MANY:
            self.poll()
        else:
            self._hand_over()

    def _hand_over(self) -> None:
        self._waking = False  # before the first result is taken: what is appended later wakes again
        ready = self._ready
        while ready:
            future, result = ready.popleft()
            if future.done():  # cancelled by the application, or added twice
                continue
            if isinstance(result, ClientError):
                future.set_exception(result)
            else:
                future.set_result(result)
