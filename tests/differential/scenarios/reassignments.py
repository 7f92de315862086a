"""AlterPartitionReassignments and ListPartitionReassignments, with one broker."""

from __future__ import annotations

from typing import Any

from differential.peer import Peer
from differential.scenario import Answers, scenario
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)


@scenario(AlterPartitionReassignmentsRequest)
def reassigning(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")

    def ask(replicas: list[int] | None, name: str = topic, index: int = 0, **more: Any) -> Any:
        partition = ReassignablePartition(partition_index=index, replicas=replicas)
        topics = [ReassignableTopic(name=name, partitions=[partition])]
        return peer.call(AlterPartitionReassignmentsRequest(topics=topics, **more), version)

    yield "as it is", ask([1])
    yield "twice the same", ask([1, 1])
    yield "an unknown broker", ask([1, 99])
    yield "a negative broker", ask([-1])
    yield "no replicas", ask([])
    yield "cancel", ask(None)
    yield "unknown topic", ask([1], peer.named("nobody"))
    yield "unknown partition", ask([1], index=5)
    yield "nothing", peer.call(AlterPartitionReassignmentsRequest(), version)
    if version >= 1:
        yield "the same number", ask([1], allow_replication_factor_change=False)
        yield "another number", ask([1, 99], allow_replication_factor_change=False)


@scenario(ListPartitionReassignmentsRequest)
def listing_reassignments(peer: Peer, version: int) -> Answers:
    yield "all", peer.call(ListPartitionReassignmentsRequest(), version)
    for name in (peer.topic("t"), peer.named("nobody")):
        topics = [ListPartitionReassignmentsTopics(name=name, partition_indexes=[0, 7])]
        yield name, peer.call(ListPartitionReassignmentsRequest(topics=topics), version)
