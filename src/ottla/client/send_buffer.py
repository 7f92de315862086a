"""librdkafka's buffer of records to send.

A record that finds the buffer full waits, one behind the other and for at most `max_block` seconds, as a
thread or as a task of an event loop. What librdkafka refuses at once becomes an error of ours here.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import NoReturn
from weakref import finalize

from ottla.client.configuration import LOG
from ottla.client.deliveries import LoopResults, send_error
from ottla.client.errors import (
    ClientError,
    ClosedError,
    QueueFullError,
    SendError,
    SerializationError,
    TimedOutError,
    TransactionError,
)
from ottla.client.librdkafka import confluent_kafka
from ottla.client.outgoing import Arguments, no_serializer
from ottla.client.polling import Poller
from ottla.client.transactions import TransactionState

REFUSALS = (TypeError, ValueError, OverflowError, RuntimeError, confluent_kafka.KafkaException)
"""What confluent-kafka raises for a record that it does not take."""

_STALE = ("_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
_FULL_SECONDS = 0.005
_FLUSH_SLICE = 0.1


class SendBuffer:
    def __init__(
        self,
        client: confluent_kafka.Producer,
        max_block: float,
        transactions: TransactionState | None,
        refresh: Callable[[str], bool],
    ) -> None:
        self._client = client
        self._max_block = max_block
        self._transactions = transactions
        self._refresh = refresh
        self.produce: Callable[..., None] = client.produce
        self.closed = False
        self._full = threading.Lock()
        """Held by the thread that waits for space in the buffer; others wait behind it."""
        self._poller = Poller(client)
        self.poll = self._poller.poll_as_sender
        self.check_no_callback = self._poller.check_no_callback
        self.as_callback = self._poller.as_callback
        if transactions is not None:
            transactions.call = self._poller.call
        finalize(self, self._poller.stop)

    def __len__(self) -> int:
        """How many records are not answered; librdkafka counts its own events too, until they are polled."""
        return 0 if self.closed else len(self._client)

    def deadline(self) -> float:
        """Until when a record that is sent now may wait."""
        return time.monotonic() + self._max_block

    def enqueue(self, arguments: Arguments, deadline: float) -> None:
        try:
            self.produce(*arguments)
        except (BufferError, *REFUSALS) as failure:
            self.enqueue_after(failure, arguments, deadline)

    def enqueue_after(self, failure: Exception, arguments: Arguments, deadline: float) -> None:
        """Try once more after a first failure: when there is space in the buffer, or the topic is known
        better.
        """
        is_calling_back = self._poller.is_calling_back
        if not isinstance(failure, BufferError):
            if is_calling_back or not (_is_stale(failure) and self._refresh(arguments[0])):
                raise self._refusal(failure, arguments) from failure
            if self._enqueued(arguments):
                return
        if is_calling_back:
            raise QueueFullError(
                f"no space for a record to {arguments[0]!r}, and a callback of the producer cannot wait: "
                "space comes when it has returned; send in another thread, or raise buffer_memory",
                name="_QUEUE_FULL",
                retriable=True,
            )
        if not self._full.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise self._buffer_full(arguments)
        try:
            while not self._enqueued(arguments):
                if time.monotonic() >= deadline:
                    raise self._buffer_full(arguments)
                self._poller.wake()
                time.sleep(_FULL_SECONDS)
        finally:
            self._full.release()

    def check_can_wait(self, topic: str) -> None:
        """Raise if a record to this topic, whose partitions are not known yet, is sent by a callback."""
        if self._poller.is_calling_back:
            raise SendError(
                f"cannot send to {topic!r}: its partitions are not known yet, and a callback of the producer "
                "cannot wait for them; send to it in another thread, or once before",
                retriable=True,
            )

    async def aenqueue(self, arguments: Arguments, results: LoopResults) -> None:
        try:
            self.produce(*arguments)
            return
        except BufferError:
            pass
        except REFUSALS as failure:
            if not (_is_stale(failure) and await asyncio.to_thread(self._refresh, arguments[0])):
                raise self._refusal(failure, arguments) from failure
            if self._enqueued(arguments):
                return
        deadline = self.deadline()
        async with results.gate:
            while not self._enqueued(arguments):
                if time.monotonic() >= deadline:
                    raise self._buffer_full(arguments)
                self._poller.wake()
                await asyncio.sleep(_FULL_SECONDS)

    def _enqueued(self, arguments: Arguments) -> bool:
        """Whether there was space in the buffer."""
        try:
            self.produce(*arguments)
        except BufferError:
            return False
        except REFUSALS as failure:
            raise self._refusal(failure, arguments) from failure
        return True

    def _buffer_full(self, arguments: Arguments) -> QueueFullError:
        return QueueFullError(
            f"no space for a record to {arguments[0]!r}: the buffer was full for {self._max_block:g} s, with "
            f"{len(self)} record(s) in it; send more slowly, or raise max_block_ms or buffer_memory",
            name="_QUEUE_FULL",
            retriable=True,
        )

    def _refusal(self, failure: Exception, arguments: Arguments) -> ClientError:
        """The error for what librdkafka refused at once."""
        topic, value, key = arguments[:3]
        if isinstance(failure, confluent_kafka.KafkaException):
            error = failure.args[0]
            if self._transactions is not None and error.name() == "_STATE":
                advice = (
                    "the transaction has failed, leave its block and try the whole of it again"
                    if self._transactions.in_progress
                    else "send within `with producer.transaction()`"
                )
                return TransactionError(
                    f"cannot send to {topic!r}: {advice}", code=error.code(), name=error.name()
                )
            return send_error(error, topic)
        for part, given in (("value", value), ("key", key)):
            if not isinstance(given, (bytes, str, type(None))):
                return SerializationError(no_serializer(part, given, topic))
        if isinstance(failure, RuntimeError):
            return ClosedError("the producer is closed")
        return SendError(f"cannot send to {topic!r}: {failure}")

    def flush_slice(self, deadline: float | None) -> int:
        """Flush for a moment, so that Ctrl-C is answered; how many records are left."""
        if self.closed:
            return 0
        left = _FLUSH_SLICE if deadline is None else deadline - time.monotonic()
        try:
            return self._poller.call(self._client.flush, min(_FLUSH_SLICE, max(0.0, left)))
        except confluent_kafka.KafkaException as fatal:  # raised once, the records fail one by one after it
            LOG.error("the producer is of no use any more: %s", fatal.args[0].str())
            return len(self._client)
        except RuntimeError:
            if self.closed:  # by another thread, a moment ago
                return 0
            raise

    def check_time(self, deadline: float | None, timeout: float | None) -> None:
        if deadline is not None and time.monotonic() >= deadline:
            raise TimedOutError(
                f"{len(self)} record(s) are not answered after {timeout:g} s; they may still be written"
            )

    def refuse(self) -> None:
        """Take no more records."""
        self.produce = _closed

    def release(self) -> None:
        """To the end, also on Ctrl-C."""
        try:
            self._give_up_the_rest()
        finally:
            self.closed = True
            self._free()

    def _give_up_the_rest(self) -> None:
        lost = len(self._client)
        if lost:
            LOG.error(
                "the producer is closed with %d record(s) not answered: they count as not written", lost
            )
            self._client.purge()
            self._poller.call(self._client.flush, _FLUSH_SLICE)

    def _free(self) -> None:
        try:
            self._poller.stop_and_wait()
        except BaseException:  # Ctrl-C: nobody may poll when the client is freed
            self._poller.stop_and_wait()
            raise
        finally:
            if self._transactions is None or self._transactions.is_sound:
                self._client.close()

    def abandon(self) -> None:
        """This process was forked from the buffer's: refuse everything, free nothing."""
        self.closed = True
        self.produce = _forked
        self._poller.forget_callbacks()


def _is_stale(failure: Exception) -> bool:
    """Whether librdkafka refused a topic or partition that may be there by now."""
    return isinstance(failure, confluent_kafka.KafkaException) and failure.args[0].name() in _STALE


def _closed(*_: object) -> NoReturn:
    raise ClosedError("the producer is closed")


def _forked(*_: object) -> NoReturn:
    raise ClosedError(
        "the producer belongs to the process that forked this one: make a new one after the fork"
    )
