"""DescribeLogState (1000) and CompactLogs (1001), which are ours: logs as people want to see them.

Asked of the broker that has the replica. CompactLogs answers at once; a waiting client asks for the state
until the partition is neither asked for nor running any more.
"""

from __future__ import annotations

from typing import Protocol

from ottla.broker.cleaning import Cleaning
from ottla.broker.dispatch import RequestContext
from ottla.broker.ports import PartitionAccess
from ottla.broker.request_scheduler import Steps
from ottla.broker.space import Space
from ottla.protocol.errors import ApiError
from ottla.protocol.messages.log_state import (
    CompactLogsPartition,
    CompactLogsRequest,
    CompactLogsResponse,
    CompactLogsTopic,
    DescribeLogStateRequest,
    DescribeLogStateResponse,
    LogStatePartition,
    LogStateTopicResult,
)


class LogStateAccess(PartitionAccess, Protocol):
    @property
    def cleaning(self) -> Cleaning: ...
    @property
    def space(self) -> Space: ...


def describe_log_state(
    broker: LogStateAccess, request: DescribeLogStateRequest, context: RequestContext
) -> Steps[DescribeLogStateResponse]:
    space = broker.space
    space.look()
    response = DescribeLogStateResponse(
        free_bytes=space.free, min_free_bytes=space.mark, refuses_writes=space.is_short
    )
    for topic in request.topics:
        partitions = []
        for index in dict.fromkeys(topic.partitions):
            partitions.append(_describe(broker, topic.name, index))
            yield
        response.topics.append(LogStateTopicResult(name=topic.name, partitions=partitions))
    return response


def _describe(broker: LogStateAccess, topic: str, index: int) -> LogStatePartition:
    try:
        partition = broker.replicas.get(topic, index)
    except ApiError as error:
        return LogStatePartition(partition_index=index, error_code=error.code, error_message=error.message)
    state = broker.cleaning.state(topic, index)
    answer = LogStatePartition(
        partition_index=index,
        size=partition.size,
        segments=partition.segment_count,
        is_compacted=partition.config.is_compacted,
        is_running=state.running,
        is_asked_for=state.asked_for,
        bytes_read=state.bytes_read,
        bytes_to_read=state.bytes_to_read,
        passes=state.passes,
        uncleanable=state.uncleanable,
        problem=state.problem,
    )
    if partition.config.is_compacted:
        try:
            where = broker.cleaning.cleanability(partition)
        except ApiError as error:
            return LogStatePartition(
                partition_index=index, error_code=error.code, error_message=error.message
            )
        answer.clean_bytes, answer.dirty_bytes = where.clean_bytes, where.dirty_bytes
        answer.first_dirty_offset = where.first_dirty
    if state.last is not None:
        answer.last_finished_ms, answer.last_seconds = state.last.finished_ms, state.last.seconds
        answer.last_bytes_before, answer.last_bytes_after = state.last.bytes_before, state.last.bytes_after
    return answer


def compact_logs(
    broker: LogStateAccess, request: CompactLogsRequest, context: RequestContext
) -> Steps[CompactLogsResponse]:
    response = CompactLogsResponse()
    for topic in request.topics:
        partitions = []
        for index in dict.fromkeys(topic.partitions):
            partitions.append(_compact(broker, topic.name, index))
            yield
        response.topics.append(CompactLogsTopic(name=topic.name, partitions=partitions))
    return response


def _compact(broker: LogStateAccess, topic: str, index: int) -> CompactLogsPartition:
    try:
        broker.cleaning.compact_now(broker.replicas.get(topic, index))
    except ApiError as error:
        return CompactLogsPartition(partition_index=index, error_code=error.code, error_message=error.message)
    return CompactLogsPartition(partition_index=index)
