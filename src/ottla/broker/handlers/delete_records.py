"""DeleteRecords (21): move the start of the log up, so that what lies before is gone.

-1 stands for the high watermark: delete all that consumers can see. Only topics whose cleanup policy deletes
allow it; on a compacted topic the history of a key is not for cutting. Of a partition that is named twice the
last offset counts, as in Kafka.

The answer waits until the new log starts are on disk, by one write for the whole request: a deletion that was
answered for survives `kill -9`. Where they cannot be written, the answer is KAFKA_STORAGE_ERROR; the records
are out of sight then, and may be back after a crash unless a later write succeeds.

Then it waits until the followers in service have moved their log starts too, up to the time that the request
gives them (REQUEST_TIMED_OUT): whichever replica leads next, the records stay deleted. The answer has the low
watermark, the smallest log start among the replicas.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any, NamedTuple, Protocol

from ottla.broker.dispatch import RequestContext
from ottla.broker.log_starts import LogStarts
from ottla.broker.ports import (
    ClientLogging,
    DirectoryAccess,
    ImageAccess,
    PartitionAccess,
    WaitingForOffsets,
)
from ottla.broker.request_scheduler import Steps
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from ottla.replication.partition import Partition

logger = logging.getLogger("ottla.delete_records")

_MAX_WAIT_SECONDS = 600.0

_Answer = DeleteRecordsResponse | Steps[DeleteRecordsResponse]


class RecordDeletion(
    ClientLogging, DirectoryAccess, ImageAccess, PartitionAccess, WaitingForOffsets, Protocol
):
    @property
    def log_starts(self) -> LogStarts: ...


class _Deletion(NamedTuple):
    """Records that are deleted here, and perhaps not yet on followers."""

    partition: Partition
    leader_epoch: int
    log_start: int
    result: DeleteRecordsPartitionResult


def delete_records(
    broker: RecordDeletion, request: DeleteRecordsRequest, context: RequestContext
) -> Steps[DeleteRecordsResponse | Coroutine[Any, Any, _Answer]]:
    wanted: dict[str, dict[int, DeleteRecordsPartition]] = {}
    for topic in request.topics:
        for each in topic.partitions:
            wanted.setdefault(topic.name, {})[each.partition_index] = each
        yield
    response = DeleteRecordsResponse()
    deleted: list[_Deletion] = []
    for name, partitions in wanted.items():
        results = []
        for each in partitions.values():
            results.append(_delete(broker, name, each, deleted))
            yield
        response.topics.append(DeleteRecordsTopicResult(name=name, partitions=results))
    return _written(broker, request, response, deleted, context) if deleted else response


async def _written(
    broker: RecordDeletion,
    request: DeleteRecordsRequest,
    response: DeleteRecordsResponse,
    deleted: list[_Deletion],
    context: RequestContext,
) -> _Answer:
    """The response, once the log starts are on disk, here and on the followers."""
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
    with_followers = [one for one in deleted if one.partition.state.has_followers]
    if with_followers:
        await _replicated(broker, with_followers, request.timeout_ms)
    return response


async def _replicated(broker: RecordDeletion, deleted: list[_Deletion], timeout_ms: int) -> None:
    """Return when followers have deleted the same, or the time is over; the results say what came of it."""

    def is_alive(broker_id: int) -> bool:
        node = broker.image.brokers.get(broker_id)
        return node is not None and not node.fenced

    def is_settled(one: _Deletion) -> bool:
        partition = one.partition
        state = partition.state
        if not state.is_leader or state.leader_epoch != one.leader_epoch:
            one.result.error_code, one.result.low_watermark = ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
            return True
        low = state.low_watermark(partition.log_start_offset, is_alive)
        one.result.low_watermark = low
        return low >= one.log_start

    waiting = deleted

    def ready() -> bool:
        nonlocal waiting
        waiting = [one for one in waiting if not is_settled(one)]
        return not waiting

    if ready():
        return
    seconds = min(max(timeout_ms, 0) / 1000, _MAX_WAIT_SECONDS)
    keys = [one.partition for one in waiting]
    await broker.purgatory.enter(keys, ready, seconds).as_future()
    for one in waiting:
        one.result.error_code, one.result.low_watermark = ErrorCode.REQUEST_TIMED_OUT, -1


def _not_written(response: DeleteRecordsResponse) -> Steps[DeleteRecordsResponse]:
    for topic in response.topics:
        for result in topic.partitions:
            if not result.error_code:
                result.error_code, result.low_watermark = ErrorCode.KAFKA_STORAGE_ERROR, -1
            yield
    return response


def _delete(
    broker: RecordDeletion, topic: str, wanted: DeleteRecordsPartition, deleted: list[_Deletion]
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
    result = DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=low)
    deleted.append(_Deletion(partition, partition.leader_epoch, low, result))
    return result
