"""ListOffsets (2) and OffsetForLeaderEpoch (23): from a time or an epoch to an offset.

ListOffsets takes a timestamp, or one of the negative numbers below for a place in the log. What it answers
for "latest" is the end of what the asking consumer may see: the high watermark, or the last stable offset
when it reads committed records only. There is no tiered storage, so the local log is the whole log.

OffsetForLeaderEpoch tells where an epoch of a leader ended, by which a consumer or follower finds out that
its log was cut behind its back (KIP-320).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ottla.broker.dispatch import RequestContext
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

_SINCE_VERSION = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_READ_COMMITTED = 1


def list_offsets(broker: Broker, request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
    asked = Counter((topic.name, p.partition_index) for topic in request.topics for p in topic.partitions)
    answers: dict[str, dict[int, ListOffsetsPartitionResponse]] = {}
    for topic in request.topics:
        for wanted in topic.partitions:
            partitions = answers.setdefault(topic.name, {})
            try:
                if asked[topic.name, wanted.partition_index] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST)
                offset, timestamp, epoch = _find(
                    broker, topic.name, wanted, request.isolation_level == _READ_COMMITTED, context.version
                )
                answer = ListOffsetsPartitionResponse(
                    partition_index=wanted.partition_index,
                    offset=offset,
                    timestamp=timestamp,
                    leader_epoch=epoch,
                )
            except ApiError as error:
                answer = ListOffsetsPartitionResponse(
                    partition_index=wanted.partition_index, error_code=error.code
                )
            partitions[wanted.partition_index] = answer
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(name=name, partitions=list(partitions.values()))
            for name, partitions in answers.items()
        ]
    )


def _find(
    broker: Broker, topic: str, wanted: ListOffsetsPartition, committed_only: bool, version: int
) -> tuple[int, int, int]:
    """Offset, timestamp and leader epoch of what is asked for; -1 stands for nothing."""
    if wanted.timestamp < 0 and version < _SINCE_VERSION.get(wanted.timestamp, 99):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    partition = broker.replicas.leader(topic, wanted.partition_index, wanted.current_leader_epoch)
    log = partition.log
    limit = partition.last_stable_offset if committed_only else partition.high_watermark
    if wanted.timestamp == LATEST:
        return limit, -1, log.leader_epochs.latest
    if wanted.timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.log_start_offset, -1, log.leader_epochs.epoch_for(log.log_start_offset)
    if wanted.timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return -1, -1, -1
    if wanted.timestamp == MAX_TIMESTAMP:
        found = log.max_timestamp()
    else:
        found = log.offset_for_timestamp(wanted.timestamp)
    if found is None or found[0] >= limit:
        return -1, -1, -1
    return found


def offset_for_leader_epoch(
    broker: Broker, request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[_epoch_end(broker, topic.topic, p) for p in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _epoch_end(broker: Broker, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = broker.replicas.leader(topic, wanted.partition, wanted.current_leader_epoch)
    except ApiError as error:
        return EpochEndOffset(partition=wanted.partition, error_code=error.code)
    epoch, end_offset = partition.log.leader_epochs.end_offset_for(
        wanted.leader_epoch, partition.log.end_offset
    )
    return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)
