"""The members of a classic group, and how they agree on a protocol.

A member lists the protocols it supports (for consumers: assignors) in the order of preference, with its
metadata for each. It is known by an id that the coordinator gives it; a static member also by its instance
id, which stays the same when the process restarts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ottla.coordinator.records import MemberMetadata
from ottla.coordinator.runtime.effects import Reply
from ottla.protocol.codec import Malformed
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.consumer_protocol import read_subscription

Protocols = tuple[tuple[str, bytes], ...]
"""Names and the member's metadata for each, in the order of preference."""


@dataclass(frozen=True, slots=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""

    # What follows is not in the log: a new coordinator does not know about waiting requests.

    joining: Reply | None = None
    """Its JoinGroup waits for the other members."""
    syncing: Reply | None = None
    """Its SyncGroup waits for the leader's assignment."""
    is_new: bool = False
    """It has never been answered, so it does not know its id and cannot send heartbeats yet."""

    @property
    def name(self) -> str:
        """What the member is called over restarts."""
        return self.instance_id or self.member_id

    @property
    def metadata_size(self) -> int:
        return sum(len(metadata) for _, metadata in self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


class ClassicMembers:
    """Members by their ids, in the order in which they joined."""

    __slots__ = ("_static", "_topics", "by_id")

    def __init__(self, members: Iterable[Member] = ()) -> None:
        self.by_id: dict[str, Member] = {member.member_id: member for member in members}
        self._static = {m.instance_id: m.member_id for m in self.by_id.values() if m.instance_id is not None}
        self._topics: dict[str | None, frozenset[str] | None] = {}

    def copy(self) -> ClassicMembers:
        other = object.__new__(ClassicMembers)
        other.by_id = self.by_id.copy()
        other._static = self._static.copy()
        other._topics = {}
        return other

    def put(self, member: Member) -> None:
        """Add a member, or replace the one with its id."""
        self.by_id[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        self._topics.clear()

    def remove(self, member_id: str) -> Member:
        member = self.by_id.pop(member_id)
        if member.instance_id is not None:
            self._static.pop(member.instance_id, None)
        self._topics.clear()
        return member

    def rename(self, old_id: str, member: Member) -> None:
        """A static member has a new id. It keeps its position in the order, which decides about leaders."""
        self.by_id = {
            (member.member_id if key == old_id else key): (member if key == old_id else value)
            for key, value in self.by_id.items()
        }
        assert member.instance_id is not None
        self._static[member.instance_id] = member.member_id
        self._topics.clear()

    def static_id(self, instance_id: str | None) -> str | None:
        """The member id that a static member has now."""
        return None if instance_id is None else self._static.get(instance_id)

    def checked(self, member_id: str, instance_id: str | None) -> Member:
        """The member with this id, which must be the one that its instance id belongs to."""
        if instance_id is not None:
            present = self._static.get(instance_id)
            if present is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            if present != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.by_id.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.by_id.values()), default=0)

    # -- protocols ----------------------------------------------------------------------------------------

    def common_protocols(self) -> set[str] | None:
        """The protocols that all members support; None when there are no members."""
        common: set[str] | None = None
        for member in self.by_id.values():
            names = {name for name, _ in member.protocols}
            common = names if common is None else common & names
        return common

    def choose_protocol(self) -> str:
        """Of the protocols that all support, the one that most prefer; the first vote breaks a tie."""
        candidates: Collection[str] = self.common_protocols() or ()
        votes: Counter[str] = Counter()
        for member in self.by_id.values():
            favourite = next((name for name, _ in member.protocols if name in candidates), None)
            if favourite is not None:
                votes[favourite] += 1
        if not votes:
            raise ValueError("the members have no protocol in common")
        return votes.most_common(1)[0][0]

    def subscribed_topics(self, protocol: str | None) -> frozenset[str] | None:
        """The topics of all subscriptions under a protocol of consumers; None if they cannot be decoded."""
        if protocol not in self._topics:
            topics: set[str] = set()
            try:
                for member in self.by_id.values():
                    topics.update(read_subscription(member.metadata(protocol)).topics)
            except Malformed:
                self._topics[protocol] = None
            else:
                self._topics[protocol] = frozenset(topics)
        return self._topics[protocol]


# -- records ----------------------------------------------------------------------------------------------


def as_record(member: Member, protocol: str | None, assignment: bytes) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata(protocol),
        assignment=assignment,
    )


def from_record(record: MemberMetadata, protocol: str | None, known: Member | None) -> Member:
    """The member as the log has it, with what only this coordinator knows about it."""
    if known is not None and known.metadata(protocol) == record.subscription:
        protocols = known.protocols
    else:
        protocols = ((protocol or "", record.subscription),)
    return Member(
        member_id=record.member_id,
        instance_id=record.group_instance_id,
        client_id=record.client_id,
        client_host=record.client_host,
        rebalance_timeout_ms=(
            record.rebalance_timeout if record.rebalance_timeout >= 0 else record.session_timeout
        ),
        session_timeout_ms=record.session_timeout,
        protocols=protocols,
        assignment=record.assignment,
        joining=known.joining if known is not None else None,
        syncing=known.syncing if known is not None else None,
        is_new=known.is_new if known is not None else False,
    )
