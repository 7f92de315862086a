"""Transactions of a producer: all records of a `with` block, and the positions of a consumer, or none of
them.

librdkafka says of each error what is left to do, and so it is done: an error that is *retriable* is tried
again until the time is over; one that *requires an abort* is answered with an abort and
`TransactionAbortedError`, after which the producer may begin anew; a *fatal* one ends the producer
(`FencedError`, if another producer took over its id). When the time is over during a commit nobody knows its
outcome: the producer is ended then as well, and a new one with the same `transactional_id` finds the
transaction committed or aborts it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self

from ottla.client.configuration import LOG
from ottla.client.errors import (
    ClientError,
    FencedError,
    TimedOutError,
    TransactionAbortedError,
    TransactionError,
    error_from,
)
from ottla.client.librdkafka import confluent_kafka

_ONE_TRY = 1.0
_TRY_AGAIN = 0.05


class TransactionalConsumer(Protocol):
    """What a transaction needs of a consumer whose positions it commits; `ottla.Consumer` has it."""

    def positions_for_transaction(self) -> list[confluent_kafka.TopicPartition]:
        """The next offset to read of each partition whose records were handed out."""

    def group_metadata(self) -> Any: ...

    def rewind_to_committed(self) -> None:
        """The transaction was aborted: hand its records out again."""

    def rewind_later(self) -> None:
        """How the transaction ends is not known yet: `rewind_to_committed` before the next read."""


class TransactionState:
    """The transactions of one producer, one after the other."""

    def __init__(self, client: confluent_kafka.Producer) -> None:
        self._client = client
        self._ready = False
        self._ended: ClientError | None = None
        self._given_up = False
        self._busy = threading.Lock()
        self.call: Callable[..., Any] = lambda step, *arguments: step(*arguments)
        """Does each step: librdkafka flushes, and so calls back, when it commits."""

    @property
    def is_sound(self) -> bool:
        """Whether the producer can still be used, and closed in the ordinary way."""
        return self._ended is None

    @property
    def in_progress(self) -> bool:
        return self._busy.locked()

    def initialize(self, timeout: float) -> None:
        """Get a producer id. That fences older producers of the `transactional_id` and ends the transaction
        that one of them left open: until then consumers cannot read the offsets in it.
        """
        if not self._ready:
            doing = "cannot get a producer id for the transactional_id"
            self._try(lambda left: self._client.init_transactions(left), doing, timeout)
            self._ready = True
        if self._given_up:
            raise TransactionError("the task that opened the producer was cancelled")

    def give_up(self) -> None:
        """Nobody waits for `initialize` any more: it fails as soon as it can."""
        self._given_up = True

    def begin(self, timeout: float) -> None:
        if self._ended is not None:
            raise TransactionError(
                f"this producer is of no use any more, make a new one: {self._ended}", fatal=True
            )
        if not self._busy.acquire(blocking=False):
            raise TransactionError("a transaction is in progress already: one producer has one at a time")
        try:
            self.initialize(timeout)
            self._try(lambda left: self._client.begin_transaction(), "cannot begin a transaction", timeout)
        except BaseException:
            self._busy.release()
            raise

    def commit(
        self, consumer: TransactionalConsumer | confluent_kafka.Consumer | None, timeout: float
    ) -> None:
        """Commit; on an error that requires it, abort and raise `TransactionAbortedError`."""
        deadline = time.monotonic() + timeout
        doing = "cannot commit the transaction"
        try:
            if consumer is not None:
                positions, group = _positions(consumer)
                if positions:
                    adding = "cannot add the consumer's positions to the transaction"
                    send = self._client.send_offsets_to_transaction
                    self._try(
                        lambda left: _within(deadline, partial(send, positions, group, left), adding),
                        adding,
                        timeout,
                    )
            self._try(
                lambda left: self._client.commit_transaction(left),
                doing,
                max(1.0, deadline - time.monotonic()),
            )
        except TransactionAbortedError:
            self.abort(consumer, timeout)
            raise
        except ClientError as error:
            if not error.fatal and error.code is None:  # the consumer refused: its partitions went to others
                self.abort(consumer, timeout)
                raise TransactionAbortedError(f"{doing}: {error}; it was aborted") from error
            self._end(error)
            _read_again_later(consumer)
            raise
        except BaseException:  # Ctrl-C in the middle: whether it is committed is not known
            self._end(TransactionError("a commit was interrupted"))
            _read_again_later(consumer)
            raise
        self._free()

    def abort(
        self, consumer: TransactionalConsumer | confluent_kafka.Consumer | None, timeout: float
    ) -> None:
        """Abort. If that fails the producer is ended, and the coordinator aborts after the transaction's
        timeout.
        """
        _read_again_later(consumer)
        try:
            if self._ended is None:
                self._try(
                    lambda left: self._client.abort_transaction(left), "cannot abort the transaction", timeout
                )
            self._free()
            rewind = getattr(consumer, "rewind_to_committed", None)
            if rewind is not None and self._ended is None:
                rewind()
        except ClientError as error:
            if self.in_progress:
                self._end(error)
            LOG.error("%s", error)
        except BaseException:  # Ctrl-C in the middle: whether it is aborted is not known
            if self.in_progress:
                self._end(TransactionError("an abort was interrupted"))
            raise

    def _end(self, error: ClientError) -> None:
        self._ended = error
        self._free()

    def _free(self) -> None:
        if self._busy.locked():
            self._busy.release()

    def _try(self, step: Callable[[float], object], doing: str, timeout: float) -> None:
        """Take one step, again after errors that librdkafka calls retriable, until the time is over."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            try:
                self.call(step, max(0.1, min(_ONE_TRY, left)))
            except confluent_kafka.KafkaException as failure:
                error = failure.args[0]
                if error.txn_requires_abort():
                    raise TransactionAbortedError(
                        f"{doing}: {error.str()} ({error.name()}); it was aborted, try the whole of it again",
                        code=error.code(),
                        name=error.name(),
                        retriable=True,
                    ) from failure
                if error.fatal() or not error.retriable() or left <= 0 or self._given_up:
                    raise error_from(
                        error, doing, FencedError if _fenced(error) else TransactionError
                    ) from failure
                time.sleep(_TRY_AGAIN)
            else:
                return


def _fenced(error: confluent_kafka.KafkaError) -> bool:
    return error.name() in ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")


def _read_again_later(consumer: Any) -> None:
    later = getattr(consumer, "rewind_later", None)
    if later is not None:
        later()


def _within(deadline: float, call: Callable[[], object], doing: str) -> None:
    """Make a call of librdkafka that does not keep to its own timeout, and that no signal interrupts: the
    one for offsets waits for ever for a coordinator that went away (librdkafka#5456, #5511).
    """
    answer: Future[object] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is raised where the answer is waited for
            answer.set_exception(error)

    threading.Thread(target=run, name="ottla-transaction", daemon=True).start()
    try:
        answer.result(max(_ONE_TRY, deadline - time.monotonic()))
    except TimeoutError:
        if answer.done():
            raise
        raise TimedOutError(
            f"{doing}: no answer in time; close this producer and make a new one with the same id",
            code=confluent_kafka.KafkaError._TIMED_OUT,
            name="_TIMED_OUT",
        ) from None


def _positions(consumer: Any) -> tuple[list[confluent_kafka.TopicPartition], Any]:
    if hasattr(consumer, "positions_for_transaction"):
        return consumer.positions_for_transaction(), consumer.group_metadata()
    positions = [each for each in consumer.position(consumer.assignment()) if each.offset >= 0]
    return positions, consumer.consumer_group_metadata()


class Transaction:
    """`with producer.transaction(): ...`, also as `async with`."""

    def __init__(
        self,
        state: TransactionState,
        consumer: TransactionalConsumer | confluent_kafka.Consumer | None,
        timeout: float,
    ) -> None:
        self._state = state
        self._consumer = consumer
        self._timeout = timeout

    def __enter__(self) -> Self:
        self._state.begin(self._timeout)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._state.commit(self._consumer, self._timeout)
        else:
            self._state.abort(self._consumer, self._timeout)

    async def __aenter__(self) -> Self:
        entering = _Step(self.__enter__)
        try:
            await entering.to_the_end()
        except asyncio.CancelledError:
            if entering.succeeded:
                await _Step(partial(self._state.abort, self._consumer, self._timeout)).to_the_end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await _Step(partial(self.__exit__, kind, error, traceback)).to_the_end()


class _Step:
    """A step of a transaction, in a thread. It is no task: those are cancelled at the end of asyncio.run."""

    def __init__(self, step: Callable[[], object]) -> None:
        self._running = asyncio.get_running_loop().run_in_executor(None, step)

    @property
    def succeeded(self) -> bool:
        return self._running.exception() is None

    async def to_the_end(self) -> None:
        """A task that is cancelled, however often, leaves when the step is done: what follows must find the
        transaction in a known state.
        """
        cancelled: asyncio.CancelledError | None = None
        while not self._running.done():
            try:
                await asyncio.wait([self._running])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
        self._running.result()
