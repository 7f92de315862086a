"""Topics that a consumer is to read and that do not exist yet.

librdkafka reports such a topic once and then asks for it only when it refreshes its metadata, which is
minutes later. Here the brokers are asked again after a quarter of a second, then less and less often, at most
`_LONGEST` seconds apart. librdkafka sees the answer too: once the topic exists, it joins the group again.
Topics of a pattern are found by the refresh (`topic.metadata.refresh.interval.ms`, see
ottla.client.delivery).
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.client.configuration import LOG
from ottla.client.librdkafka import confluent_kafka

_FIRST = 0.25
_LONGEST = 5.0
_TIMEOUT = 1.0
"""Reading waits for the answer, but not for a broker that gives none."""


class MissingTopics:
    def __init__(self) -> None:
        self._names: set[str] = set()
        self._wait = _FIRST
        self._due = 0.0

    def add(self, name: str, now: float) -> None:
        """librdkafka found that this topic does not exist."""
        is_pattern = name.startswith("^")  # without a match: for that all topics would be asked for
        if name not in self._names and not is_pattern:
            self._names.add(name)
            self._wait = _FIRST
            self._due = now + _FIRST

    def keep(self, names: Iterable[str]) -> None:
        """Only these topics are to be read from now on."""
        self._names.intersection_update(names)

    def look(self, consumer: confluent_kafka.Consumer, now: float) -> None:
        """Ask the brokers, if some topic is missing and it is time."""
        if not self._names or now < self._due:
            return
        self._wait = min(2 * self._wait, _LONGEST)
        self._due = now + self._wait
        try:
            found = {name for name in self._names if _exists(consumer, name)}
            if found:
                # librdkafka looks at its subscription only after an answer with all topics.
                consumer.list_topics(timeout=_TIMEOUT)
        except confluent_kafka.KafkaException as failure:
            LOG.debug("cannot ask for %s: %s", ", ".join(sorted(self._names)), failure)
        else:
            self._names -= found


def _exists(consumer: confluent_kafka.Consumer, name: str) -> bool:
    topic = consumer.list_topics(name, timeout=_TIMEOUT).topics.get(name)
    return topic is not None and topic.error is None
