"""ListGroups (16), DescribeGroups (15) and DeleteGroups (42): groups as an administrator sees them.

A broker answers for the groups it coordinates; clients ask all brokers, or the right one.

Version notes. ListGroups filters by state since 4 and by type since 5, whatever the case of the letters.
DescribeGroups tells classic groups; up to 5 a group that does not exist is said to be Dead, since 6 there is
an error for it. Members tell what they want and have only while the group is stable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ottla.broker.dispatch import RequestContext
from ottla.broker.group_requests import Question, ask_all_in_slices
from ottla.broker.request_scheduler import Steps
from ottla.completion import Completion
from ottla.coordinator.classic_group import ClassicGroup
from ottla.coordinator.classic_state import Phase
from ottla.coordinator.effects import Effects, Reply
from ottla.coordinator.group import Group
from ottla.coordinator.groups import Groups
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

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

# READ 3, DELETE 6, DESCRIBE 8, DESCRIBE_CONFIGS 10, ALTER_CONFIGS 11: without an authorizer, everybody may.
GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
NOT_ASKED = -(1 << 31)
DEAD = "Dead"
_NOT_FOUND_SINCE = 6
_PAUSE_AFTER = 200
_OFFSETS_AT_A_TIME = 250


def list_groups(
    broker: Broker, request: ListGroupsRequest, context: RequestContext
) -> Steps[ListGroupsResponse]:
    try:
        groups = broker.groups.groups()
    except ApiError as error:
        return ListGroupsResponse(error_code=error.code)
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    response = ListGroupsResponse()
    for number, group in enumerate(groups):
        if (not states or group.state_name.lower() in states) and (not types or group.kind in types):
            response.groups.append(
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type or "",
                    group_state=group.state_name,
                    group_type=group.kind,
                )
            )
        if not number % _PAUSE_AFTER:
            yield
    return response


def describe_groups(
    broker: Broker, request: DescribeGroupsRequest, context: RequestContext
) -> Steps[DescribeGroupsResponse | Completion[DescribeGroupsResponse]]:
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED

    def question(group_id: str) -> Question:
        def command(groups: Groups, reply: Reply, effects: Effects) -> None:
            described = _described(group_id, groups.get(group_id), context.version)
            if not described.error_code:
                described.authorized_operations = operations
            effects.answer(reply, described)

        return Question(
            group_id, command, lambda error: DescribedGroup(group_id=group_id, error_code=error.code)
        )

    questions = (question(group_id) for group_id in dict.fromkeys(request.groups))
    return ask_all_in_slices(broker, questions, lambda groups: DescribeGroupsResponse(groups=groups))


def _described(group_id: str, group: Group | None, version: int) -> DescribedGroup:
    if not isinstance(group, ClassicGroup):
        dead = DescribedGroup(group_id=group_id, group_state=DEAD)
        if version >= _NOT_FOUND_SINCE:
            dead.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            reason = "not found." if group is None else "is not a classic group."
            dead.error_message = f"Group {group_id} {reason}"
        return dead
    stable = group.phase is Phase.STABLE
    return DescribedGroup(
        group_id=group_id,
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
    broker: Broker, request: DeleteGroupsRequest, context: RequestContext
) -> Steps[DeleteGroupsResponse | Completion[DeleteGroupsResponse]]:
    def question(group_id: str) -> Question:
        def command(groups: Groups, reply: Reply, effects: Effects) -> None:
            groups.delete(group_id, effects)
            effects.answer(reply, DeletableGroupResult(group_id=group_id))

        return Question(
            group_id, command, lambda error: DeletableGroupResult(group_id=group_id, error_code=error.code)
        )

    def portion(group_id: str) -> Question:
        def command(groups: Groups, reply: Reply, effects: Effects) -> None:
            groups.delete_some_offsets(group_id, _OFFSETS_AT_A_TIME, effects)
            effects.answer(reply, None)

        return Question(group_id, command, lambda error: None)  # the last question will have it, too

    def questions() -> Iterator[Question]:
        for group_id in dict.fromkeys(request.groups_names):
            # Some are left for the last question: a group of offsets alone is gone with the last of them.
            for _ in range((_offset_count(broker, group_id) - 1) // _OFFSETS_AT_A_TIME):
                yield portion(group_id)
            yield question(group_id)

    def finish(results: list[DeletableGroupResult | None]) -> DeleteGroupsResponse:
        return DeleteGroupsResponse(results=[result for result in results if result is not None])

    return ask_all_in_slices(broker, questions(), finish)


def _offset_count(broker: Broker, group_id: str) -> int:
    try:
        return broker.groups.offset_count(group_id)
    except ApiError:
        return 0  # not ours: the question will be answered so
