"""ListOffsets (2) and OffsetForLeaderEpoch (23): from a time or an epoch to an offset.

ListOffsets takes a timestamp, or one of the negative numbers below for a place in the log. What it answers
for "latest" is the end of what the consumer may see: the high watermark, or the last stable offset
when it reads committed records only. A new leader does not know the high watermark until its followers have
fetched: then the answer is OFFSET_NOT_AVAILABLE, and the consumer asks again (KIP-207). A consumer that was
told a smaller offset than before would read records twice. There is no tiered storage, so the local log is
the whole log.
A search by time may be long, so it is done in slices or in a thread (`lookups`).

OffsetForLeaderEpoch tells where an epoch of a leader ended, by which a consumer or follower finds out that
its log was cut behind its back (KIP-320).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Protocol, TypeAlias

from ottla.broker.dispatch import RequestContext
from ottla.broker.lookups import Lookups
from ottla.broker.ports import PartitionAccess
from ottla.broker.request_scheduler import Steps
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
from ottla.replication.partition import Partition
from ottla.replication.partition_reading import Isolation

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
_OFFSET_NOT_AVAILABLE_SINCE = 5
_PAUSE_AFTER = 200

_Search: TypeAlias = tuple[str, ListOffsetsPartition, ListOffsetsPartitionResponse]


class OffsetLookup(PartitionAccess, Protocol):
    @property
    def lookups(self) -> Lookups: ...


def list_offsets(
    broker: OffsetLookup, request: ListOffsetsRequest, context: RequestContext
) -> Steps[ListOffsetsResponse | Coroutine[object, object, ListOffsetsResponse]]:
    asked: Counter[tuple[str, int]] = Counter()
    for topic in request.topics:
        asked.update((topic.name, each.partition_index) for each in topic.partitions)
        yield
    isolation = Isolation.HIGH_WATERMARK
    if request.replica_id >= 0 and context.from_broker:
        isolation = Isolation.LOG_END
    elif request.isolation_level == _READ_COMMITTED:
        isolation = Isolation.LAST_STABLE_OFFSET
    offsets = _PartitionOffsets(broker, asked, isolation, context.version)
    answers: dict[str, dict[int, ListOffsetsPartitionResponse]] = {}
    searches = []
    for topic in request.topics:
        partitions = answers.setdefault(topic.name, {})
        for number, wanted in enumerate(topic.partitions):
            if not number % _PAUSE_AFTER:
                yield
            answer = partitions[wanted.partition_index] = ListOffsetsPartitionResponse(
                partition_index=wanted.partition_index
            )
            if wanted.timestamp >= 0 or wanted.timestamp == MAX_TIMESTAMP:
                searches.append((topic.name, wanted, answer))
            else:
                offsets.answer_place(topic.name, wanted, answer)
    response = ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(name=name, partitions=list(partitions.values()))
            for name, partitions in answers.items()
            if partitions  # as Kafka, which groups the answers of partitions by topic
        ]
    )
    return offsets.search(searches, response) if searches else response


class _PartitionOffsets:
    """Looks up the offsets that one request wants, partition by partition."""

    def __init__(
        self, broker: OffsetLookup, asked: Counter[tuple[str, int]], isolation: Isolation, version: int
    ) -> None:
        self._broker = broker
        self._asked = asked
        self._isolation = isolation
        self._version = version

    def _partition(self, topic: str, wanted: ListOffsetsPartition) -> Partition:
        if self._asked[topic, wanted.partition_index] > 1:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if wanted.timestamp < 0 and self._version < _SINCE_VERSION.get(wanted.timestamp, 99):
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        return self._broker.replicas.leader(topic, wanted.partition_index, wanted.current_leader_epoch)

    def _limit(self, partition: Partition) -> int:
        """The end of what the consumer may see."""
        return partition.end_for(self._isolation)

    def _check_limit_known(self, partition: Partition) -> None:
        if not partition.knows_high_watermark and self._isolation is not Isolation.LOG_END:
            has_code = self._version >= _OFFSET_NOT_AVAILABLE_SINCE
            raise ApiError(
                ErrorCode.OFFSET_NOT_AVAILABLE if has_code else ErrorCode.LEADER_NOT_AVAILABLE,
                f"the followers of {partition.topic}-{partition.index} have not fetched from its new leader",
            )

    def answer_place(
        self, topic: str, wanted: ListOffsetsPartition, answer: ListOffsetsPartitionResponse
    ) -> None:
        """Answer what needs no search."""
        try:
            partition = self._partition(topic, wanted)
            if wanted.timestamp == LATEST:
                self._check_limit_known(partition)
        except ApiError as error:
            answer.error_code = error.code
            return
        if wanted.timestamp == LATEST:
            answer.offset, answer.leader_epoch = self._limit(partition), partition.latest_epoch
        elif wanted.timestamp in (EARLIEST, EARLIEST_LOCAL):
            answer.offset, answer.leader_epoch = partition.log_start_offset, partition.epoch_at_log_start

    async def search(self, searches: list[_Search], response: ListOffsetsResponse) -> ListOffsetsResponse:
        """Answer what needs one, partition by partition, with other requests served in between."""
        for topic, wanted, answer in searches:
            try:
                partition = self._partition(topic, wanted)
                if wanted.timestamp == MAX_TIMESTAMP:
                    found = await self._broker.lookups.newest(partition)
                else:
                    found = await self._broker.lookups.since(partition, wanted.timestamp)
                if found is not None and found.offset < self._limit(partition):
                    answer.offset, answer.timestamp, answer.leader_epoch = found
                elif found is not None:
                    self._check_limit_known(partition)
            except ApiError as error:
                answer.error_code = error.code
            await asyncio.sleep(0)
        return response


def offset_for_leader_epoch(
    broker: OffsetLookup, request: OffsetForLeaderEpochRequest, context: RequestContext
) -> Steps[OffsetForLeaderEpochResponse]:
    response = OffsetForLeaderEpochResponse()
    for topic in request.topics:
        partitions = []
        for number, each in enumerate(topic.partitions):
            partitions.append(_epoch_end(broker, topic.topic, each))
            if not number % _PAUSE_AFTER:
                yield
        response.topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))
    return response


def _epoch_end(broker: OffsetLookup, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = broker.replicas.leader(topic, wanted.partition, wanted.current_leader_epoch)
    except ApiError as error:
        return EpochEndOffset(partition=wanted.partition, error_code=error.code)
    epoch, end_offset = partition.end_of_epoch(wanted.leader_epoch)
    return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)
