"""AlterPartitionReassignments: replicas that are added catch up and may lead; nothing else is allowed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

import ottla.testing
from ottla.protocol.errors import ErrorCode, error_of
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from ottla.protocol.messages.metadata import MetadataResponsePartition
from ottla.protocol_client.consume import Consumer
from ottla.protocol_client.produce import Producer
from ottla.protocol_client.wire import Wire
from ottla.testing.in_process_cluster import InProcessCluster

VALUES = [b"%d" % number for number in range(1000)]


@pytest.fixture
def cluster() -> Iterator[InProcessCluster]:
    with ottla.testing.cluster(3) as cluster:
        yield cluster


def create(wire: Wire, name: str, replicas: int, *, on: list[int] | None = None) -> None:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=replicas)
    if on is not None:
        placed = CreatableReplicaAssignment(partition_index=0, broker_ids=on)
        topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=[placed])
    response = wire.call(CreateTopicsRequest(topics=[topic]))
    assert response.topics[0].error_code == 0


def reassign(
    wire: Wire, replicas: list[int] | None, topic: str = "t", index: int = 0, *, change: bool = True
) -> str:
    partition = ReassignablePartition(partition_index=index, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=[partition])], allow_replication_factor_change=change
    )
    response = wire.call(request)
    assert response.error_code == 0
    return error_of(response.responses[0].partitions[0].error_code).name


def state(wire: Wire) -> MetadataResponsePartition:
    (topic,) = (topic for topic in wire.metadata().topics if topic.name == "t")
    return topic.partitions[0]


UnderWay = dict[tuple[str, int], tuple[list[int], list[int], list[int]]]


def listed(wire: Wire, *named: tuple[str, list[int]]) -> UnderWay:
    """What is under way: replicas, those that are added and those that are removed."""
    topics = [ListPartitionReassignmentsTopics(name=name, partition_indexes=each) for name, each in named]
    response = wire.call(ListPartitionReassignmentsRequest(topics=topics or None))
    assert response.error_code == 0
    return {
        (topic.name, each.partition_index): (each.replicas, each.adding_replicas, each.removing_replicas)
        for topic in response.topics
        for each in topic.partitions
    }


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline


def test_added_replicas_catch_up_and_one_of_them_leads_when_the_leader_dies(
    cluster: InProcessCluster,
) -> None:
    with Wire(cluster.bootstrap_servers) as wire:
        create(wire, "t", 1)
        old = state(wire).leader_id
        with Producer(wire, "t") as producer:
            for value in VALUES:
                producer.add(None, value)
    others = sorted({1, 2, 3} - {old})
    for node in (old, others[0]):  # by the controller, or forwarded to it; the second changes nothing
        with Wire(cluster[node].direct_servers) as wire:
            assert reassign(wire, [old, *others]) == "NONE"
            assert state(wire).replica_nodes == [old, *others]
    with Wire(cluster.bootstrap_servers) as wire:
        wait_until(lambda: sorted(state(wire).isr_nodes) == [1, 2, 3])
        assert (state(wire).leader_id, state(wire).leader_epoch) == (old, 0)
        assert listed(wire) == {}
    cluster.kill(old)
    cluster.wait_for_leader("t", other_than=old)
    with Wire(",".join(cluster[node].bootstrap_servers for node in others)) as wire:
        with Producer(wire, "t") as producer:
            producer.add(None, b"after")
        read = [record.value for _, record in Consumer(wire, "t", {0: 0}, {0: len(VALUES) + 1})]
        assert read == [*VALUES, b"after"]


def test_replicas_are_listed_as_adding_until_all_of_them_are_in_sync() -> None:
    """As Kafka 4.3 lists them: both, though one is in sync before the other."""
    with ottla.testing.cluster(3, network=True) as cluster:
        with Wire(cluster.bootstrap_servers) as wire:
            near = cluster.controller()  # which all others have to reach
            old, far = sorted({1, 2, 3} - {near})
            create(wire, "t", 1, on=[old])
            create(wire, "other", 1)
            cluster.cut(far, old)
            assert reassign(wire, [near, old, far]) == "NONE"
            wait_until(lambda: sorted(state(wire).isr_nodes) == sorted([old, near]))
        for node in (1, 2, 3):
            with Wire(cluster[node].bootstrap_servers) as wire:
                under_way: UnderWay = {("t", 0): ([near, old, far], [near, far], [])}
                assert listed(wire) == under_way
                assert listed(wire, ("t", [0, 7, 0]), ("nobody", [0])) == under_way
                assert listed(wire, ("other", [0])) == listed(wire, ("t", [1])) == {}
        with Wire(cluster.bootstrap_servers) as wire:
            assert reassign(wire, None) == "INVALID_REPLICA_ASSIGNMENT", "it cannot be cancelled yet"
            assert reassign(wire, None, "other") == "NO_REASSIGNMENT_IN_PROGRESS"
            cluster.mend()
            wait_until(lambda: listed(wire) == {})
            wait_until(lambda: sorted(state(wire).isr_nodes) == [1, 2, 3])


def test_what_is_not_supported_is_refused_and_changes_nothing(cluster: InProcessCluster) -> None:
    with Wire(cluster.bootstrap_servers) as wire:
        create(wire, "t", 2)
        before = state(wire)
        first, second = before.replica_nodes
        (third,) = {1, 2, 3} - {first, second}
        assert reassign(wire, [first]) == "INVALID_REPLICA_ASSIGNMENT"
        assert reassign(wire, [first, third]) == "INVALID_REPLICA_ASSIGNMENT"
        assert reassign(wire, [first, second, second]) == "INVALID_REPLICA_ASSIGNMENT"
        assert reassign(wire, [first, second, 9]) == "INVALID_REPLICA_ASSIGNMENT"
        assert reassign(wire, []) == "INVALID_REPLICA_ASSIGNMENT"
        assert reassign(wire, None) == "NO_REASSIGNMENT_IN_PROGRESS"
        assert reassign(wire, [1, 2, 3], change=False) == "INVALID_REPLICATION_FACTOR"
        assert reassign(wire, [1], "nobody") == "UNKNOWN_TOPIC_OR_PARTITION"
        assert reassign(wire, [1], index=7) == "UNKNOWN_TOPIC_OR_PARTITION"
        assert state(wire) == before


def test_the_preferred_leader_may_be_changed(cluster: InProcessCluster) -> None:
    with Wire(cluster.bootstrap_servers) as wire:
        create(wire, "t", 3)
        before = state(wire)
        wanted = before.replica_nodes[::-1]
        assert reassign(wire, wanted, change=False) == "NONE"
        after = state(wire)
        assert (after.replica_nodes, after.leader_id) == (wanted, before.leader_id)


def test_too_many_partitions_are_refused(cluster: InProcessCluster) -> None:
    partitions = [ReassignablePartition(partition_index=index, replicas=[1]) for index in range(10_001)]
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=partitions)])
    with Wire(cluster.bootstrap_servers) as wire:
        assert wire.call(request).error_code == ErrorCode.POLICY_VIOLATION
