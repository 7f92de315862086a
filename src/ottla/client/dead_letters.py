"""Records that nobody can work on, written elsewhere with the reason: dead letters, and retry topics.

A letter is the record as it was (key, value and headers, byte for byte) with more headers: `ottla.topic`,
`ottla.partition` and `ottla.offset` say where it was, `ottla.reason` and `ottla.exception` why it is here,
`ottla.attempts` how often it was tried and `ottla.group` by whom. A pipeline's dead letters have the same
headers. A record is only counted as done when all in-sync replicas have its letter: `Forwarder.send` waits
for that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from ottla.client.errors import ConfigurationError, SendError, TimedOutError, UnknownTopicError, error_from
from ottla.client.librdkafka import confluent_kafka
from ottla.client.records import Header

TOPIC, PARTITION, OFFSET = "ottla.topic", "ottla.partition", "ottla.offset"
REASON, EXCEPTION, ATTEMPTS, GROUP = "ottla.reason", "ottla.exception", "ottla.attempts", "ottla.group"
DUE = "ottla.due"
"""When a record of a retry topic is due: milliseconds since 1970."""
_OURS = frozenset({TOPIC, PARTITION, OFFSET, REASON, EXCEPTION, ATTEMPTS, GROUP, DUE})
_CONNECTION = ("bootstrap.servers", "security.", "sasl.", "ssl.", "client.id", "broker.address.", "socket.")
"""Keys of a consumer's configuration that a producer beside it needs too."""
_BEING_CREATED = {
    confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
    confluent_kafka.KafkaError.LEADER_NOT_AVAILABLE,
}
_CREATION = 5.0
"""Seconds that a broker may take for a topic that it creates when asked for it: at first it answers that
there is none."""
_LONGEST_REASON = 4096
"""Characters: a reason with a whole document in it must not make the letter too large."""


def headers_of(message: Any) -> dict[str, bytes | None]:
    """The headers that this module added to a record, by name."""
    return {name: value for name, value in message.headers() or () if name in _OURS}


def explained(
    message: Any,
    *,
    reason: str,
    error: BaseException,
    attempts: int,
    group: str | None,
    due: int | None = None,
) -> list[Header]:
    """The record's headers and ours. One that comes from a retry topic keeps the place where it was first."""
    earlier = headers_of(message)
    own: list[Header] = [(name, value) for name, value in message.headers() or () if name not in _OURS]
    told = {
        TOPIC: earlier.get(TOPIC) or message.topic().encode(),
        PARTITION: earlier.get(PARTITION) or b"%d" % message.partition(),
        OFFSET: earlier.get(OFFSET) or b"%d" % message.offset(),
        REASON: reason[:_LONGEST_REASON].encode(errors="replace"),
        EXCEPTION: f"{type(error).__module__}.{type(error).__qualname__}".encode(),
        ATTEMPTS: b"%d" % attempts,
    }
    if group is not None:
        told[GROUP] = group.encode()
    if due is not None:
        told[DUE] = b"%d" % due
    return [*own, *told.items()]


class Forwarder:
    """Writes records as they are to other topics. Any thread may send."""

    def __init__(self, config: Mapping[str, Any], timeout: float = 30.0) -> None:
        """`config` of a consumer, of which the connection is taken, or of a producer."""
        taken = {name: value for name, value in config.items() if name.startswith(_CONNECTION)}
        taken |= {
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "delivery.timeout.ms": max(1, int(timeout * 1000)),
        }
        self._producer = confluent_kafka.Producer(taken)
        self._timeout = timeout

    def send(self, topic: str, message: Any, headers: list[Header]) -> None:
        """Write the message to `topic`, and return when all in-sync replicas have it."""
        written = threading.Event()
        failures: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            failures.append(error)
            written.set()

        deadline = time.monotonic() + self._timeout + 5.0  # librdkafka reports its own timeout before
        while True:
            try:
                self._producer.produce(
                    topic,
                    value=message.value(),
                    key=message.key(),
                    headers=list(headers),
                    timestamp=max(0, message.timestamp()[1]),
                    on_delivery=delivered,
                )
                break
            except BufferError as full:
                self._producer.poll(0.1)
                if time.monotonic() > deadline:
                    raise TimedOutError(f"no space in the buffer for a record to {topic}") from full
        while not written.is_set():
            self._producer.poll(0.05)
            if time.monotonic() > deadline:
                raise TimedOutError(f"{topic} did not take a record within {self._timeout:g} s")
        if failures[0] is not None:
            raise error_from(failures[0], f"cannot write to {topic}", SendError)

    def check(self, topic: str) -> None:
        """Raise if the topic is not there and the broker does not create it: a group would miss it."""
        deadline = time.monotonic() + min(self._timeout, _CREATION)
        while True:
            try:
                found = self._producer.list_topics(topic, timeout=self._timeout).topics[topic]
            except confluent_kafka.KafkaException as failure:
                raise error_from(failure.args[0], f"cannot look up {topic}") from failure
            if found.error is None:
                return
            if time.monotonic() > deadline or found.error.code() not in _BEING_CREATED:
                raise error_from(found.error, f"cannot use {topic}", UnknownTopicError)
            time.sleep(0.1)

    def close(self) -> None:
        self._producer.flush(self._timeout)


class DeadLetters:
    """Where dead letters go: one topic, or one per topic with `{topic}` in the name ("{topic}.dead")."""

    def __init__(self, topic: str = "{topic}.dead", *, timeout: float = 30.0) -> None:
        if not topic.replace("{topic}", "x").strip():
            raise ConfigurationError("dead letters need a topic")
        self._topic = topic
        self._timeout = timeout
        self._forwarder: Forwarder | None = None
        self._group: str | None = None

    def connect(self, config: Mapping[str, Any], group: str | None) -> None:
        """Called by the consumer or pool that uses it."""
        if self._forwarder is None:
            self._forwarder = Forwarder(config, self._timeout)
            self._group = group

    def topic_of(self, source: str) -> str:
        return self._topic.replace("{topic}", source)

    def send(self, message: Any, error: BaseException, *, reason: str, attempts: int) -> str:
        """Write a letter, and return the name of its topic when it is safe."""
        if self._forwarder is None:
            raise ConfigurationError("these dead letters belong to no consumer yet")
        source = headers_of(message).get(TOPIC)
        topic = self.topic_of(source.decode() if source else message.topic())
        headers = explained(message, reason=reason, error=error, attempts=attempts, group=self._group)
        self._forwarder.send(topic, message, headers)
        return topic

    def close(self) -> None:
        if self._forwarder is not None:
            self._forwarder.close()
            self._forwarder = None
