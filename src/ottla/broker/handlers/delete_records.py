"""DeleteRecords (21): move the start of the log up, so that what lies before is gone.

-1 stands for the high watermark: delete all that consumers can see. Only topics whose cleanup policy deletes
allow it; on a compacted topic the history of a key is not for cutting. Of a partition that is named twice the
last offset counts, as in Kafka.

The answer waits until the new log starts are on disk, by one write for the whole request: a deletion that was
answered for survives `kill -9`. Where they cannot be written, the answer is KAFKA_STORAGE_ERROR; the records
are out of sight then, and may be back after a crash unless a later write succeeds.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any, Protocol

from ottla.broker.dispatch import RequestContext
from ottla.broker.log_starts import LogStarts
from ottla.broker.ports import ClientLogging, DirectoryAccess, PartitionAccess
from ottla.broker.request_scheduler import Steps
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

logger = logging.getLogger("ottla.delete_records")

_Answer = DeleteRecordsResponse | Steps[DeleteRecordsResponse]


class RecordDeletion(ClientLogging, DirectoryAccess, PartitionAccess, Protocol):
    @property
    def log_starts(self) -> LogStarts: ...


def delete_records(
    broker: RecordDeletion, request: DeleteRecordsRequest, context: RequestContext
) -> Steps[DeleteRecordsResponse | Coroutine[Any, Any, _Answer]]:
    wanted: dict[str, dict[int, DeleteRecordsPartition]] = {}
    for topic in request.topics:
        for each in topic.partitions:
            wanted.setdefault(topic.name, {})[each.partition_index] = each
        yield
    response = DeleteRecordsResponse()
    deleted = False
    for name, partitions in wanted.items():
        results = []
        for each in partitions.values():
            result = _delete(broker, name, each)
            deleted |= not result.error_code
            results.append(result)
            yield
        response.topics.append(DeleteRecordsTopicResult(name=name, partitions=results))
    return _written(broker, response, context) if deleted else response


async def _written(
    broker: RecordDeletion, response: DeleteRecordsResponse, context: RequestContext
) -> _Answer:
    """The response, once the log starts are on disk."""
    try:
        await broker.log_starts.written()
    except OSError as problem:
        broker.client_log.log(
            logger,
            logging.ERROR,
            context.address,
            "%s: cannot write the log starts after DeleteRecords of %r: %s",
            broker.directory.path,
            context.connection,
            problem,
        )
        return _not_written(response)
    return response


def _not_written(response: DeleteRecordsResponse) -> Steps[DeleteRecordsResponse]:
    for topic in response.topics:
        for result in topic.partitions:
            if not result.error_code:
                result.error_code, result.low_watermark = ErrorCode.KAFKA_STORAGE_ERROR, -1
            yield
    return response


def _delete(
    broker: RecordDeletion, topic: str, wanted: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    try:
        partition = broker.replicas.leader(topic, wanted.partition_index)
        if not partition.config.is_deleted:
            raise ApiError(ErrorCode.POLICY_VIOLATION)
        low = partition.delete_records_before(wanted.offset)
    except ApiError as error:
        return DeleteRecordsPartitionResult(
            partition_index=wanted.partition_index, low_watermark=-1, error_code=error.code
        )
    return DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=low)
