"""What the brokers report about a topic's logs, and the order to compact them. Only Ottla's brokers do; see
the messages `log_state`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ottla.protocol.messages.log_state import (
    CompactLogsRequest,
    CompactLogsResponse,
    DescribeLogStateRequest,
    DescribeLogStateResponse,
    LogStatePartition,
    LogStateTopic,
)
from ottla.protocol.messages.metadata import MetadataResponseTopic
from ottla.protocol_client.wire import BrokerUnreachable, UnsupportedByBroker, Wire, check


@dataclass
class LogStates:
    """By partition, of the leaders' logs; without those whose broker does not report it."""

    partitions: dict[int, LogStatePartition] = field(default_factory=dict)
    refusing: list[tuple[int, int, int]] = field(default_factory=list)  # broker, bytes free, bytes kept back


def log_states(wire: Wire, topic: MetadataResponseTopic) -> LogStates:
    """The state of each partition's log; a broker that cannot be asked, or that is no Ottla, is left out."""
    found = LogStates()
    for node, indexes in _by_leader(topic).items():
        request = DescribeLogStateRequest(topics=[LogStateTopic(name=topic.name or "", partitions=indexes)])
        try:
            response: DescribeLogStateResponse = wire.call(request, node=node)
        except (BrokerUnreachable, UnsupportedByBroker):
            continue
        if response.refuses_writes:
            found.refusing.append((node, response.free_bytes, response.min_free_bytes))
        for result in response.topics:
            for partition in result.partitions:
                if not partition.error_code:
                    found.partitions[partition.partition_index] = partition
    return found


def full_disks(wire: Wire, nodes: Iterable[int], timeout: float) -> set[int]:
    """Those of these brokers that take no records for lack of space. One that cannot be asked in `timeout`
    seconds, or that is no Ottla, is left out."""
    found = set()
    for node in nodes:
        try:
            response: DescribeLogStateResponse = wire.call(
                DescribeLogStateRequest(), node=node, timeout=timeout
            )
        except (BrokerUnreachable, UnsupportedByBroker):
            continue
        if response.refuses_writes:
            found.add(node)
    return found


def compact_logs(wire: Wire, topic: MetadataResponseTopic) -> None:
    """Have all partitions of the topic compacted as soon as may be. ApiError when one refuses.

    UnsupportedByBroker when the broker is no Ottla.
    """
    for node, indexes in _by_leader(topic).items():
        request = CompactLogsRequest(topics=[LogStateTopic(name=topic.name or "", partitions=indexes)])
        response: CompactLogsResponse = wire.call(request, node=node)
        for result in response.topics:
            for partition in result.partitions:
                check(partition.error_code, partition.error_message)


def _by_leader(topic: MetadataResponseTopic) -> dict[int, list[int]]:
    led: dict[int, list[int]] = {}
    for partition in topic.partitions:
        if partition.leader_id >= 0:
            led.setdefault(partition.leader_id, []).append(partition.partition_index)
    return led


def is_busy(states: Iterable[LogStatePartition]) -> bool:
    """Whether one of them is being compacted, or will be because it was asked for."""
    return any(state.is_running or state.is_asked_for for state in states)
