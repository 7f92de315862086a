"""ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69): groups of the consumer protocol (KIP-848).

The rules are in `coordinator/consumer_group`; here stands what makes a request a sensible one, and how a
group is told.

Version notes. Heartbeat: in version 0 the broker makes the ids of members that bring none; from 1 on members
make their own and may subscribe by regular expression. Describe: from 1 on each member tells whether it
speaks the classic protocol.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ottla.broker.dispatch import RequestContext
from ottla.broker.group_requests import Question, ask, ask_all_in_slices, caller_of
from ottla.broker.handlers.group_admin import GROUP_OPERATIONS, NOT_ASKED
from ottla.broker.request_scheduler import Steps
from ottla.completion import Completion
from ottla.coordinator.all_groups import AllGroups
from ottla.coordinator.consumer_group import ConsumerGroup
from ottla.coordinator.consumer_member import JOINING, LEAVING_FOR_A_WHILE
from ottla.coordinator.consumer_member import Member as GroupMember
from ottla.coordinator.effects import Effects, Reply
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

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

MAX_SUBSCRIBED = 20_000
"""Topics that a member may name. All are looked at when it changes; an expression costs much less."""
_OWN_IDS_SINCE = 1
_CLASSIC, _CONSUMER = 0, 1


_HeartbeatAnswer = ConsumerGroupHeartbeatResponse | Completion[ConsumerGroupHeartbeatResponse]


def consumer_group_heartbeat(
    broker: Broker, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse | Completion[ConsumerGroupHeartbeatResponse] | Steps[_HeartbeatAnswer]:
    def refused(error: ApiError) -> ConsumerGroupHeartbeatResponse:
        return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=_told(error))

    if "consumer" not in broker.config["group.coordinator.rebalance.protocols"]:
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    try:
        assignors = broker.group_surroundings.settings(request.group_id).assignors
        check_heartbeat(request, context.version, assignors)
    except ApiError as error:
        return refused(error)
    if not request.member_id:
        request.member_id = _new_id(broker)
    caller = caller_of(context)

    def command(groups: AllGroups, reply: Reply, effects: Effects) -> None:
        groups.consumer_heartbeat(request, caller, reply, effects)

    question = Question(request.group_id, command, refused)
    expressions = _expressions(broker, request)
    if expressions:
        return _match_first(broker, expressions, question)
    return ask(broker, *question)


def _expressions(broker: Broker, request: ConsumerGroupHeartbeatRequest) -> set[str]:
    """The expressions that the group will ask the topics of."""
    expressions = {request.subscribed_topic_regex} if request.subscribed_topic_regex else set()
    try:
        group = broker.groups.group(request.group_id)
    except ApiError:
        return set()  # the command will say so
    return expressions | group.unchecked_expressions() if isinstance(group, ConsumerGroup) else expressions


def _match_first(broker: Broker, expressions: set[str], question: Question) -> Steps[_HeartbeatAnswer]:
    """Find their topics with pauses, so that the group has the answers when it asks."""
    yield from broker.group_surroundings.topic_matches.prepare(expressions, broker.image.topics)
    return ask(broker, *question)


def _told(error: ApiError) -> str | None:
    """The reason, where there is one beyond what the code says."""
    return None if error.message == error.code.text else error.message


def _new_id(broker: Broker) -> str:
    """As Kafka makes ids: 128 random bits, in 22 letters."""
    return base64.urlsafe_b64encode(broker.rng.randbytes(16)).rstrip(b"=").decode()


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
    broker: Broker, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> Steps[ConsumerGroupDescribeResponse | Completion[ConsumerGroupDescribeResponse]]:
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED

    def question(group_id: str) -> Question:
        def command(groups: AllGroups, reply: Reply, effects: Effects) -> None:
            group = groups.get(group_id)
            if not isinstance(group, ConsumerGroup):
                reason = "not found." if group is None else "is not a consumer group."
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {reason}")
            described = _described(group)
            described.authorized_operations = operations
            effects.answer(reply, described)

        def failed(error: ApiError) -> DescribedGroup:
            return DescribedGroup(group_id=group_id, error_code=error.code, error_message=_told(error))

        return Question(group_id, command, failed)

    unnamed = [
        DescribedGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
        for group_id in request.group_ids
        if not group_id
    ]
    questions = (question(group_id) for group_id in dict.fromkeys(request.group_ids) if group_id)
    return ask_all_in_slices(
        broker, questions, lambda groups: ConsumerGroupDescribeResponse(groups=[*unnamed, *groups])
    )


def _described(group: ConsumerGroup) -> DescribedGroup:
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
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
        target_assignment=_assignment(group.target_of(member), group),
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
