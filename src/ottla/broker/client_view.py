"""What a client is told of the cluster: brokers in service, at the addresses of the listener it came in by.

A broker that has no listener of that name cannot be reached by the client and is left out, as in Kafka. So
the addresses of the listener for other brokers never reach a client. A fenced broker is registered but not in
service: it is left out as well. A broker that has fenced itself does not name itself as a leader, so that
clients ask others.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.cluster.disk_states import NOBODY, Replica
from ottla.cluster.image import NO_LEADER, BrokerNode, ClusterImage, Endpoint, PartitionState
from ottla.protocol.errors import ErrorCode

ALL_FIELDS = 13
"""The newest version of Metadata, as which DescribeTopicPartitions looks at partitions."""
_LISTENER_NOT_FOUND_SINCE = 6


def endpoint_of(node: BrokerNode, listener: str) -> Endpoint | None:
    """A node that names no listeners is found at one address, whatever the listener."""
    return node.endpoint(listener) if node.endpoints else Endpoint(listener, node.host, node.port)


def endpoints_on(image: ClusterImage, listener: str, *, fenced: bool = False) -> dict[int, Endpoint]:
    """The address of every broker in service, and with `fenced` of all that are registered."""
    found = {}
    for node in image.brokers.values():
        endpoint = endpoint_of(node, listener) if fenced or not node.fenced else None
        if endpoint is not None:
            found[node.id] = endpoint
    return found


class PartitionView(NamedTuple):
    error: int
    leader: int
    replicas: list[int]
    isr: list[int]
    offline: list[int]


class ClientView:
    """An image as it looks to a client on `listener` that speaks this version of Metadata."""

    __slots__ = ("_failed", "_fenced_leader", "_version", "image", "reachable")

    def __init__(
        self,
        image: ClusterImage,
        listener: str,
        version: int = ALL_FIELDS,
        fenced_leader: int = NO_LEADER,
    ) -> None:
        self.image = image
        self._fenced_leader = fenced_leader
        self.reachable = endpoints_on(image, listener)
        self._version = version
        self._failed: dict[Replica, frozenset[int]] = {}
        for node in image.brokers.values():
            for replica in node.disk.failed:
                self._failed[replica] = self._failed.get(replica, NOBODY) | {node.id}

    @property
    def controller(self) -> int:
        """The broker to send changes to. All forward them, so any will do while the controller is away."""
        controller = self.image.controller_id
        return controller if controller in self.reachable else next(iter(self.reachable), -1)

    @property
    def has_failed(self) -> bool:
        """Whether any replica has no sound log."""
        return bool(self._failed)

    def failed_at(self, topic_id: bytes, index: int) -> frozenset[int]:
        """The brokers whose replica of a partition has no sound log."""
        return self._failed.get((topic_id, index), NOBODY)

    def partition(self, state: PartitionState, failed: frozenset[int] = NOBODY) -> PartitionView:
        """`failed`: brokers whose replica is offline, though they are there."""
        replicas, isr = list(state.replicas), list(state.isr)
        offline = [each for each in replicas if each not in self.reachable or each in failed]
        error, leader = 0, state.leader
        if leader not in self.reachable:
            error, leader = self._missing(leader), NO_LEADER
        elif leader == self._fenced_leader:
            error, leader = ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER
        if self._version == 0 and offline:
            # There is no field for offline replicas yet: they are left out, and the error says so.
            replicas = [replica for replica in replicas if replica not in offline]
            isr = [replica for replica in isr if replica not in offline]
            error = error or ErrorCode.REPLICA_NOT_AVAILABLE
        return PartitionView(error, leader, replicas, isr, offline)

    def _missing(self, leader: int) -> ErrorCode:
        node = self.image.brokers.get(leader)
        if node is not None and not node.fenced and self._version >= _LISTENER_NOT_FOUND_SINCE:
            return ErrorCode.LISTENER_NOT_FOUND
        return ErrorCode.LEADER_NOT_AVAILABLE
