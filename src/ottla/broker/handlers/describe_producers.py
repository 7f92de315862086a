"""DescribeProducers (61): which idempotent and transactional producers a partition remembers.

A partition may remember hundreds of thousands, so a partition that is named twice is answered once (Kafka
answers as often as it is named), and the producers are gathered in slices.
"""

from __future__ import annotations

from ottla.broker.dispatch import RequestContext
from ottla.broker.ports import PartitionAccess
from ottla.broker.request_scheduler import Steps
from ottla.cluster.topic_rules import check_name
from ottla.protocol.errors import ApiError
from ottla.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

_PAUSE_AFTER = 500


def describe_producers(
    broker: PartitionAccess, request: DescribeProducersRequest, context: RequestContext
) -> Steps[DescribeProducersResponse]:
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        yield
    response = DescribeProducersResponse()
    for name, indexes in wanted.items():
        partitions = []
        for index in indexes:
            partitions.append((yield from _describe(broker, name, index)))
            yield
        response.topics.append(TopicResponse(name=name, partitions=partitions))
    return response


def _describe(broker: PartitionAccess, topic: str, index: int) -> Steps[PartitionResponse]:
    try:
        check_name(topic)
        partition = broker.replicas.leader(topic, index)
    except ApiError as error:
        return PartitionResponse(partition_index=index, error_code=error.code, error_message=error.message)
    producers = []
    for number, producer in enumerate(partition.producers):
        producers.append(
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.transaction_start,
            )
        )
        if not number % _PAUSE_AFTER:
            yield
    return PartitionResponse(partition_index=index, active_producers=producers)
