"""Which offsets a leader has, for a follower that asked for one outside of them.

Two requests: ListOffsets for the start of the leader's log, and OffsetForLeaderEpoch with the present epoch
for its end (ListOffsets would tell the high watermark). The start comes first, so it is never above the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.schema import Request
from ottla.replication.following import Position
from ottla.replication.partition import Partition

_EARLIEST = -2


class OffsetRange(NamedTuple):
    start: int
    end: int


class _Calls(Protocol):
    async def call(self, request: Request, *, timeout: float) -> Any: ...


async def ask_for_ranges(
    leader: _Calls, replica_id: int, wanted: Sequence[tuple[Partition, Position]], *, timeout: float
) -> dict[tuple[str, int], OffsetRange | int]:
    """By topic and partition: the offsets that the leader has, or the code of its error."""
    starts = await leader.call(_starts_request(replica_id, wanted), timeout=timeout)
    ends = await leader.call(_ends_request(replica_id, wanted), timeout=timeout)
    found: dict[tuple[str, int], OffsetRange | int] = {}
    start_of = {
        (topic.name, each.partition_index): each.error_code or OffsetRange(each.offset, -1)
        for topic in starts.topics
        for each in topic.partitions
    }
    for topic in ends.topics:
        for each in topic.partitions:
            start = start_of.get((topic.topic, each.partition))
            if isinstance(start, OffsetRange):
                found[topic.topic, each.partition] = each.error_code or OffsetRange(
                    start.start, each.end_offset
                )
            elif start is not None:
                found[topic.topic, each.partition] = start
    return found


def _starts_request(replica_id: int, wanted: Iterable[tuple[Partition, Position]]) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for partition, asked in wanted:
        topic = topics.setdefault(partition.topic, ListOffsetsTopic(name=partition.topic, partitions=[]))
        topic.partitions.append(
            ListOffsetsPartition(
                partition_index=partition.index,
                current_leader_epoch=asked.leader_epoch,
                timestamp=_EARLIEST,
            )
        )
    return ListOffsetsRequest(replica_id=replica_id, topics=list(topics.values()))


def _ends_request(
    replica_id: int, wanted: Iterable[tuple[Partition, Position]]
) -> OffsetForLeaderEpochRequest:
    topics: dict[str, OffsetForLeaderTopic] = {}
    for partition, asked in wanted:
        topic = topics.setdefault(partition.topic, OffsetForLeaderTopic(topic=partition.topic, partitions=[]))
        topic.partitions.append(
            OffsetForLeaderPartition(
                partition=partition.index,
                current_leader_epoch=asked.leader_epoch,
                leader_epoch=asked.leader_epoch,
            )
        )
    return OffsetForLeaderEpochRequest(replica_id=replica_id, topics=list(topics.values()))
