"""How far a group is behind: in records, and in time.

In records it is the end of the partition less the committed offset. The end is the high watermark, as Kafka's
own tools count it, or for readers of committed records the last stable offset: what they can read. In time it
is the age of the oldest record that the group has not read: the timestamp of the first record at or after the
committed offset, against now. Kafka's protocol has no question for the time of an offset, so that one batch
is fetched, and nothing is fetched for partitions that are read to their end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.protocol.batches import headers
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.metadata import MetadataResponseTopic
from ottla.protocol.records import CompressionError, InvalidRecords, decode_batch
from ottla.protocol.schema import ZERO_UUID
from ottla.protocol_client.groups import Place, by_topic
from ottla.protocol_client.offsets import Span, spans
from ottla.protocol_client.wire import BrokerUnreachable, Wire

MAX_OPENED = 256 << 20
_EACH = 16 << 10
"""Bytes asked of each partition at first: most batches are no larger. Larger ones are asked for alone."""
_LAST_VERSION_WITH_NAMES = 12


class PartitionLag(NamedTuple):
    """Where a group stands in one partition; None is not known, or not there."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    oldest_unread_ms: int | None = None
    """When the oldest record that is not read was written."""

    @property
    def records(self) -> int | None:
        return records_behind(self.committed, self.end)

    def seconds(self, now_ms: int) -> float | None:
        return seconds_behind(self.records, self.oldest_unread_ms, now_ms)


def records_behind(committed: int | None, end: int | None) -> int | None:
    """None when nothing is committed or the end is not known. A topic made anew may end before: then 0."""
    if committed is None or end is None:
        return None
    return max(end - committed, 0)


def seconds_behind(records: int | None, oldest_unread_ms: int | None, now_ms: int) -> float | None:
    """0 for a group that has read everything. A clock that runs ahead of ours makes no negative ages."""
    if records == 0:
        return 0.0
    if records is None or oldest_unread_ms is None or oldest_unread_ms < 0:
        return None
    return max(now_ms - oldest_unread_ms, 0) / 1000


def total_records(lags: Iterable[PartitionLag]) -> int | None:
    """The sum over the partitions where it is known; None when it is known for none."""
    known = [lag.records for lag in lags if lag.records is not None]
    return sum(known) if known else None


def most_seconds(lags: Iterable[PartitionLag], now_ms: int) -> float | None:
    """The age of the oldest unread record of all."""
    known = [seconds for lag in lags if (seconds := lag.seconds(now_ms)) is not None]
    return max(known) if known else None


def lags(
    wire: Wire, committed: Mapping[Place, int | None], *, times: bool = True, read_committed: bool = False
) -> list[PartitionLag]:
    """The lag of each place, in order; `committed` has None where nothing is committed."""
    held = ends(wire, committed, read_committed=read_committed)
    unread = {
        place: max(offset, held[place].start)
        for place, offset in committed.items()
        if offset is not None and place in held and offset < held[place].end > held[place].start
    }
    found = record_times(wire, unread) if times and unread else {}
    return [
        PartitionLag(*place, committed[place], held[place].end if place in held else None, found.get(place))
        for place in sorted(committed)
    ]


def ends(wire: Wire, places: Iterable[Place], *, read_committed: bool = False) -> dict[Place, Span]:
    """Start and end of each partition. What is gone or has no leader now is left out."""
    wanted = by_topic(places)
    found: dict[Place, Span] = {}
    for topic in wire.metadata(wanted).topics if wanted else ():
        name = topic.name or ""
        led = {p.partition_index for p in topic.partitions if p.leader_id >= 0}
        partitions = [p for p in wanted.get(name, ()) if p in led]
        if partitions:
            held = spans(wire, name, partitions, read_committed=read_committed)
            found |= {(name, p): span for p, span in held.items()}
    return found


def record_times(wire: Wire, positions: Mapping[Place, int]) -> dict[Place, int]:
    """The timestamp of the first record at or after each position, in ms; left out where it cannot be had."""
    found: dict[Place, int] = {}
    topics = {topic.name or "": topic for topic in wire.metadata(by_topic(positions)).topics}
    for leader, places in _by_leader(topics, positions).items():
        found |= _fetch(wire, leader, topics, {place: positions[place] for place in places})
        for place in places:
            if place not in found:
                # A broker sends at least one whole batch, however large, but only of the first partition.
                found |= _fetch(wire, leader, topics, {place: positions[place]})
    return found


def _by_leader(
    topics: Mapping[str, MetadataResponseTopic], places: Iterable[Place]
) -> dict[int, list[Place]]:
    leaders = {
        (name, partition.partition_index): partition.leader_id
        for name, topic in topics.items()
        for partition in topic.partitions
    }
    result: dict[int, list[Place]] = {}
    for place in places:
        leader = leaders.get(place, -1)
        if leader >= 0:
            result.setdefault(leader, []).append(place)
    return result


def _fetch(
    wire: Wire, leader: int, topics: Mapping[str, MetadataResponseTopic], positions: Mapping[Place, int]
) -> dict[Place, int]:
    asked = [
        FetchTopic(
            topic=name,
            topic_id=topics[name].topic_id,
            partitions=[
                FetchPartition(partition=p, fetch_offset=positions[name, p], partition_max_bytes=_EACH)
                for p in partitions
            ],
        )
        for name, partitions in by_topic(positions).items()
    ]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=64 << 20, topics=asked)
    has_ids = all(topic.topic_id != ZERO_UUID for topic in asked)
    try:
        version = wire.connection(leader).version_for(
            FetchRequest, None if has_ids else _LAST_VERSION_WITH_NAMES
        )
        response: FetchResponse = wire.call(request, version, leader)
    except BrokerUnreachable:
        return {}
    names = {topic.topic_id: topic.topic for topic in asked}
    found = {}
    for answer in response.responses:
        name = answer.topic or names.get(answer.topic_id, "")
        for data in answer.partitions:
            place = name, data.partition_index
            if data.error_code == ErrorCode.NONE and data.records and place in positions:
                time = first_time(data.records, positions[place])
                if time is not None:
                    found[place] = time
    return found


def first_time(records: memoryview | bytes, position: int) -> int | None:
    """The timestamp of the first record at or after `position` in these batches; None if there is none."""
    for start, header in headers(records):
        if header.next_offset <= position:
            continue
        try:
            opened = decode_batch(records[start : start + header.size], max_size=MAX_OPENED)
        except (InvalidRecords, CompressionError):
            return header.max_timestamp  # a damaged batch still says when it was written
        for record in opened:
            if record.offset >= position:
                return record.timestamp
    return None
