"""Messages as librdkafka hands them over, before they are records.

There may be errors among them, messages of partitions that went away meanwhile, and topics that do not exist
yet. Messages that an interrupt has lost on their way are read again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ottla.client.configuration import LIBRDKAFKA_LOG
from ottla.client.errors import ClientError, error_from
from ottla.client.librdkafka import confluent_kafka
from ottla.client.missing_topics import MissingTopics
from ottla.client.record_buffer import Positions, RecordBuffer, ends_of, place_of
from ottla.client.records import Message
from ottla.client.seeking import Seeking

KafkaError = confluent_kafka.KafkaError
_NO_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_PASSING = {
    KafkaError._PARTITION_EOF,
    KafkaError._MAX_POLL_EXCEEDED,
    *_NO_TOPIC,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
}
"""Errors after which reading goes on by itself, sooner or later."""


class Incoming(Seeking):
    """The part of a consumer that asks librdkafka for messages. `Rebalancing` is the only subclass."""

    def __init__(
        self, consumer: confluent_kafka.Consumer, buffer: RecordBuffer, group_id: str | None, start: str
    ) -> None:
        super().__init__(consumer, buffer)
        self.group_id = group_id
        self._start = start
        self._join: Callable[[], None] | None = None
        """A subscription that librdkafka does not know yet."""
        self._missing = MissingTopics()
        self._raw: list[Message] = []
        """Messages that were read and not converted: the first one is bad, and its error was raised."""
        self._error: ClientError | None = None
        """To be raised when the records before it are handed out."""
        self._gap = False
        """Messages were taken from librdkafka and lost by an interrupt: read them again."""

    def _messages(self, limit: int, wait: float) -> list[Message]:
        """What librdkafka has: `consume` alone would wait for a full batch."""
        if self._join is not None:
            self._join()
            self._join = None  # not before: a consumer that was interrupted must still join
        moved = self._moves
        self._missing.look(self._consumer, time.monotonic())
        messages = self._consumer.consume(limit, 0.0)
        if not messages:
            first = self._consumer.poll(wait)
            if first is None:
                return []
            messages = [first, *self._consumer.consume(limit - 1, 0.0)] if limit > 1 else [first]
        if self._moves != moved:  # a rebalance in between
            messages = [each for each in messages if each.error() or place_of(each) in self._assigned]
        if any(map(Message.error, messages)):
            for message in messages:
                if (error := message.error()) is not None:
                    self._on_error(error)
                    if error.code() in _NO_TOPIC and (topic := message.topic()):
                        self._missing.add(topic, time.monotonic())
            messages = [message for message in messages if message.error() is None]
        return messages

    def _ends_of(self, messages: list[Message]) -> Positions:
        """The positions behind these messages. Where reading of a partition began is noted."""
        ends = ends_of(messages, one_topic=self._one_topic)
        if ends.keys() - self._first.keys():
            for message in messages:
                self._first.setdefault(place_of(message), message.offset() or 0)
        return ends

    def _on_error(self, error: confluent_kafka.KafkaError) -> None:
        """An error that librdkafka reports, in place of a message or beside them."""
        if error.code() == KafkaError._PARTITION_EOF:
            return
        ours = error_from(error, "cannot read")
        if not error.fatal() and (error.code() in _PASSING or error.retriable()):
            LIBRDKAFKA_LOG.warning("%s", ours)
        else:
            self._error = ours

    # -- again --------------------------------------------------------------------------------------------

    def _read_again(self) -> None:
        """Drop what is read ahead, and read it again."""
        self._buffer.clear()
        self._close_gap()

    def _close_gap(self) -> None:
        """Read again from behind what the application has: its positions, the group's commits, or the first
        record."""
        self._raw = []
        known = {name: position.offset for name, position in self._buffer.read().items()}
        missing = self._assigned - known.keys()
        if missing and self.group_id is not None:
            known |= self.committed(*missing)
        for partition in self._assigned:
            offset = known.get(partition, self._first.get(partition))
            if offset is None:  # nothing was read yet
                offset = self._watermarks(partition)[self._start == "latest"]
            self._seek(partition, offset)
        self._gap = False
