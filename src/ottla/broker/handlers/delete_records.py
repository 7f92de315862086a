"""DeleteRecords (21): move the start of the log up, so that what lies before is gone.

-1 stands for the high watermark: delete all that consumers can see. Only topics whose cleanup policy deletes
allow it; on a compacted topic the history of a key is not for cutting. Of a partition that is named twice the
last offset counts, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.dispatch import RequestContext
from ottla.broker.lane import Steps
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from ottla.broker.broker import Broker


def delete_records(
    broker: Broker, request: DeleteRecordsRequest, context: RequestContext
) -> Steps[DeleteRecordsResponse]:
    wanted: dict[str, dict[int, DeleteRecordsPartition]] = {}
    for topic in request.topics:
        for each in topic.partitions:
            wanted.setdefault(topic.name, {})[each.partition_index] = each
        yield
    response = DeleteRecordsResponse()
    for name, partitions in wanted.items():
        results = []
        for each in partitions.values():
            results.append(_delete(broker, name, each))
            yield
        response.topics.append(DeleteRecordsTopicResult(name=name, partitions=results))
    return response


def _delete(broker: Broker, topic: str, wanted: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
    try:
        partition = broker.replicas.leader(topic, wanted.partition_index)
        if not partition.log.config.is_deleted:
            raise ApiError(ErrorCode.POLICY_VIOLATION)
        low = partition.delete_records_before(wanted.offset)
    except ApiError as error:
        return DeleteRecordsPartitionResult(
            partition_index=wanted.partition_index, low_watermark=-1, error_code=error.code
        )
    return DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=low)
