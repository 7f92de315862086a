"""A member of a group of the consumer protocol (KIP-848): its subscription, and its partitions.

Subscription, assignor and timeouts are one record in the log, epoch and partitions another. A partition that
the member was told to give back stays with it, as one that is being revoked, until it has confirmed that it
no longer reads it.

For each partition the epoch is kept in which the member got it. A commit with an older epoch is from an
earlier owner and must not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Protocol, TypeAlias

from ottla.coordinator.assignors import Partitions, TopicId
from ottla.coordinator.records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMemberValue,
    TargetTopicPartition,
    TopicPartitions,
)

JOINING = 0
"""The epoch of a member that joins."""
LEAVING = -1
LEAVING_FOR_A_WHILE = -2
"""The epoch of a static member that will come back: it keeps its partitions."""

Owned: TypeAlias = Mapping[TopicId, Mapping[int, int]]
"""Partitions and, for each, the epoch in which it was given."""


class MemberState(IntEnum):
    """How far a member is on the way to its target. The numbers are those in the log."""

    STABLE = 0
    UNREVOKED = 1
    """It has been told to give partitions back and has not confirmed."""
    UNRELEASED = 2
    """It waits for partitions that others have not given back yet."""


@dataclass(frozen=True, slots=True)
class Member:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMemberMetadata | None = None
    """Set while the member speaks the classic protocol in this group."""

    epoch: int = JOINING
    previous_epoch: int = JOINING
    state: MemberState = MemberState.STABLE
    assigned: Owned = field(default_factory=dict)
    revoking: Owned = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the member is called over restarts."""
        return self.instance_id or self.member_id

    @property
    def metadata_size(self) -> int:
        """Bytes that it sent as a member of the classic protocol."""
        return sum(len(each.metadata) for each in self.classic.supported_protocols) if self.classic else 0

    def has_reached(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def owns_all(self, partitions: Partitions) -> bool:
        return all(partitions[topic] <= self.assigned.get(topic, {}).keys() for topic in partitions)

    def given_in(self, topic: TopicId, partition: int) -> int | None:
        """The epoch in which the member was given a partition that it may still read."""
        given = self.assigned.get(topic, {}).get(partition)
        return given if given is not None else self.revoking.get(topic, {}).get(partition)


class _Listed(Protocol):
    @property
    def topic_id(self) -> bytes: ...
    @property
    def partitions(self) -> list[int]: ...


def as_partitions(listed: Iterable[_Listed]) -> Partitions:
    """From the lists of a message or a record."""
    result: dict[TopicId, set[int]] = {}
    for each in listed:
        if each.partitions:
            result.setdefault(each.topic_id, set()).update(each.partitions)
    return {topic: frozenset(partitions) for topic, partitions in result.items()}


def _as_owned(listed: Iterable[TopicPartitions], epoch: int) -> Owned:
    result = {}
    for each in listed:
        epochs = each.assignment_epochs
        if epochs is None or len(epochs) != len(each.partitions):  # from before these were kept
            epochs = [epoch] * len(each.partitions)
        result[each.topic_id] = dict(zip(each.partitions, epochs, strict=True))
    return result


def _listed(owned: Owned) -> list[TopicPartitions]:
    return [
        TopicPartitions(
            topic_id=topic,
            partitions=sorted(partitions),
            assignment_epochs=[partitions[partition] for partition in sorted(partitions)],
        )
        for topic, partitions in owned.items()
    ]


def metadata_record(member: Member) -> ConsumerGroupMemberMetadataValue:
    return ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=member.classic,
    )


def with_metadata(member: Member, record: ConsumerGroupMemberMetadataValue) -> Member:
    return replace(
        member,
        instance_id=record.instance_id,
        rack_id=record.rack_id,
        client_id=record.client_id,
        client_host=record.client_host,
        topics=frozenset(record.subscribed_topic_names),
        regex=record.subscribed_topic_regex or "",
        rebalance_timeout_ms=record.rebalance_timeout_ms,
        assignor=record.server_assignor,
        classic=record.classic_member_metadata,
    )


def current_record(member: Member) -> ConsumerGroupCurrentMemberAssignmentValue:
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_listed(member.assigned),
        partitions_pending_revocation=_listed(member.revoking),
    )


def with_current(member: Member, record: ConsumerGroupCurrentMemberAssignmentValue) -> Member:
    return replace(
        member,
        epoch=record.member_epoch,
        previous_epoch=record.previous_member_epoch,
        state=MemberState(record.state),
        assigned=_as_owned(record.assigned_partitions, record.member_epoch),
        revoking=_as_owned(record.partitions_pending_revocation, record.member_epoch),
    )


def without_assignment(member: Member) -> Member:
    """The member after it has left."""
    return replace(
        member,
        epoch=LEAVING,
        previous_epoch=LEAVING,
        state=MemberState.STABLE,
        assigned={},
        revoking={},
    )


def target_record(target: Partitions) -> ConsumerGroupTargetAssignmentMemberValue:
    return ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            TargetTopicPartition(topic_id=topic, partitions=sorted(partitions))
            for topic, partitions in target.items()
        ]
    )
