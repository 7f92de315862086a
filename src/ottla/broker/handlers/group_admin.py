"""ListGroups (16), DescribeGroups (15) and DeleteGroups (42): groups as an administrator sees them.

A broker answers for the groups it coordinates; clients ask all brokers, or the right one. All answers show
committed state.

Version notes. ListGroups filters by state since 4 and by type since 5, ignoring case. DescribeGroups shows
classic groups; up to 5 a group that does not exist is shown as Dead, since 6 there is an error for it.
Subscriptions and assignments of members are shown only while the group is stable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ottla.broker.dispatch import RequestContext
from ottla.broker.group_requests import GroupCommand, collected, run_all
from ottla.broker.portions import in_portions
from ottla.broker.ports import GroupAccess
from ottla.broker.request_scheduler import Steps
from ottla.completion import Completion
from ottla.coordinator.classic_group import ClassicGroup
from ottla.coordinator.classic_phases import Phase
from ottla.coordinator.group_effects import GroupEffects
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.runtime.effects import Reply
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from ottla.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

# READ 3, DELETE 6, DESCRIBE 8, DESCRIBE_CONFIGS 10, ALTER_CONFIGS 11: allowed without authorizer.
GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
NOT_ASKED = -(1 << 31)
DEAD = "Dead"
_NOT_FOUND_SINCE = 6
_GROUPS_AT_A_TIME = 200
_OFFSETS_AT_A_TIME = 250


def list_groups(
    broker: GroupAccess, request: ListGroupsRequest, context: RequestContext
) -> Steps[ListGroupsResponse | Completion[ListGroupsResponse]]:
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}

    def listed(group_ids: Sequence[str]) -> Callable[[GroupShard, Reply, GroupEffects], None]:
        def command(groups: GroupShard, reply: Reply, effects: GroupEffects) -> None:
            found = [group for group_id in group_ids if (group := groups.get(group_id)) is not None]
            effects.answer(
                reply,
                [
                    ListedGroup(
                        group_id=group.group_id,
                        protocol_type=group.protocol_type or "",
                        group_state=group.state_name,
                        group_type=group.kind,
                    )
                    for group in found
                    if (not states or group.state_name.lower() in states)
                    and (not types or group.kind in types)
                ],
            )

        return command

    def outcomes() -> Iterator[tuple[Completion[Any], Callable[[ApiError], Any]]]:
        for shard in shards:
            for some in in_portions(shard.state.group_ids(), _GROUPS_AT_A_TIME):
                yield shard.run(listed(some)), lambda error: error

    def finish(answers: list[list[ListedGroup] | ApiError]) -> ListGroupsResponse:
        response = ListGroupsResponse()
        for answer in answers:
            if not isinstance(answer, ApiError):
                response.groups += answer
            elif answer.code is not ErrorCode.NOT_COORDINATOR:  # those are listed by another broker now
                return ListGroupsResponse(error_code=answer.code)
        return response

    try:
        shards = broker.groups.all_shards()
    except ApiError as error:
        return ListGroupsResponse(error_code=error.code)
    return (yield from collected(outcomes(), finish))


def describe_groups(
    broker: GroupAccess, request: DescribeGroupsRequest, context: RequestContext
) -> Steps[DescribeGroupsResponse | Completion[DescribeGroupsResponse]]:
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED

    def describe(group_id: str) -> GroupCommand:
        def command(groups: GroupShard, reply: Reply, effects: GroupEffects) -> None:
            try:
                described = _described(groups.classic_group(group_id))
            except ApiError as not_found:
                described = _dead(group_id, not_found, context.version)
            if not described.error_code:
                described.authorized_operations = operations
            effects.answer(reply, described)

        return GroupCommand(
            group_id, command, lambda error: DescribedGroup(group_id=group_id, error_code=error.code)
        )

    commands = (describe(group_id) for group_id in dict.fromkeys(request.groups))
    return run_all(broker.groups, commands, lambda groups: DescribeGroupsResponse(groups=groups))


def _dead(group_id: str, not_found: ApiError, version: int) -> DescribedGroup:
    dead = DescribedGroup(group_id=group_id, group_state=DEAD)
    if version >= _NOT_FOUND_SINCE:
        dead.error_code = not_found.code
        dead.error_message = not_found.message
    return dead


def _described(group: ClassicGroup) -> DescribedGroup:
    stable = group.phase is Phase.STABLE
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if stable else "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol) if stable else b"",
                member_assignment=member.assignment if stable else b"",
            )
            for member in group.members.values()
        ],
    )


def delete_groups(
    broker: GroupAccess, request: DeleteGroupsRequest, context: RequestContext
) -> Steps[DeleteGroupsResponse | Completion[DeleteGroupsResponse]]:
    def delete(group_id: str) -> GroupCommand:
        def command(groups: GroupShard, reply: Reply, effects: GroupEffects) -> None:
            groups.delete(group_id, effects)
            effects.answer(reply, DeletableGroupResult(group_id=group_id))

        return GroupCommand(
            group_id, command, lambda error: DeletableGroupResult(group_id=group_id, error_code=error.code)
        )

    def delete_offsets(group_id: str) -> GroupCommand:
        def command(groups: GroupShard, reply: Reply, effects: GroupEffects) -> None:
            groups.delete_some_offsets(group_id, _OFFSETS_AT_A_TIME, effects)
            effects.answer(reply, None)

        return GroupCommand(group_id, command, lambda error: None)  # the last command gets the error, too

    def commands() -> Iterator[GroupCommand]:
        for group_id in dict.fromkeys(request.groups_names):
            # Some are left for the last command: a group of offsets alone is gone with the last of them.
            for _ in range((broker.groups.offset_count(group_id) - 1) // _OFFSETS_AT_A_TIME):
                yield delete_offsets(group_id)
            yield delete(group_id)

    def finish(results: list[DeletableGroupResult | None]) -> DeleteGroupsResponse:
        return DeleteGroupsResponse(results=[result for result in results if result is not None])

    return run_all(broker.groups, commands(), finish)
