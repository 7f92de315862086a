"""What brokers say about their cluster, asked by the wire: leaders, in-sync replicas, the controller.

The frames are laid out here by hand, as in `bench.wire`, and each goes to the broker that is named. A client
library would choose a broker itself, and its pauses between attempts would be part of what is measured.
Metadata v4, ListOffsets v2, CreateTopics v4, ElectLeaders v0 and DescribeQuorum v0 are used, which both sides
have.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from bench.wire import Connection

_LIST_OFFSETS, _METADATA, _CREATE_TOPICS, _ELECT_LEADERS, _DESCRIBE_QUORUM = 2, 3, 19, 43, 55
_TOPIC_ALREADY_EXISTS = 36
_LATEST = -1
_PAUSE = 0.05
"""Between two questions: the resolution of what is measured."""

Partition = tuple[str, int]


@dataclass(frozen=True)
class PartitionState:
    error: int
    leader: int
    in_sync: int


@dataclass(frozen=True)
class View:
    """A Metadata answer: ports of the brokers by their ids, and the state of each partition."""

    ports: dict[int, int]
    partitions: dict[Partition, PartitionState]


Accept = Callable[[View], bool]


class _Reader:
    """Takes fields of the older, not flexible versions from an answer."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 4  # after the correlation id

    def take(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return values

    def string(self) -> str:
        (length,) = self.take(">h")
        self._at += max(length, 0)
        return self._data[self._at - max(length, 0) : self._at].decode()

    def items(self) -> range:
        return range(self.take(">i")[0])


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _ask(port: int, api_key: int, version: int, body: bytes) -> bytes:
    header = struct.pack(">hhi", api_key, version, 1) + _string("bench")
    with closing(Connection(port)) as connection:
        connection.send(struct.pack(">i", len(header) + len(body)) + header + body)
        return connection.receive()


def view_of(port: int) -> View:
    """All topics, as the broker on this port sees them."""
    answer = _Reader(_ask(port, _METADATA, 4, struct.pack(">ib", -1, 0)))
    answer.take(">i")
    ports: dict[int, int] = {}
    for _ in answer.items():
        (node,) = answer.take(">i")
        answer.string()
        (ports[node],) = answer.take(">i")
        answer.string()
    answer.string()
    answer.take(">i")
    return View(ports, dict(_partitions(answer)))


def _partitions(answer: _Reader) -> Iterator[tuple[Partition, PartitionState]]:
    for _ in answer.items():
        answer.take(">h")
        topic = answer.string()
        answer.take(">b")
        for _ in answer.items():
            error, index, leader, replicas = answer.take(">hiii")
            answer.take(f">{replicas}i")
            (in_sync,) = answer.take(">i")
            answer.take(f">{in_sync}i")
            yield (topic, index), PartitionState(error, leader, in_sync)


def controller_id(port: int) -> int:
    """The active controller. Metadata of Kafka names any broker instead, so the quorum is asked about."""
    topic = b"__cluster_metadata"
    # The header's tags, one topic, its name, one partition with the index 0, and tags again.
    body = b"\0\x02" + bytes([len(topic) + 1]) + topic + b"\x02" + bytes(4) + b"\0\0\0"
    answer = _ask(port, _DESCRIBE_QUORUM, 0, body)
    (error,) = struct.unpack_from(">h", answer, 5)
    if error:
        raise RuntimeError(f"DescribeQuorum was answered with error {error}")
    # Error, array count, topic name, array count, and the partition's index
    _, error, leader = struct.unpack_from(">ihi", answer, 5 + 2 + 1 + 1 + len(topic) + 1)
    if error:
        raise RuntimeError(f"DescribeQuorum was answered with error {error}")
    return int(leader)


def elect_preferred(port: int, seconds: float) -> None:
    """Let every partition be led by the first of its replicas, where that is in sync."""
    _ask(port, _ELECT_LEADERS, 0, struct.pack(">ii", -1, int(seconds * 1000)))


def all_lead(view: View) -> bool:
    """True when each partition's leader answers for it, and not only Metadata says so."""
    led: dict[int, dict[str, list[int]]] = {}
    for (topic, index), state in view.partitions.items():
        led.setdefault(state.leader, {}).setdefault(topic, []).append(index)
    return all(_leads(view.ports[node], topics) for node, topics in led.items())


def _leads(port: int, topics: dict[str, list[int]]) -> bool:
    body = struct.pack(">ibi", -1, 0, len(topics))
    for topic, indexes in topics.items():
        body += _string(topic) + struct.pack(">i", len(indexes))
        body += b"".join(struct.pack(">iq", index, _LATEST) for index in indexes)
    answer = _Reader(_ask(port, _LIST_OFFSETS, 2, body))
    answer.take(">i")
    for _ in answer.items():
        answer.string()
        for _ in answer.items():
            _, error, _, _ = answer.take(">ihqq")
            if error:
                return False
    return True


def complete(partitions: int, brokers: int) -> Accept:
    """All brokers are there, and all partitions have a leader and every replica in sync."""

    def accept(view: View) -> bool:
        states = view.partitions.values()
        return (
            len(view.ports) == brokers
            and len(states) >= partitions
            and all(not s.error and s.leader in view.ports and s.in_sync == brokers for s in states)
        )

    return accept


def led_by_others(partitions: Collection[Partition], dead: int) -> Accept:
    """These partitions have a leader that is not the broker `dead`."""

    def accept(view: View) -> bool:
        states = [view.partitions.get(each) for each in partitions]
        return all(s is not None and s.leader in view.ports and s.leader != dead for s in states)

    return accept


def wait_for_view(
    ports: Sequence[int], accept: Accept, seconds: float, only: Collection[Partition] | None = None
) -> View:
    """Until every broker shows what is wanted and the leaders answer, for all partitions or `only` these."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            views = [_wait_at(port, accept, until) for port in ports]
            last = views[-1]
            if only is not None:
                last = View(last.ports, {each: last.partitions[each] for each in only})
            if all_lead(last):
                return last
        except OSError:  # a broker that does not listen yet, or closes connections
            pass
        time.sleep(_PAUSE)
    raise RuntimeError(f"not all partitions had leaders within {seconds:.0f} s")


def _wait_at(port: int, accept: Accept, until: float) -> View:
    while not accept(view := view_of(port)):
        if time.monotonic() > until:
            raise RuntimeError(f"the broker on port {port} did not show all partitions in time")
        time.sleep(_PAUSE)
    return view


def create_when_possible(ports: Sequence[int], topic: str, replicas: int, seconds: float) -> None:
    """CreateTopics for one partition, at one broker after the other, until one says that it is there."""
    body = struct.pack(">i", 1) + _string(topic) + struct.pack(">ihii", 1, replicas, 0, 0)
    body += struct.pack(">ib", 1000, 0)
    until, said = time.monotonic() + seconds, "nothing"
    while time.monotonic() < until:
        for port in ports:
            try:
                answer = _Reader(_ask(port, _CREATE_TOPICS, 4, body))
            except OSError as problem:
                said = str(problem)
                continue
            answer.take(">ii")
            answer.string()
            (error,) = answer.take(">h")
            # An attempt that was answered with a timeout may have made it.
            if error in (0, _TOPIC_ALREADY_EXISTS):
                return
            said = f"error {error}"
        time.sleep(_PAUSE)
    raise RuntimeError(f"no topic could be created within {seconds:.0f} s: {said}")
