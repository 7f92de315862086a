"""All groups of one shard, of both protocols: the commands behind ConsumerGroupHeartbeat and its relatives.

`Groups` knows classic groups and offsets. Here the groups of the consumer protocol come beside them. One id
names one group, of one kind at a time. A member that speaks the other protocol makes an empty group change
its kind; what it does to one that has members is in `migration`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ottla.coordinator import migration
from ottla.coordinator.classic_group import ClassicGroup
from ottla.coordinator.consumer_group import ConsumerGroup
from ottla.coordinator.consumer_member import JOINING, LEAVING
from ottla.coordinator.consumer_state import Surroundings
from ottla.coordinator.effects import Alarm, Effects, Reply
from ottla.coordinator.group import CONSUMER, Caller, GroupSettings
from ottla.coordinator.groups import Groups, NewOffset
from ottla.coordinator.member_memory import MemberMemory, subscribing_size
from ottla.coordinator.records import ConsumerGroupMetadataKey, Entry
from ottla.log_lines import ClientLog
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.leave_group import MemberIdentity
from ottla.protocol.messages.sync_group import SyncGroupRequest

CONSUMER_RECORDS = frozenset((3, 4, 5, 6, 7, 8, 16))
"""The types of record that groups of the consumer protocol write."""


class AllGroups(Groups):
    def __init__(
        self,
        settings: GroupSettings,
        surroundings: Surroundings,
        client_log: ClientLog | None = None,
        memory: MemberMemory | None = None,
    ) -> None:
        super().__init__(settings, client_log, memory)
        self.surroundings = surroundings

    # -- the consumer protocol ----------------------------------------------------------------------------

    def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller, reply: Reply, effects: Effects
    ) -> None:
        """A member joins, stays or leaves, as its epoch says. `check_heartbeat` has passed the request."""
        if request.member_epoch <= LEAVING:
            group = self._consumer(request.group_id, "Group {} not found.")
            draft = self._draft_of(group, effects)
            response = draft.leave(request, effects)
            migration.downgrade_if_due(draft, self.settings, effects)
        else:
            if self.memory is not None:
                self._check_room_for(request, caller, self.memory)
            effects.client_host = caller.client_host
            draft = self._joined_or_known(request, effects)
            response = draft.heartbeat(request, caller, effects)
        effects.answer(reply, response)

    def _check_room_for(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller, memory: MemberMemory
    ) -> None:
        """A member joins or says what it wants anew; most heartbeats say nothing."""
        memory.heard(request.group_id, request.member_id)
        topics, regex = request.subscribed_topic_names, request.subscribed_topic_regex
        if request.member_epoch == JOINING or topics or regex:
            names = (request.member_id, request.instance_id, request.rack_id, caller.client_id, regex)
            memory.check_room(request.group_id, subscribing_size(topics, *names), caller)

    def _joined_or_known(self, request: ConsumerGroupHeartbeatRequest, effects: Effects) -> ConsumerGroup:
        group = self._groups.get(request.group_id)
        if request.member_epoch != JOINING or isinstance(group, ConsumerGroup):
            return self._draft_of(self._consumer(request.group_id, "Consumer group {} not found."), effects)
        new = ConsumerGroup(request.group_id, self.surroundings)
        if isinstance(group, ClassicGroup):
            migration.upgrade(group, new, effects)
        effects.drafts[request.group_id] = new
        return new

    def _consumer(self, group_id: str, absent: str) -> ConsumerGroup:
        group = self._groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, absent.format(group_id))
        if not isinstance(group, ConsumerGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        return group

    def _draft_of(self, group: ConsumerGroup, effects: Effects) -> ConsumerGroup:
        draft = group.draft()
        effects.drafts[group.group_id] = draft
        return draft

    # -- classic members of groups of the consumer protocol -----------------------------------------------

    def join(
        self, request: JoinGroupRequest, new_id: str, caller: Caller, reply: Reply, effects: Effects
    ) -> None:
        group = self._groups.get(request.group_id)
        if not isinstance(group, ConsumerGroup):
            super().join(request, new_id, caller, reply, effects)
        elif group.members:
            self._check_room(request, new_id, None, caller, effects)
            migration.join(self._draft_of(group, effects), request, new_id, caller, reply, effects)
        else:
            self._check_session_timeout(request.session_timeout_ms)
            if request.member_id:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            self._check_room(request, new_id, None, caller, effects)
            effects.records.extend(group.tombstones())
            classic = ClassicGroup(request.group_id, self.settings)
            effects.drafts[request.group_id] = classic
            classic.join(request, new_id, caller, reply, effects)

    def _check_session_timeout(self, timeout_ms: int) -> None:
        if not self.settings.min_session_timeout_ms <= timeout_ms <= self.settings.max_session_timeout_ms:
            raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)

    def sync(self, request: SyncGroupRequest, reply: Reply, effects: Effects) -> None:
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            effects.answer(reply, migration.sync(self._draft_of(group, effects), request, effects))
        else:
            super().sync(request, reply, effects)

    def heartbeat(self, request: HeartbeatRequest, reply: Reply, effects: Effects) -> None:
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            error = migration.heartbeat(self._draft_of(group, effects), request, effects)
            effects.answer(reply, HeartbeatResponse(error_code=error))
        else:
            super().heartbeat(request, reply, effects)

    def leave(
        self, group_id: str, members: Sequence[MemberIdentity], effects: Effects
    ) -> list[tuple[MemberIdentity, ErrorCode]]:
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return super().leave(group_id, members, effects)
        draft = self._draft_of(group, effects)
        outcomes = migration.leave(draft, members, effects)
        migration.downgrade_if_due(draft, self.settings, effects)
        return list(zip(members, outcomes, strict=True))

    # -- offsets ------------------------------------------------------------------------------------------

    def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        new: Iterable[NewOffset],
        retention_ms: int,
        caller: Caller,
        effects: Effects,
    ) -> list[ErrorCode]:
        group = self._groups.get(group_id)
        new = list(new)
        if isinstance(group, ConsumerGroup):
            group.check_commit(
                member_id,
                instance_id,
                generation,
                effects,
                version=caller.version,
                partitions=[(each.topic_id, each.partition) for each in new],
            )
        return super().commit(
            group_id, member_id, instance_id, generation, new, retention_ms, caller, effects
        )

    # -- what the runtime calls ---------------------------------------------------------------------------

    def alarm(self, alarm: Alarm, effects: Effects) -> None:
        super().alarm(alarm, effects)
        draft = effects.drafts.get(alarm.group_id)
        if isinstance(draft, ConsumerGroup):
            migration.downgrade_if_due(draft, self.settings, effects)

    def replay(self, entry: Entry) -> None:
        key, value = entry
        if key.api_key not in CONSUMER_RECORDS:
            super().replay(entry)
            return
        group = self._groups.get(key.group_id)
        if isinstance(key, ConsumerGroupMetadataKey) and value is None:
            self._remove(key.group_id, CONSUMER)
            return
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return  # of a group that has become a classic one, or is gone
            group = self._groups[key.group_id] = ConsumerGroup(key.group_id, self.surroundings)
        group.replay(key, value)
