"""Which partition of its topic a record goes to.

The default, `keyed`, is librdkafka's `murmur2_random`: a key goes where every Kafka client sends it, records
without a key stay with a random partition for some milliseconds. Other names of librdkafka's partitioners
work as well. The classes and functions here are called for each record with the record, its serialized key
and the topic's layout, and so is a function of the application. A partition that is given with the record
always wins.

A partitioner is used by several threads at once: what they share changes in single steps.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ottla.client.errors import ConfigurationError
from ottla.client.records import ProducerRecord
from ottla.protocol_client.partitioner import STICKY_BYTES, partition_of

NATIVE = frozenset(
    ["random", "consistent", "consistent_random", "murmur2", "murmur2_random", "fnv1a", "fnv1a_random"]
)
"""The partitioners that librdkafka has, by its names."""


@dataclass(frozen=True)
class TopicLayout:
    """The partitions of a topic as the client knows them now; their number grows when partitions are
    added.
    """

    topic: str
    partitions: int
    racks: tuple[str | None, ...] = ()
    """The rack of each partition's leader; empty where the partitioner did not ask for it (`needs_racks`)."""

    def __len__(self) -> int:
        return self.partitions


Partitioner = Callable[[ProducerRecord, bytes | None, TopicLayout], int]


def keyed(record: ProducerRecord, key: bytes | None, layout: TopicLayout) -> int:
    """Where every Kafka client sends this key; a random partition without a key."""
    return random.randrange(len(layout)) if key is None else partition_of(key, len(layout))


class RoundRobin:
    """One record after the other to the next partition, whatever its key."""

    def __init__(self) -> None:
        self._turns: dict[str, itertools.count[int]] = {}

    def __call__(self, record: ProducerRecord, key: bytes | None, layout: TopicLayout) -> int:
        turn = self._turns.get(layout.topic) or self._turns.setdefault(layout.topic, itertools.count())
        return next(turn) % len(layout)


class Sticky:
    """All records to one partition until about a batch is full, then to another, whatever their keys."""

    def __init__(self, batch_bytes: int = STICKY_BYTES) -> None:
        self._batch_bytes = batch_bytes
        self._current: dict[str, tuple[int, int]] = {}
        """By topic: the partition, and how many bytes it got."""

    def __call__(self, record: ProducerRecord, key: bytes | None, layout: TopicLayout) -> int:
        partition, used = self._current.get(layout.topic, (-1, self._batch_bytes))
        if used >= self._batch_bytes or partition >= len(layout):
            partition, used = self._another(partition, len(layout)), 0
        size = len(record.value) if isinstance(record.value, (bytes, str)) else 100
        self._current[layout.topic] = (partition, used + size)
        return partition

    @staticmethod
    def _another(partition: int, partitions: int) -> int:
        if partitions == 1:
            return 0
        if not 0 <= partition < partitions:
            return random.randrange(partitions)
        chosen = random.randrange(partitions - 1)
        return chosen + 1 if chosen >= partition else chosen


class ByLocation:
    """To the partitions of the record's location: its region, its rack, a customer's site.

    `location` is the name of a header, or a function of the record. `partitions` says which partitions belong
    to a location; without it those whose leader is in the rack of that name. Among them a key decides as
    everywhere, and without a key they take turns. A record without a location, or of one that has no
    partitions, goes to any.
    """

    def __init__(
        self,
        location: str | Callable[[ProducerRecord], str | None],
        partitions: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self._location = location
        self._partitions = {name: tuple(each) for name, each in partitions.items()} if partitions else None
        self._turns = itertools.count()
        self.needs_racks = partitions is None

    def __call__(self, record: ProducerRecord, key: bytes | None, layout: TopicLayout) -> int:
        near = self._near(record, layout)
        if not near:
            return keyed(record, key, layout)
        return near[partition_of(key, len(near)) if key is not None else next(self._turns) % len(near)]

    def _near(self, record: ProducerRecord, layout: TopicLayout) -> Sequence[int]:
        location = self._name_of(record)
        if location is None:
            return ()
        if self._partitions is not None:
            return [each for each in self._partitions.get(location, ()) if each < len(layout)]
        return [partition for partition, rack in enumerate(layout.racks) if rack == location]

    def _name_of(self, record: ProducerRecord) -> str | None:
        if callable(self._location):
            return self._location(record)
        header = record.header(self._location)
        return None if header is None else header.decode(errors="replace")


def partitioner_for(given: str | Partitioner) -> tuple[dict[str, object], Partitioner | None]:
    """librdkafka's settings for a partitioner, and the function to call for each record if it is not its
    own.
    """
    if callable(given):
        return {}, given
    if given == "keyed":
        return {"partitioner": "murmur2_random"}, None
    if given == "random":  # librdkafka would keep to one partition for a while, if there is no key
        return {"partitioner": "random", "sticky.partitioning.linger.ms": 0}, None
    if given in NATIVE:
        return {"partitioner": given}, None
    if given == "round_robin":
        return {}, RoundRobin()
    if given == "sticky":
        return {}, Sticky()
    raise ConfigurationError(
        f"no partitioner is called {given!r}: choose keyed, round_robin, random, sticky, one of librdkafka's "
        f"({', '.join(sorted(NATIVE))}), ByLocation(...) or a function"
    )
