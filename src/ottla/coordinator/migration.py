"""A group changes its protocol while it runs.

Consumers of a group are upgraded one by one. The first that comes with the consumer protocol turns the
classic group into one of the consumer protocol. The members that still speak the classic protocol stay, keep
what they have, and are served by the functions here. To them it looks like a classic group whose leader is
somebody else: a JoinGroup is a heartbeat that brings what the member wants and owns, a SyncGroup fetches what
it shall have, and a Heartbeat tells it to join again whenever there is a step to take.

When the last member of the consumer protocol goes and only classic ones are left, the group becomes a classic
group again. Both can be forbidden by group.consumer.migration.policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ottla.coordinator import classic_member, journal
from ottla.coordinator.assignors import NOTHING, Partitions, TopicId
from ottla.coordinator.classic_group import MEMBER_ID_REQUIRED_SINCE, ClassicGroup
from ottla.coordinator.classic_member import choose_protocol, common_protocols
from ottla.coordinator.classic_state import JOIN, SYNC, Phase
from ottla.coordinator.consumer_group import FETCH, REJOIN, ConsumerGroup
from ottla.coordinator.consumer_member import (
    Member,
    MemberState,
    Owned,
    current_record,
    metadata_record,
    target_record,
)
from ottla.coordinator.effects import Alarm, Effects, Reply
from ottla.coordinator.group import CONSUMER_PROTOCOL_TYPE, Caller, GroupSettings
from ottla.coordinator.journal import Cause
from ottla.coordinator.records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from ottla.protocol.codec import Malformed
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    TopicPartition,
    read_assignment,
    read_subscription,
    write_assignment,
)
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.leave_group import MemberIdentity
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

GATHER = "gather"
DOWNGRADED = "the last member of the consumer protocol left, and the group became a classic one"


# -- from classic to consumer -----------------------------------------------------------------------------


def upgrade(classic: ClassicGroup, group: ConsumerGroup, effects: Effects) -> None:
    """Let `group`, which is new, take over from a classic group. ApiError if that cannot be."""
    if classic.phase is Phase.EMPTY and not classic.members:
        effects.records.extend(classic.tombstones())
        return
    refusal = f"Cannot upgrade classic group {classic.group_id} to consumer group because "
    if not group.settings.may_upgrade:
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, refusal + "online upgrade is disabled.")
    if classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise ApiError(
            ErrorCode.GROUP_ID_NOT_FOUND, refusal + "the group does not use the consumer embedded protocol."
        )
    if len(classic.members) > group.settings.max_size:
        raise ApiError(
            ErrorCode.GROUP_ID_NOT_FOUND, refusal + "the group size exceeds the consumer group maximum size."
        )
    try:
        members = [_from_classic(member, classic, group) for member in classic.members.values()]
    except Malformed:
        raise ApiError(
            ErrorCode.GROUP_ID_NOT_FOUND, refusal + "the embedded consumer protocol is malformed."
        ) from None
    if any(_has_user_data(member.assignment) for member in classic.members.values()):
        raise ApiError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            refusal + "an unsupported custom assignor is in use. Please refer to the documentation or switch "
            "to a default assignor before re-attempting the upgrade.",
        )
    effects.records.extend(classic.tombstones())
    _release(classic, effects)
    _take_over(group, classic.generation, members, effects)


def _from_classic(member: classic_member.Member, classic: ClassicGroup, group: ConsumerGroup) -> Member:
    protocol = classic.protocol if classic.protocol is not None else member.protocols[0][0]
    subscription = read_subscription(member.metadata(protocol) or member.protocols[0][1])
    assigned = read_assignment(member.assignment).assigned_partitions if member.assignment else []
    return Member(
        member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=frozenset(subscription.topics),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=_classic_metadata(member.session_timeout_ms, member.protocols),
        epoch=classic.generation,
        previous_epoch=classic.generation,
        assigned=_with_ids(assigned, group, classic.generation),
    )


def _has_user_data(assignment: bytes) -> bool:
    """Whether the leader told a member more than its partitions: the broker could not make that up."""
    return bool(assignment and read_assignment(assignment).user_data)


def _classic_metadata(
    session_timeout_ms: int, protocols: Iterable[tuple[str, bytes]]
) -> ClassicMemberMetadata:
    return ClassicMemberMetadata(
        session_timeout_ms=session_timeout_ms,
        supported_protocols=[ClassicProtocol(name=name, metadata=metadata) for name, metadata in protocols],
    )


def _with_ids(listed: Iterable[TopicPartition], group: ConsumerGroup, epoch: int) -> Owned:
    owned: dict[TopicId, dict[int, int]] = {}
    for each in listed:
        topic_id = group.topic_id(each.topic)
        if topic_id is not None and each.partitions:
            owned.setdefault(topic_id, {}).update(dict.fromkeys(each.partitions, epoch))
    return owned


def _release(classic: ClassicGroup, effects: Effects) -> None:
    """Whoever waits in the classic group is told to join again."""
    again = ErrorCode.REBALANCE_IN_PROGRESS
    for member in classic.members.values():
        effects.answer(member.joining, JoinGroupResponse(error_code=again, member_id=member.member_id))
        effects.answer(member.syncing, SyncGroupResponse(error_code=again))
    for kind in (JOIN, SYNC):
        effects.cancel(classic.group_id, kind)


def _take_over(group: ConsumerGroup, generation: int, members: list[Member], effects: Effects) -> None:
    """Write the group as it would stand in the log if it had always been of the consumer protocol."""
    for member in members:
        group.write(effects, ConsumerGroupMemberMetadataKey, metadata_record(member), member.member_id)
    group.write(effects, ConsumerGroupMetadataKey, ConsumerGroupMetadataValue(epoch=generation))
    for member in members:
        target = {topic: frozenset(partitions) for topic, partitions in member.assigned.items()}
        group.write(effects, ConsumerGroupTargetAssignmentMemberKey, target_record(target), member.member_id)
    group.write(
        effects,
        ConsumerGroupTargetAssignmentMetadataKey,
        ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=generation),
    )
    for member in members:
        group.write(
            effects, ConsumerGroupCurrentMemberAssignmentKey, current_record(member), member.member_id
        )
        group.expect(group.members[member.member_id], effects)


# -- classic members in a group of the consumer protocol --------------------------------------------------


def join(
    group: ConsumerGroup,
    request: JoinGroupRequest,
    new_id: str,
    caller: Caller,
    reply: Reply,
    effects: Effects,
) -> None:
    protocols = tuple((protocol.name, protocol.metadata) for protocol in request.protocols)
    if not group.settings.may_downgrade and not group.settings.may_upgrade:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    _check_protocols(group, request.protocol_type, protocols)
    instance_id = request.group_instance_id
    if not request.member_id and instance_id is None and caller.version >= MEMBER_ID_REQUIRED_SINCE:
        effects.answer(reply, JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=new_id))
        return
    try:
        subscription = read_subscription(protocols[0][1])
    except Malformed:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None
    before = _joining_member(group, request, new_id, effects)
    timeout = request.rebalance_timeout_ms
    wishes = replace(
        before,
        instance_id=instance_id if instance_id is not None else before.instance_id,
        rack_id=subscription.rack_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        topics=frozenset(subscription.topics),
        regex="",
        rebalance_timeout_ms=timeout if timeout >= 0 else request.session_timeout_ms,
        classic=_classic_metadata(request.session_timeout_ms, protocols),
    )
    # What it owns counts if it has it from this epoch; without a generation it is taken at its word.
    trusted = subscription.generation_id in (-1, before.epoch)
    owned = _owned(subscription.owned_partitions, group) if trusted else NOTHING
    after = group.update(before, wishes, owned, effects, at_once=True)
    group.rejoining -= {after.member_id}
    effects.cancel(group.group_id, REJOIN, after.member_id)
    effects.set_alarm(
        Alarm(
            group.group_id,
            FETCH,
            after.member_id,
            generation=after.epoch,
            delay_ms=after.rebalance_timeout_ms,
        )
    )
    effects.answer(
        reply,
        JoinGroupResponse(
            generation_id=after.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=protocols[0][0],
            member_id=after.member_id,
        ),
    )


def _check_protocols(group: ConsumerGroup, protocol_type: str, protocols: classic_member.Protocols) -> None:
    """INCONSISTENT_GROUP_PROTOCOL unless the member can live with the other classic ones."""
    common = {name for name, _ in protocols}
    for member in group.members.values():
        if member.classic is not None:
            common &= {protocol.name for protocol in member.classic.supported_protocols}
    if protocol_type != CONSUMER_PROTOCOL_TYPE or not common:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _owned(listed: Iterable[TopicPartition], group: ConsumerGroup) -> Partitions:
    return {topic: frozenset(owned) for topic, owned in _with_ids(listed, group, 0).items()}


def _joining_member(group: ConsumerGroup, request: JoinGroupRequest, new_id: str, effects: Effects) -> Member:
    instance_id = request.group_instance_id
    if instance_id is None:
        if request.member_id in group.members:
            return _classic(group.member(request.member_id))
        return group.joining(request.member_id or new_id, None, effects)
    if request.member_id:
        return _classic(group.static_member(request.member_id, instance_id))
    present = group.present(instance_id)
    if present is not None:
        # A static member of the classic protocol does not say that it leaves; it just comes back.
        return group.replace_static(present, new_id, effects)
    return group.joining(new_id, instance_id, effects)


def _classic(member: Member) -> Member:
    if member.classic is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def _identified(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> Member:
    if instance_id is not None:
        member = _classic(group.static_member(member_id, instance_id))
    else:
        member = _classic(group.member(member_id))
    if generation != member.epoch:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)
    return member


def sync(group: ConsumerGroup, request: SyncGroupRequest, effects: Effects) -> SyncGroupResponse:
    """What the member shall read now."""
    member = _identified(group, request.member_id, request.group_instance_id, request.generation_id)
    assert member.classic is not None
    protocol = member.classic.supported_protocols[0].name
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (
        None,
        protocol,
    ):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    effects.cancel(group.group_id, FETCH, member.member_id)
    group.expect(member, effects)
    if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED:
        _expect_rejoin(group, member, effects)
        raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
    version = int.from_bytes(member.classic.supported_protocols[0].metadata[:2], "big", signed=True)
    return SyncGroupResponse(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=protocol,
        assignment=_encoded(member, group, min(max(version, 0), 3)),
    )


def _encoded(member: Member, group: ConsumerGroup, version: int = 3) -> bytes:
    assigned = [
        TopicPartition(topic=name, partitions=sorted(partitions))
        for topic, partitions in member.assigned.items()
        if (name := group.topic_name(topic)) is not None
    ]
    return write_assignment(ConsumerProtocolAssignment(assigned_partitions=assigned), version)


def heartbeat(group: ConsumerGroup, request: HeartbeatRequest, effects: Effects) -> ErrorCode:
    """NONE, or REBALANCE_IN_PROGRESS when the member has a step to take."""
    member = _identified(group, request.member_id, request.group_instance_id, request.generation_id)
    group.expect(member, effects)
    group.check_topics((), effects)
    if group.epoch == member.epoch and (
        member.state is MemberState.STABLE
        or (member.state is MemberState.UNRELEASED and not group.has_free_for(member))
    ):
        return ErrorCode.NONE
    _expect_rejoin(group, member, effects)
    return ErrorCode.REBALANCE_IN_PROGRESS


def _expect_rejoin(group: ConsumerGroup, member: Member, effects: Effects) -> None:
    if member.member_id in group.rejoining:
        return
    group.rejoining |= {member.member_id}
    effects.set_alarm(
        Alarm(
            group.group_id,
            REJOIN,
            member.member_id,
            generation=member.epoch,
            delay_ms=member.rebalance_timeout_ms,
        )
    )


def leave(group: ConsumerGroup, identities: Iterable[MemberIdentity], effects: Effects) -> list[ErrorCode]:
    """Remove members, whichever protocol they speak; the outcome for each."""
    outcomes = []
    causes: dict[str, Cause] = {}
    for identity in identities:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        try:
            if instance_id is None:
                member = group.member(member_id)
            elif not member_id and (present := group.present(instance_id)) is not None:
                member = present
            else:
                member = group.static_member(member_id, instance_id)
        except ApiError as error:
            outcomes.append(error.code)
            continue
        causes[member.member_id] = Cause(journal.LEFT, member.name, member.client_id, identity.reason or "")
        outcomes.append(ErrorCode.NONE)
    if causes:
        group.remove(causes, effects)
    return outcomes


# -- from consumer to classic -----------------------------------------------------------------------------


class Downgraded(ClassicGroup):
    """A classic group that was of the consumer protocol until now: its members must gather."""

    __slots__ = ()

    def note(self, assignments: Mapping[str, bytes], effects: Effects) -> None:
        """Write the group to the log as it is."""
        self._write(effects, assignments)

    def on_alarm(self, alarm: Alarm, effects: Effects) -> None:
        if alarm.kind == GATHER:
            if self.phase is Phase.STABLE:
                self._gather(Cause(DOWNGRADED), effects)
        else:
            super().on_alarm(alarm, effects)


def downgrade_if_due(group: ConsumerGroup, settings: GroupSettings, effects: Effects) -> None:
    """If only classic members are left, become a classic group."""
    members = group.members
    if not members or not group.settings.may_downgrade or len(members) > settings.max_size:
        return
    if any(member.classic is None for member in members.values()):
        return
    classic = Downgraded(group.group_id, settings)
    classic.protocol_type = CONSUMER_PROTOCOL_TYPE
    # If all are in one epoch, it is the generation that they know: they hear of the change by a heartbeat.
    epochs = {member.epoch for member in members.values()}
    classic.generation = epochs.pop() if len(epochs) == 1 else group.epoch
    assignments: dict[str, bytes] = {}
    for member in members.values():
        assignments[member.member_id] = _encoded(member, group)
        classic.members[member.member_id] = _to_classic(member, assignments[member.member_id])
    if not common_protocols(classic.members.values()):
        return
    classic.protocol = choose_protocol(classic.members)
    classic.leader = next(iter(classic.members))
    # What this command wrote about a group that ends with it need not be said.
    effects.records[:] = [entry for entry in effects.records if entry[1] is None]
    effects.records.extend(group.tombstones())
    classic.note(assignments, effects)
    effects.drafts[group.group_id] = classic
    for member_id in members:
        for kind in (REJOIN, FETCH):
            effects.cancel(group.group_id, kind, member_id)
    effects.set_alarm(Alarm(group.group_id, GATHER))


def _to_classic(member: Member, assignment: bytes) -> classic_member.Member:
    assert member.classic is not None
    return classic_member.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocols=tuple((p.name, p.metadata) for p in member.classic.supported_protocols),
        assignment=assignment,
    )
