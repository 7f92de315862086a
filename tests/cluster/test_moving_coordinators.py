"""Groups whose coordinator moves to another broker: clients go on, and what was committed stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

import ottla.testing
from cluster.moving_groups import KINDS, PARTITIONS, TOPIC, Reading
from conformance.group_member import until
from ottla.coordinator.group_coordinator import OFFSETS_TOPIC
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, ElectTopic
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from ottla.protocol_client.group_offsets import committed_offsets
from ottla.protocol_client.groups import coordinator
from ottla.protocol_client.wire import Wire
from ottla.testing.in_process_cluster import InProcessCluster

PREFERRED = 0

pytestmark = pytest.mark.timeout(300)


def each_kind(*quick: str) -> pytest.MarkDecorator:
    """Run a test with every kind of client; those that are not named are slow."""
    marks = {kind: [] if kind in quick else [pytest.mark.slow] for kind in KINDS}
    return pytest.mark.parametrize(
        "kind", [pytest.param(cls, id=kind, marks=marks[kind]) for kind, cls in KINDS.items()]
    )


def cluster(offsets_partitions: int = 1, **settings: object) -> InProcessCluster:
    """With one partition of offsets all groups have one coordinator, with three every broker coordinates."""
    return ottla.testing.cluster(
        3,
        topics={TOPIC: PARTITIONS},
        settings={
            "offsets.topic.num.partitions": offsets_partitions,
            "broker.session.timeout.ms": 2000,
            "broker.heartbeat.interval.ms": 500,
            "group.consumer.heartbeat.interval.ms": 500,
            "group.consumer.min.heartbeat.interval.ms": 500,
            **settings,
        },
    )


def coordinator_of(brokers: InProcessCluster, group: str) -> int:
    with Wire(brokers.bootstrap_servers) as wire:
        return coordinator(wire, group)


def group_of(brokers: InProcessCluster, wanted: Callable[[int], bool]) -> str:
    """A group whose coordinator is a broker such as is wanted."""
    return next(group for n in range(1000) if wanted(coordinator_of(brokers, group := f"g{n}")))


@contextmanager
def replaced(brokers: InProcessCluster, group: str) -> Iterator[int]:
    """Within this block the broker that coordinated the group stands still, and another one coordinates."""
    zombie = coordinator_of(brokers, group)
    others = [broker for node, broker in brokers.brokers.items() if node != zombie]

    def has_another(wire: Wire) -> bool:
        try:
            return coordinator(wire, group) != zombie
        except ApiError as error:
            assert error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
            return False

    with brokers.paused(zombie):
        for other in others:
            with Wire(other.bootstrap_servers) as wire:
                until(partial(has_another, wire), lambda: "nobody takes over")
        yield zombie


def elect_preferred(brokers: InProcessCluster) -> None:
    asked = ElectTopic(topic=OFFSETS_TOPIC, partitions=[0])
    with Wire(brokers.bootstrap_servers) as wire:
        answer = wire.call(ElectLeadersRequest(election_type=PREFERRED, topic_partitions=[asked]))
    assert not answer.error_code
    assert [p.error_code for topic in answer.replica_election_results for p in topic.partition_result] == [0]


@each_kind("confluent", "kafka-python")
def test_a_group_reads_on_when_its_coordinator_is_stopped_moved_and_killed(kind: type[Any]) -> None:
    with cluster() as brokers, Reading(brokers, kind) as reading:
        first = brokers.leader(OFFSETS_TOPIC)
        brokers.stop(first)
        brokers.wait_for_leader(OFFSETS_TOPIC, other_than=first)
        reading.goes_on()
        brokers[first].start()
        brokers.wait_until_in_sync(OFFSETS_TOPIC, TOPIC)
        elect_preferred(brokers)
        assert brokers.wait_for_leader(OFFSETS_TOPIC) == first
        reading.goes_on()
        brokers.kill(first)
        brokers.wait_for_leader(OFFSETS_TOPIC, other_than=first)
        reading.goes_on()


@each_kind("confluent-consumer-protocol", "aiokafka")
def test_a_group_reads_on_when_its_coordinator_stood_still(kind: type[Any]) -> None:
    with cluster(3) as brokers:
        group = group_of(brokers, lambda node: node != brokers.controller())
        with Reading(brokers, kind, group) as reading:
            with replaced(brokers, group):
                pass
            reading.goes_on()
            assert coordinator_of(brokers, group) in brokers.brokers


def commit_request(group: str, offset: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])]
    return OffsetCommitRequest(group_id=group, topics=topics)


def commit(wire: Wire, group: str, offset: int) -> None:
    """Through the present coordinator, which may be loading."""

    def is_taken() -> bool:
        answer = wire.call(commit_request(group, offset), version=9, node=coordinator(wire, group))
        code = answer.topics[0].partitions[0].error_code
        assert code in (0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR), code
        return not code

    until(is_taken)


@pytest.mark.parametrize("is_controller", [False, True], ids=["broker", "controller"])
def test_a_coordinator_that_stood_still_answers_nothing_from_its_old_state(is_controller: bool) -> None:
    fetch = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="", topics=None)])
    with cluster(3) as brokers:
        group = group_of(brokers, lambda node: (node == brokers.controller()) == is_controller)
        fetch.groups[0].group_id = group
        zombie = coordinator_of(brokers, group)
        others = ",".join(each.bootstrap_servers for node, each in brokers.brokers.items() if node != zombie)
        with Wire(brokers[zombie].direct_servers) as old, Wire(others) as new:
            commit(new, group, 5)
            assert not old.call(fetch, 9).groups[0].error_code
            with replaced(brokers, group):
                commit(new, group, 7)
                # They lie in the sockets when the broker wakes up, before all that it will learn.
                requests = [
                    (fetch, 9),
                    (HeartbeatRequest(group_id=group, member_id="m", generation_id=1), 4),
                    (commit_request(group, 6), 9),
                    (ListGroupsRequest(), 4),
                ]
                pending = [old.send(request, version) for request, version in requests]
            fetched, heartbeat, committed, listed = [old.receive(each) for each in pending]
            assert fetched.groups[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert heartbeat.error_code == ErrorCode.NOT_COORDINATOR
            assert committed.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
            assert group not in {each.group_id for each in listed.groups}
            brokers.wait_until_in_sync(OFFSETS_TOPIC)
            assert committed_offsets(new, group)[TOPIC, 0].offset == 7


def test_commits_are_refused_while_too_few_replicas_are_in_sync() -> None:
    with cluster() as brokers:
        with Wire(brokers.bootstrap_servers) as wire:
            commit(wire, "g", 5)
            leader = coordinator(wire, "g")
        others = [node for node in brokers.brokers if node != leader]
        for node in others:
            brokers.kill(node)
        with Wire(brokers[leader].direct_servers) as wire:

            def is_refused() -> bool:
                """The first one may still wait for followers that are about to leave the in-sync set."""
                answer = wire.call(commit_request("g", 6), version=9)
                return bool(answer.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE)

            until(is_refused)
        for node in others:
            brokers[node].start()
        brokers.wait_until_in_sync(OFFSETS_TOPIC)
        with Wire(brokers.bootstrap_servers) as wire:
            commit(wire, "g", 7)
            assert committed_offsets(wire, "g")[TOPIC, 0].offset == 7
