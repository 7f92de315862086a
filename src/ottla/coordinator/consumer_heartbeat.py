"""The rules of a ConsumerGroupHeartbeat (KIP-848).

This one request does everything. With it a member joins (epoch 0), stays, changes its subscription, reports
the partitions it owns and leaves (epoch -1, or -2 when it is static and will come back). The steps:

1. Check that the member is known and in the epoch that it should be in. If not it is fenced: it must give up
   all its partitions and join again.
2. Take over what it says about itself. If its subscription or the topics of the group changed, the group's
   epoch grows.
3. If the target is older than the epoch, make a new one; not more often than the assignment interval allows.
4. Move the member one step towards its target (`reconciliation`).

Steps 2 to 4 are `ConsumerGroup.update`. A member learns about changes at its next heartbeat only, so the
response says when to send it (`heartbeat_interval`).

A null field of a request means that it has not changed. A member is sent its assignment when it changed, when
it joins, and when it sends all fields, as clients do after an error. `group` is a draft here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ottla.coordinator import rebalance_history as history
from ottla.coordinator.assignors import Partitions
from ottla.coordinator.consumer_member import (
    JOINING,
    LEAVING_FOR_A_WHILE,
    Member,
    MemberState,
    as_partitions,
    current_record,
    metadata_record,
    target_record,
)
from ottla.coordinator.group import Caller
from ottla.coordinator.group_effects import GroupEffects
from ottla.coordinator.re2_syntax import InvalidExpression
from ottla.coordinator.rebalance_history import Cause
from ottla.coordinator.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
)
from ottla.coordinator.regex_subscriptions import compiled
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

if TYPE_CHECKING:
    from ottla.coordinator.consumer_group import ConsumerGroup


def join_or_stay(
    group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, caller: Caller, effects: GroupEffects
) -> ConsumerGroupHeartbeatResponse:
    owned = None if request.topic_partitions is None else as_partitions(request.topic_partitions)
    before = _identify(group, request, owned, effects)
    updated = _updated(before, request, caller)
    if updated.regex and updated.regex != before.regex:
        _check_expression(updated.regex)
    after = group.update(before, updated, owned, effects)
    is_full = (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and owned is not None
    )
    is_told = request.member_epoch == JOINING or is_full or after.assigned != before.assigned
    return ConsumerGroupHeartbeatResponse(
        member_id=after.member_id,
        member_epoch=after.epoch,
        heartbeat_interval_ms=group.heartbeat_interval_ms(effects.now_ms),
        assignment=_assignment(after) if is_told else None,
    )


def leave(
    group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, effects: GroupEffects
) -> ConsumerGroupHeartbeatResponse:
    member = group.state.checked(request.member_id, request.instance_id)
    if request.member_epoch == LEAVING_FOR_A_WHILE:
        _leave_for_a_while(group, member, effects)
    else:
        group.remove({member.member_id: Cause(history.LEFT, member.name, member.client_id)}, effects)
    return ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)


def _leave_for_a_while(group: ConsumerGroup, member: Member, effects: GroupEffects) -> None:
    """It keeps its partitions, but does not read: what it was giving back is free."""
    kept = {topic: dict.fromkeys(partitions, 0) for topic, partitions in member.assigned.items()}
    gone = replace(member, epoch=LEAVING_FOR_A_WHILE, assigned=kept, revoking={}, state=MemberState.STABLE)
    group.write(effects, ConsumerGroupCurrentMemberAssignmentKey, current_record(gone), member.member_id)
    group.cancel_revocation(member, effects)


def _identify(
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    owned: Partitions | None,
    effects: GroupEffects,
) -> Member:
    """The member that sends this, as it was until now; a new one if it joins."""
    if request.member_epoch == JOINING:
        return joining_member(group, request.member_id, request.instance_id, effects)
    member = group.state.checked(request.member_id, request.instance_id)
    epoch = request.member_epoch
    # The response that brought the new epoch may have been lost: a member that still has the previous epoch,
    # and owns nothing that is not its own, is told again.
    is_late = epoch == member.previous_epoch and owned is not None and member.owns_all(owned)
    if epoch > member.epoch or (epoch < member.epoch and not is_late):
        raise ApiError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {'greater' if epoch > member.epoch else 'smaller'} member "
            f"epoch ({epoch}) than the one known by the group coordinator ({member.epoch}). The member "
            "must abandon all its partitions and rejoin.",
        )
    return member


def joining_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, effects: GroupEffects
) -> Member:
    """The member that joins: a new one, a static one that comes back, or a known one that joins again."""
    returning = group.state.returning(instance_id)
    if returning is not None:
        return replace_static(group, returning, member_id, effects)
    present = group.state.static_member(instance_id)
    if present is not None and present.member_id != member_id:
        raise ApiError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} cannot join the group because "
            f"the instance id is owned by {present.member_id} member.",
        )
    member = group.members.get(member_id)
    if member is not None:
        return member
    limit = group.settings.max_size
    if len(group.members) >= limit:
        raise ApiError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {limit} members.",
        )
    return Member(member_id, instance_id)


def replace_static(group: ConsumerGroup, old: Member, member_id: str, effects: GroupEffects) -> Member:
    """A static member comes back, usually with another id: it takes the place of its former self."""
    target = group.state.target_of(old)
    group.write_all(effects, list(group.state.member_tombstones(old.member_id)))
    group.cancel_session(old, effects)
    new = replace(old, member_id=member_id, epoch=JOINING, previous_epoch=JOINING, revoking={})
    group.write(effects, ConsumerGroupMemberMetadataKey, metadata_record(new), member_id)
    group.write(effects, ConsumerGroupTargetAssignmentMemberKey, target_record(target), member_id)
    group.write(effects, ConsumerGroupCurrentMemberAssignmentKey, current_record(new), member_id)
    return group.members[member_id]


def _updated(member: Member, request: ConsumerGroupHeartbeatRequest, caller: Caller) -> Member:
    """The member with what it says about itself; what it does not mention stays."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout = request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        topics=member.topics if names is None else frozenset(names),
        regex=member.regex if regex is None else regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout == -1 else timeout,
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
        classic=None,
    )


def _check_expression(expression: str) -> None:
    try:
        compiled(expression)
    except InvalidExpression as error:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{expression}` is not a valid regular expression: {error}.",
        ) from None


def _assignment(member: Member) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic, partitions=sorted(partitions))
            for topic, partitions in member.assigned.items()
        ]
    )
