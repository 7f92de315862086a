"""How a member joins a classic group: the rules of a JoinGroup request.

A new member first gets an id and joins with it (before version 4, and as a static member, it joins at once).
A member that is known rejoins, because it was asked to or because its subscription has changed. A static
member that has restarted without its id takes the place of its former self.

`group` is a draft here. What follows for the group, a rebalance in most cases, is in `classic_group`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ottla.coordinator import rebalance_history as history
from ottla.coordinator.classic_members import Member, Protocols
from ottla.coordinator.classic_phases import SESSION, Phase
from ottla.coordinator.group import Join
from ottla.coordinator.group_effects import GroupEffects, GroupTimer
from ottla.coordinator.rebalance_history import Cause
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from ottla.coordinator.classic_group import ClassicGroup

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60_000
"""How long the JoinGroup of a new member may wait. It cannot send heartbeats before it is answered."""

MEMBER_ID_REQUIRED_SINCE = 4
SKIPS_ASSIGNMENT_SINCE = 9


def join(group: ClassicGroup, join: Join, effects: GroupEffects) -> None:
    request = join.request
    if not _has_capacity_for(group, request.member_id):
        raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED)
    if not _supports(group, request.protocol_type, join.protocols):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if request.member_id:
        _rejoin(group, join, effects)
    elif group.roster.static_id(request.group_instance_id) is not None:
        _replace_static(group, join, effects)
    elif request.group_instance_id is None and join.caller.version >= MEMBER_ID_REQUIRED_SINCE:
        _give_id(group, join, effects)
    else:
        _add(group, join, join.new_id, effects)


def _has_capacity_for(group: ClassicGroup, member_id: str) -> bool:
    limit = group.settings.max_size
    known = group.members.get(member_id)
    if group.phase is Phase.PREPARING:
        # Members that have not rejoined yet may never do so: only those that have count.
        joined = sum(member.joining is not None for member in group.members.values())
        return joined < limit or (known is not None and known.joining is not None)
    return group.phase is Phase.EMPTY or known is not None or len(group.members) < limit


def _supports(group: ClassicGroup, protocol_type: str, protocols: Protocols) -> bool:
    """Whether the group still has a common protocol with a member that supports these."""
    if not protocol_type or not protocols:
        return False
    common = group.roster.common_protocols()
    if common is None:
        return True
    return protocol_type == group.protocol_type and any(name in common for name, _ in protocols)


def _give_id(group: ClassicGroup, join: Join, effects: GroupEffects) -> None:
    """A new member gets its id first, so that it can be removed if it does not come back with it."""
    group.pending |= {join.new_id}
    group.saw_id_request = group.phase is Phase.PREPARING and group.is_first
    delay = join.request.session_timeout_ms
    effects.set_timer(GroupTimer(group.group_id, SESSION, join.new_id, delay_ms=delay))
    effects.answer(
        join.reply, JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=join.new_id)
    )


def _rejoin(group: ClassicGroup, join: Join, effects: GroupEffects) -> None:
    request = join.request
    if request.member_id in group.pending and request.group_instance_id is None:
        _add(group, join, request.member_id, effects)
        return
    member = group.roster.checked(request.member_id, request.group_instance_id)
    unchanged = join.protocols == member.protocols
    is_leader = member.member_id == group.leader
    if group.phase is Phase.EMPTY:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    if unchanged and (group.phase is Phase.COMPLETING or (group.phase is Phase.STABLE and not is_leader)):
        # Its last answer was lost, or it only wants to know the present generation.
        effects.answer(join.reply, group.joined(member, with_members=is_leader))
        group.restart_session(member, effects)
        return
    group.answer_join_with(ErrorCode.REBALANCE_IN_PROGRESS, member, effects)  # an earlier request
    group.roster.put(
        replace(
            member,
            protocols=join.protocols,
            rebalance_timeout_ms=_rebalance_timeout(request),
            session_timeout_ms=request.session_timeout_ms,
            joining=join.reply,
        )
    )
    if unchanged and group.phase is Phase.PREPARING:
        group.complete_if_all_joined(effects)  # it rejoins, as it was asked to
        return
    what = history.LEADER_REJOINED if unchanged else history.CHANGED
    group.rebalance(Cause(what, member.name, member.client_id, request.reason or ""), effects)


def _add(group: ClassicGroup, join: Join, member_id: str, effects: GroupEffects) -> None:
    request, caller = join.request, join.caller
    member = Member(
        member_id=member_id,
        instance_id=request.group_instance_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        rebalance_timeout_ms=_rebalance_timeout(request),
        session_timeout_ms=request.session_timeout_ms,
        protocols=join.protocols,
        joining=join.reply,
        is_new=True,
    )
    if not group.members:
        group.protocol_type = request.protocol_type
    group.roster.put(member)
    group.leader = group.leader or member_id
    group.pending -= {member_id}
    group.saw_join = group.phase is Phase.PREPARING and group.is_first
    delay = NEW_MEMBER_JOIN_TIMEOUT_MS
    effects.set_timer(GroupTimer(group.group_id, SESSION, member_id, delay_ms=delay))
    group.rebalance(Cause(history.JOINED, member.name, member.client_id, request.reason or ""), effects)


def _replace_static(group: ClassicGroup, join: Join, effects: GroupEffects) -> None:
    """A static member has restarted without its id: it gets a new one and the old position."""
    request, caller, new_id = join.request, join.caller, join.new_id
    old = group.members[group.roster.static_id(request.group_instance_id) or ""]
    group.answer_join_with(ErrorCode.FENCED_INSTANCE_ID, old, effects)
    effects.answer(old.syncing, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
    effects.cancel(group.group_id, SESSION, old.member_id)
    leader_before = group.leader or ""
    member = replace(
        old,
        member_id=new_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        protocols=join.protocols,
        rebalance_timeout_ms=_rebalance_timeout(request),
        session_timeout_ms=request.session_timeout_ms,
        joining=join.reply,
        syncing=None,
        is_new=False,
    )
    group.roster.rename(old.member_id, member)
    if group.leader == old.member_id:
        group.leader = new_id
    if old.member_id in group.unsynced:
        group.unsynced = group.unsynced - {old.member_id} | {new_id}
    group.restart_session(member, effects)
    if group.phase is not Phase.STABLE or group.roster.choose_protocol() != group.protocol:
        group.rebalance(Cause(history.REPLACED, member.name, member.client_id, request.reason or ""), effects)
        return
    group.roster.put(replace(member, joining=None))
    group.write_assignments(effects)
    is_leader = group.leader == new_id
    if caller.version >= SKIPS_ASSIGNMENT_SINCE:
        response = group.joined(member, with_members=is_leader)
        response.skip_assignment = is_leader
    else:
        # A leader that cannot skip must not know that it leads, or it would assign anew for all.
        response = group.joined(member, with_members=False)
        response.leader = leader_before
    effects.answer(join.reply, response)


def _rebalance_timeout(request: JoinGroupRequest) -> int:
    """Version 0 has none and uses the session timeout."""
    return request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms
