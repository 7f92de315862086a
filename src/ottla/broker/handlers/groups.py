"""JoinGroup (11), SyncGroup (14), Heartbeat (12) and LeaveGroup (13): the classic group protocol.

The rules are in `coordinator/classic_group`; here requests become commands and outcomes become responses.

Version notes. JoinGroup: up to 6 a missing protocol name is an empty string, from 7 on it is null. SyncGroup
5 must name protocol type and name. LeaveGroup: up to 2 one member leaves and its error stands for the
request; from 3 on each member has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any, Protocol

from ottla.broker.dispatch import RequestContext
from ottla.broker.group_requests import GroupCommand, caller_of, new_member_id, responded, run, run_all
from ottla.broker.portions import in_portions
from ottla.broker.ports import GroupAccess
from ottla.broker.request_scheduler import Steps
from ottla.completion import Completion
from ottla.coordinator.group_effects import GroupEffects
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.runtime.effects import Reply
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_NULL_PROTOCOL_SINCE = 7
_PROTOCOL_REQUIRED_SINCE = 5
_MANY_LEAVE_SINCE = 3
_LEAVE_AT_A_TIME = 500


class GroupMembership(GroupAccess, Protocol):
    @property
    def rng(self) -> Random: ...


def join_group(
    broker: GroupMembership, request: JoinGroupRequest, context: RequestContext
) -> JoinGroupResponse | Completion[JoinGroupResponse]:
    caller = caller_of(context)
    new_id = new_member_id(broker.rng, request.group_instance_id or caller.client_id)

    def command(groups: GroupShard, reply: Reply, effects: GroupEffects) -> None:
        groups.join(request, new_id, caller, reply, effects)

    def finish(response: JoinGroupResponse) -> JoinGroupResponse:
        if response.error_code:
            response.protocol_name = None
        if context.version < _NULL_PROTOCOL_SINCE and response.protocol_name is None:
            response.protocol_name = ""
        return response

    def refused(error: ApiError) -> JoinGroupResponse:
        full = error.code is ErrorCode.GROUP_MAX_SIZE_REACHED
        member_id = "" if full else request.member_id
        return finish(JoinGroupResponse(error_code=error.code, member_id=member_id))

    outcome = broker.groups.run(request.group_id, command)
    outcome.on_cancel = partial(broker.groups.abandoned, request.group_id, request.member_id or new_id)
    return responded(outcome, finish, refused)


def sync_group(
    broker: GroupMembership, request: SyncGroupRequest, context: RequestContext
) -> SyncGroupResponse | Completion[SyncGroupResponse]:
    if context.version >= _PROTOCOL_REQUIRED_SINCE and None in (request.protocol_type, request.protocol_name):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def command(groups: GroupShard, reply: Reply, effects: GroupEffects) -> None:
        groups.sync(request, reply, effects)

    return run(
        broker.groups, request.group_id, command, lambda error: SyncGroupResponse(error_code=error.code)
    )


def heartbeat(
    broker: GroupMembership, request: HeartbeatRequest, context: RequestContext
) -> HeartbeatResponse | Completion[HeartbeatResponse]:
    def command(groups: GroupShard, reply: Reply, effects: GroupEffects) -> None:
        groups.heartbeat(request, reply, effects)

    def refused(error: ApiError) -> HeartbeatResponse:
        # As in Kafka: clients do not expect it here, and a member's session starts when loading has ended.
        is_loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return HeartbeatResponse(error_code=ErrorCode.NONE if is_loading else error.code)

    return run(broker.groups, request.group_id, command, refused)


def leave_group(
    broker: GroupMembership, request: LeaveGroupRequest, context: RequestContext
) -> Steps[LeaveGroupResponse | Completion[LeaveGroupResponse]]:
    many = context.version >= _MANY_LEAVE_SINCE
    members = request.members if many else [MemberIdentity(member_id=request.member_id)]

    def portion(some: Sequence[MemberIdentity]) -> GroupCommand:
        def command(groups: GroupShard, reply: Reply, effects: GroupEffects) -> None:
            effects.answer(reply, groups.leave(request.group_id, some, effects))

        return GroupCommand(request.group_id, command, lambda error: error)

    def finish(outcomes: list[Any]) -> Steps[LeaveGroupResponse]:
        response = LeaveGroupResponse()
        for outcome in outcomes:
            if isinstance(outcome, ApiError):
                return LeaveGroupResponse(error_code=outcome.code)
            response.members += [
                MemberResponse(
                    member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=code
                )
                for member, code in outcome
            ]
            yield
        if not many:
            response.error_code = response.members[0].error_code
        return response

    # At least one command, since the group itself may have an error.
    portions = list(in_portions(members, _LEAVE_AT_A_TIME)) or [[]]
    return run_all(broker.groups, map(portion, portions), finish)
