"""ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69): groups of the consumer protocol (KIP-848).

The rules are in `coordinator/consumer_heartbeat`; here is the check of a request's form, and the response
that describes a group.

Version notes. Heartbeat: in version 0 the broker makes the ids of members that bring none; from 1 on members
make their own and may subscribe by regular expression. Describe: from 1 on the response says which members
use the classic protocol.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Protocol

from ottla.broker.dispatch import RequestContext
from ottla.broker.group_environment import BrokerGroupEnvironment
from ottla.broker.group_requests import GroupCommand, caller_of, run, run_all
from ottla.broker.handlers.group_admin import GROUP_OPERATIONS, NOT_ASKED
from ottla.broker.ports import Configuration, GroupAccess, ImageAccess
from ottla.broker.request_scheduler import Steps
from ottla.completion import Completion
from ottla.coordinator.consumer_group import ConsumerGroup
from ottla.coordinator.consumer_member import JOINING, LEAVING_FOR_A_WHILE
from ottla.coordinator.consumer_member import Member as GroupMember
from ottla.coordinator.group_effects import GroupEffects
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.runtime.effects import Reply
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

MAX_SUBSCRIBED = 20_000
"""Topics that a member may name. All are looked up when it subscribes; an expression costs much less."""
_OWN_IDS_SINCE = 1
_CLASSIC, _CONSUMER = 0, 1


_HeartbeatAnswer = ConsumerGroupHeartbeatResponse | Completion[ConsumerGroupHeartbeatResponse]


class ConsumerGroupAccess(Configuration, GroupAccess, ImageAccess, Protocol):
    @property
    def group_environment(self) -> BrokerGroupEnvironment: ...
    @property
    def rng(self) -> Random: ...


def consumer_group_heartbeat(
    broker: ConsumerGroupAccess, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse | Completion[ConsumerGroupHeartbeatResponse] | Steps[_HeartbeatAnswer]:
    def refused(error: ApiError) -> ConsumerGroupHeartbeatResponse:
        return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=_reason(error))

    if "consumer" not in broker.config["group.coordinator.rebalance.protocols"]:
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    try:
        assignors = broker.group_environment.settings(request.group_id).assignors
        check_heartbeat(request, context.version, assignors)
        expressions = broker.groups.unchecked_expressions(request.group_id)
    except ApiError as error:
        return refused(error)
    if not request.member_id:
        request.member_id = _new_id(broker.rng)
    caller = caller_of(context)

    def command(groups: GroupShard, reply: Reply, effects: GroupEffects) -> None:
        groups.consumer_heartbeat(request, caller, reply, effects)

    # What the group will look up is matched before, with pauses.
    if request.subscribed_topic_regex:
        expressions.add(request.subscribed_topic_regex)
    if expressions:
        return _match_first(
            broker, expressions, lambda: run(broker.groups, request.group_id, command, refused)
        )
    return run(broker.groups, request.group_id, command, refused)


def _match_first(
    broker: ConsumerGroupAccess, expressions: set[str], run_command: Callable[[], _HeartbeatAnswer]
) -> Steps[_HeartbeatAnswer]:
    topics = broker.image.topics
    yield from broker.group_environment.topic_matches.prepare(expressions, topics)
    return run_command()


def _reason(error: ApiError) -> str | None:
    """The message, if it says more than the code."""
    return None if error.message == error.code.text else error.message


def _new_id(rng: Random) -> str:
    """As Kafka makes ids: 128 random bits, in 22 letters."""
    return base64.urlsafe_b64encode(rng.randbytes(16)).rstrip(b"=").decode()


def check_heartbeat(request: ConsumerGroupHeartbeatRequest, version: int, assignors: Sequence[str]) -> None:
    """ApiError unless the request makes sense, whatever the group may be."""
    reason = _what_is_wrong(request, version)
    if reason is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, reason)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )


def _what_is_wrong(request: ConsumerGroupHeartbeatRequest, version: int) -> str | None:
    if len(request.subscribed_topic_names or ()) > MAX_SUBSCRIBED:
        return f"SubscribedTopicNames has more than {MAX_SUBSCRIBED} entries."
    joins = request.member_epoch == JOINING
    if not request.group_id.strip():
        return "GroupId can't be empty."
    if not request.member_id.strip() and (version >= _OWN_IDS_SINCE or not joins):
        return "MemberId can't be empty."
    if request.instance_id is not None and not request.instance_id.strip():
        return "InstanceId can't be empty."
    if request.rack_id is not None and not request.rack_id.strip():
        return "RackId can't be empty."
    if request.member_epoch < LEAVING_FOR_A_WHILE:
        return "MemberEpoch is invalid."
    if request.member_epoch == LEAVING_FOR_A_WHILE and request.instance_id is None:
        return "InstanceId can't be null."
    if not joins:
        return None
    if request.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs must be provided in first request."
    if request.topic_partitions is None or request.topic_partitions:
        return "TopicPartitions must be empty when (re-)joining."
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    return None


# -- ConsumerGroupDescribe --------------------------------------------------------------------------------


def consumer_group_describe(
    broker: ConsumerGroupAccess, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> Steps[ConsumerGroupDescribeResponse | Completion[ConsumerGroupDescribeResponse]]:
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED

    def describe(group_id: str) -> GroupCommand:
        def refused(error: ApiError) -> DescribedGroup:
            return DescribedGroup(group_id=group_id, error_code=error.code, error_message=_reason(error))

        def command(groups: GroupShard, reply: Reply, effects: GroupEffects) -> None:
            try:
                described = _described(groups.consumer_group(group_id))
                described.authorized_operations = operations
            except ApiError as not_found:  # an answer like any other: it waits for what it has seen
                described = refused(not_found)
            effects.answer(reply, described)

        return GroupCommand(group_id, command, refused)

    unnamed = [
        DescribedGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
        for group_id in request.group_ids
        if not group_id
    ]
    commands = (describe(group_id) for group_id in dict.fromkeys(request.group_ids) if group_id)
    return run_all(
        broker.groups, commands, lambda groups: ConsumerGroupDescribeResponse(groups=[*unnamed, *groups])
    )


def _described(group: ConsumerGroup) -> DescribedGroup:
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name,
        group_epoch=group.state.epoch,
        assignment_epoch=group.state.target_epoch,
        assignor_name=group.assignor_name,
        members=[_member(member, group) for member in group.members.values()],
    )


def _member(member: GroupMember, group: ConsumerGroup) -> Member:
    owned: dict[bytes, set[int]] = {}
    for topic, partitions in (*member.assigned.items(), *member.revoking.items()):
        owned.setdefault(topic, set()).update(partitions)
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(owned, group),
        target_assignment=_assignment(group.state.target_of(member), group),
        member_type=_CONSUMER if member.classic is None else _CLASSIC,
    )


def _assignment(partitions: Mapping[bytes, frozenset[int] | set[int]], group: ConsumerGroup) -> Assignment:
    """With names; topics that are gone have none and are left out."""
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic, topic_name=name, partitions=sorted(indexes))
            for topic, indexes in partitions.items()
            if (name := group.topic_name(topic)) is not None
        ]
    )
