"""The steps of a transactional producer, as plain functions over `Wire`.

A transaction belongs to a producer id and epoch, not to a connection: one process may begin it, others write
to it, and the first one end it. These are the requests of the first protocol, in which partitions and groups
are added by the client; every broker with transactions takes them (see docs/transactions.md).

All wait for a coordinator that moves or restarts, `patience` seconds at most, and ask again when an answer
was lost: asked twice, each step does the same as asked once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.protocol_client.group_offsets import Committed
from ottla.protocol_client.groups import TRANSACTION, Place, ask, by_topic
from ottla.protocol_client.wire import Wire, check

_ADD_PARTITIONS_UP_TO = 3  # then it is a request between brokers
_ADD_OFFSETS_UP_TO = 3
_OFFSETS_UP_TO = 4
_END_UP_TO = 4
_CONTINUES_SINCE = 3
"""The first version of InitProducerId in which a producer says which one it was."""


class TransactionalProducer(NamedTuple):
    """Who writes: the transactional id, and the producer id and epoch that go with it now."""

    transactional_id: str
    producer_id: int
    epoch: int


def takes_transactions(wire: Wire) -> bool:
    """Whether the broker offers what a transaction needs."""
    needed = (AddPartitionsToTxnRequest, AddOffsetsToTxnRequest, TxnOffsetCommitRequest, EndTxnRequest)
    return all(wire.offers(each) for each in needed)


def can_continue(wire: Wire) -> bool:
    """Whether the broker can tell if a producer is still the newest of its transactional id."""
    return wire.connection().version_for(InitProducerIdRequest) >= _CONTINUES_SINCE


def begin_producer(
    wire: Wire,
    transactional_id: str,
    timeout_ms: int,
    patience: float,
    current: TransactionalProducer | None = None,
) -> TransactionalProducer:
    """The next epoch of a transactional id. Aborts what is open, and no earlier epoch can commit any more.

    With `current` only if that is still the newest; otherwise ApiError(PRODUCER_FENCED).
    """
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    if current is not None:
        request.producer_id, request.producer_epoch = current.producer_id, current.epoch

    def answer(response: Any) -> TransactionalProducer:
        check(response.error_code)
        return TransactionalProducer(transactional_id, response.producer_id, response.producer_epoch)

    return ask(wire, transactional_id, request, answer, kind=TRANSACTION, patience=patience)


def add_partitions(
    wire: Wire, producer: TransactionalProducer, places: Iterable[Place], patience: float
) -> None:
    """Make partitions part of the transaction, before records are written to them."""
    topics = [
        AddPartitionsToTxnTopic(name=name, partitions=numbers) for name, numbers in by_topic(places).items()
    ]
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=topics,
    )

    def answer(response: Any) -> None:
        codes = [
            each.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        ]
        # When one is refused, the others are answered with OPERATION_NOT_ATTEMPTED.
        refused = [code for code in codes if code]
        refused.sort(key=lambda code: code == ErrorCode.OPERATION_NOT_ATTEMPTED)
        if refused:
            check(refused[0])

    _ask_coordinator(wire, producer, request, answer, _ADD_PARTITIONS_UP_TO, patience)


def commit_with(
    wire: Wire,
    producer: TransactionalProducer,
    group_id: str,
    offsets: Mapping[Place, Committed],
    patience: float,
) -> None:
    """Offsets of a group that count if the transaction is committed."""
    added = AddOffsetsToTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id=group_id,
    )
    _ask_coordinator(wire, producer, added, _check_code, _ADD_OFFSETS_UP_TO, patience)
    request = TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=number,
                        committed_offset=offsets[topic, number].offset,
                        committed_metadata=offsets[topic, number].metadata,
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic(offsets).items()
        ],
    )

    def answer(response: Any) -> None:
        for topic in response.topics:
            for partition in topic.partitions:
                check(partition.error_code)

    ask(wire, group_id, request, answer, at_most=_OFFSETS_UP_TO, patience=patience)


def end_transaction(wire: Wire, producer: TransactionalProducer, *, commit: bool, patience: float) -> None:
    """Commit or abort. When this fails without an answer, the outcome is not known."""
    request = EndTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=commit,
    )
    _ask_coordinator(wire, producer, request, _check_code, _END_UP_TO, patience)


def _ask_coordinator(
    wire: Wire, producer: TransactionalProducer, request: Any, answer: Any, at_most: int, patience: float
) -> None:
    name = producer.transactional_id
    ask(wire, name, request, answer, at_most=at_most, kind=TRANSACTION, patience=patience)


def _check_code(response: Any) -> None:
    check(response.error_code)
