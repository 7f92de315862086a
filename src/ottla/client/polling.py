"""How a producer polls librdkafka, which calls back for each record: in a thread, and by busy senders.

The thread makes callbacks come whatever the application does. While an application sends without a pause,
thread and application would take Python's lock from each other for every callback; that costs more than the
callbacks. So senders poll themselves, after many records, and the thread keeps out of the way as long as they
do.

confluent-kafka aborts the process when a callback polls or flushes. A callback of the application may send
records, so a sender does not poll inside of one, and to flush or to close there is an error. So is to wait
for a record: its callback comes when this one has returned.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

from ottla.client.configuration import LOG
from ottla.client.errors import ClientError
from ottla.client.librdkafka import confluent_kafka

_POLL_SECONDS = 0.1
_STAND_BACK_SECONDS = 0.003
"""The longest that a result waits when the last sender stops right after it polled."""
_JOIN_SECONDS = 2.0
_LOOK_SECONDS = 0.001
_LOST = "returned NULL without setting an exception"

P = ParamSpec("P")
R = TypeVar("R")


class Poller:
    """It has no reference to the producer, which may therefore be collected while the thread runs."""

    def __init__(self, client: confluent_kafka.Producer) -> None:
        self._client = client
        self._stopping = False
        self._sender_polled = False
        self._called_back: set[int] = set()
        """Threads in which librdkafka may be calling back."""
        self._unwanted = threading.Lock()
        """Released to end the time in which the thread stands back. An event will not do: the garbage
        collector, a signal's handler or a forked child may stop the poller while the event's lock is held.
        """
        self._thread = threading.Thread(target=self._run, name="ottla-producer", daemon=True)
        self._thread.start()

    def poll_as_sender(self) -> None:
        """For a thread that sends, after many records: deal with the results that are there."""
        if not self.is_calling_back:
            self._sender_polled = True
            self._poll(0)

    def call(self, function: Callable[P, R], *arguments: P.args, **options: P.kwargs) -> R:
        """Call a function of librdkafka that calls back.

        No context manager: Ctrl-C may come between any two lines, also between those of contextlib.
        """
        self.check_no_callback()
        thread = threading.get_ident()
        try:
            self._called_back.add(thread)
            return function(*arguments, **options)
        except SystemError as error:
            # confluent-kafka loses what a signal's handler raises within a callback, Ctrl-C most of all.
            if _LOST in str(error) and threading.current_thread() is threading.main_thread():
                LOG.warning("the result of one record may be lost: Ctrl-C came while librdkafka reported it")
                raise KeyboardInterrupt from error
            raise
        finally:
            self._called_back.discard(thread)

    def as_callback(self, function: Callable[P, None], *arguments: P.args, **options: P.kwargs) -> None:
        """Call the application as librdkafka's callbacks do: what it calls in turn must not wait."""
        if self.is_calling_back:
            function(*arguments, **options)
            return
        thread = threading.get_ident()
        try:
            self._called_back.add(thread)
            function(*arguments, **options)
        finally:
            self._called_back.discard(thread)

    @property
    def is_calling_back(self) -> bool:
        """Whether librdkafka is calling back in this thread."""
        return threading.get_ident() in self._called_back

    def check_no_callback(self) -> None:
        if self.is_calling_back:
            raise ClientError(
                "a callback of the producer can send, but not flush, close, wait for a record or use "
                "transactions: do that in another thread"
            )

    def forget_callbacks(self) -> None:
        """In a forked child: the threads that librdkafka called back are those of the parent."""
        self._called_back.clear()

    def wake(self) -> None:
        """Somebody waits for results, and does not poll."""
        self._sender_polled = False
        self._end_standing_back()

    def stop(self) -> None:
        self._stopping = True
        self._end_standing_back()

    def stop_and_wait(self) -> None:
        """Nobody polls any more: the client may be freed."""
        self.stop()
        self._thread.join(_JOIN_SECONDS)
        deadline = time.monotonic() + _JOIN_SECONDS
        while self._called_back - {threading.get_ident()} and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)  # for a sender, or an event loop, that polls just now

    def _end_standing_back(self) -> None:
        with suppress(RuntimeError):  # it is released already
            self._unwanted.release()

    def _run(self) -> None:
        while not self._stopping:
            if self._sender_polled:
                self._sender_polled = False
                self._unwanted.acquire(blocking=False)
                if not self._stopping:
                    self._unwanted.acquire(timeout=_STAND_BACK_SECONDS)
            else:
                try:
                    self._poll(_POLL_SECONDS)
                except BaseException:  # noqa: BLE001 - a callback that ends its program ends no thread of ours
                    LOG.exception("a callback of the producer failed")

    def _poll_unless_stopping(self, timeout: float) -> None:
        if not self._stopping:  # asked within `call`: `stop_and_wait` waits for those that are there
            self._client.poll(timeout)

    def _poll(self, timeout: float) -> None:
        try:
            self.call(self._poll_unless_stopping, timeout)
        except confluent_kafka.KafkaException as fatal:
            LOG.error("the producer is of no use any more: %s", fatal.args[0].str())
        except Exception:  # noqa: BLE001 - from a callback of the application: the next ones must still come
            LOG.exception("a callback of the producer failed")
