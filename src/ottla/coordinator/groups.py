"""All groups and offsets of one shard: the commands behind the requests of clients.

A command takes an `Effects` and fills it. What cannot be done raises `ApiError` before anything has changed.
Groups change in drafts, which `adopt` puts in place once the log has taken the records, and then by `replay`
of these records; offsets change by `replay` alone. The same `replay`, from the first record to the last, is
how a new coordinator gets the state back.

A group exists when it has members, a record or offsets. One that has offsets only is a simple group, whose
consumers assign their partitions themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from ottla.coordinator import offsets
from ottla.coordinator.classic_group import ClassicGroup
from ottla.coordinator.classic_member import Member
from ottla.coordinator.effects import Alarm, Effects, Reply
from ottla.coordinator.group import CLASSIC, Caller, Group, GroupSettings
from ottla.coordinator.journal import Journal
from ottla.coordinator.member_memory import MemberMemory, joining_size
from ottla.coordinator.offsets import ByTopic, Committed, Offsets
from ottla.coordinator.records import Entry, GroupMetadataKey, OffsetCommitKey
from ottla.log_lines import ClientLog
from ottla.printable import shown
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.leave_group import MemberIdentity
from ottla.protocol.messages.sync_group import SyncGroupRequest

logger = logging.getLogger("ottla.groups")

_GROUP_NOT_FOUND_SINCE = 9
"""The version of OffsetCommit from which on a group that does not exist has an error of its own."""


class NewOffset(NamedTuple):
    topic: str
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class Groups:
    def __init__(
        self,
        settings: GroupSettings,
        client_log: ClientLog | None = None,
        memory: MemberMemory | None = None,
    ) -> None:
        self.settings = settings
        self.memory = memory
        self._client_log = client_log or ClientLog()
        self.offsets = Offsets()
        self.journal = Journal()
        self._groups: dict[str, Group] = {}

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def __len__(self) -> int:
        return len(self._groups)

    # -- finding ------------------------------------------------------------------------------------------

    def get(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def _classic(self, group_id: str, effects: Effects) -> ClassicGroup:
        """A draft of the group for a member of it; there are none in a group that does not exist."""
        group = self._groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return self._drafted(group, effects)

    def _drafted(self, group: ClassicGroup, effects: Effects) -> ClassicGroup:
        draft = group.draft()
        effects.drafts[group.group_id] = draft
        return draft

    # -- the classic protocol -----------------------------------------------------------------------------

    def join(
        self, request: JoinGroupRequest, new_id: str, caller: Caller, reply: Reply, effects: Effects
    ) -> None:
        settings = self.settings
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        timeout = request.session_timeout_ms
        if not settings.min_session_timeout_ms <= timeout <= settings.max_session_timeout_ms:
            raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            group = ClassicGroup(request.group_id, settings)
        elif not isinstance(group, ClassicGroup):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        self._check_room(request, new_id, group.members.get(request.member_id), caller, effects)
        self._drafted(group, effects).join(request, new_id, caller, reply, effects)

    def _check_room(
        self, request: JoinGroupRequest, new_id: str, known: Member | None, caller: Caller, effects: Effects
    ) -> None:
        """ApiError when there is no memory for what the member says, as far as it is new."""
        effects.client_host = caller.client_host
        if self.memory is None:
            return
        present = sum(len(metadata) for _, metadata in known.protocols) if known is not None else -1
        if sum(len(protocol.metadata) for protocol in request.protocols) > present:
            size = joining_size(request.protocols, new_id, caller.client_id, request.group_instance_id)
            self.memory.check_room(request.group_id, size, caller)

    def sync(self, request: SyncGroupRequest, reply: Reply, effects: Effects) -> None:
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        self._classic(request.group_id, effects).sync(request, reply, effects)

    def heartbeat(self, request: HeartbeatRequest, reply: Reply, effects: Effects) -> None:
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.get(request.group_id)
        if not isinstance(group, ClassicGroup):
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if self.memory is not None:
            self.memory.heard(request.group_id, request.member_id)
        # No draft: a heartbeat changes nothing but the alarm.
        effects.answer(reply, HeartbeatResponse(error_code=group.heartbeat(request, effects)))

    def leave(
        self, group_id: str, members: Sequence[MemberIdentity], effects: Effects
    ) -> list[tuple[MemberIdentity, ErrorCode]]:
        """Who left, and who could not. A group that does not exist has no members."""
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        if not isinstance(self._groups.get(group_id), ClassicGroup):
            return [(member, ErrorCode.UNKNOWN_MEMBER_ID) for member in members]
        outcomes = self._classic(group_id, effects).leave(members, effects)
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
        """The outcome for each offset, in their order."""
        group = self._groups.get(group_id)
        if group is None and generation >= 0:
            known = caller.version >= _GROUP_NOT_FOUND_SINCE
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND if known else ErrorCode.ILLEGAL_GENERATION)
        if group is not None:
            group.check_commit(member_id, instance_id, generation, effects)
        expires_ms = effects.now_ms + retention_ms if retention_ms >= 0 else -1
        limit = self.settings.offset_metadata_max_bytes
        outcomes = []
        for each in new:
            if len(each.metadata) > limit:
                outcomes.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            committed = Committed(each.offset, each.leader_epoch, each.metadata, effects.now_ms)
            if expires_ms < 0:
                committed = committed._replace(topic_id=each.topic_id)
            else:  # the record of such a commit has no room for epoch and topic id
                committed = committed._replace(leader_epoch=-1, expires_ms=expires_ms)
            effects.records.append(offsets.commit(group_id, each.topic, each.partition, committed))
            outcomes.append(ErrorCode.NONE)
        return outcomes

    def committed(self, group_id: str, member_id: str | None, member_epoch: int) -> ByTopic:
        """What the group has committed. A group that does not exist has committed nothing."""
        group = self._groups.get(group_id)
        if group is not None:
            group.check_fetch(member_id, member_epoch)
        return self.offsets.of(group_id)

    def delete_offsets(
        self, group_id: str, partitions: Iterable[tuple[str, int]], effects: Effects
    ) -> list[ErrorCode]:
        """The outcome for each partition, in their order; an offset that is not there counts as deleted."""
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        group.check_offset_delete()
        outcomes = []
        for topic, partition in partitions:
            if group.is_subscribed(topic):
                outcomes.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
                continue
            if self.offsets.get(group_id, topic, partition) is not None:
                effects.records.append(offsets.tombstone(group_id, topic, partition))
            outcomes.append(ErrorCode.NONE)
        return outcomes

    def forget_topics(self, topics: Collection[str], effects: Effects, limit: int) -> None:
        """These topics are deleted; one of the same name would be another topic."""
        effects.records.extend(islice(self.offsets.deletion_of_topics(topics), limit))

    def forget_stale(self, topic_id: Callable[[str], bytes | None], effects: Effects, limit: int) -> None:
        """Forget offsets of topics that are not there any more; `topic_id` tells who is."""
        effects.records.extend(islice(self.offsets.deletion_of_stale(topic_id), limit))

    def expire(self, group: Group, effects: Effects) -> None:
        """Forget offsets that have been of no use for long enough, and the group when it has none left."""
        gone = self.offsets.expired(group, self.settings.offsets_retention_ms, effects.now_ms)
        effects.records.extend(gone)
        if len(gone) == self.offsets.count(group.group_id) and group.is_deletable:
            effects.records.extend(group.tombstones())

    # -- administration -----------------------------------------------------------------------------------

    def delete(self, group_id: str, effects: Effects) -> None:
        group = self._deletable(group_id)
        effects.records.extend(self.offsets.deletion(group_id))
        effects.records.extend(group.tombstones())

    def delete_some_offsets(self, group_id: str, count: int, effects: Effects) -> None:
        """A first part of deleting a group that has many offsets: they do not fit into one batch."""
        self._deletable(group_id)
        effects.records.extend(islice(self.offsets.deletion(group_id), count))

    def _deletable(self, group_id: str) -> Group:
        group = self._groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        group.check_delete()
        return group

    # -- what the runtime calls ---------------------------------------------------------------------------

    def alarm(self, alarm: Alarm, effects: Effects) -> None:
        group = self._groups.get(alarm.group_id)
        if group is not None:
            draft = group.draft()
            effects.drafts[alarm.group_id] = draft
            draft.on_alarm(alarm, effects)

    def adopt(self, effects: Effects) -> None:
        self._groups.update(effects.drafts)
        for entry in effects.rebalances:
            self.journal.add(entry)
            self._client_log.info(
                logger,
                f"group {shown(entry.group_id)}",
                "group %s: generation %d with %d members after %d ms, because %s",
                shown(entry.group_id),
                entry.generation,
                len(entry.shares),
                entry.duration_ms,
                "; ".join(map(str, entry.causes[:3])) or "its coordinator changed",
            )

    def settled(self, effects: Effects) -> None:
        touched = set(effects.drafts)
        for key, _ in effects.records:
            touched.add(key.group if isinstance(key, OffsetCommitKey | GroupMetadataKey) else key.group_id)
        for group_id in touched:
            group = self._groups.get(group_id)
            if isinstance(group, ClassicGroup) and self._is_nothing(group):
                del self._groups[group_id]
                group = None
            if self.memory is not None:
                self.memory.settle(group_id, group, effects.client_host)

    def _is_nothing(self, group: ClassicGroup) -> bool:
        """Somebody was given an id to join with and did not come: the group has never been."""
        is_new = group.generation == 0 and group.since_ms < 0
        return is_new and group.is_deletable and not self.offsets.count(group.group_id)

    def dropped(self) -> None:
        if self.memory is not None:
            self.memory.clear()

    def replay(self, entry: Entry) -> None:
        key, value = entry
        if isinstance(key, OffsetCommitKey):
            self.offsets.replay(key, value)
            if value is not None and key.group not in self._groups:
                self._groups[key.group] = ClassicGroup(key.group, self.settings)
        elif isinstance(key, GroupMetadataKey):
            if value is None:
                self._remove(key.group, CLASSIC)
                return
            group = self._groups.get(key.group)
            if not isinstance(group, ClassicGroup):
                group = self._groups[key.group] = ClassicGroup(key.group, self.settings)
            group.replay(value)

    def _remove(self, group_id: str, kind: str) -> None:
        """A tombstone removes a group of its own kind only: the group may have become the other kind."""
        group = self._groups.get(group_id)
        if group is not None and group.kind == kind:
            del self._groups[group_id]
            self.journal.forget(group_id)

    def resume(self, effects: Effects) -> None:
        """The log has been read: wait for the members of all groups."""
        for group in self:
            draft = group.draft()
            effects.drafts[group.group_id] = draft
            draft.resume(effects)
