"""A consumer group of the classic protocol: members gather, one of them decides, all go to work.

    Empty ---- a member joins ----> PreparingRebalance ---- all have joined, or time is over ----.
      ^                                ^        |                                                |
      |                                |        '---- all are gone ----> Empty                   v
      |                    a member joins, leaves,          .---------------------- CompletingRebalance
      |                    falls silent or changes          |
      '--------- all are gone ---------|------ Stable <-----'  the leader brings the assignment

In PreparingRebalance the members come back with JoinGroup and wait until all are there; who does not come
within the rebalance timeout is left behind. Then there is a new generation with a leader and a protocol, and
everybody is answered. In CompletingRebalance they wait with SyncGroup for the leader's assignment; when the
log has it, the group is Stable. A group that is deleted is gone, which Kafka calls Dead.

Rules kept here:

- Every member of a generation is given its share once, by the leader of that generation, so that no partition
  has two owners in it (if the leader gives it once). Who names an older generation is refused.
- Generations only grow.
- Everybody who joins is answered: when the group has gathered, or when it is removed.
- A static member that comes back takes the place of its former self, whose requests are fenced from then on,
  and the group does not rebalance for it.

Behaviour, codes and timing are those of Apache Kafka 4.3, looked at from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ottla.coordinator import journal
from ottla.coordinator.classic_member import Member, Protocols, choose_protocol, common_protocols
from ottla.coordinator.classic_state import JOIN, SESSION, SYNC, ClassicState, Phase
from ottla.coordinator.effects import Alarm, Effects, Reply
from ottla.coordinator.group import Caller
from ottla.coordinator.journal import Cause
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from ottla.protocol.messages.leave_group import MemberIdentity
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

NEW_MEMBER_PATIENCE_MS = 5 * 60_000
"""A member that has never been answered cannot send heartbeats; so long its JoinGroup may wait."""

FIRST_BREATH_MS = 20
"""A new group waits at least so long for more members, and again while they come: whoever is started together
arrives within a few ms, and a generation without the others would cost them heartbeats until the next one."""

MEMBER_ID_REQUIRED_SINCE = 4
SKIPS_ASSIGNMENT_SINCE = 9


class ClassicGroup(ClassicState):
    __slots__ = ()

    # -- joining ------------------------------------------------------------------------------------------

    def join(
        self, request: JoinGroupRequest, new_id: str, caller: Caller, reply: Reply, effects: Effects
    ) -> None:
        """`new_id` is for a member that has none. It goes unused when the member brings one."""
        if not self._has_room_for(request.member_id):
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        protocols = tuple((protocol.name, protocol.metadata) for protocol in request.protocols)
        if not self._speaks(request.protocol_type, protocols):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if request.member_id:
            self._join_again(request, protocols, caller, reply, effects)
        elif request.group_instance_id is not None and request.group_instance_id in self._static:
            self._replace_static(request, protocols, new_id, caller, reply, effects)
        elif request.group_instance_id is None and caller.version >= MEMBER_ID_REQUIRED_SINCE:
            self.pending |= {new_id}
            self._more_ask = self.phase is Phase.PREPARING and self._from_empty
            effects.set_alarm(Alarm(self.group_id, SESSION, new_id, delay_ms=request.session_timeout_ms))
            effects.answer(
                reply, JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=new_id)
            )
        else:
            self._add(request, protocols, new_id, caller, reply, effects)

    def _has_room_for(self, member_id: str) -> bool:
        limit = self._settings.max_size
        known = self.members.get(member_id)
        if self.phase is Phase.PREPARING:
            # Those who have not come back yet may stay away: only who is here counts.
            here = sum(member.joining is not None for member in self.members.values())
            return here < limit or (known is not None and known.joining is not None)
        return self.phase is Phase.EMPTY or known is not None or len(self.members) < limit

    def _speaks(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether the group can still agree when somebody with these protocols is in it."""
        if not protocol_type or not protocols:
            return False
        common = common_protocols(self.members.values())
        if common is None:
            return True
        return protocol_type == self.protocol_type and any(name in common for name, _ in protocols)

    def _join_again(
        self, request: JoinGroupRequest, protocols: Protocols, caller: Caller, reply: Reply, effects: Effects
    ) -> None:
        if request.member_id in self.pending and request.group_instance_id is None:
            self._add(request, protocols, request.member_id, caller, reply, effects)
            return
        member = self._checked(request.member_id, request.group_instance_id)
        unchanged = protocols == member.protocols
        is_leader = member.member_id == self.leader
        if self.phase is Phase.EMPTY:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if unchanged and (self.phase is Phase.COMPLETING or (self.phase is Phase.STABLE and not is_leader)):
            # Its last answer got lost, or it only wants to know where the group stands.
            effects.answer(reply, self._joined(member, with_members=is_leader))
            self._expect(member, effects)
            return
        self._update(member, request, protocols, reply, effects)
        if unchanged and self.phase is Phase.PREPARING:
            self._complete_if_all_joined(effects)  # it comes back, as it was asked to
            return
        what = journal.LEADER_REJOINED if unchanged else journal.CHANGED
        self._gather(Cause(what, member.name, member.client_id, request.reason or ""), effects)

    def _add(
        self,
        request: JoinGroupRequest,
        protocols: Protocols,
        member_id: str,
        caller: Caller,
        reply: Reply,
        effects: Effects,
    ) -> None:
        member = Member(
            member_id=member_id,
            instance_id=request.group_instance_id,
            client_id=caller.client_id,
            client_host=caller.client_host,
            rebalance_timeout_ms=_rebalance_timeout(request),
            session_timeout_ms=request.session_timeout_ms,
            protocols=protocols,
            joining=reply,
            is_new=True,
        )
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members[member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member_id
        self.leader = self.leader or member_id
        self.pending -= {member_id}
        self._more_came = self.phase is Phase.PREPARING and self._from_empty
        effects.set_alarm(Alarm(self.group_id, SESSION, member_id, delay_ms=NEW_MEMBER_PATIENCE_MS))
        self._gather(Cause(journal.JOINED, member.name, member.client_id, request.reason or ""), effects)

    def _update(
        self, member: Member, request: JoinGroupRequest, protocols: Protocols, reply: Reply, effects: Effects
    ) -> Member:
        """A member is here again, with what it wants now. If it waited already, that request is void."""
        effects.answer(
            member.joining,
            JoinGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id),
        )
        member = replace(
            member,
            protocols=protocols,
            rebalance_timeout_ms=_rebalance_timeout(request),
            session_timeout_ms=request.session_timeout_ms,
            joining=reply,
        )
        self.members[member.member_id] = member
        return member

    def _replace_static(
        self,
        request: JoinGroupRequest,
        protocols: Protocols,
        new_id: str,
        caller: Caller,
        reply: Reply,
        effects: Effects,
    ) -> None:
        """A static member has started again and has forgotten its id: it gets a new one and the old place."""
        assert request.group_instance_id is not None
        old = self.members[self._static[request.group_instance_id]]
        fenced = ErrorCode.FENCED_INSTANCE_ID
        effects.answer(old.joining, JoinGroupResponse(error_code=fenced, member_id=old.member_id))
        effects.answer(old.syncing, SyncGroupResponse(error_code=fenced))
        effects.cancel(self.group_id, SESSION, old.member_id)
        leader_before = self.leader or ""
        member = replace(
            old,
            member_id=new_id,
            client_id=caller.client_id,
            client_host=caller.client_host,
            protocols=protocols,
            rebalance_timeout_ms=_rebalance_timeout(request),
            session_timeout_ms=request.session_timeout_ms,
            joining=reply,
            syncing=None,
            is_new=False,
        )
        # The member keeps its place in the order, which decides about leaders.
        self.members = {
            (new_id if key == old.member_id else key): (member if key == old.member_id else value)
            for key, value in self.members.items()
        }
        self._static[request.group_instance_id] = new_id
        if self.leader == old.member_id:
            self.leader = new_id
        if old.member_id in self.unsynced:
            self.unsynced = self.unsynced - {old.member_id} | {new_id}
        self._expect(member, effects)
        if self.phase is Phase.STABLE and choose_protocol(self.members) == self.protocol:
            self.members[new_id] = replace(member, joining=None)
            self._write(effects, {key: each.assignment for key, each in self.members.items()})
            if caller.version >= SKIPS_ASSIGNMENT_SINCE:
                response = self._joined(member, with_members=self.leader == new_id)
                response.skip_assignment = self.leader == new_id
            else:
                # A leader that cannot skip must not know that it leads, or it would decide anew for all.
                response = self._joined(member, with_members=False)
                response.leader = leader_before
            effects.answer(reply, response)
            return
        cause = Cause(journal.REPLACED, member.name, member.client_id, request.reason or "")
        self._gather(cause, effects)

    # -- gathering ----------------------------------------------------------------------------------------

    def _gather(self, cause: Cause, effects: Effects) -> None:
        """Something happened that everybody must know: begin a rebalance, or see whether one can end."""
        self._note(cause, effects)
        if self.phase is Phase.PREPARING:
            self._complete_if_all_joined(effects)
            return
        if self.phase is Phase.COMPLETING:
            self._answer_syncs_with(ErrorCode.REBALANCE_IN_PROGRESS, effects)
        self.unsynced = frozenset()
        effects.cancel(self.group_id, SYNC)
        self._from_empty = self.phase is Phase.EMPTY
        self._more_came = self._more_ask = False
        self.phase = Phase.PREPARING
        if self._from_empty:
            # A new group: more members are likely to come, and each of them would mean another rebalance.
            delay = max(self._settings.initial_rebalance_delay_ms, FIRST_BREATH_MS)
            remaining = max(self.rebalance_timeout_ms - delay, 0)
            effects.set_alarm(Alarm(self.group_id, JOIN, delay_ms=delay, remaining_ms=remaining))
            return
        self._complete_if_all_joined(effects)
        if self.phase is Phase.PREPARING:
            effects.set_alarm(Alarm(self.group_id, JOIN, delay_ms=self.rebalance_timeout_ms))

    def _complete_if_all_joined(self, effects: Effects) -> None:
        if self._from_empty and self.members:
            return  # the first rebalance ends by its time
        if not self.pending and all(member.joining is not None for member in self.members.values()):
            self._complete_join(effects)

    def _complete_join(self, effects: Effects) -> None:
        """The group has gathered, or waits no longer: a new generation of those who are here."""
        for member in [m for m in self.members.values() if m.joining is None and m.instance_id is None]:
            self._note(Cause(journal.DID_NOT_REJOIN, member.name, member.client_id), effects)
            self._remove(member.member_id, effects)
        if not self.members:
            self._become_empty(effects)
            return
        if not self._elect_leader():
            # Static members only, and none has come back: their places are kept until they fall silent.
            effects.set_alarm(Alarm(self.group_id, JOIN, delay_ms=self.rebalance_timeout_ms))
            return
        effects.cancel(self.group_id, JOIN)
        self.generation += 1
        self.protocol = choose_protocol(self.members)
        self.phase = Phase.COMPLETING
        self._from_empty = False
        self.unsynced = frozenset(self.members)
        for member in list(self.members.values()):
            response = self._joined(member, with_members=member.member_id == self.leader)
            effects.answer(member.joining, response)
            self.members[member.member_id] = replace(member, joining=None, is_new=False)
            self._expect(member, effects)
        effects.set_alarm(
            Alarm(self.group_id, SYNC, generation=self.generation, delay_ms=self.rebalance_timeout_ms)
        )

    def _become_empty(self, effects: Effects) -> None:
        effects.cancel(self.group_id, JOIN)
        effects.cancel(self.group_id, SYNC)
        self.leader = None
        self.protocol = None
        self._conclude(self.generation + 1, {}, effects)
        self._write(effects, {}, self.generation + 1)

    def _elect_leader(self) -> bool:
        """Keep the leader if it is here, else take the first who is. False when nobody is here."""
        current = self.members.get(self.leader or "")
        if current is None or current.joining is None:
            here = next((id_ for id_, member in self.members.items() if member.joining is not None), None)
            if here is None:
                return False
            self.leader = here
        return True

    def _joined(self, member: Member, *, with_members: bool) -> JoinGroupResponse:
        everybody = [
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
            members=everybody,
        )

    # -- syncing ------------------------------------------------------------------------------------------

    def sync(self, request: SyncGroupRequest, reply: Reply, effects: Effects) -> None:
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
        self._expect(member, effects)
        if self.phase is Phase.STABLE:
            effects.answer(reply, self._synced(member.assignment))
            return
        effects.answer(member.syncing, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        self.members[member.member_id] = replace(member, syncing=reply)
        if member.member_id == self.leader:
            self._assign({each.member_id: each.assignment for each in request.assignments}, effects)

    def _assign(self, given: Mapping[str, bytes], effects: Effects) -> None:
        """The leader has decided. Members it does not mention get nothing to do."""
        assignments = {member_id: given.get(member_id, b"") for member_id in self.members}
        self._write(effects, assignments)
        for member in list(self.members.values()):
            if member.syncing is not None:
                effects.answer(member.syncing, self._synced(assignments[member.member_id]))
                self.members[member.member_id] = replace(member, syncing=None)
                self._expect(member, effects)
        self._conclude(self.generation, assignments, effects)

    def _synced(self, assignment: bytes) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol, assignment=assignment
        )

    def _answer_syncs_with(self, error: ErrorCode, effects: Effects) -> None:
        for member in list(self.members.values()):
            if member.syncing is not None:
                effects.answer(member.syncing, SyncGroupResponse(error_code=error))
                self.members[member.member_id] = replace(member, syncing=None)
                self._expect(member, effects)

    # -- staying and leaving ------------------------------------------------------------------------------

    def heartbeat(self, request: HeartbeatRequest, effects: Effects) -> ErrorCode:
        member = self._checked(request.member_id, request.group_instance_id, request.generation_id)
        if self.phase is Phase.EMPTY:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        self._expect(member, effects)
        return ErrorCode.REBALANCE_IN_PROGRESS if self.phase is Phase.PREPARING else ErrorCode.NONE

    def leave(self, identities: Iterable[MemberIdentity], effects: Effects) -> list[ErrorCode]:
        """Remove members; the outcome for each. An administrator names static members by instance id only."""
        outcomes = []
        causes = []
        for identity in identities:
            member_id, instance_id = identity.member_id, identity.group_instance_id
            if not member_id and instance_id is not None:
                member_id = self._static.get(instance_id, "")
            if member_id in self.pending:
                self.pending -= {member_id}
                effects.cancel(self.group_id, SESSION, member_id)
                outcomes.append(ErrorCode.NONE)
                causes.append(Cause(journal.LEFT, member_id))
                continue
            try:
                member = self._checked(member_id, instance_id)
            except ApiError as error:
                outcomes.append(error.code)
                continue
            self._remove(member_id, effects)
            outcomes.append(ErrorCode.NONE)
            causes.append(Cause(journal.LEFT, member.name, member.client_id, identity.reason or ""))
        self._others_go_on(causes, effects)
        return outcomes

    def on_alarm(self, alarm: Alarm, effects: Effects) -> None:
        if alarm.kind == SESSION:
            self._silent(alarm.member_id, effects)
        elif alarm.kind == SYNC:
            self._sync_overdue(alarm.generation, effects)
        elif self.phase is Phase.PREPARING:
            if self._from_empty and (self._more_came or self._more_ask) and alarm.remaining_ms > 0:
                # Who has only asked for an id is back in a moment, if at all.
                usual = self._settings.initial_rebalance_delay_ms if self._more_came else 0
                delay = min(max(usual, FIRST_BREATH_MS), alarm.remaining_ms)
                remaining = max(alarm.remaining_ms - alarm.delay_ms, 0)
                self._more_came = self._more_ask = False
                effects.set_alarm(Alarm(self.group_id, JOIN, delay_ms=delay, remaining_ms=remaining))
            else:
                self._complete_join(effects)

    def _silent(self, member_id: str, effects: Effects) -> None:
        if member_id in self.pending:
            self.pending -= {member_id}
            self._others_go_on([], effects)
            return
        member = self.members.get(member_id)
        if member is None:
            return
        if not member.is_new and (member.joining is not None or member.syncing is not None):
            return  # it waits for us; its time begins again with the answer
        self._remove(member_id, effects)
        self._others_go_on([Cause(journal.SILENT, member.name, member.client_id)], effects)

    def _sync_overdue(self, generation: int, effects: Effects) -> None:
        if generation != self.generation or not self.unsynced or self.phase is Phase.PREPARING:
            return
        late = [self.members[member_id] for member_id in self.members if member_id in self.unsynced]
        for member in late:
            self._remove(member.member_id, effects)
        self._others_go_on([Cause(journal.DID_NOT_SYNC, m.name, m.client_id) for m in late], effects)

    def _others_go_on(self, causes: Sequence[Cause], effects: Effects) -> None:
        """Members were removed: the others gather, or have gathered now that nobody is missing."""
        if self.phase is Phase.PREPARING:
            for cause in causes:
                self._note(cause, effects)
            self._complete_if_all_joined(effects)
        elif self.phase is not Phase.EMPTY and causes:
            *first, last = causes
            for cause in first:
                self._note(cause, effects)
            self._gather(last, effects)

    def _remove(self, member_id: str, effects: Effects) -> None:
        member = self.members.pop(member_id)
        if member.instance_id is not None:
            self._static.pop(member.instance_id, None)
        self.unsynced -= {member_id}
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        effects.answer(member.joining, JoinGroupResponse(error_code=unknown, member_id=""))
        effects.answer(member.syncing, SyncGroupResponse(error_code=unknown))
        effects.cancel(self.group_id, SESSION, member_id)

    def resume(self, effects: Effects) -> None:
        """Read from the log by a new coordinator: wait for the members again."""
        for member in self.members.values():
            self._expect(member, effects)
        if len(self.members) > self._settings.max_size:
            self._gather(Cause(journal.TOO_LARGE), effects)


def _rebalance_timeout(request: JoinGroupRequest) -> int:
    """Version 0 has none: the session timeout stands in."""
    return request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms
