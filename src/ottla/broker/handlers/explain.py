"""ExplainGroup (1002), which is ours: the rebalance journal of a group, for `ottla group explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.dispatch import RequestContext
from ottla.broker.request_scheduler import Steps
from ottla.coordinator.journal import Rebalance
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.explain_group import (
    ExplainedMember,
    ExplainedMove,
    ExplainedRebalance,
    ExplainGroupRequest,
    ExplainGroupResponse,
)

if TYPE_CHECKING:
    from ottla.broker.broker import Broker


def explain_group(
    broker: Broker, request: ExplainGroupRequest, context: RequestContext
) -> Steps[ExplainGroupResponse]:
    try:
        known = broker.groups.group(request.group_id) is not None
        rebalances = broker.groups.rebalances(request.group_id)
    except ApiError as error:
        return ExplainGroupResponse(error_code=error.code, error_message=error.message)
    if not known and not rebalances:
        return ExplainGroupResponse(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=f"Group {request.group_id} not found."
        )
    response = ExplainGroupResponse()
    for each in rebalances:
        response.rebalances.append(_explained(each))
        yield
    return response


def _explained(rebalance: Rebalance) -> ExplainedRebalance:
    reason = idle_reason(len(rebalance.shares), sum(map(len, rebalance.shares.values())))
    return ExplainedRebalance(
        generation=rebalance.generation,
        began_ms=rebalance.began_ms,
        duration_ms=rebalance.duration_ms,
        causes=[str(cause) for cause in rebalance.causes],
        protocol=rebalance.protocol,
        leader=rebalance.leader,
        members=[
            ExplainedMember(name=name, partitions=len(share), idle_reason=None if share else reason)
            for name, share in sorted(rebalance.shares.items())
        ],
        joined=list(rebalance.joined),
        left=list(rebalance.left),
        moves=[
            ExplainedMove(topic=move.topic, partition=move.partition, before=move.before, after=move.after)
            for move in rebalance.moves
        ],
    )


def idle_reason(members: int, partitions: int) -> str:
    """Why a member has nothing to do in a group of so many members that share so many partitions."""
    if not partitions:
        return "the group has no partitions to share: its topics do not exist, or it is not one of consumers"
    if members > partitions:
        return (
            f"{members} members share {partitions} partition{'' if partitions == 1 else 's'}; "
            "each partition has one reader, so some members have none"
        )
    return "the assignor gave it nothing: the others may read topics that it does not subscribe to"
