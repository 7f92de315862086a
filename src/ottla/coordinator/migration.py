"""A group changes its protocol while it runs.

Consumers of a group are upgraded one by one. The first that joins with the consumer protocol turns the
classic group into one of the consumer protocol. Members that still use the classic protocol stay, keep what
they have, and are served as `consumer_classic_members` says. When the last member of the consumer protocol
leaves and only classic ones are left, the group becomes a classic group again.

Both can be forbidden by group.consumer.migration.policy.
"""

from __future__ import annotations

from ottla.coordinator.classic_group import ClassicGroup
from ottla.coordinator.classic_members import ClassicMembers
from ottla.coordinator.classic_members import Member as ClassicMember
from ottla.coordinator.classic_phases import REBALANCE, Phase
from ottla.coordinator.consumer_classic_members import (
    FETCH,
    REJOIN,
    classic_metadata,
    encoded_assignment,
    with_topic_ids,
)
from ottla.coordinator.consumer_group import ConsumerGroup
from ottla.coordinator.consumer_member import Member, current_record, metadata_record, target_record
from ottla.coordinator.group import CONSUMER_PROTOCOL_TYPE, GroupSettings
from ottla.coordinator.group_effects import GroupEffects, GroupTimer
from ottla.coordinator.records import (
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
from ottla.protocol.messages.consumer_protocol import read_assignment, read_subscription

# -- from classic to consumer -----------------------------------------------------------------------------


def upgrade(classic: ClassicGroup, group: ConsumerGroup, effects: GroupEffects) -> None:
    """Let `group`, which is new, take over from a classic group. ApiError if that is not possible."""
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
    classic.release(effects)
    _take_over(group, classic.generation, members, effects)


def _from_classic(member: ClassicMember, classic: ClassicGroup, group: ConsumerGroup) -> Member:
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
        classic=classic_metadata(member.session_timeout_ms, member.protocols),
        epoch=classic.generation,
        previous_epoch=classic.generation,
        assigned=with_topic_ids(assigned, group, classic.generation),
    )


def _has_user_data(assignment: bytes) -> bool:
    """Whether the leader sent a member more than its partitions: the broker could not compute that."""
    return bool(assignment and read_assignment(assignment).user_data)


def _take_over(group: ConsumerGroup, generation: int, members: list[Member], effects: GroupEffects) -> None:
    """Write the group to the log as if it had always used the consumer protocol."""
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
        group.restart_session(group.members[member.member_id], effects)


# -- from consumer to classic -----------------------------------------------------------------------------


def downgrade_if_due(group: ConsumerGroup, settings: GroupSettings, effects: GroupEffects) -> None:
    """If only classic members are left, become a classic group."""
    members = group.members
    if not members or not group.settings.may_downgrade or len(members) > settings.max_size:
        return
    if any(member.classic is None for member in members.values()):
        return
    assignments = {member_id: encoded_assignment(member, group) for member_id, member in members.items()}
    roster = ClassicMembers(_to_classic(member, assignments[id_]) for id_, member in members.items())
    if not roster.common_protocols():
        return
    classic = ClassicGroup(group.group_id, settings, roster)
    classic.protocol_type = CONSUMER_PROTOCOL_TYPE
    # If all are in one epoch, it is the generation that they know: a heartbeat tells them to join again.
    epochs = {member.epoch for member in members.values()}
    classic.generation = epochs.pop() if len(epochs) == 1 else group.state.epoch
    classic.protocol = roster.choose_protocol()
    classic.leader = next(iter(classic.members))
    # What this command wrote about the group in its former kind is not needed any more.
    effects.records[:] = [entry for entry in effects.records if entry[1] is None]
    effects.records.extend(group.tombstones())
    classic.write_assignments(effects)
    effects.drafts[group.group_id] = classic
    for member_id in members:
        for kind in (REJOIN, FETCH):
            effects.cancel(group.group_id, kind, member_id)
    effects.set_timer(GroupTimer(group.group_id, REBALANCE))


def _to_classic(member: Member, assignment: bytes) -> ClassicMember:
    assert member.classic is not None
    return ClassicMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocols=tuple((p.name, p.metadata) for p in member.classic.supported_protocols),
        assignment=assignment,
    )
