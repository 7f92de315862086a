"""A group of the classic protocol: members gather, one of them assigns the partitions, all start to read.

The phases are in `classic_phases`, how a member joins in `classic_join`.

Rules kept here:

- Every member of a generation gets its assignment once, by the leader of that generation, so that no
  partition has two owners in it (if the leader assigns it once). Requests with an older generation are
  refused.
- Generations only grow.
- Every JoinGroup is answered: when the group has gathered, or when the member is removed.
- A static member that restarts takes the place of its former self, whose requests are fenced from then on,
  and the group does not rebalance for it.

The log has the last assignment of a group: generation, protocol, leader and members. Waiting requests, ids
that have not joined yet and the generation between Join and Sync are in memory only; after a failover members
get UNKNOWN_MEMBER_ID or ILLEGAL_GENERATION, and join again.

Behaviour, error codes and timing are those of Apache Kafka 4.3, observed from outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ottla.coordinator import classic_join
from ottla.coordinator import rebalance_history as history
from ottla.coordinator.classic_members import ClassicMembers, Member, as_record, from_record
from ottla.coordinator.classic_phases import JOIN, MIN_INITIAL_DELAY_MS, REBALANCE, SESSION, SYNC, Phase
from ottla.coordinator.group import CLASSIC, CONSUMER_PROTOCOL_TYPE, GroupSettings, Join, OffsetCommit
from ottla.coordinator.group_effects import GroupEffects, GroupTimer
from ottla.coordinator.rebalance_history import Cause, OngoingRebalance
from ottla.coordinator.records import Entry, GroupMetadataKey, GroupMetadataValue
from ottla.coordinator.runtime.effects import Reply
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from ottla.protocol.messages.leave_group import MemberIdentity
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse


class ClassicGroup:
    __slots__ = (
        "_assigned",
        "_ongoing",
        "generation",
        "group_id",
        "is_first",
        "leader",
        "pending",
        "phase",
        "protocol",
        "protocol_type",
        "roster",
        "saw_id_request",
        "saw_join",
        "settings",
        "since_ms",
        "unsynced",
    )

    kind = CLASSIC

    def __init__(self, group_id: str, settings: GroupSettings, members: ClassicMembers | None = None) -> None:
        self.group_id = group_id
        self.settings = settings
        self.roster = ClassicMembers() if members is None else members
        self.phase = Phase.EMPTY
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.generation = 0
        self.leader: str | None = None
        self.since_ms = -1
        """When it became empty or stable."""
        self.pending: frozenset[str] = frozenset()
        self.unsynced: frozenset[str] = frozenset()
        """Members of this generation that have not asked for their assignment yet."""
        self.is_first = False
        """This is the first rebalance since the group was empty: it waits for more members to come."""
        self.saw_join = False
        self.saw_id_request = False
        """Since the last timer of the first rebalance, a member has joined; a client has got an id."""
        self._ongoing: OngoingRebalance | None = None
        self._assigned: dict[str, bytes] = {}
        """The last assignment, by the names of members, including members that have left since."""

    def __repr__(self) -> str:
        return f"<group {self.group_id} {self.phase.value}, generation {self.generation}>"

    def draft(self) -> ClassicGroup:
        copy = object.__new__(ClassicGroup)
        for slot in ClassicGroup.__slots__:
            setattr(copy, slot, getattr(self, slot))
        copy.roster = self.roster.copy()
        return copy

    # -- what others see ----------------------------------------------------------------------------------

    @property
    def members(self) -> Mapping[str, Member]:
        return self.roster.by_id

    @property
    def state_name(self) -> str:
        return self.phase.value

    @property
    def is_deletable(self) -> bool:
        return self.phase is Phase.EMPTY and not self.pending

    @property
    def has_existed(self) -> bool:
        """False while clients have only been given ids to join with."""
        return self.generation != 0 or self.since_ms >= 0

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics of its consumers; None when they cannot be known."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        return self.roster.subscribed_topics(self.protocol)

    def is_subscribed(self, topic: str) -> bool:
        topics = self.subscribed_topics
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE if topics is None else topic in topics

    def offsets_unused_since(self, topic: str, committed_ms: int) -> int | None:
        if self.protocol_type is None:
            return committed_ms
        if self.phase is Phase.EMPTY:
            return self.since_ms if self.since_ms >= 0 else committed_ms
        if self.phase is Phase.STABLE and self.subscribed_topics is not None:
            return None if self.is_subscribed(topic) else committed_ms
        return None

    def check_delete(self) -> None:
        if self.phase is not Phase.EMPTY:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def check_offset_delete(self) -> None:
        if self.phase is not Phase.EMPTY and self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Every client may read the offsets of a classic group."""

    def check_commit(self, commit: OffsetCommit, effects: GroupEffects) -> None:
        """A commit counts as a heartbeat, unless it is part of a transaction.

        Members may commit in a transaction until their generation has ended, also during a rebalance.
        """
        if commit.generation < 0 and self.phase is Phase.EMPTY:
            return
        if not commit.names_no_member:
            member = self._checked(commit.member_id, commit.instance_id, commit.generation)
            if commit.transactional:
                return
            if self.phase is Phase.COMPLETING:
                raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
            self.restart_session(member, effects)
        elif not commit.transactional:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)

    def _checked(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        """The member with this id, which must be in the present generation."""
        member = self.roster.checked(member_id, instance_id)
        if generation != self.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        return member

    def restart_session(self, member: Member, effects: GroupEffects) -> None:
        effects.set_timer(
            GroupTimer(self.group_id, SESSION, member.member_id, delay_ms=member.session_timeout_ms)
        )

    def join(self, join: Join, effects: GroupEffects) -> None:
        classic_join.join(self, join, effects)

    # -- gathering ----------------------------------------------------------------------------------------

    def rebalance(self, cause: Cause, effects: GroupEffects) -> None:
        """Start a rebalance, or see whether the present one can end."""
        self._note([cause], effects)
        if self.phase is Phase.PREPARING:
            self.complete_if_all_joined(effects)
            return
        if self.phase is Phase.COMPLETING:
            self._answer_syncs_with(ErrorCode.REBALANCE_IN_PROGRESS, effects)
        self.unsynced = frozenset()
        effects.cancel(self.group_id, SYNC)
        self.is_first = self.phase is Phase.EMPTY
        self.saw_join = self.saw_id_request = False
        self.phase = Phase.PREPARING
        timeout = self.roster.rebalance_timeout_ms
        if self.is_first:
            # A new group: more members are likely to come, and each of them would mean another rebalance.
            delay = max(self.settings.initial_rebalance_delay_ms, MIN_INITIAL_DELAY_MS)
            remaining = max(timeout - delay, 0)
            effects.set_timer(GroupTimer(self.group_id, JOIN, delay_ms=delay, remaining_ms=remaining))
            return
        self.complete_if_all_joined(effects)
        if self.phase is Phase.PREPARING:
            effects.set_timer(GroupTimer(self.group_id, JOIN, delay_ms=timeout))

    def complete_if_all_joined(self, effects: GroupEffects) -> None:
        if self.is_first and self.members:
            return  # the first rebalance ends by its timer
        if not self.pending and all(member.joining is not None for member in self.members.values()):
            self._complete_join(effects)

    def _complete_join(self, effects: GroupEffects) -> None:
        """All have joined, or the time is over: a new generation of those that have."""
        for member in [m for m in self.members.values() if m.joining is None and m.instance_id is None]:
            self._note([Cause(history.DID_NOT_REJOIN, member.name, member.client_id)], effects)
            self._remove(member.member_id, effects)
        if not self.members:
            self._become_empty(effects)
            return
        timeout = self.roster.rebalance_timeout_ms
        if not self._elect_leader():
            # Static members only, and none has rejoined: they stay until their sessions end.
            effects.set_timer(GroupTimer(self.group_id, JOIN, delay_ms=timeout))
            return
        effects.cancel(self.group_id, JOIN)
        self.generation += 1
        self.protocol = self.roster.choose_protocol()
        self.phase = Phase.COMPLETING
        self.is_first = False
        self.unsynced = frozenset(self.members)
        for member in list(self.members.values()):
            response = self.joined(member, with_members=member.member_id == self.leader)
            effects.answer(member.joining, response)
            self.roster.put(replace(member, joining=None, is_new=False))
            self.restart_session(member, effects)
        effects.set_timer(GroupTimer(self.group_id, SYNC, generation=self.generation, delay_ms=timeout))

    def _become_empty(self, effects: GroupEffects) -> None:
        effects.cancel(self.group_id, JOIN)
        effects.cancel(self.group_id, SYNC)
        self.leader = None
        self.protocol = None
        self._conclude(self.generation + 1, {}, effects)
        self._write(effects, {}, self.generation + 1)

    def _elect_leader(self) -> bool:
        """Keep the leader if it has joined, else take the first that has. False when none has."""
        current = self.members.get(self.leader or "")
        if current is None or current.joining is None:
            joined = next((id_ for id_, member in self.members.items() if member.joining is not None), None)
            if joined is None:
                return False
            self.leader = joined
        return True

    def joined(self, member: Member, *, with_members: bool) -> JoinGroupResponse:
        members = [
            JoinGroupResponseMember(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                metadata=each.metadata(self.protocol),
            )
            for each in (self.members.values() if with_members else ())
        ]
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=self.leader or "",
            member_id=member.member_id,
            members=members,
        )

    # -- syncing ------------------------------------------------------------------------------------------

    def sync(self, request: SyncGroupRequest, reply: Reply, effects: GroupEffects) -> None:
        member = self._checked(request.member_id, request.group_instance_id, request.generation_id)
        if request.protocol_type not in (None, self.protocol_type) or request.protocol_name not in (
            None,
            self.protocol,
        ):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self.phase is Phase.PREPARING:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        if self.phase is Phase.EMPTY:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        self.unsynced -= {member.member_id}
        if not self.unsynced:
            effects.cancel(self.group_id, SYNC)
        self.restart_session(member, effects)
        if self.phase is Phase.STABLE:
            effects.answer(reply, self._synced(member.assignment))
            return
        effects.answer(member.syncing, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        self.roster.put(replace(member, syncing=reply))
        if member.member_id == self.leader:
            self._assign({each.member_id: each.assignment for each in request.assignments}, effects)

    def _assign(self, given: Mapping[str, bytes], effects: GroupEffects) -> None:
        """The leader has assigned the partitions. Members that it does not mention get none."""
        assignments = {member_id: given.get(member_id, b"") for member_id in self.members}
        self._write(effects, assignments)
        for member in list(self.members.values()):
            if member.syncing is not None:
                self._answer_sync(member, self._synced(assignments[member.member_id]), effects)
        self._conclude(self.generation, assignments, effects)

    def _synced(self, assignment: bytes) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol, assignment=assignment
        )

    def _answer_sync(self, member: Member, response: SyncGroupResponse, effects: GroupEffects) -> None:
        effects.answer(member.syncing, response)
        self.roster.put(replace(member, syncing=None))
        self.restart_session(member, effects)

    def _answer_syncs_with(self, error: ErrorCode, effects: GroupEffects) -> None:
        for member in list(self.members.values()):
            if member.syncing is not None:
                self._answer_sync(member, SyncGroupResponse(error_code=error), effects)

    def answer_join_with(self, error: ErrorCode, member: Member, effects: GroupEffects) -> None:
        effects.answer(member.joining, JoinGroupResponse(error_code=error, member_id=member.member_id))

    def release(self, effects: GroupEffects) -> None:
        """The group becomes one of the consumer protocol: waiting members are told to rejoin."""
        for member in self.members.values():
            self.answer_join_with(ErrorCode.REBALANCE_IN_PROGRESS, member, effects)
            effects.answer(member.syncing, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        for kind in (JOIN, SYNC):
            effects.cancel(self.group_id, kind)

    # -- staying and leaving ------------------------------------------------------------------------------

    def heartbeat(self, request: HeartbeatRequest, effects: GroupEffects) -> ErrorCode:
        member = self._checked(request.member_id, request.group_instance_id, request.generation_id)
        if self.phase is Phase.EMPTY:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        self.restart_session(member, effects)
        return ErrorCode.REBALANCE_IN_PROGRESS if self.phase is Phase.PREPARING else ErrorCode.NONE

    def leave(self, identities: Sequence[MemberIdentity], effects: GroupEffects) -> list[ErrorCode]:
        """An administrator may name static members by their instance id alone."""
        outcomes = []
        causes = []
        for identity in identities:
            member_id, instance_id = identity.member_id, identity.group_instance_id
            if not member_id and instance_id is not None:
                member_id = self.roster.static_id(instance_id) or ""
            if member_id in self.pending:
                self.pending -= {member_id}
                effects.cancel(self.group_id, SESSION, member_id)
                outcomes.append(ErrorCode.NONE)
                causes.append(Cause(history.LEFT, member_id))
                continue
            try:
                member = self.roster.checked(member_id, instance_id)
            except ApiError as error:
                outcomes.append(error.code)
                continue
            self._remove(member_id, effects)
            outcomes.append(ErrorCode.NONE)
            causes.append(Cause(history.LEFT, member.name, member.client_id, identity.reason or ""))
        self._members_removed(causes, effects)
        return outcomes

    def on_timer(self, timer: GroupTimer, effects: GroupEffects) -> None:
        if timer.kind == SESSION:
            self._session_over(timer.member_id, effects)
        elif timer.kind == SYNC:
            self._sync_overdue(timer.generation, effects)
        elif timer.kind == REBALANCE:
            if self.phase is Phase.STABLE:
                self.rebalance(Cause(history.DOWNGRADED), effects)
        elif self.phase is Phase.PREPARING:
            if self.is_first and (self.saw_join or self.saw_id_request) and timer.remaining_ms > 0:
                self._wait_for_more(timer, effects)
            else:
                self._complete_join(effects)

    def _wait_for_more(self, timer: GroupTimer, effects: GroupEffects) -> None:
        """Members are still coming: delay the first generation once more."""
        # A client that has only asked for an id joins within milliseconds, if at all.
        usual = self.settings.initial_rebalance_delay_ms if self.saw_join else 0
        delay = min(max(usual, MIN_INITIAL_DELAY_MS), timer.remaining_ms)
        remaining = max(timer.remaining_ms - timer.delay_ms, 0)
        self.saw_join = self.saw_id_request = False
        effects.set_timer(GroupTimer(self.group_id, JOIN, delay_ms=delay, remaining_ms=remaining))

    def _session_over(self, member_id: str, effects: GroupEffects) -> None:
        if member_id in self.pending:
            self.pending -= {member_id}
            self._members_removed([], effects)
            return
        member = self.members.get(member_id)
        if member is None:
            return
        if not member.is_new and (member.joining is not None or member.syncing is not None):
            return  # it waits for an answer; its session starts again with that
        self._remove(member_id, effects)
        self._members_removed([Cause(history.SILENT, member.name, member.client_id)], effects)

    def _sync_overdue(self, generation: int, effects: GroupEffects) -> None:
        if generation != self.generation or not self.unsynced or self.phase is Phase.PREPARING:
            return
        late = [self.members[member_id] for member_id in self.members if member_id in self.unsynced]
        for member in late:
            self._remove(member.member_id, effects)
        self._members_removed([Cause(history.DID_NOT_SYNC, m.name, m.client_id) for m in late], effects)

    def _members_removed(self, causes: Sequence[Cause], effects: GroupEffects) -> None:
        """The others rebalance, or have all joined now that the missing ones are gone."""
        if self.phase is Phase.PREPARING:
            self._note(causes, effects)
            self.complete_if_all_joined(effects)
        elif self.phase is not Phase.EMPTY and causes:
            self._note(causes[:-1], effects)
            self.rebalance(causes[-1], effects)

    def _remove(self, member_id: str, effects: GroupEffects) -> None:
        member = self.roster.remove(member_id)
        self.unsynced -= {member_id}
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        effects.answer(member.joining, JoinGroupResponse(error_code=unknown, member_id=""))
        effects.answer(member.syncing, SyncGroupResponse(error_code=unknown))
        effects.cancel(self.group_id, SESSION, member_id)

    def resume(self, effects: GroupEffects) -> None:
        for member in self.members.values():
            self.restart_session(member, effects)
        if len(self.members) > self.settings.max_size:
            self.rebalance(Cause(history.TOO_LARGE), effects)

    # -- the log ------------------------------------------------------------------------------------------

    def write_assignments(self, effects: GroupEffects) -> None:
        """Write the group to the log as it is."""
        self._write(effects, {member.member_id: member.assignment for member in self.members.values()})

    def _write(
        self, effects: GroupEffects, assignments: Mapping[str, bytes], generation: int | None = None
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

    def tombstones(self) -> Sequence[Entry]:
        return [(GroupMetadataKey(group=self.group_id), None)]

    def replay(self, value: GroupMetadataValue) -> None:
        """Become what the log says. After a command this completes what the command left to the log."""
        self.protocol_type = value.protocol_type or None
        self.generation = value.generation
        self.protocol = value.protocol
        self.leader = value.leader
        self.since_ms = value.current_state_timestamp
        known = self.members
        self.roster = ClassicMembers(
            from_record(record, value.protocol, known.get(record.member_id)) for record in value.members
        )
        self.phase = Phase.STABLE if self.members else Phase.EMPTY
        self._assigned = {member.name: member.assignment for member in self.members.values()}
        self.is_first = self.saw_join = False

    # -- the rebalance history ----------------------------------------------------------------------------

    def _note(self, causes: Sequence[Cause], effects: GroupEffects) -> None:
        self._ongoing = (self._ongoing or OngoingRebalance(effects.now_ms)).because(causes)

    def _conclude(self, generation: int, assignments: Mapping[str, bytes], effects: GroupEffects) -> None:
        """The rebalance is over: add it to the history."""
        ongoing, self._ongoing = self._ongoing or OngoingRebalance(effects.now_ms), None
        is_consumer = self.protocol_type == CONSUMER_PROTOCOL_TYPE
        named = ((self.members[member_id].name, data) for member_id, data in assignments.items())
        leader = self.members.get(self.leader or "")
        effects.rebalances.append(
            ongoing.concluded(
                group_id=self.group_id,
                generation=generation,
                now_ms=effects.now_ms,
                protocol=self.protocol,
                leader=leader.name if leader is not None else None,
                before=history.decoded_shares(self._assigned.items(), is_consumer),
                after=history.decoded_shares(named, is_consumer),
            )
        )
