"""What the coordinator knows about one transactional id: its producer, and the state of its transaction.

A `Transaction` is an immutable value; each change makes the next one, which is a record of the log. The
states and their numbers are Kafka's:

    Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing ...
                     -> PrepareAbort  -> CompleteAbort  -> Ongoing ...

When a transaction has reached one of the two Prepare states, its outcome is decided. It is complete when the
leaders of all its partitions have written the marker that says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

TopicPartition: TypeAlias = tuple[str, int]

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIME = -1
LAST_EPOCH = 32767
"""Only the coordinator uses it, to fence a producer that has the one before."""

EPOCH_PER_TRANSACTION = 2
"""From this transaction version on, each transaction has an epoch of its own (KIP-890, part 2)."""


class TransactionState(IntEnum):
    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    """Of a transactional id that expires. Kafka never writes it, and neither do we."""

    @property
    def text(self) -> str:
        """As Kafka's tools show it: PrepareCommit."""
        return self.name.title().replace("_", "")


PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
IDLE = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})


@dataclass(frozen=True, slots=True)
class Transaction:
    transactional_id: str
    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    timeout_ms: int = 0
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIME
    """When the first partition was added."""
    update_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before the last change, which is the same one most of the time."""
    next_producer_id: int = NO_PRODUCER_ID
    """The producer goes on with this id when the transaction is complete, since the epochs are used up."""
    client_version: int = 0
    """The transaction version of the client that made the last change."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before the last one, of the same producer. It is not in the log."""

    @property
    def is_exhausted(self) -> bool:
        """The producer cannot get a further epoch."""
        return is_exhausted(self.producer_epoch)

    @property
    def is_commit(self) -> bool:
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


def is_exhausted(epoch: int) -> bool:
    return epoch >= LAST_EPOCH - 1
