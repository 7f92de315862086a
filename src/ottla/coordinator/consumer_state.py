"""What the log says about a group of the consumer protocol: members, epochs, target, owners of partitions.

    Empty --- a member joins ---> Assigning --- there is a target for the epoch ---> Reconciling
                                      ^                                                   |
                                      |  members, subscriptions or topics change          |  all members have
                                      '------------------- Stable <-----------------------'  their target

The group's epoch grows whenever its members, their subscriptions or their topics change. The target
assignment is made for an epoch, and each member moves towards it by itself (`reconciliation`).

All of this is in the log, record by record, and `replay` of a record is the only thing that changes it. The
rules are in `consumer_group`, which holds one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ottla.coordinator.assignors import NOTHING, Partitions, TopicId
from ottla.coordinator.consumer_member import (
    LEAVING_FOR_A_WHILE,
    Member,
    as_partitions,
    with_current,
    with_metadata,
    without_assignment,
)
from ottla.coordinator.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    Entry,
)
from ottla.protocol.errors import ApiError, ErrorCode

EMPTY, ASSIGNING, RECONCILING, STABLE = "Empty", "Assigning", "Reconciling", "Stable"

FIRST_EPOCH = 1
"""Of a new group, so that no member has the epoch of one that joins."""


class Resolved(NamedTuple):
    """The topics that match a regular expression, as of a version of the image."""

    topics: frozenset[str]
    version: int


class ConsumerState:
    __slots__ = (
        "_owners",
        "_static",
        "epoch",
        "group_id",
        "members",
        "metadata_hash",
        "regexes",
        "target",
        "target_epoch",
        "target_made_ms",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        """Of the subscribed topics; it tells whether they have changed."""
        self.members: dict[str, Member] = {}
        self.target_epoch = FIRST_EPOCH
        self.target_made_ms = 0
        self.target: dict[str, Partitions] = {}
        self.regexes: dict[str, Resolved] = {}
        self._static: dict[str, str] = {}
        self._owners: dict[TopicId, dict[int, str]] = {}

    def copy(self) -> ConsumerState:
        other = object.__new__(ConsumerState)
        other.group_id = self.group_id
        other.epoch = self.epoch
        other.metadata_hash = self.metadata_hash
        other.members = self.members.copy()
        other.target_epoch = self.target_epoch
        other.target_made_ms = self.target_made_ms
        other.target = self.target.copy()
        other.regexes = self.regexes.copy()
        other._static = self._static.copy()
        other._owners = {topic: owners.copy() for topic, owners in self._owners.items()}
        return other

    @property
    def name(self) -> str:
        """The state of the group as clients know it."""
        if not self.members:
            return EMPTY
        if self.epoch > self.target_epoch:
            return ASSIGNING
        if all(member.has_reached(self.target_epoch) for member in self.members.values()):
            return STABLE
        return RECONCILING

    # -- members ------------------------------------------------------------------------------------------

    def member(self, member_id: str) -> Member:
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def checked(self, member_id: str, instance_id: str | None) -> Member:
        """The member with this id, which must be the one that its instance id belongs to."""
        if instance_id is None:
            return self.member(member_id)
        present = self._static.get(instance_id)
        if present is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if present != member_id:
            raise ApiError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {present}.",
            )
        return self.members[present]

    def static_member(self, instance_id: str | None) -> Member | None:
        """The member with this instance id, whatever its member id is."""
        return self.members.get(self._static.get(instance_id or "", ""))

    def returning(self, instance_id: str | None) -> Member | None:
        """The static member with this instance id that has left for a while."""
        member = self.static_member(instance_id)
        return member if member is not None and member.epoch == LEAVING_FOR_A_WHILE else None

    # -- topics and partitions ----------------------------------------------------------------------------

    def topics_of(self, member: Member) -> frozenset[str]:
        """The names that a member subscribes to, whether or not such topics exist."""
        resolved = self.regexes.get(member.regex) if member.regex else None
        return member.topics | resolved.topics if resolved is not None else member.topics

    def subscribed_topics(self) -> set[str]:
        return {topic for member in self.members.values() for topic in self.topics_of(member)}

    def is_subscribed(self, topic: str) -> bool:
        return any(topic in self.topics_of(member) for member in self.members.values())

    def used_expressions(self) -> set[str]:
        return {member.regex for member in self.members.values() if member.regex}

    def owner(self, topic: TopicId, partition: int) -> str | None:
        """The one member that has this partition, or has not given it back yet."""
        return self._owners.get(topic, {}).get(partition)

    def target_of(self, member: Member) -> Partitions:
        return self.target.get(member.member_id, NOTHING)

    def has_free_for(self, member: Member) -> bool:
        """Whether a partition that the member waits for has become free."""
        return any(
            self.owner(topic, partition) is None
            for topic, partitions in self.target_of(member).items()
            for partition in partitions
        )

    # -- the log ------------------------------------------------------------------------------------------

    def tombstones(self) -> Iterator[Entry]:
        """Records that remove the group."""
        group_id = self.group_id
        for member_id in self.members:
            yield from self.member_tombstones(member_id)
        yield ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None
        for regex in self.regexes:
            yield ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), None
        yield ConsumerGroupMetadataKey(group_id=group_id), None

    def member_tombstones(self, member_id: str) -> Iterator[Entry]:
        names = {"group_id": self.group_id, "member_id": member_id}
        yield ConsumerGroupCurrentMemberAssignmentKey(**names), None
        yield ConsumerGroupTargetAssignmentMemberKey(**names), None
        yield ConsumerGroupMemberMetadataKey(**names), None

    def replay(self, key: Any, value: Any) -> None:
        """Apply a record. The end of the whole group is handled by the caller."""
        _REPLAYS[key.api_key](self, key, value)

    def _replay_group(self, key: ConsumerGroupMetadataKey, value: Any) -> None:
        if value is not None:
            self.epoch = value.epoch
            self.metadata_hash = value.metadata_hash

    def _replay_partition_metadata(self, key: ConsumerGroupPartitionMetadataKey, value: Any) -> None:
        """Written by Kafka before 4.1. The metadata hash has replaced it."""

    def _replay_member(self, key: ConsumerGroupMemberMetadataKey, value: Any) -> None:
        member = self.members.get(key.member_id)
        if value is not None:
            member = with_metadata(member or Member(key.member_id), value)
            self.members[key.member_id] = member
            if member.instance_id is not None:
                self._static[member.instance_id] = key.member_id
        elif member is not None:
            self._set_owned(member, without_assignment(member))
            del self.members[key.member_id]
            if member.instance_id is not None and self._static.get(member.instance_id) == key.member_id:
                del self._static[member.instance_id]

    def _replay_target(self, key: ConsumerGroupTargetAssignmentMetadataKey, value: Any) -> None:
        if value is not None:
            self.target_epoch = value.assignment_epoch
            self.target_made_ms = value.assignment_timestamp

    def _replay_target_member(self, key: ConsumerGroupTargetAssignmentMemberKey, value: Any) -> None:
        if value is None:
            self.target.pop(key.member_id, None)
        else:
            self.target[key.member_id] = as_partitions(value.topic_partitions)

    def _replay_current(self, key: ConsumerGroupCurrentMemberAssignmentKey, value: Any) -> None:
        member = self.members.get(key.member_id)
        if value is not None:
            before = member or Member(key.member_id)
            after = with_current(before, value)
        elif member is not None:
            before, after = member, without_assignment(member)
        else:
            return
        self._set_owned(before, after)
        self.members[key.member_id] = after

    def _replay_regex(self, key: ConsumerGroupRegularExpressionKey, value: Any) -> None:
        if value is None:
            self.regexes.pop(key.regular_expression, None)
        else:
            self.regexes[key.regular_expression] = Resolved(frozenset(value.topics), value.version)

    def _set_owned(self, before: Member, after: Member) -> None:
        member_id = before.member_id
        for owned in (before.assigned, before.revoking):
            for topic, partitions in owned.items():
                owners = self._owners.get(topic, {})
                for partition in partitions:
                    if owners.get(partition) == member_id:
                        del owners[partition]
                if not owners:
                    self._owners.pop(topic, None)
        for owned in (after.assigned, after.revoking):
            for topic, partitions in owned.items():
                self._owners.setdefault(topic, {}).update(dict.fromkeys(partitions, member_id))


_REPLAYS: dict[int, Callable[[ConsumerState, Any, Any], None]] = {
    3: ConsumerState._replay_group,
    4: ConsumerState._replay_partition_metadata,
    5: ConsumerState._replay_member,
    6: ConsumerState._replay_target,
    7: ConsumerState._replay_target_member,
    8: ConsumerState._replay_current,
    16: ConsumerState._replay_regex,
}
"""By the type of the record."""
