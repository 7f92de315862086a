"""Waiting for records without asking again and again, and weighing what waits.

A fetch that asks for one byte past the known end of every partition is answered the moment a record is there,
and until then costs nothing on either side. `Watch.wait` keeps one such fetch at every leader. Fetches that
were not answered when another leader's was stay on their way and serve the next call, as long as it waits at
the same offsets. The connections are the watch's own: an unanswered fetch would hold up other requests.

`bytes_per_offset` looks at the first batches that are to be read, to tell how many bytes an offset has.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from ottla.pipeline.topics.options import Place, SourceOptions
from ottla.protocol.batches import headers
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.schema import ZERO_UUID
from ottla.protocol_client.groups import by_topic
from ottla.protocol_client.wire import BrokerUnreachable, Pending, Wire, check

SAMPLE = 64 << 10
"""Bytes of each partition that are looked at to weigh it."""

UNKNOWN_WEIGHT = 1024.0
"""Bytes of an offset in a partition that shows none of its batches."""

_LAST_VERSION_WITH_NAMES = 12
_PAUSE = 0.05

Leaders = Mapping[Place, tuple[int, bytes]]


@dataclass(slots=True)
class _Fetch:
    """A fetch on its way. Newer versions name topics by their ids, and the answer needs the way back."""

    positions: Mapping[Place, int]
    pending: Pending
    names: dict[bytes, str]


class Watch:
    """Long polls at the leaders. Not for several threads."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._wire = Wire(
            options.bootstrap,
            client_id=options.client_id,
            connect_timeout=options.connect_timeout,
            request_timeout=options.request_timeout,
        )
        self._fetches: dict[int, _Fetch] = {}

    def close(self) -> None:
        self._fetches.clear()
        self._wire.close()

    def wait(self, positions: Mapping[Place, int], leaders: Leaders, seconds: float) -> bool:
        """Wait until something is at or after `positions`, at most so long. True: look again, it may be.

        Trouble of any kind is a reason to look again too; the caller has the patience for brokers that are
        away. It comes after a short pause, so that trouble which stays does not become a busy loop.
        """
        deadline = time.monotonic() + seconds
        by_leader: dict[int, dict[Place, int]] = {}
        for place, offset in positions.items():
            leader = leaders[place][0] if place in leaders else -1
            by_leader.setdefault(leader, {})[place] = offset
        try:
            while (left := deadline - time.monotonic()) > 0:
                self._send(by_leader, leaders, left)
                if self._take(left):
                    return True
        except (BrokerUnreachable, ApiError):
            self.close()
            time.sleep(min(_PAUSE, max(deadline - time.monotonic(), 0.0)))
            return True
        return False

    def _send(self, by_leader: Mapping[int, dict[Place, int]], leaders: Leaders, seconds: float) -> None:
        for leader in list(self._fetches):
            if self._fetches[leader].positions != by_leader.get(leader):
                self._fetches.pop(leader).pending.connection.close()
        for leader, positions in by_leader.items():
            if leader not in self._fetches:
                committed = self.options.read_committed
                self._fetches[leader] = _send(self._wire, leader, positions, leaders, seconds, 1, committed)

    def _take(self, seconds: float) -> bool:
        if not self._fetches:
            time.sleep(seconds)  # nothing to watch: a pattern that no topic matches yet
            return False
        arrived = False
        for pending in self._wire.ready((fetch.pending for fetch in self._fetches.values()), seconds):
            leader = next(node for node, fetch in self._fetches.items() if fetch.pending is pending)
            fetch = self._fetches.pop(leader)
            for place, data in _answers(self._wire, fetch).items():
                check(data.error_code)
                end = data.last_stable_offset if self.options.read_committed else data.high_watermark
                arrived = arrived or end > fetch.positions.get(place, end)
        return arrived


def bytes_per_offset(wire: Wire, positions: Mapping[Place, int], leaders: Leaders) -> dict[Place, float]:
    """Bytes that an offset takes in the log (as it is stored, compressed or not) from each position on.

    Measured on the batches that stand there. Partitions that show none get the mean of the others.
    """
    measured: dict[Place, float] = {}
    by_leader: dict[int, dict[Place, int]] = {}
    for place, offset in positions.items():
        if place in leaders and leaders[place][0] >= 0:
            by_leader.setdefault(leaders[place][0], {})[place] = offset
    for leader, asked in by_leader.items():
        fetch = _send(wire, leader, asked, leaders, 0.0, SAMPLE, False)
        for place, data in _answers(wire, fetch).items():
            if data.error_code == 0 and data.records:
                found = [header for _, header in headers(data.records)]
                if found:
                    size = sum(header.size for header in found)
                    measured[place] = size / max(found[-1].next_offset - found[0].base_offset, 1)
    mean = sum(measured.values()) / len(measured) if measured else UNKNOWN_WEIGHT
    return {place: measured.get(place, mean) for place in positions}


def _send(
    wire: Wire,
    leader: int,
    positions: Mapping[Place, int],
    leaders: Leaders,
    max_wait: float,
    each: int,
    committed: bool,
) -> _Fetch:
    if leader < 0:
        raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE)
    topics = [
        FetchTopic(
            topic=topic,
            topic_id=leaders[topic, partitions[0]][1],
            partitions=[
                FetchPartition(partition=p, fetch_offset=positions[topic, p], partition_max_bytes=each)
                for p in partitions
            ],
        )
        for topic, partitions in by_topic(positions).items()
    ]
    request = FetchRequest(
        max_wait_ms=int(max_wait * 1000),
        min_bytes=1,
        max_bytes=each * len(positions),
        isolation_level=int(committed),
        topics=topics,
    )
    names = {topic.topic_id: topic.topic for topic in topics}
    at_most = _LAST_VERSION_WITH_NAMES if ZERO_UUID in names else None
    version = wire.connection(leader).version_for(FetchRequest, at_most)
    return _Fetch(positions, wire.send(request, version, leader), names)


def _answers(wire: Wire, fetch: _Fetch) -> dict[Place, PartitionData]:
    response: FetchResponse = wire.receive(fetch.pending)
    check(response.error_code)
    found = {}
    for topic in response.responses:
        name = topic.topic or fetch.names.get(topic.topic_id, "")
        for data in topic.partitions:
            found[name, data.partition_index] = data
    return found
