"""Connections that a Spark worker keeps from task to task.

A micro-batch of a few records should take milliseconds, and Spark keeps its Python workers alive between
tasks. So a task borrows a `Link` to its cluster and gives it back when all went well: the connections, the
places of leaders and the producer id of the last task are there for the next. A task that failed, or was left
in the middle of an answer, closes its link instead; what is still on the wire cannot be known.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol_client.wire import Wire

__all__ = ["Link", "Producership", "TopicPlace", "borrowed"]

METADATA_AGE = 60.0
"""Seconds after which a writer asks again how many partitions a topic has."""


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """A topic as metadata told of it: its id, and the leader of each partition (-1: none)."""

    name: str
    topic_id: bytes
    leaders: dict[int, int]
    known_since: float

    @property
    def partition_count(self) -> int:
        return max(self.leaders, default=-1) + 1

    def leader(self, partition: int) -> int:
        """The broker that leads a partition; ApiError when there is none, or no such partition."""
        found = self.leaders.get(partition)
        if found is None:
            last = self.partition_count - 1
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {self.name!r} has no partition {partition}, only "
                + (f"0 to {last}" if last else "0"),
            )
        if found < 0:
            raise ApiError(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"partition {partition} of topic {self.name!r} has no leader; its brokers may be down",
            )
        return found


@dataclass(slots=True)
class Producership:
    """Who writes, for brokers that drop what a retry repeats: an id, its epoch, a sequence per partition.

    -1 is no producer. The writer only counts the sequences on; the caller that hands an identity down to it
    (a driver, for a transaction) decides where it comes from.
    """

    producer_id: int = -1
    epoch: int = -1
    transactional_id: str | None = None
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)

    def take(self, topic: str, partition: int, count: int) -> int:
        """The sequence of the next batch to a partition; `count` are taken. -1 for no producer."""
        if self.producer_id < 0:
            return -1
        place = topic, partition
        first = self.sequences.get(place, 0)
        self.sequences[place] = (first + count) & 0x7FFFFFFF
        return first


class Link:
    """Connections to the brokers of one cluster, and what was learned over them."""

    def __init__(
        self, bootstrap: str, client_id: str, connect_timeout: float, request_timeout: float
    ) -> None:
        self.wire = Wire(
            bootstrap, client_id=client_id, connect_timeout=connect_timeout, request_timeout=request_timeout
        )
        self.producership: Producership | None = None
        self._topics: dict[str, TopicPlace] = {}

    def topic(self, name: str, *, create: bool = False, max_age: float | None = None) -> TopicPlace:
        """Where a topic's partitions are, from memory if it is not older than `max_age`."""
        known = self._topics.get(name)
        if known is not None and (max_age is None or time.monotonic() - known.known_since < max_age):
            return known
        metadata = self.wire.topic(name, create=create)
        known = TopicPlace(
            name,
            metadata.topic_id,
            {p.partition_index: p.leader_id for p in metadata.partitions},
            time.monotonic(),
        )
        self._topics[name] = known
        return known

    def forget(self, topic: str) -> None:
        """Ask anew next time: the place was wrong."""
        self._topics.pop(topic, None)


_idle: dict[tuple[int, str, str, float, float], list[Link]] = {}
"""Links that are free, by process (Spark forks its workers, and a socket must not be shared) and settings."""


@contextmanager
def borrowed(
    bootstrap: str, client_id: str, connect_timeout: float, request_timeout: float
) -> Iterator[Link]:
    """A link to a cluster, kept for the next task if the block ends well and closed otherwise."""
    key = (os.getpid(), bootstrap, client_id, connect_timeout, request_timeout)
    waiting = _idle.setdefault(key, [])
    try:
        link = waiting.pop()
    except IndexError:  # none is free; asked like this because the stages of a driver are threads
        link = Link(bootstrap, client_id, connect_timeout, request_timeout)
    try:
        yield link
    except BaseException:  # GeneratorExit too: a reader that is left early
        link.wire.close()
        raise
    waiting.append(link)
