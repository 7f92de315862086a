"""A Produce request is of one transaction: it is refused as a whole when its batches name several producers.

As in Kafka, a producer is its id with its epoch, and only transactional batches count, of partitions that
exist and in a form that a request may bring. Clients do not send such a request.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

from ottla.broker.portions import in_portions
from ottla.broker.producing import IDS_SINCE, RecordWriting, one_batch, refusal
from ottla.broker.request_scheduler import Steps
from ottla.protocol.batches import HEADER_SIZE, TRANSACTIONAL
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

_PRODUCER = Struct(">21xh20xqh")
"""Of a batch: attributes, producer id and producer epoch."""
_PAUSE_AFTER = 500
_Producers = set[tuple[int, int]]


def names_several_producers(topics: Iterable[TopicProduceData]) -> bool:
    """Whether it may have to be refused, for a short request. Costs little."""
    found: _Producers = set()
    for topic in topics:
        found |= _producers(topic.partition_data)
    return len(found) > 1


def has_several_producers(broker: RecordWriting, request: ProduceRequest, version: int) -> Steps[bool]:
    """Whether it is to be refused."""
    found: _Producers = set()
    for topic in request.topic_data:
        name = topic.name if version < IDS_SINCE else broker.topic_name(topic.topic_id)
        for some in in_portions(topic.partition_data, _PAUSE_AFTER):
            if not _producers(some) <= found:
                found |= _producers(each for each in some if _counts(broker, name, each, request, version))
                if len(found) > 1:
                    return True
            yield
    return False


def _producers(partitions: Iterable[PartitionProduceData]) -> _Producers:
    found = set()
    for data in partitions:
        if data.records is not None and len(data.records) >= HEADER_SIZE:
            attributes, producer_id, epoch = _PRODUCER.unpack_from(data.records)
            if attributes & TRANSACTIONAL and producer_id >= 0:
                found.add((producer_id, epoch))
    return found


def _counts(
    broker: RecordWriting,
    topic: str | None,
    data: PartitionProduceData,
    request: ProduceRequest,
    version: int,
) -> bool:
    if topic is None:
        return False
    try:
        one_batch(data.records, request.transactional_id, version)
        broker.replicas.leader(topic, data.index)
    except ApiError as error:
        return error.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)
    return True


def refused_for_several_producers(request: ProduceRequest) -> Steps[ProduceResponse]:
    """Each partition once."""
    error = ApiError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING, "Transactional records contained more than one producer ID"
    )
    refused: dict[str | bytes, tuple[TopicProduceData, dict[int, PartitionProduceResponse]]] = {}
    for topic in request.topic_data:
        for some in in_portions(topic.partition_data, _PAUSE_AFTER):
            _, answers = refused.setdefault(topic.name or topic.topic_id, (topic, {}))
            answers.update((data.index, refusal(data.index, error, -1)) for data in some)
            yield
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name, topic_id=topic.topic_id, partition_responses=list(answers.values())
            )
            for topic, answers in refused.values()
        ]
    )
