"""Where a partition starts and ends, and where it was at some time.

ListOffsets answers only at the leader of a partition, so a question about a whole topic goes to several
brokers and may have to be asked again while leaders move.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.metadata import MetadataResponseTopic
from ottla.protocol_client.wire import BrokerUnreachable, Patience, Wire, check

EARLIEST = -2
LATEST = -1


class Span(NamedTuple):
    """What a partition holds: offsets from `start` up to but not including `end`."""

    start: int
    end: int


def list_offsets(
    wire: Wire, topic: str, times: Mapping[int, int], *, read_committed: bool = False, timeout: float = 30.0
) -> dict[int, int]:
    """For each partition the first offset at or after its time in ms; EARLIEST and LATEST are times too.

    -1 when the partition holds nothing that late.
    """
    found: dict[int, int] = {}
    patience = Patience(timeout)
    while len(found) < len(times):
        missing = {p: time for p, time in times.items() if p not in found}
        try:
            metadata = wire.topic(topic)
            for leader, partitions in leaders(metadata, missing).items():
                found |= _ask(wire, topic, leader, {p: missing[p] for p in partitions}, read_committed)
        except (ApiError, BrokerUnreachable) as error:
            patience.pause(error)
    return found


def spans(
    wire: Wire, topic: str, partitions: Iterable[int], *, read_committed: bool = False
) -> dict[int, Span]:
    """Start and end of each partition; the end is the high watermark, or the last stable offset."""
    wanted = list(partitions)
    starts = list_offsets(wire, topic, dict.fromkeys(wanted, EARLIEST))
    ends = list_offsets(wire, topic, dict.fromkeys(wanted, LATEST), read_committed=read_committed)
    return {p: Span(starts[p], ends[p]) for p in wanted}


def leaders(topic: MetadataResponseTopic, partitions: Iterable[int]) -> dict[int, list[int]]:
    """`partitions` by the broker that leads them; ApiError when one has no leader or does not exist."""
    by_partition = {p.partition_index: p for p in topic.partitions}
    result: dict[int, list[int]] = {}
    for partition in partitions:
        if partition not in by_partition:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name!r} has no partition {partition}"
            )
        leader = by_partition[partition].leader_id
        if leader < 0:
            raise ApiError(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"partition {partition} of topic {topic.name!r} has no leader; its brokers may be down",
            )
        result.setdefault(leader, []).append(partition)
    return result


def _ask(
    wire: Wire, topic: str, leader: int, times: Mapping[int, int], read_committed: bool
) -> dict[int, int]:
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(read_committed),
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[ListOffsetsPartition(partition_index=p, timestamp=t) for p, t in times.items()],
            )
        ],
        timeout_ms=int(wire.request_timeout * 1000),
    )
    response: ListOffsetsResponse = wire.call(request, node=leader)
    found = {}
    for answer in response.topics[0].partitions:
        check(answer.error_code)
        found[answer.partition_index] = answer.offset
    return found
