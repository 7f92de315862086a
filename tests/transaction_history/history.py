"""What transactional clients did and saw in a run, as plain values that the checks of this package read.

The workload is Jepsen's for Kafka: a key is a partition, a log of values that are unique over the whole run;
transactions send values to keys and poll values of keys. Whoever runs clients, in the simulation or against
processes, fills a `History`; what is wrong with it is found by `anomalies`.

The outcome of a transaction is what its client knows. `ABORTED` means that it cannot be committed any more,
`UNKNOWN` that a commit was asked for and its answer is missing or not clear: such a transaction may be there
or not, but whole.

Times are of one clock for all clients of a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

Key = tuple[str, int]
"""A topic and a partition."""


class Outcome(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Source(NamedTuple):
    """The record that a group has read and that a value was made from."""

    group: str
    key: Key
    offset: int


@dataclass(slots=True)
class Send:
    key: Key
    value: str
    offset: int | None = None
    """Where it is, if that was acknowledged."""
    source: Source | None = None


class Read(NamedTuple):
    """A value that was polled within a transaction."""

    key: Key
    value: str


@dataclass(slots=True)
class Transaction:
    name: str
    transactional_id: str
    producer: tuple[int, int]
    """Producer id and epoch: with them the transactions of one transactional id are in order."""
    sends: list[Send] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    offsets: dict[tuple[str, Key], int] = field(default_factory=dict)
    """What it commits for groups: where each goes on."""
    outcome: Outcome = Outcome.UNKNOWN
    commit_sent: float | None = None
    """When its commit was asked for, the first time."""
    ended: float | None = None
    """When its client knew the outcome."""


@dataclass(frozen=True, slots=True)
class Poll:
    """What a reader got of one key with one request.

    An assignment begins where the reader likes. From then on each poll begins where the one before ended.
    """

    reader: str
    assignment: int
    is_committed: bool
    """It reads committed records only."""
    key: Key
    start: int
    end: int
    """Where the next poll begins: behind the records, and behind what the reader has to leave out."""
    records: tuple[tuple[int, str], ...]
    """Offsets and values."""
    at: float
    """When the answer was there."""


class OffsetRead(NamedTuple):
    """Where a group goes on, as its coordinator said when it was asked for a stable answer."""

    group: str
    key: Key
    offset: int
    asked: float
    answered: float


class LogEnd(NamedTuple):
    """Of a key at the end of the run, a bounded time after the last fault."""

    stable: int
    end: int


@dataclass(slots=True)
class History:
    transactions: list[Transaction] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    offset_reads: list[OffsetRead] = field(default_factory=list)
    ends: dict[Key, LogEnd] = field(default_factory=dict)
    final_offsets: dict[tuple[str, Key], int] = field(default_factory=dict)
    """Where groups go on at the end of the run."""

    def count(self, outcome: Outcome) -> int:
        return sum(each.outcome is outcome for each in self.transactions)

    def sends(self) -> Iterator[tuple[Transaction, Send]]:
        for transaction in self.transactions:
            for send in transaction.sends:
                yield transaction, send

    def writers(self) -> dict[str, tuple[Transaction, Send]]:
        """By value: who sent it."""
        return {send.value: (transaction, send) for transaction, send in self.sends()}

    def committed_reads(self) -> Iterator[tuple[Poll, int, str]]:
        for poll in self.polls:
            if poll.is_committed:
                for offset, value in poll.records:
                    yield poll, offset, value


class Anomaly(NamedTuple):
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"
