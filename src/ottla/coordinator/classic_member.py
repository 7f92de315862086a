"""A member of a classic group, and how members agree on a protocol.

A member says which protocols it speaks (for consumers: assignors), the best liked first, and what it wants
under each. It is known by an id that the coordinator gives it; a static member also by the instance id of its
owner, which stays the same when the process starts again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ottla.coordinator.effects import Reply
from ottla.coordinator.records import MemberMetadata

Protocols = tuple[tuple[str, bytes], ...]
"""Names and what the member wants under each, the best liked first."""


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

    # What follows is not in the log: a new coordinator does not know who waits.

    joining: Reply | None = None
    """Waits for the group to gather."""
    syncing: Reply | None = None
    """Waits for the leader's assignment."""
    is_new: bool = False
    """It has never been answered, so it does not know its id and cannot send heartbeats yet."""

    @property
    def name(self) -> str:
        """What the member is called over restarts."""
        return self.instance_id or self.member_id

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


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
    """The member as the log has it, with what only this coordinator knows of it."""
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


def common_protocols(members: Iterable[Member]) -> set[str] | None:
    """The protocols that all of them speak; None when there are no members."""
    common: set[str] | None = None
    for member in members:
        names = {name for name, _ in member.protocols}
        common = names if common is None else common & names
    return common


def choose_protocol(members: Mapping[str, Member]) -> str:
    """The protocol most members like best among those that all speak; the first vote decides a tie."""
    candidates: Collection[str] = common_protocols(members.values()) or ()
    votes: Counter[str] = Counter()
    for member in members.values():
        favourite = next((name for name, _ in member.protocols if name in candidates), None)
        if favourite is not None:
            votes[favourite] += 1
    if not votes:
        raise ValueError("the members have no protocol in common")
    return votes.most_common(1)[0][0]
