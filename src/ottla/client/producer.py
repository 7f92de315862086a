"""The producer: a record passes interceptors, serializers and the partitioner, then librdkafka's batch.

`send` returns when the record is in librdkafka's buffer; `send_and_wait`, `submit` and `asend` give its
result. A thread of the producer polls librdkafka, so callbacks come whatever the application does; a thread
that sends without a pause polls too, so callbacks may come in it. A full
buffer makes senders wait (`max_block_ms`), in the async form without holding the event loop. Where neither
interceptors, serializers nor a partitioner in Python are set, a record goes to librdkafka with one call.

A producer may be used by several threads at once, not by a forked child (see `process_life`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import cycle
from types import TracebackType
from typing import Any, Self

from ottla.client import process_life
from ottla.client.configuration import LOG, make_client
from ottla.client.deliveries import Failures, LoopResults, resolve, send_error
from ottla.client.errors import (
    ClientError,
    SendError,
    TimedOutError,
    TransactionError,
)
from ottla.client.librdkafka import confluent_kafka
from ottla.client.outgoing import Callback, Outgoing
from ottla.client.partitioners import Partitioner, partitioner_for
from ottla.client.producer_settings import ARGUMENTS, producer_settings
from ottla.client.records import HeadersInput, RecordMetadata
from ottla.client.send_buffer import REFUSALS, SendBuffer
from ottla.client.serialization import SerializerInput
from ottla.client.topic_layouts import TopicLayouts, rack_reader
from ottla.client.transactions import Transaction, TransactionalConsumer, TransactionState

CLOSE_SECONDS = 30.0
TRANSACTION_SECONDS = 60.0
SENDS_BETWEEN_POLLS = 200
"""So many records that a sender does not wait for, until it deals with the results of earlier ones."""


class Producer:
    """Sends records to any Kafka broker. See docs/client/producer.md."""

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] = "localhost:9092",
        *,
        client_id: str | None = None,
        key_serializer: SerializerInput | None = None,
        value_serializer: SerializerInput | None = None,
        interceptors: Iterable[object] = (),
        partitioner: str | Partitioner = "keyed",
        acks: int | str = "all",
        enable_idempotence: bool | None = None,
        linger_ms: float = 5,
        batch_size: int = 1_000_000,
        compression_type: str = "none",
        retries: int = 2_147_483_647,
        retry_backoff_ms: int = 100,
        request_timeout_ms: int = 30_000,
        delivery_timeout_ms: int = 120_000,
        max_in_flight_requests_per_connection: int = 5,
        max_request_size: int = 1_048_576,
        buffer_memory: int = 33_554_432,
        max_block_ms: int = 60_000,
        metadata_max_age_ms: int = 300_000,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        report_failures: bool = True,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        native, own_partitioner = partitioner_for(partitioner)
        settings = producer_settings(
            bootstrap_servers,
            client_id,
            {
                "acks": acks,
                "enable.idempotence": enable_idempotence,
                "linger.ms": linger_ms,
                "batch.size": batch_size,
                "compression.type": compression_type,
                "retries": retries,
                "retry.backoff.ms": retry_backoff_ms,
                "request.timeout.ms": request_timeout_ms,
                "delivery.timeout.ms": delivery_timeout_ms,
                "max.in.flight.requests.per.connection": max_in_flight_requests_per_connection,
                "message.max.bytes": max_request_size,
                "buffer.memory": buffer_memory,
                "metadata.max.age.ms": metadata_max_age_ms,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": transaction_timeout_ms,
                **native,
            },
            config,
        )
        self._outgoing = Outgoing(key_serializer, value_serializer, interceptors, own_partitioner)
        self._direct = self._outgoing.does_nothing
        self._client = make_client(confluent_kafka.Producer, settings, ARGUMENTS)
        self._produce: Callable[..., None] = self._client.produce
        self._failures = Failures()
        racks = rack_reader(settings) if getattr(own_partitioner, "needs_racks", False) else None
        self._layouts = TopicLayouts(self._client, metadata_max_age_ms / 1000, racks)
        self._loop_results: LoopResults | None = None
        self._transactions: TransactionState | None = None
        if settings.get("transactional.id"):
            self._transactions = TransactionState(self._client)
        self._buffer = SendBuffer(
            self._client, max_block_ms / 1000, self._transactions, self._layouts.refresh
        )
        # A transaction tells of its failures when it is committed: its records need no report of their own.
        reports = report_failures and self._transactions is None
        self._on_failure: Callback | None = self._note_failure if reports else None
        self._polls = cycle((False,) * (SENDS_BETWEEN_POLLS - 1) + (True,)).__next__
        self._closing = threading.RLock()
        process_life.opened(self)

    def __repr__(self) -> str:
        return f"<ottla.Producer{' (closed)' if self._buffer.closed else ''}>"

    def __len__(self) -> int:
        """How many records were sent and not yet answered."""
        return len(self._buffer)

    def __bool__(self) -> bool:
        return True

    # -- sending ------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: HeadersInput | None = None,
    ) -> None:
        """Send and forget: returns when the record is in the buffer. `flush` and `close` raise if it
        failed.
        """
        if not self._direct:
            self._send(topic, value, key, partition, timestamp, headers, self._on_failure)
            return
        place = -1 if partition is None else partition
        try:
            self._produce(topic, value, key, place, self._on_failure, None, timestamp or 0, headers)
        except (BufferError, *REFUSALS) as failure:
            arguments = (topic, value, key, place, self._on_failure, None, timestamp or 0, headers)
            self._buffer.enqueue_after(failure, arguments, self._buffer.deadline())
        if self._polls():
            self._buffer.poll()

    def submit(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: HeadersInput | None = None,
    ) -> Future[RecordMetadata]:
        """Send, and get a future of where the record was written. It cannot be cancelled."""
        future: Future[RecordMetadata] = Future()
        future.set_running_or_notify_cancel()
        if not self._send(topic, value, key, partition, timestamp, headers, partial(resolve, future)):
            future.set_result(RecordMetadata(topic, -1, -1))
        return future

    def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: HeadersInput | None = None,
        timeout: float | None = None,
    ) -> RecordMetadata:
        """Send, wait until the record is written and say where; `timeout` in seconds.

        Without a timeout, `delivery_timeout_ms` is the bound.
        """
        self._buffer.check_no_callback()
        future = self.submit(topic, value, key, partition=partition, timestamp=timestamp, headers=headers)
        try:
            return future.result(timeout)
        except TimeoutError as late:
            if future.done():
                raise
            raise TimedOutError(
                f"no answer for a record to {topic!r} within {timeout:g} s; it may still be written"
            ) from late

    async def asubmit(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: HeadersInput | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Send from a coroutine: returns when the record is in the buffer, with a future of its result."""
        sent = self._sent_at_once(topic, value, key, partition, timestamp, headers)
        if sent is not None:
            return sent
        results = self._results()
        future = results.create_future()
        callback = partial(results.resolve, future)
        if self._direct:
            place = -1 if partition is None else partition
            await self._buffer.aenqueue(
                (topic, value, key, place, callback, None, timestamp or 0, headers), results
            )
            return future
        record = self._outgoing.record(topic, value, key, partition, timestamp, headers)
        if record is None:
            future.set_result(RecordMetadata(topic, -1, -1))
            return future
        try:
            layout = None
            if self._outgoing.needs_layout(record):
                layout = self._layouts.fresh(record.topic) or await asyncio.to_thread(
                    self._layouts.get, record.topic, self._buffer.deadline()
                )
            await self._buffer.aenqueue(self._outgoing.arguments(record, layout, callback), results)
        except ClientError as error:
            self._buffer.as_callback(self._outgoing.failed, record, error)
            raise
        except asyncio.CancelledError:
            cancelled = SendError(f"the send to {record.topic!r} was cancelled before the buffer had space")
            self._buffer.as_callback(self._outgoing.failed, record, cancelled)
            raise
        return future

    async def asend(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: HeadersInput | None = None,
    ) -> RecordMetadata:
        """Send from a coroutine, and wait until the record is written. Cancelling it does not unsend the
        record.
        """
        sent = self._sent_at_once(topic, value, key, partition, timestamp, headers)
        if sent is not None:
            return await sent
        return await (
            await self.asubmit(topic, value, key, partition=partition, timestamp=timestamp, headers=headers)
        )

    def _sent_at_once(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int | None,
        headers: HeadersInput | None,
    ) -> asyncio.Future[RecordMetadata] | None:
        """The future of a record that needs nothing but space in the buffer, and found it; else None."""
        if not self._direct:
            return None
        results = self._loop_results
        if results is None or results.loop is not asyncio.get_running_loop():
            results = self._results()
        future = results.create_future()
        callback, place = partial(results.resolve, future), -1 if partition is None else partition
        try:
            self._produce(topic, value, key, place, callback, None, timestamp or 0, headers)
        except (BufferError, *REFUSALS):
            return None  # it is tried again by code that can wait, and that knows what to raise
        if self._polls():
            results.poll()
        return future

    # -- into the buffer ----------------------------------------------------------------------------------

    def _send(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int | None,
        headers: HeadersInput | None,
        callback: Callback | None,
    ) -> bool:
        """Put a record into the buffer; False if an interceptor dropped it."""
        deadline = self._buffer.deadline()
        if self._direct:
            place = -1 if partition is None else partition
            self._buffer.enqueue(
                (topic, value, key, place, callback, None, timestamp or 0, headers), deadline
            )
            return True
        record = self._outgoing.record(topic, value, key, partition, timestamp, headers)
        if record is None:
            return False
        try:
            layout = None
            if self._outgoing.needs_layout(record):
                layout = self._layouts.fresh(record.topic)
                if layout is None:
                    self._buffer.check_can_wait(record.topic)
                    layout = self._layouts.get(record.topic, deadline)
            self._buffer.enqueue(self._outgoing.arguments(record, layout, callback), deadline)
        except ClientError as error:
            self._buffer.as_callback(self._outgoing.failed, record, error)
            raise
        return True

    # -- results ------------------------------------------------------------------------------------------

    def _note_failure(
        self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        if error is None:
            return
        try:
            self._failures.add(send_error(error, message.topic()))
        except BaseException:  # Ctrl-C between two lines: better counted twice than not at all
            self._failures.add(send_error(error, message.topic()))
            raise

    def _results(self) -> LoopResults:
        loop = asyncio.get_running_loop()
        results = self._loop_results
        if results is None or results.loop is not loop:
            self._buffer.check_no_callback()  # this loop runs in one, and would wait for ever
            results = self._loop_results = LoopResults(loop, self._buffer.poll)
        return results

    # -- the end ------------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Send what is in the buffer and wait for the answers; raise if a record of `send` was not
        written.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._buffer.flush_slice(deadline):
            self._buffer.check_time(deadline, timeout)
        self._failures.raise_new()

    async def aflush(self, timeout: float | None = None) -> None:
        """`flush` from a coroutine."""
        self._buffer.check_no_callback()  # before the way to a thread, which is none of a callback
        deadline = None if timeout is None else time.monotonic() + timeout
        while await asyncio.to_thread(self._buffer.flush_slice, deadline):
            self._buffer.check_time(deadline, timeout)
        self._failures.raise_new()

    def transaction(
        self,
        consumer: TransactionalConsumer | confluent_kafka.Consumer | None = None,
        *,
        timeout: float = TRANSACTION_SECONDS,
    ) -> Transaction:
        """A transaction for a `with` statement; with a consumer, its positions are committed in it.

        `timeout` bounds, in seconds, what it takes to begin, to commit and to abort.
        """
        if self._transactions is None:
            raise TransactionError("this producer has no transactional_id: give it one to use transactions")
        self._buffer.check_no_callback()
        return Transaction(self._transactions, consumer, timeout)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Send what is in the buffer, then let go of everything; after `timeout` seconds the rest is given
        up.

        Raises if a record of `send` was not written. Closing twice is harmless.
        """
        if self._buffer.closed:
            return
        self._buffer.check_no_callback()
        if not self._closing.acquire(timeout=max(0.0, timeout)):
            raise TimedOutError(f"another thread is still closing the producer after {timeout:g} s")
        try:
            if not self._buffer.closed:
                self._close(timeout)
        finally:
            self._closing.release()
        self._failures.raise_new()

    def _close(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        self._buffer.refuse()
        self._produce = self._buffer.produce
        try:
            if self._transactions is not None and self._transactions.in_progress:
                self._transactions.abort(None, timeout)
            while self._buffer.flush_slice(deadline) and time.monotonic() < deadline:
                pass
        finally:  # also on Ctrl-C
            try:
                self._buffer.release()
            finally:
                process_life.closed(self)
                self._outgoing.close()

    async def aclose(self, timeout: float = CLOSE_SECONDS) -> None:
        """`close` from a coroutine."""
        self._buffer.check_no_callback()
        await asyncio.to_thread(self.close, timeout)

    def abandon(self) -> None:
        """This process was forked from the producer's: refuse everything, free nothing."""
        self._buffer.abandon()
        self._produce = self._buffer.produce

    def __enter__(self) -> Self:
        if self._transactions is not None:
            try:
                self._transactions.initialize(TRANSACTION_SECONDS)
            except BaseException:
                self.close(0)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave(error)

    async def __aenter__(self) -> Self:
        self._buffer.check_no_callback()
        try:
            return await asyncio.to_thread(self.__enter__)
        except asyncio.CancelledError:
            if self._transactions is not None:
                self._transactions.give_up()  # then the thread closes the producer
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._buffer.check_no_callback()
        await asyncio.to_thread(self._leave, error)

    def _leave(self, error: BaseException | None) -> None:
        try:
            self.close()
        except SendError as failure:
            if error is None:
                raise
            LOG.error("%s", failure)  # the block's own error is the one to raise
