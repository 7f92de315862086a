"""What a classic group is: its members and generation, what others may ask of it, and how it lies in the log.

The other half, how members gather and what they are told, is `classic_group`. What the log has of a group is
its last assignment: generation, protocol, leader and members. Who waits, who has an id but has not joined yet
and the generation between Join and Sync are in memory only; after a failover members are told that they or
their generation are unknown, and join again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Self

from ottla.coordinator import journal
from ottla.coordinator.classic_member import Member, as_record, from_record
from ottla.coordinator.effects import Alarm, Effects
from ottla.coordinator.group import CLASSIC, CONSUMER_PROTOCOL_TYPE, GroupSettings
from ottla.coordinator.journal import Cause, Rebalance
from ottla.coordinator.records import Entry, GroupMetadataKey, GroupMetadataValue
from ottla.protocol.codec import Malformed
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.consumer_protocol import read_subscription

SESSION, JOIN, SYNC = "session", "join", "sync"
"""The alarms of a group: a member is silent, members have not come back, members have not synced."""


class Phase(Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Ongoing(NamedTuple):
    """A rebalance under way, for the journal."""

    began_ms: int
    causes: tuple[Cause, ...] = ()


class ClassicState:
    __slots__ = (
        "_assigned",
        "_from_empty",
        "_more_ask",
        "_more_came",
        "_ongoing",
        "_settings",
        "_static",
        "_topics",
        "generation",
        "group_id",
        "leader",
        "members",
        "pending",
        "phase",
        "protocol",
        "protocol_type",
        "since_ms",
        "unsynced",
    )

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id = group_id
        self._settings = settings
        self.phase = Phase.EMPTY
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.generation = 0
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.since_ms = -1
        """When it became empty or stable."""
        self.pending: frozenset[str] = frozenset()
        """Ids that were given out and have not joined yet."""
        self.unsynced: frozenset[str] = frozenset()
        """Members of this generation that have not asked for their assignment yet."""
        self._static: dict[str, str] = {}
        self._from_empty = False
        """The group gathers for the first time since it was empty, and waits for more to come."""
        self._more_came = False
        self._more_ask = False
        """Since the last look, somebody has joined; somebody has been given an id to join with."""
        self._ongoing: Ongoing | None = None
        self._assigned: dict[str, bytes] = {}
        """The last assignment, by the names of members, whoever is still there of them."""
        self._topics: frozenset[str] | None = None

    def __repr__(self) -> str:
        return f"<group {self.group_id} {self.phase.value}, generation {self.generation}>"

    def draft(self) -> Self:
        copy = object.__new__(type(self))
        for slot in ClassicState.__slots__:
            setattr(copy, slot, getattr(self, slot))
        copy.members = self.members.copy()
        copy._static = self._static.copy()
        copy._topics = None
        return copy

    # -- what others see ----------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        return CLASSIC

    @property
    def state_name(self) -> str:
        return self.phase.value

    @property
    def is_deletable(self) -> bool:
        return self.phase is Phase.EMPTY and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """What its consumers read; None when that cannot be known."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        if not self.members:
            return frozenset()
        if self._topics is None:
            topics: set[str] = set()
            try:
                for member in self.members.values():
                    topics.update(read_subscription(member.metadata(self.protocol)).topics)
            except Malformed:
                return None
            self._topics = frozenset(topics)
        return self._topics

    def is_subscribed(self, topic: str) -> bool:
        topics = self.subscribed_topics
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE if topics is None else topic in topics

    def offsets_unused_since(self, topic: str, committed_ms: int) -> int | None:
        if self.protocol_type is None:
            return committed_ms
        if self.phase is Phase.EMPTY:
            return self.since_ms if self.since_ms >= 0 else committed_ms
        if (
            self.phase is Phase.STABLE
            and self.subscribed_topics is not None
            and not self.is_subscribed(topic)
        ):
            return committed_ms
        return None

    def check_delete(self) -> None:
        if self.phase is not Phase.EMPTY:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def check_offset_delete(self) -> None:
        if self.phase is not Phase.EMPTY and self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Offsets of a classic group are for everybody to read."""

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, effects: Effects
    ) -> None:
        if generation < 0 and self.phase is Phase.EMPTY:
            return
        if generation >= 0 or member_id or instance_id is not None:
            member = self._checked(member_id, instance_id, generation)
            if self.phase is Phase.COMPLETING:
                raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
            self._expect(member, effects)
        elif self.phase is not Phase.EMPTY:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)

    def tombstones(self) -> Sequence[Entry]:
        return [(GroupMetadataKey(group=self.group_id), None)]

    def _checked(self, member_id: str, instance_id: str | None, generation: int | None = None) -> Member:
        """The member that calls itself so, in this generation if one is named."""
        if instance_id is not None:
            present = self._static.get(instance_id)
            if present is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            if present != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if generation is not None and generation != self.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        return member

    def _expect(self, member: Member, effects: Effects) -> None:
        """The member has shown itself: its session begins anew."""
        effects.set_alarm(Alarm(self.group_id, SESSION, member.member_id, delay_ms=member.session_timeout_ms))

    # -- the log ------------------------------------------------------------------------------------------

    def _write(
        self, effects: Effects, assignments: Mapping[str, bytes], generation: int | None = None
    ) -> None:
        effects.write(
            GroupMetadataKey(group=self.group_id),
            GroupMetadataValue(
                protocol_type=self.protocol_type or "",
                generation=self.generation if generation is None else generation,
                protocol=self.protocol,
                leader=self.leader,
                current_state_timestamp=effects.now_ms,
                members=[
                    as_record(self.members[member_id], self.protocol, assignment)
                    for member_id, assignment in assignments.items()
                ],
            ),
        )

    def replay(self, value: GroupMetadataValue) -> None:
        """Become what the log says. Right after a command this adds what the command left to the log."""
        self.protocol_type = value.protocol_type or None
        self.generation = value.generation
        self.protocol = value.protocol
        self.leader = value.leader
        self.since_ms = value.current_state_timestamp
        known = self.members
        self.members = {
            record.member_id: from_record(record, value.protocol, known.get(record.member_id))
            for record in value.members
        }
        self._static = {
            m.instance_id: m.member_id for m in self.members.values() if m.instance_id is not None
        }
        self.phase = Phase.STABLE if self.members else Phase.EMPTY
        self._assigned = {member.name: member.assignment for member in self.members.values()}
        self._from_empty = self._more_came = False
        self._topics = None

    # -- the journal --------------------------------------------------------------------------------------

    def _note(self, cause: Cause, effects: Effects) -> None:
        ongoing = self._ongoing or Ongoing(effects.now_ms)
        if len(ongoing.causes) < journal.MAX_CAUSES:
            ongoing = ongoing._replace(causes=(*ongoing.causes, cause))
        self._ongoing = ongoing

    def _conclude(self, generation: int, assignments: Mapping[str, bytes], effects: Effects) -> None:
        """The rebalance is over: tell the journal."""
        ongoing, self._ongoing = self._ongoing or Ongoing(effects.now_ms), None
        is_consumer = self.protocol_type == CONSUMER_PROTOCOL_TYPE
        before = journal.decoded_shares(self._assigned.items(), is_consumer)
        named = ((self.members[member_id].name, data) for member_id, data in assignments.items())
        after = journal.decoded_shares(named, is_consumer)
        leader = self.members.get(self.leader or "")
        effects.rebalances.append(
            Rebalance(
                group_id=self.group_id,
                generation=generation,
                causes=ongoing.causes,
                began_ms=ongoing.began_ms,
                ended_ms=effects.now_ms,
                protocol=self.protocol,
                leader=leader.name if leader is not None else None,
                shares=after,
                moves=journal.moves_between(before, after),
                joined=tuple(sorted(after.keys() - before.keys())),
                left=tuple(sorted(before.keys() - after.keys())),
            )
        )
