"""What a group of the consumer protocol is: members, epochs, a target, and who owns which partition.

    Empty --- a member joins ---> Assigning --- there is a target for the epoch ---> Reconciling
                                      ^                                                   |
                                      |  members, subscriptions or topics change          |  all have what
                                      '------------------- Stable <-----------------------'  they shall have

The group's epoch grows whenever its members, their subscriptions or their topics change. The target (who
shall have what) is made for an epoch, and each member walks towards it by itself (`reconciliation`).

All of this stands in the log, record by record, and `replay` of a record is the only thing that changes it.
A command works on a draft, to which it applies each record that it writes, so that its next step sees what
the one before has done. The other half of the group, the commands, is `consumer_group`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol, Self

from ottla.cluster.image import ClusterImage
from ottla.coordinator.assignors import NOTHING, Partitions, TopicId
from ottla.coordinator.consumer_member import (
    LEAVING_FOR_A_WHILE,
    Member,
    as_partitions,
    with_current,
    with_metadata,
    without_assignment,
)
from ottla.coordinator.effects import Effects
from ottla.coordinator.group import CONSUMER, CONSUMER_PROTOCOL_TYPE
from ottla.coordinator.journal import Cause
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
from ottla.coordinator.topic_matches import TopicMatches
from ottla.protocol.errors import ApiError, ErrorCode

EMPTY, ASSIGNING, RECONCILING, STABLE = "Empty", "Assigning", "Reconciling", "Stable"

FIRST_EPOCH = 1
"""Of a new group, so that nobody in it has the epoch of one who joins."""


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """What the configuration says of a group, its own values before the broker's."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    may_upgrade: bool = True
    """Classic groups may become groups of the consumer protocol while they run, ..."""
    may_downgrade: bool = True
    """... and the other way."""


class Surroundings(Protocol):
    """What groups see of their broker."""

    @property
    def image(self) -> ClusterImage:
        """The cluster as it is now: which topics there are."""

    @property
    def topic_matches(self) -> TopicMatches:
        """Which topics expressions stand for."""

    def settings(self, group_id: str) -> ConsumerSettings: ...

    def member_count(self) -> int:
        """Members in all groups of this broker, more or less."""


class Resolved(NamedTuple):
    """The topics that a regular expression stands for, as of a version of the image."""

    topics: frozenset[str]
    version: int


class Ongoing(NamedTuple):
    """A rebalance under way, for the journal and for the pace of heartbeats."""

    began_ms: int
    causes: tuple[Cause, ...] = ()


class ConsumerState:
    __slots__ = (
        "_checked",
        "_ongoing",
        "_owners",
        "_shared",
        "_shares",
        "_static",
        "_surroundings",
        "epoch",
        "group_id",
        "members",
        "metadata_hash",
        "regexes",
        "rejoining",
        "target",
        "target_epoch",
        "target_made_ms",
    )

    def __init__(self, group_id: str, surroundings: Surroundings) -> None:
        self.group_id = group_id
        self._surroundings = surroundings
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        """Of the topics that are subscribed to; it tells that they changed."""
        self.members: dict[str, Member] = {}
        self.target_epoch = FIRST_EPOCH
        self.target_made_ms = 0
        self.target: dict[str, Partitions] = {}
        self.regexes: dict[str, Resolved] = {}
        self._static: dict[str, str] = {}
        self._owners: dict[TopicId, dict[int, str]] = {}
        self._shared = False
        """The mappings belong to another draft too, and are copied before the first change."""
        # What follows is not in the log.
        self._checked = -1
        """The version of the image for which `metadata_hash` was looked at last."""
        self._ongoing: Ongoing | None = None
        self.rejoining: frozenset[str] = frozenset()
        """Members of the classic protocol that were told to join again, and whose time for it runs."""
        self._shares: Mapping[str, Partitions] = {}
        """What the members had when the last rebalance was over, by their names."""

    def __repr__(self) -> str:
        return f"<group {self.group_id} {self.state_name}, epoch {self.epoch}>"

    def draft(self) -> Self:
        copy = object.__new__(type(self))
        for slot in ConsumerState.__slots__:
            setattr(copy, slot, getattr(self, slot))
        copy._shared = self._shared = True
        return copy

    def _unshare(self) -> None:
        self.members = self.members.copy()
        self.target = self.target.copy()
        self.regexes = self.regexes.copy()
        self._static = self._static.copy()
        self._owners = {topic: owners.copy() for topic, owners in self._owners.items()}
        self._shared = False

    # -- what others see ----------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        return CONSUMER

    @property
    def protocol_type(self) -> str | None:
        return CONSUMER_PROTOCOL_TYPE

    @property
    def state_name(self) -> str:
        if not self.members:
            return EMPTY
        if self.epoch > self.target_epoch:
            return ASSIGNING
        if all(member.has_reached(self.target_epoch) for member in self.members.values()):
            return STABLE
        return RECONCILING

    @property
    def settings(self) -> ConsumerSettings:
        return self._surroundings.settings(self.group_id)

    @property
    def assignor_name(self) -> str:
        """What most members ask for; the broker's first when nobody asks."""
        wishes: dict[str, int] = {}
        for member in self.members.values():
            if member.assignor is not None:
                wishes[member.assignor] = wishes.get(member.assignor, 0) + 1
        return max(sorted(wishes), key=wishes.__getitem__) if wishes else self.settings.assignors[0]

    def topics_of(self, member: Member) -> frozenset[str]:
        """The names that a member subscribes to, whether or not such topics exist."""
        resolved = self.regexes.get(member.regex) if member.regex else None
        return member.topics | resolved.topics if resolved is not None else member.topics

    def subscribed_topics(self) -> set[str]:
        return {topic for member in self.members.values() for topic in self.topics_of(member)}

    def is_subscribed(self, topic: str) -> bool:
        return any(topic in self.topics_of(member) for member in self.members.values())

    def owner(self, topic: TopicId, partition: int) -> str | None:
        """The one member that has this partition, or has not given it back yet."""
        return self._owners.get(topic, {}).get(partition)

    def target_of(self, member: Member) -> Partitions:
        return self.target.get(member.member_id, NOTHING)

    @property
    def is_deletable(self) -> bool:
        return not self.members

    def offsets_unused_since(self, topic: str, committed_ms: int) -> int | None:
        return None if self.is_subscribed(topic) else committed_ms

    def check_delete(self) -> None:
        if self.members:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def check_offset_delete(self) -> None:
        """Topics that nobody subscribes to may always lose their offsets."""

    def tombstones(self) -> Sequence[Entry]:
        return list(self._tombstones())

    def _tombstones(self) -> Iterator[Entry]:
        group_id = self.group_id
        for member_id in self.members:
            yield from self._member_tombstones(member_id)
        yield ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None
        for regex in self.regexes:
            yield ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), None
        yield ConsumerGroupMetadataKey(group_id=group_id), None

    def _member_tombstones(self, member_id: str) -> Iterator[Entry]:
        names = {"group_id": self.group_id, "member_id": member_id}
        yield ConsumerGroupCurrentMemberAssignmentKey(**names), None
        yield ConsumerGroupTargetAssignmentMemberKey(**names), None
        yield ConsumerGroupMemberMetadataKey(**names), None

    def topic_id(self, name: str) -> TopicId | None:
        topic = self._surroundings.image.topics.get(name)
        return topic.id if topic is not None else None

    def topic_name(self, topic: TopicId) -> str | None:
        found = self._surroundings.image.topics_by_id.get(topic)
        return found.name if found is not None else None

    def hash_of_topics(self) -> int:
        """Changes when a subscribed topic appears, goes, is made anew or gets partitions."""
        image = self._surroundings.image
        digest = blake2b(digest_size=8)
        found = False
        for name in sorted(self.subscribed_topics()):
            topic = image.topics.get(name)
            if topic is not None:
                found = True
                digest.update(topic.id + name.encode() + b"\0%d" % len(topic.partitions))
        return int.from_bytes(digest.digest(), "big", signed=True) if found else 0

    # -- the log ------------------------------------------------------------------------------------------

    def _write(self, effects: Effects, key: Any, value: Any) -> None:
        """Write a record, and let it have its effect on this draft."""
        effects.write(key, value)
        self.replay(key, value)

    def write(self, effects: Effects, key: type[Any], value: Any, member_id: str | None = None) -> None:
        """Write a record of the group, or of one of its members."""
        names = {"group_id": self.group_id} | ({} if member_id is None else {"member_id": member_id})
        self._write(effects, key(**names), value)

    def replay(self, key: Any, value: Any) -> None:
        """Become what the log says. The end of the group as a whole is for others to see."""
        if self._shared:
            self._unshare()
        _REPLAYS[key.api_key](self, key, value)

    def _replay_group(self, key: ConsumerGroupMetadataKey, value: Any) -> None:
        if value is not None:
            self.epoch = value.epoch
            self.metadata_hash = value.metadata_hash

    def _replay_partition_metadata(self, key: ConsumerGroupPartitionMetadataKey, value: Any) -> None:
        """What Kafka wrote before 4.1; the hash says it all."""

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

    # -- who may ask --------------------------------------------------------------------------------------

    def member(self, member_id: str) -> Member:
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def static_member(self, member_id: str, instance_id: str) -> Member:
        """The member with this instance id, if it is the one that calls itself so."""
        present = self._static.get(instance_id)
        if present is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if present != member_id:
            raise ApiError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {present}.",
            )
        return self.members[present]

    def present(self, instance_id: str) -> Member | None:
        """The static member of this name, whichever id it has."""
        return self.members.get(self._static.get(instance_id, ""))

    def expects_back(self, instance_id: str | None) -> Member | None:
        """The static member of this name that has left for a while."""
        member = self.members.get(self._static.get(instance_id or "", ""))
        return member if member is not None and member.epoch == LEAVING_FOR_A_WHILE else None


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
