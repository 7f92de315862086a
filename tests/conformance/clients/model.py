"""What a conformance test says to a client, in words that every client understands.

A test states one promise of a Kafka broker and runs once for each client. The classes here are the words:
a `Message` to produce, a `Received` record, a `Start` to read from, `Refused` for an answer with an error.
`Client` is what each driver (one file per client library beside this one) implements with the unmodified
library; what a library cannot do is missing from its `features`, and tests that need it are not made for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

Headers = tuple[tuple[str, bytes | None], ...]

DEADLINE = 20.0
"""Seconds after which a test stops waiting for something that should take milliseconds."""


FETCH_BYTES = 4_000_000

DEFAULT = -1
"""Leaves a number to the broker, as the replication factor of a topic."""


@dataclass(frozen=True)
class Message:
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None
    """Milliseconds; None leaves it to the client."""


@dataclass(frozen=True)
class Received:
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int

    @property
    def content(self) -> tuple[bytes | None, bytes | None, Headers]:
        return self.key, self.value, self.headers


@dataclass(frozen=True)
class Delivery:
    """Where the broker said a record went."""

    partition: int
    offset: int


@dataclass(frozen=True)
class Start:
    """Where a reader begins: exactly one kind of position."""

    kind: str
    number: int = 0

    @classmethod
    def offset(cls, offset: int) -> Start:
        return cls("offset", offset)

    @classmethod
    def timestamp(cls, milliseconds: int) -> Start:
        return cls("timestamp", milliseconds)

    @classmethod
    def tail(cls, count: int) -> Start:
        return cls("tail", count)


EARLIEST = Start("earliest")
LATEST = Start("latest")


class Refused(Exception):
    """The broker answered with an error; `code` is the number of the protocol."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(f"error {code}: {message}")
        self.code = code


class Reader(Protocol):
    """A consumer that was assigned one partition."""

    def poll(self, seconds: float) -> list[Received]:
        """What arrived; waits up to so many seconds when there is nothing."""

    def take(self, count: int) -> list[Received]:
        """The next `count` records; fails when they do not come within the deadline."""


@dataclass(frozen=True)
class Cluster:
    cluster_id: str | None
    controller: int
    brokers: Mapping[int, tuple[str, int]]


class Client(Protocol):
    name: str
    features: frozenset[str]
    """timestamps: sets them. offsets: learns the offset of a produced record. idempotence. admin: topics,
    partitions, topic configs, records. broker-configs, incremental-configs, list-offsets, log-dirs,
    describe-partitions, describe-producers: those admin calls. lookup: asks offsets by timestamp.
    null-headers: header values may be null. config-reset: returns a config to its default."""

    def __init__(self, bootstrap: str) -> None: ...

    def produce(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        partition: int = 0,
        acks: str = "all",
        codec: str = "none",
        idempotent: bool = False,
    ) -> list[Delivery | None]: ...

    def reading(
        self, topic: str, partition: int, start: Start, *, fetch_bytes: int = FETCH_BYTES
    ) -> AbstractContextManager[Reader]: ...

    def reading_all(self, topic: str, partitions: int) -> AbstractContextManager[Reader]:
        """All partitions of a topic at once, from the beginning."""
