"""ElectLeaders (43): make the preferred replica lead, or any replica where no other may.

The controller decides each partition for itself. Asked for all partitions (null), the answer names only those
where there was something to elect, as in Kafka. The answer comes when this broker has taken over the outcome.
Version 0 has no place for an error of the whole request and knows only the preferred election.
"""

from __future__ import annotations

from typing import Protocol

from ottla.broker.dispatch import RequestContext
from ottla.broker.ports import ControllerAccess, ImageFollowing
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionElection,
    ReplicaElectionResult,
)

PREFERRED, UNCLEAN = 0, 1


class LeaderElection(ControllerAccess, ImageFollowing, Protocol):
    """Leaders are elected by the controller; the answer leaves when the outcome counts here."""


async def elect_leaders(
    broker: LeaderElection, request: ElectLeadersRequest, context: RequestContext
) -> ElectLeadersResponse:
    asked = request.topic_partitions
    partitions = (
        None if asked is None else [(each.topic, index) for each in asked for index in each.partitions]
    )
    try:
        if request.election_type not in (PREFERRED, UNCLEAN):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"There is no election type {request.election_type}.")
        version, results = await broker.controller.elect_leaders(
            partitions, unclean=request.election_type == UNCLEAN
        )
    except ApiError as error:
        return refuse_election(request, context.version, error)
    await broker.caught_up(version)
    by_topic: dict[str, list[PartitionElection]] = {}
    for (topic, index), refusal in results.items():
        by_topic.setdefault(topic, []).append(_result(index, refusal))
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(topic=topic, partition_result=elections)
            for topic, elections in by_topic.items()
        ]
    )


def refuse_election(request: ElectLeadersRequest, version: int, error: ApiError) -> ElectLeadersResponse:
    """The answer that refuses every partition that was named."""
    return ElectLeadersResponse(
        error_code=error.code if version >= 1 else ErrorCode.NONE,
        replica_election_results=[
            ReplicaElectionResult(
                topic=each.topic, partition_result=[_result(index, error) for index in each.partitions]
            )
            for each in request.topic_partitions or ()
        ],
    )


def _result(index: int, refusal: ApiError | None) -> PartitionElection:
    if refusal is None:
        return PartitionElection(partition_id=index)
    return PartitionElection(partition_id=index, error_code=refusal.code, error_message=refusal.message)
