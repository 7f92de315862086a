"""How a producer polls librdkafka, which calls back for each record: in a thread, and by busy senders.

The thread makes callbacks come whatever the application does. While an application sends without a pause,
thread and application would take Python's lock from each other for every callback; that costs more than the
callbacks. So senders poll themselves, after many records, and the thread keeps out of the way as long as they
do.
"""

from __future__ import annotations

import threading

from ottla.client.configuration import LOG
from ottla.client.librdkafka import confluent_kafka

_POLL_SECONDS = 0.1
_STAND_BACK_SECONDS = 0.003
"""The longest that a result waits when the last sender stops right after it polled."""
_JOIN_SECONDS = 2.0


class Poller:
    """It has no reference to the producer, which may therefore be collected while the thread runs."""

    def __init__(self, client: confluent_kafka.Producer) -> None:
        self._client = client
        self._stopping = False
        self._sender_polled = False
        self._wanted = threading.Event()
        """Set to end the time in which the thread stands back."""
        self._thread = threading.Thread(target=self._run, name="ottla-producer", daemon=True)
        self._thread.start()

    def poll_as_sender(self) -> None:
        """For a thread that sends, after many records: deal with the results that are there."""
        self._sender_polled = True
        self._poll(0)

    def wake(self) -> None:
        """Somebody waits for results, and does not poll."""
        self._sender_polled = False
        self._wanted.set()

    def stop(self) -> None:
        self._stopping = True
        self._wanted.set()

    def stop_and_wait(self) -> bool:
        """Whether the thread is at its end; it is not when a callback asks for it."""
        self.stop()
        if self._thread is threading.current_thread():
            return False
        self._thread.join(_JOIN_SECONDS)
        return True

    def _run(self) -> None:
        while not self._stopping:
            if self._sender_polled:
                self._sender_polled = False
                self._wanted.clear()
                if not self._stopping:
                    self._wanted.wait(_STAND_BACK_SECONDS)
            else:
                self._poll(_POLL_SECONDS)

    def _poll(self, timeout: float) -> None:
        try:
            self._client.poll(timeout)
        except confluent_kafka.KafkaException as fatal:
            LOG.error("the producer is of no use any more: %s", fatal.args[0].str())
        except Exception:  # noqa: BLE001 - from a callback of the application: the next ones must still come
            LOG.exception("a callback of the producer failed")
