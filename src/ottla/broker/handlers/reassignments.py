"""AlterPartitionReassignments (45) and ListPartitionReassignments (46): more replicas for partitions.

Replicas can be added, and their order changed: the first is the preferred leader. A list that leaves out a
replica is refused, so replicas cannot move to other brokers. New replicas belong to the partition at once,
outside of the in-sync set, and catch up like a follower that was away. So no reassignment is ever under way:
none is listed, and there is none to cancel. While they catch up, the partition is under-replicated.

Each partition succeeds or fails for itself. The answer comes when this broker has taken over the outcome.
"""

from __future__ import annotations

from ottla.broker.dispatch import RequestContext
from ottla.broker.handlers.elections import LeaderElection
from ottla.broker.portions import MAX_CHANGES, TOO_MANY_PARTITIONS
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
)


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
    broker: object, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse()
