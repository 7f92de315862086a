"""Members of the classic protocol in a group of the consumer protocol.

While a group is upgraded, some of its members still use the classic protocol. To them it looks like a classic
group whose leader is another member: a JoinGroup is a heartbeat with the member's subscription and what it
owns, a SyncGroup fetches its assignment, and a Heartbeat tells it to join again whenever its assignment has
to change. `group` is a draft here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ottla.coordinator import rebalance_history as history
from ottla.coordinator.assignors import NOTHING, Partitions, TopicId
from ottla.coordinator.classic_join import MEMBER_ID_REQUIRED_SINCE
from ottla.coordinator.classic_members import Protocols
from ottla.coordinator.consumer_heartbeat import joining_member, replace_static
from ottla.coordinator.consumer_member import Member, MemberState, Owned
from ottla.coordinator.group import CONSUMER_PROTOCOL_TYPE, Join
from ottla.coordinator.group_effects import GroupEffects
from ottla.coordinator.rebalance_history import Cause
from ottla.coordinator.records import ClassicMemberMetadata, ClassicProtocol
from ottla.protocol.codec import Malformed
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    TopicPartition,
    read_subscription,
    write_assignment,
)
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.leave_group import MemberIdentity
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from ottla.coordinator.consumer_group import ConsumerGroup

REJOIN, FETCH = "rejoin", "fetch"
"""Timers of a member: the time to join again, and to fetch its assignment."""


def join(group: ConsumerGroup, join: Join, effects: GroupEffects) -> None:
    request, protocols, caller = join.request, join.protocols, join.caller
    if not group.settings.may_downgrade and not group.settings.may_upgrade:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    _check_protocols(group, request.protocol_type, protocols)
    instance_id = request.group_instance_id
    if not request.member_id and instance_id is None and caller.version >= MEMBER_ID_REQUIRED_SINCE:
        effects.answer(
            join.reply, JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=join.new_id)
        )
        return
    try:
        subscription = read_subscription(protocols[0][1])
    except Malformed:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None
    before = _joining_member(group, request, join.new_id, effects)
    timeout = request.rebalance_timeout_ms
    updated = replace(
        before,
        instance_id=instance_id if instance_id is not None else before.instance_id,
        rack_id=subscription.rack_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        topics=frozenset(subscription.topics),
        regex="",
        rebalance_timeout_ms=timeout if timeout >= 0 else request.session_timeout_ms,
        classic=classic_metadata(request.session_timeout_ms, protocols),
    )
    # What it claims to own counts if it has it from this epoch, or if it does not send a generation.
    trusted = subscription.generation_id in (-1, before.epoch)
    owned = _owned(subscription.owned_partitions, group) if trusted else NOTHING
    after = group.update(before, updated, owned, effects, at_once=True)
    group.rejoining -= {after.member_id}
    effects.cancel(group.group_id, REJOIN, after.member_id)
    group.start_timer(FETCH, after, effects)
    effects.answer(
        join.reply,
        JoinGroupResponse(
            generation_id=after.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=protocols[0][0],
            member_id=after.member_id,
        ),
    )


def _check_protocols(group: ConsumerGroup, protocol_type: str, protocols: Protocols) -> None:
    """INCONSISTENT_GROUP_PROTOCOL unless the member has a protocol in common with the other classic ones."""
    common = {name for name, _ in protocols}
    for member in group.members.values():
        if member.classic is not None:
            common &= {protocol.name for protocol in member.classic.supported_protocols}
    if protocol_type != CONSUMER_PROTOCOL_TYPE or not common:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _owned(listed: Iterable[TopicPartition], group: ConsumerGroup) -> Partitions:
    return {topic: frozenset(owned) for topic, owned in with_topic_ids(listed, group, 0).items()}


def _joining_member(
    group: ConsumerGroup, request: JoinGroupRequest, new_id: str, effects: GroupEffects
) -> Member:
    instance_id = request.group_instance_id
    if instance_id is None:
        if request.member_id in group.members:
            return _classic(group.state.member(request.member_id))
        return joining_member(group, request.member_id or new_id, None, effects)
    if request.member_id:
        return _classic(group.state.checked(request.member_id, instance_id))
    present = group.state.static_member(instance_id)
    if present is not None:
        # A static member of the classic protocol does not leave; it just joins again.
        return replace_static(group, present, new_id, effects)
    return joining_member(group, new_id, instance_id, effects)


def _classic(member: Member) -> Member:
    if member.classic is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def _identified(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> Member:
    member = _classic(group.state.checked(member_id, instance_id))
    if generation != member.epoch:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)
    return member


def sync(group: ConsumerGroup, request: SyncGroupRequest, effects: GroupEffects) -> SyncGroupResponse:
    """The member's present assignment."""
    member = _identified(group, request.member_id, request.group_instance_id, request.generation_id)
    assert member.classic is not None
    protocol = member.classic.supported_protocols[0].name
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (
        None,
        protocol,
    ):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    effects.cancel(group.group_id, FETCH, member.member_id)
    group.restart_session(member, effects)
    if group.state.epoch > member.epoch and member.state is not MemberState.UNREVOKED:
        _ask_to_rejoin(group, member, effects)
        return SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    version = int.from_bytes(member.classic.supported_protocols[0].metadata[:2], "big", signed=True)
    return SyncGroupResponse(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=protocol,
        assignment=encoded_assignment(member, group, min(max(version, 0), 3)),
    )


def encoded_assignment(member: Member, group: ConsumerGroup, version: int = 3) -> bytes:
    assigned = [
        TopicPartition(topic=name, partitions=sorted(partitions))
        for topic, partitions in member.assigned.items()
        if (name := group.topic_name(topic)) is not None
    ]
    return write_assignment(ConsumerProtocolAssignment(assigned_partitions=assigned), version)


def heartbeat(group: ConsumerGroup, request: HeartbeatRequest, effects: GroupEffects) -> ErrorCode:
    """NONE, or REBALANCE_IN_PROGRESS when the member has to join again."""
    member = _identified(group, request.member_id, request.group_instance_id, request.generation_id)
    group.restart_session(member, effects)
    group.check_topics((), effects)
    if group.state.epoch == member.epoch and (
        member.state is MemberState.STABLE
        or (member.state is MemberState.UNRELEASED and not group.state.has_free_for(member))
    ):
        return ErrorCode.NONE
    _ask_to_rejoin(group, member, effects)
    return ErrorCode.REBALANCE_IN_PROGRESS


def _ask_to_rejoin(group: ConsumerGroup, member: Member, effects: GroupEffects) -> None:
    if member.member_id in group.rejoining:
        return
    group.rejoining |= {member.member_id}
    group.start_timer(REJOIN, member, effects)


def leave(
    group: ConsumerGroup, identities: Sequence[MemberIdentity], effects: GroupEffects
) -> list[ErrorCode]:
    """Remove members of either protocol; the outcome for each."""
    outcomes = []
    causes: dict[str, Cause] = {}
    for identity in identities:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        try:
            # An administrator may name a static member by its instance id alone.
            static = None if member_id else group.state.static_member(instance_id)
            member = static or group.state.checked(member_id, instance_id)
        except ApiError as error:
            outcomes.append(error.code)
            continue
        causes[member.member_id] = Cause(history.LEFT, member.name, member.client_id, identity.reason or "")
        outcomes.append(ErrorCode.NONE)
    if causes:
        group.remove(causes, effects)
    return outcomes


def classic_metadata(
    session_timeout_ms: int, protocols: Iterable[tuple[str, bytes]]
) -> ClassicMemberMetadata:
    return ClassicMemberMetadata(
        session_timeout_ms=session_timeout_ms,
        supported_protocols=[ClassicProtocol(name=name, metadata=metadata) for name, metadata in protocols],
    )


def with_topic_ids(listed: Iterable[TopicPartition], group: ConsumerGroup, epoch: int) -> Owned:
    owned: dict[TopicId, dict[int, int]] = {}
    for each in listed:
        topic_id = group.topic_id(each.topic)
        if topic_id is not None and each.partitions:
            owned.setdefault(topic_id, {}).update(dict.fromkeys(each.partitions, epoch))
    return owned
