"""AddPartitionsToTxn (24), AddOffsetsToTxn (25) and EndTxn (26): what producers say about their transactions.

Version notes. Clients send AddPartitionsToTxn up to 3, for one transaction. From 4 on brokers send it, for
several: to verify that a partition is part of its transaction, or to add it for a client of the second
protocol (KIP-890). In all three PRODUCER_FENCED is INVALID_PRODUCER_EPOCH before version 2. EndTxn 5 raises
the epoch and says with which one the producer goes on.

A partition that does not exist spoils the rest of its transaction's request, as in Kafka: the others are
answered OPERATION_NOT_ATTEMPTED.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ottla.broker.dispatch import RequestContext
from ottla.broker.group_requests import collected, responded
from ottla.broker.portions import in_portions
from ottla.broker.ports import Configuration, ImageAccess, TransactionAccess
from ottla.broker.request_scheduler import Steps
from ottla.cluster.image import ClusterImage
from ottla.completion import Completion
from ottla.coordinator.group_coordinator import OFFSETS_TOPIC
from ottla.coordinator.partitioning import partition_of
from ottla.coordinator.transactions.transaction import (
    EPOCH_PER_TRANSACTION,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TopicPartition,
)
from ottla.coordinator.transactions.transitions import Producer
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse

_FENCED_SINCE = 2
_OF_BROKERS_SINCE = 4
_EPOCH_BUMP_SINCE = 5
_PAUSE_AFTER = 500
_TRANSACTIONS_AT_A_TIME = 50

Results = dict[TopicPartition, ErrorCode]


class TransactionRequests(Configuration, ImageAccess, TransactionAccess, Protocol):
    """Partitions are looked up in the image."""


# -- AddPartitionsToTxn ------------------------------------------------------------------------------------


def add_partitions_to_txn(
    broker: TransactionRequests, request: AddPartitionsToTxnRequest, context: RequestContext
) -> Steps[Any]:
    if context.version >= _OF_BROKERS_SINCE:
        return (yield from _add_for_brokers(broker, request))
    partitions = yield from _partitions(request.v3_and_below_topics)
    code_of = _code_before_fenced if context.version < _FENCED_SINCE else _code

    def answered(results: Results) -> Steps[AddPartitionsToTxnResponse]:
        topics = yield from _by_topic(results)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)

    def refused(error: ApiError) -> Steps[AddPartitionsToTxnResponse]:
        return answered(dict.fromkeys(partitions, code_of(error)))

    spoiled = yield from _spoiled(broker.image, partitions)
    if spoiled is not None:
        return (yield from answered(spoiled))
    transactional_id = request.v3_and_below_transactional_id
    if not transactional_id:
        return (yield from refused(ApiError(ErrorCode.INVALID_REQUEST)))
    producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    return responded(
        broker.transactions.add_partitions_soon(transactional_id, producer, partitions),
        lambda _: answered(dict.fromkeys(partitions, ErrorCode.NONE)),
        refused,
    )


def _add_for_brokers(broker: TransactionRequests, request: AddPartitionsToTxnRequest) -> Steps[Any]:
    wanted = {each.transactional_id: each for each in request.transactions}
    outcomes: list[tuple[Completion[Results], Any]] = []
    for transactional_id, each in wanted.items():
        partitions = yield from _partitions(each.topics)
        known = yield from _spoiled(broker.image, partitions)
        if known is None and not transactional_id:
            known = dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST)
        outcome: Completion[Results]
        if known is None:
            outcome = broker.transactions.verify_or_add(
                transactional_id,
                each.producer_id,
                each.producer_epoch,
                partitions,
                add=not each.verify_only,
            )
        else:
            outcome = Completion()
            outcome.resolve(known)
        outcomes.append((outcome, lambda error: {}))
        yield

    def finish(results: list[Results]) -> Steps[AddPartitionsToTxnResponse]:
        response = AddPartitionsToTxnResponse()
        for number, (name, result) in enumerate(zip(wanted, results, strict=True)):
            topics = yield from _by_topic(result)
            response.results_by_transaction.append(
                AddPartitionsToTxnResult(transactional_id=name, topic_results=topics)
            )
            if not number % _TRANSACTIONS_AT_A_TIME:
                yield
        return response

    return (yield from collected(outcomes, finish))


def _partitions(topics: Iterable[AddPartitionsToTxnTopic]) -> Steps[list[TopicPartition]]:
    """Each of them once."""
    found: dict[TopicPartition, None] = {}
    for topic in topics:
        for some in in_portions(topic.partitions, _PAUSE_AFTER):
            found.update(dict.fromkeys((topic.name, index) for index in some))
            yield
    return list(found)


def _spoiled(image: ClusterImage, partitions: Sequence[TopicPartition]) -> Steps[Results | None]:
    """The answers, when some of the partitions do not exist."""
    results = {}
    is_spoiled = False
    for some in in_portions(partitions, _PAUSE_AFTER):
        for name, index in some:
            topic = image.topics.get(name)
            exists = topic is not None and 0 <= index < len(topic.partitions)
            code = ErrorCode.OPERATION_NOT_ATTEMPTED if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            results[name, index] = code
            is_spoiled = is_spoiled or not exists
        yield
    return results if is_spoiled else None


def _by_topic(results: Results) -> Steps[list[AddPartitionsToTxnTopicResult]]:
    topics: dict[str, AddPartitionsToTxnTopicResult] = {}
    for number, ((name, index), code) in enumerate(results.items(), 1):
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = AddPartitionsToTxnTopicResult(name=name)
        topic.results_by_partition.append(
            AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
        )
        if not number % _PAUSE_AFTER:
            yield
    return list(topics.values())


# -- AddOffsetsToTxn ---------------------------------------------------------------------------------------


def add_offsets_to_txn(
    broker: TransactionRequests, request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse | Completion[AddOffsetsToTxnResponse]:
    code_of = _code_before_fenced if context.version < _FENCED_SINCE else _code
    if not request.transactional_id:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    return responded(
        broker.transactions.add_partitions_soon(
            request.transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            [offsets_partition(broker, request.group_id)],
        ),
        lambda _: AddOffsetsToTxnResponse(),
        lambda error: AddOffsetsToTxnResponse(error_code=code_of(error)),
    )


def offsets_partition(broker: TransactionRequests, group_id: str) -> TopicPartition:
    """Where the offsets of a group are."""
    topic = broker.image.topics.get(OFFSETS_TOPIC)
    count = broker.config["offsets.topic.num.partitions"] if topic is None else len(topic.partitions)
    return OFFSETS_TOPIC, partition_of(group_id, count)


# -- EndTxn ------------------------------------------------------------------------------------------------


def end_txn(
    broker: TransactionRequests, request: EndTxnRequest, context: RequestContext
) -> EndTxnResponse | Completion[EndTxnResponse]:
    code_of = _code_before_fenced if context.version < _FENCED_SINCE else _code

    def refused(error: ApiError) -> EndTxnResponse:
        return EndTxnResponse(
            error_code=code_of(error), producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
        )

    if not request.transactional_id:
        return refused(ApiError(ErrorCode.INVALID_REQUEST))
    return responded(
        broker.transactions.end(
            request.transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            commit=request.committed,
            client_version=EPOCH_PER_TRANSACTION if context.version >= _EPOCH_BUMP_SINCE else 0,
        ),
        lambda producer: EndTxnResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch),
        refused,
    )


def _code(error: ApiError) -> ErrorCode:
    return error.code


def _code_before_fenced(error: ApiError) -> ErrorCode:
    """Clients of these versions do not know PRODUCER_FENCED."""
    if error.code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error.code
