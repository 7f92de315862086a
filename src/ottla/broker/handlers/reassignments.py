"""AlterPartitionReassignments (45) and ListPartitionReassignments (46): more replicas for partitions.

Replicas can be added, and their order changed: the first is the preferred leader. A list that leaves out a
replica is refused, so replicas cannot move to other brokers. New replicas belong to the partition at once,
outside of the in-sync set, and catch up like a follower that was away. The reassignment is under way, and
listed, until all of them are in sync. It cannot be cancelled.

Each partition succeeds or fails for itself. The answer comes when this broker has taken over the outcome. The
list is that of the controller, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

from ottla.broker.dispatch import RequestContext
from ottla.broker.handlers.elections import LeaderElection
from ottla.broker.portions import MAX_CHANGES, TOO_MANY_PARTITIONS
from ottla.broker.ports import ControllerAccess
from ottla.cluster.image import PartitionState
from ottla.cluster.reassignment import Reassignment
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

_AT_A_TIME = 2000
"""Partitions that are looked at between two looks at other requests."""


async def alter_partition_reassignments(
    broker: LeaderElection, request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    wanted = [
        Reassignment(
            topic.name, each.partition_index, None if each.replicas is None else tuple(each.replicas)
        )
        for topic in request.topics
        for each in topic.partitions
    ]
    try:
        if len(wanted) > MAX_CHANGES:
            raise ApiError(ErrorCode.POLICY_VIOLATION, TOO_MANY_PARTITIONS)
        outcome = await broker.controller.reassign(
            wanted, same_factor=not request.allow_replication_factor_change
        )
    except ApiError as error:
        return refuse_reassignments(request, context.version, error)
    await broker.caught_up(outcome.version)
    results = iter(outcome.results)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[_result(each.partition_index, next(results)) for each in topic.partitions],
            )
            for topic in request.topics
        ],
    )


def _result(index: int, result: object) -> ReassignablePartitionResponse:
    if not isinstance(result, ApiError):
        return ReassignablePartitionResponse(partition_index=index)
    return ReassignablePartitionResponse(
        partition_index=index, error_code=result.code, error_message=result.message
    )


def refuse_reassignments(
    request: AlterPartitionReassignmentsRequest, version: int, error: ApiError
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(error_code=error.code, error_message=error.message)


def list_partition_reassignments(
    broker: ControllerAccess, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> Generator[None, None, ListPartitionReassignmentsResponse]:
    """What is under way of the partitions that were named, or of all; what is not there is left out."""
    topics = broker.controller.image.topics
    named = request.topics
    asked: Iterable[tuple[str, Iterable[int]]] = (
        ((each.name, dict.fromkeys(each.partition_indexes)) for each in named)
        if named is not None
        else ((name, range(len(topic.partitions))) for name, topic in topics.items())
    )
    found = []
    looked_at = 0
    for name, indexes in asked:
        states = topics[name].partitions if name in topics else ()
        under_way = []
        for index in indexes:
            looked_at += 1
            if looked_at % _AT_A_TIME == 0:
                yield
            if 0 <= index < len(states) and states[index].adding:
                under_way.append(_under_way(index, states[index]))
        if under_way:
            found.append(OngoingTopicReassignment(name=name, partitions=under_way))
    return ListPartitionReassignmentsResponse(topics=found)


def _under_way(index: int, state: PartitionState) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        partition_index=index, replicas=list(state.replicas), adding_replicas=list(state.adding)
    )


def refuse_listing(
    request: ListPartitionReassignmentsRequest, version: int, error: ApiError
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_code=error.code, error_message=error.message)
