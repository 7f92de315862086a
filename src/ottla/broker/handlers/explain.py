"""ExplainGroup (1002), which is ours: the rebalance history of a group, for `ottla group explain`."""

from __future__ import annotations

from typing import NamedTuple

from ottla.broker.dispatch import RequestContext
from ottla.broker.group_requests import responded
from ottla.broker.ports import GroupAccess
from ottla.broker.request_scheduler import Steps
from ottla.completion import Completion
from ottla.coordinator.group_effects import GroupEffects
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.rebalance_history import Rebalance
from ottla.coordinator.runtime.effects import Reply
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.explain_group import (
    ExplainedMember,
    ExplainedMove,
    ExplainedRebalance,
    ExplainGroupRequest,
    ExplainGroupResponse,
)

_Explained = ExplainGroupResponse | Steps[ExplainGroupResponse]


class _History(NamedTuple):
    known: bool
    """Whether the group exists."""
    rebalances: list[Rebalance]


def explain_group(
    broker: GroupAccess, request: ExplainGroupRequest, context: RequestContext
) -> _Explained | Completion[_Explained]:
    def command(groups: GroupShard, reply: Reply, effects: GroupEffects) -> None:
        known = groups.get(request.group_id) is not None
        effects.answer(reply, _History(known, groups.history.of(request.group_id)))

    def finish(found: _History) -> _Explained:
        if not found.known and not found.rebalances:
            message = f"Group {request.group_id} not found."
            return ExplainGroupResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=message)
        return _response(found.rebalances)

    def refused(error: ApiError) -> _Explained:
        return ExplainGroupResponse(error_code=error.code, error_message=error.message)

    return responded(broker.groups.run(request.group_id, command), finish, refused)


def _response(rebalances: list[Rebalance]) -> Steps[ExplainGroupResponse]:
    response = ExplainGroupResponse()
    for rebalance in rebalances:
        response.rebalances.append(_explained(rebalance))
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
    """Why a member has no partitions, in a group of so many members and partitions."""
    if not partitions:
        return "the group has no partitions to share: its topics do not exist, or it is not one of consumers"
    if members > partitions:
        return (
            f"{members} members share {partitions} partition{'' if partitions == 1 else 's'}; "
            "each partition has one reader, so some members have none"
        )
    return "the assignor gave it nothing: the others may read topics that it does not subscribe to"
