"""DeleteRecords (21): move the start of the log up, so that what lies before is gone.

-1 stands for the high watermark: delete all that consumers can see. Only topics whose cleanup policy deletes
allow it; on a compacted topic the history of a key is not for cutting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.dispatch import RequestContext
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
) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name, partitions=[_delete(broker, topic.name, p) for p in topic.partitions]
            )
            for topic in request.topics
            if topic.partitions
        ]
    )


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
