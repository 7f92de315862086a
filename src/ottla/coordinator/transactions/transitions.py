"""The rules of a transaction: from one state of a transactional id to the next.

Each function takes what is known and what is asked, and returns the next `Transaction`, or None when there is
nothing to change. It raises the `ApiError` that the client gets. Nothing here knows the log.

The epochs. A producer's epoch is raised when another instance takes its transactional id over, or when its
transaction ran out of time: this fences it. From transaction version 2 on it is also raised by every EndTxn,
so that a late request of one transaction can never be taken for one of the next. An EndTxn that is sent again
is then known by its epoch: the one before. When the epochs of a producer id are used up, the producer gets a
new id, with epoch 0: from InitProducerId, or with the answer to the EndTxn that used up the last one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from ottla.coordinator.transactions.transaction import (
    EPOCH_PER_TRANSACTION,
    IDLE,
    LAST_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME,
    PREPARED,
    TopicPartition,
    Transaction,
    TransactionState,
    is_exhausted,
)
from ottla.protocol.errors import ApiError, ErrorCode

ONGOING = TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT


class NeedsProducerId(Exception):
    """The change needs a producer id that nobody ever had: get one, and ask again."""


class Producer(NamedTuple):
    """A producer as a request names it."""

    producer_id: int
    epoch: int


# -- a producer begins -------------------------------------------------------------------------------------


def initialized(
    current: Transaction | None,
    transactional_id: str,
    timeout_ms: int,
    expected: Producer | None,
    *,
    new_id: int | None,
    server_version: int,
    now_ms: int,
) -> Transaction:
    """A producer begins to use the transactional id. `expected` is the one that it was before.

    When the result is PREPARE_ABORT, the transaction of the producer before is being aborted, and the client
    has to ask again.
    """
    if current is None:
        if new_id is None:
            raise NeedsProducerId
        current = Transaction(transactional_id, new_id)
    if expected is not None and not _may_continue(current, expected):
        raise ApiError(ErrorCode.PRODUCER_FENCED)
    if current.state in PREPARED:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if current.state is ONGOING:
        return fenced(current, server_version=server_version, now_ms=now_ms)
    producer_id = current.producer_id
    is_retry = expected is not None and current.producer_epoch not in (NO_PRODUCER_EPOCH, expected.epoch)
    if is_retry and expected is not None:
        if expected.epoch != current.last_producer_epoch:
            raise ApiError(ErrorCode.PRODUCER_FENCED)
        epoch, last = current.producer_epoch, current.last_producer_epoch
    elif current.is_exhausted:
        if new_id is None:
            raise NeedsProducerId
        producer_id, epoch = new_id, 0
        last = NO_PRODUCER_EPOCH if expected is None else current.producer_epoch
    else:
        epoch = current.producer_epoch + 1
        last = NO_PRODUCER_EPOCH if expected is None else current.producer_epoch
    return replace(
        current,
        producer_id=producer_id,
        previous_producer_id=current.producer_id,
        producer_epoch=epoch,
        last_producer_epoch=last,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions=frozenset(),
        start_ms=NO_TIME,
        update_ms=now_ms,
    )


def _may_continue(current: Transaction, expected: Producer) -> bool:
    """Whether a producer may go on after an error: as the present one, or as the one whose epochs were used
    up, if it did not get the answer that gave it a new id."""
    return (
        current.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == current.producer_id
        or (expected.producer_id == current.previous_producer_id and is_exhausted(expected.epoch))
    )


# -- partitions --------------------------------------------------------------------------------------------


def with_partitions(
    current: Transaction | None,
    producer: Producer,
    partitions: Collection[TopicPartition],
    *,
    client_version: int,
    now_ms: int,
) -> Transaction | None:
    """Partitions become part of the transaction; the first ones begin it. None: they are part already."""
    current = _of_producer(current, producer)
    if current.state is ONGOING and current.partitions.issuperset(partitions):
        return None
    return replace(
        current,
        previous_producer_id=current.producer_id,
        state=ONGOING,
        partitions=current.partitions.union(partitions),
        start_ms=current.start_ms if current.state is ONGOING else now_ms,
        update_ms=now_ms,
        client_version=client_version,
    )


def verified(
    current: Transaction | None, producer: Producer, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Whether each partition is part of the transaction."""
    current = _of_producer(current, producer)
    return {
        each: ErrorCode.NONE if each in current.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for each in partitions
    }


def _of_producer(current: Transaction | None, producer: Producer) -> Transaction:
    """The transaction of this producer, when its outcome is not decided yet."""
    if current is None or current.producer_id != producer.producer_id:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if current.producer_epoch != producer.epoch:
        raise ApiError(ErrorCode.PRODUCER_FENCED)
    if current.state in PREPARED:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    return current


# -- the end -----------------------------------------------------------------------------------------------


def ended(
    current: Transaction | None,
    producer: Producer,
    *,
    commit: bool,
    client_version: int,
    new_id: int | None,
    now_ms: int,
) -> Transaction | None:
    """The producer commits or aborts. None: that was done before, and this is the same request again."""
    if current is None:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if client_version >= EPOCH_PER_TRANSACTION:
        return _ended_with_epoch(current, producer, commit, client_version, new_id, now_ms)
    if current.producer_id != producer.producer_id:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if current.producer_epoch != producer.epoch:
        raise ApiError(ErrorCode.PRODUCER_FENCED)
    if current.state is ONGOING:
        return _prepared(current, commit=commit, client_version=client_version, now_ms=now_ms)
    if current.state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT):
        return None
    if current.state is (PREPARE_COMMIT if commit else PREPARE_ABORT):
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    raise ApiError(ErrorCode.INVALID_TXN_STATE)


def _ended_with_epoch(
    current: Transaction,
    producer: Producer,
    commit: bool,
    client_version: int,
    new_id: int | None,
    now_ms: int,
) -> Transaction | None:
    """The same where each transaction has an epoch: one with the epoch before is a request sent again.

    An abort is also allowed when nothing was added, since partitions are added when records arrive: the
    client cannot know whether one was.
    """
    took_new_id = (
        current.previous_producer_id == producer.producer_id
        and producer.epoch == LAST_EPOCH - 1
        and current.producer_epoch == 0
    )
    is_retry = current.producer_epoch == producer.epoch + 1 or took_new_id
    if current.producer_id != producer.producer_id and not took_new_id:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    is_present = current.producer_epoch == producer.epoch
    if current.state in PREPARED:
        if current.producer_epoch != producer.epoch + 1:
            raise ApiError(ErrorCode.PRODUCER_FENCED)
        same = current.state is (PREPARE_COMMIT if commit else PREPARE_ABORT)
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS if same else ErrorCode.INVALID_TXN_STATE)
    if current.state in (COMPLETE_COMMIT, COMPLETE_ABORT) and is_retry:
        if current.state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT):
            return None
        raise ApiError(ErrorCode.INVALID_TXN_STATE)
    if not is_present:
        raise ApiError(ErrorCode.PRODUCER_FENCED)
    if current.state is not ONGOING and commit:
        raise ApiError(ErrorCode.INVALID_TXN_STATE)
    if current.is_exhausted and new_id is None:
        raise NeedsProducerId
    next_id = new_id if current.is_exhausted and new_id is not None else NO_PRODUCER_ID
    return _prepared(
        current, commit=commit, client_version=client_version, next_producer_id=next_id, now_ms=now_ms
    )


def fenced(current: Transaction, *, server_version: int, now_ms: int) -> Transaction:
    """The transaction is aborted with a higher epoch: it ran out of time, or another instance begins."""
    if server_version >= EPOCH_PER_TRANSACTION:
        return _prepared(current, commit=False, client_version=server_version, now_ms=now_ms)
    epoch = min(current.producer_epoch + 1, LAST_EPOCH)
    current = replace(current, producer_epoch=epoch, last_producer_epoch=NO_PRODUCER_EPOCH)
    return _prepared(current, commit=False, client_version=0, now_ms=now_ms)


def _prepared(
    current: Transaction,
    *,
    commit: bool,
    client_version: int,
    now_ms: int,
    next_producer_id: int = NO_PRODUCER_ID,
) -> Transaction:
    epoch, last = current.producer_epoch, current.last_producer_epoch
    if client_version >= EPOCH_PER_TRANSACTION:
        epoch, last = min(epoch + 1, LAST_EPOCH), epoch
    return replace(
        current,
        previous_producer_id=current.producer_id,
        next_producer_id=next_producer_id,
        producer_epoch=epoch,
        last_producer_epoch=last,
        state=PREPARE_COMMIT if commit else PREPARE_ABORT,
        start_ms=now_ms if current.state in IDLE else current.start_ms,
        update_ms=now_ms,
        client_version=client_version,
    )


def completed(current: Transaction, now_ms: int) -> Transaction:
    """All markers are written."""
    takes_new_id = current.next_producer_id != NO_PRODUCER_ID
    return replace(
        current,
        producer_id=current.next_producer_id if takes_new_id else current.producer_id,
        producer_epoch=0 if takes_new_id else current.producer_epoch,
        previous_producer_id=current.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        state=COMPLETE_COMMIT if current.is_commit else COMPLETE_ABORT,
        partitions=frozenset(),
        update_ms=now_ms,
    )
