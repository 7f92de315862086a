"""How many partitions a topic has, for partitioners that are called in Python.

A layout is asked for when a topic is first used, again when it is older than `max_age`, and at once when a
broker says that a partition is not there. A topic that is missing is asked for until the deadline, because a
broker may be about to create it, and then it is an error; that is not remembered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ottla.client.errors import ClientError, ClosedError, UnknownTopicError, error_from
from ottla.client.librdkafka import confluent_kafka
from ottla.client.partitioners import TopicLayout

Racks = Mapping[int, str | None]
"""The rack of each broker, by its id."""

_CONNECTION = ("bootstrap.", "client.id", "security.", "sasl.", "ssl.", "socket.", "broker.address", "logger")
_LOOK_AGAIN = 0.1
_ONE_REQUEST = 5.0
_REFRESH_AGAIN = 1.0


class TopicLayouts:
    """The layouts of the topics that a producer sends to."""

    def __init__(
        self, client: confluent_kafka.Producer, max_age: float, racks: Callable[[float], Racks] | None = None
    ) -> None:
        self._client = client
        self._racks = racks
        self._max_age = max_age
        self._known: dict[str, tuple[TopicLayout, float]] = {}
        self._refreshed: dict[str, float] = {}
        self._asking = threading.Lock()

    def fresh(self, topic: str) -> TopicLayout | None:
        """The layout, if it is known and not too old: without waiting."""
        known = self._known.get(topic)
        return known[0] if known is not None and time.monotonic() < known[1] else None

    def get(self, topic: str, deadline: float) -> TopicLayout:
        """The layout, asked for if need be. An old one serves while the brokers do not answer."""
        with self._asking:
            found = self.fresh(topic)
            while found is None:
                try:
                    found = self._ask(topic, max(0.1, min(_ONE_REQUEST, deadline - time.monotonic())))
                except ClientError as error:
                    old = self._known.get(topic)
                    if old is not None and not isinstance(error, UnknownTopicError):
                        found = old[0]
                    elif time.monotonic() + _LOOK_AGAIN >= deadline:
                        raise
                    else:
                        time.sleep(_LOOK_AGAIN)
            self._known[topic] = (found, time.monotonic() + self._max_age)
            return found

    def refresh(self, topic: str) -> bool:
        """librdkafka does not know the topic or partition: let it ask now, not at its next interval.

        False if it did so a moment ago, or nobody answers: then the record is refused.
        """
        now = time.monotonic()
        if now - self._refreshed.get(topic, -_REFRESH_AGAIN) < _REFRESH_AGAIN:
            return False
        self._refreshed[topic] = now
        self._known.pop(topic, None)
        try:
            self._ask(topic, _ONE_REQUEST)
        except ClientError:
            return False
        return True

    def _ask(self, topic: str, timeout: float) -> TopicLayout:
        doing = f"cannot find the partitions of {topic!r}"
        try:
            found = self._client.list_topics(topic, timeout=timeout).topics[topic]
            if found.error is not None:
                raise error_from(found.error, doing)
            if not found.partitions:
                raise UnknownTopicError(f"{doing}: the topic is not there yet", retriable=True)
            racks = {} if self._racks is None else self._racks(timeout)
            leaders = [found.partitions[number].leader for number in sorted(found.partitions)]
            return TopicLayout(
                topic, len(leaders), tuple(racks.get(each) for each in leaders) if racks else ()
            )
        except confluent_kafka.KafkaException as failure:
            raise error_from(failure.args[0], doing) from failure
        except RuntimeError as failure:
            raise ClosedError(f"{doing}: the producer is closed") from failure


def rack_reader(settings: dict[str, Any]) -> Callable[[float], Racks]:
    """A function that asks the cluster for the rack of each broker, with the connection settings of a
    client.
    """
    connection = {key: value for key, value in settings.items() if key.startswith(_CONNECTION)}
    admin = confluent_kafka.admin.AdminClient(connection)

    def racks(timeout: float) -> Racks:
        described = admin.describe_cluster(request_timeout=timeout).result(timeout + 1)
        return {node.id: node.rack for node in described.nodes}

    return racks
