"""All groups and offsets of one shard: the commands behind the requests of clients.

A command takes an `Effects` and fills it. What cannot be done raises `ApiError` before anything has changed.
Groups change in drafts, which `adopt` puts in place once the log has taken the records, and then by `replay`
of these records; offsets change by `replay` alone. The same `replay`, from the first record to the last, is
how a new coordinator gets the state back.

There are two kinds of groups, and one id names one group, of one kind at a time. Requests are passed to the
group, whichever kind it is (`Group`). A member of the other protocol changes the kind of an empty group; what
happens if the group has members is in `migration`.

A group exists when it has members, a record or offsets. One that has offsets only is a simple group, whose
consumers assign their partitions themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice

from ottla.coordinator import migration, offsets
from ottla.coordinator.classic_group import ClassicGroup
from ottla.coordinator.consumer_group import ConsumerGroup
from ottla.coordinator.consumer_member import JOINING, LEAVING
from ottla.coordinator.group import CLASSIC, CONSUMER, Caller, Group, GroupSettings, Join, OffsetCommit
from ottla.coordinator.group_effects import GroupEffects, GroupTimer
from ottla.coordinator.group_environment import GroupEnvironment
from ottla.coordinator.member_memory import MemberMemory, joining_size, subscribing_size
from ottla.coordinator.offsets import Committed, GroupOffsets, Offsets
from ottla.coordinator.rebalance_history import RebalanceHistory
from ottla.coordinator.records import (
    ConsumerGroupMetadataKey,
    Entry,
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ottla.coordinator.runtime.effects import Reply
from ottla.log_lines import ClientLog
from ottla.metrics import Histogram
from ottla.printable import shown
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.leave_group import MemberIdentity
from ottla.protocol.messages.sync_group import SyncGroupRequest
from ottla.protocol.schema import ZERO_UUID

logger = logging.getLogger("ottla.groups")

_GROUP_NOT_FOUND_SINCE = 9
"""The version of OffsetCommit that has an error of its own for a group that does not exist."""


class GroupShard:
    def __init__(
        self,
        settings: GroupSettings,
        environment: GroupEnvironment,
        client_log: ClientLog | None = None,
        memory: MemberMemory | None = None,
        rebalance_seconds: Histogram | None = None,
    ) -> None:
        self.settings = settings
        self.environment = environment
        self.memory = memory
        self.offsets = Offsets()
        self.history = RebalanceHistory()
        self._rebalance_seconds = rebalance_seconds or Histogram()
        self._client_log = client_log or ClientLog()
        self._groups: dict[str, Group] = {}
        self.changed: set[str] | None = None
        """Ids of groups that have changed, where somebody wants to know and takes them out again."""

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def __len__(self) -> int:
        return len(self._groups)

    def group_ids(self) -> list[str]:
        return list(self._groups)

    def get(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def consumer_group(self, group_id: str, not_found: str = "Group {} not found.") -> ConsumerGroup:
        """The group if it is of the consumer protocol, else GROUP_ID_NOT_FOUND."""
        group = self._groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, not_found.format(group_id))
        if not isinstance(group, ConsumerGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        return group

    def classic_group(self, group_id: str) -> ClassicGroup:
        """The group if it is a classic one, else GROUP_ID_NOT_FOUND."""
        group = self._groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if not isinstance(group, ClassicGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group.")
        return group

    def _member_group(self, group_id: str) -> Group:
        """The group for a request of a member; a group that does not exist has no members."""
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    # -- the classic protocol -----------------------------------------------------------------------------

    def join(
        self, request: JoinGroupRequest, new_id: str, caller: Caller, reply: Reply, effects: GroupEffects
    ) -> None:
        """`new_id` is for a member that has no id yet."""
        group_id, settings = request.group_id, self.settings
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        timeout = request.session_timeout_ms
        if not settings.min_session_timeout_ms <= timeout <= settings.max_session_timeout_ms:
            raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)
        group = self._groups.get(group_id)
        draft: Group
        if group is not None and (group.kind == CLASSIC or group.members):
            draft = group.draft()
        elif request.member_id:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            draft = ClassicGroup(group_id, settings)
            if group is not None:
                effects.records.extend(group.tombstones())
        self._check_memory_for_join(request, new_id, draft, caller, effects)
        effects.drafts[group_id] = draft
        protocols = tuple((protocol.name, protocol.metadata) for protocol in request.protocols)
        draft.join(Join(request, protocols, new_id, caller, reply), effects)

    def _check_memory_for_join(
        self, request: JoinGroupRequest, new_id: str, group: Group, caller: Caller, effects: GroupEffects
    ) -> None:
        """ApiError when there is no memory for the member's metadata, unless it is no more than before."""
        effects.client_host = caller.client_host
        if self.memory is None:
            return
        known = group.members.get(request.member_id)
        present = known.metadata_size if known is not None else -1
        if sum(len(protocol.metadata) for protocol in request.protocols) > present:
            size = joining_size(request.protocols, new_id, caller.client_id, request.group_instance_id)
            self.memory.check_free(request.group_id, size, caller)

    def sync(self, request: SyncGroupRequest, reply: Reply, effects: GroupEffects) -> None:
        draft = self._member_group(request.group_id).draft()
        effects.drafts[request.group_id] = draft
        draft.sync(request, reply, effects)

    def heartbeat(self, request: HeartbeatRequest, reply: Reply, effects: GroupEffects) -> None:
        group = self._member_group(request.group_id)
        if self.memory is not None:
            self.memory.touch(request.group_id, request.member_id)
        effects.answer(reply, HeartbeatResponse(error_code=group.heartbeat(request, effects)))

    def leave(
        self, group_id: str, members: Sequence[MemberIdentity], effects: GroupEffects
    ) -> list[tuple[MemberIdentity, ErrorCode]]:
        """The outcome for each member. A group that does not exist has no members."""
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.get(group_id)
        if group is None:
            return [(member, ErrorCode.UNKNOWN_MEMBER_ID) for member in members]
        draft = effects.drafts[group_id] = group.draft()
        outcomes = draft.leave(members, effects)
        self._downgrade_if_due(draft, effects)
        return list(zip(members, outcomes, strict=True))

    def _downgrade_if_due(self, draft: Group, effects: GroupEffects) -> None:
        """Members may have left: a group of the consumer protocol may have classic members only."""
        if isinstance(draft, ConsumerGroup):
            migration.downgrade_if_due(draft, self.settings, effects)

    # -- the consumer protocol ----------------------------------------------------------------------------

    def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller, reply: Reply, effects: GroupEffects
    ) -> None:
        """A member joins, stays or leaves, as its epoch says. The handler has checked the request's form."""
        group_id = request.group_id
        if request.member_epoch <= LEAVING:
            draft = self.consumer_group(group_id).draft()
        else:
            self._check_memory_for_heartbeat(request, caller, effects)
            draft = self._joined_or_known(request, effects)
        effects.drafts[group_id] = draft
        effects.answer(reply, draft.consumer_heartbeat(request, caller, effects))
        if request.member_epoch <= LEAVING:
            self._downgrade_if_due(draft, effects)

    def _check_memory_for_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller, effects: GroupEffects
    ) -> None:
        """Memory is needed when a member joins or changes its subscription; most heartbeats do neither."""
        effects.client_host = caller.client_host
        if self.memory is None:
            return
        self.memory.touch(request.group_id, request.member_id)
        topics, regex = request.subscribed_topic_names, request.subscribed_topic_regex
        if request.member_epoch == JOINING or topics or regex:
            names = (request.member_id, request.instance_id, request.rack_id, caller.client_id, regex)
            self.memory.check_free(request.group_id, subscribing_size(topics, *names), caller)

    def _joined_or_known(
        self, request: ConsumerGroupHeartbeatRequest, effects: GroupEffects
    ) -> ConsumerGroup:
        """A draft of the group; a member that joins may create it, or upgrade a classic one."""
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return group.draft()
        if request.member_epoch != JOINING:
            return self.consumer_group(request.group_id, "Consumer group {} not found.")
        new = ConsumerGroup(request.group_id, self.environment)
        if isinstance(group, ClassicGroup):
            migration.upgrade(group, new, effects)
        return new

    # -- offsets ------------------------------------------------------------------------------------------

    def commit(self, commit: OffsetCommit, effects: GroupEffects) -> list[ErrorCode]:
        """The outcome for each offset, in their order."""
        group = self._groups.get(commit.group_id)
        if group is not None:
            group.check_commit(commit, effects)
        elif commit.generation >= 0:
            known = commit.version >= _GROUP_NOT_FOUND_SINCE and not commit.transactional
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND if known else ErrorCode.ILLEGAL_GENERATION)
        expires_ms = effects.now_ms + commit.retention_ms if commit.retention_ms >= 0 else -1
        limit = self.settings.offset_metadata_max_bytes
        outcomes = []
        for each in commit.offsets:
            if len(each.metadata) > limit:
                outcomes.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            committed = Committed(each.offset, each.leader_epoch, each.metadata, effects.now_ms)
            if expires_ms < 0:
                # As in Kafka, offsets of a transaction are by the name of the topic alone.
                topic_id = ZERO_UUID if commit.transactional else each.topic_id
                committed = committed._replace(topic_id=topic_id)
            else:  # the record of such a commit has no field for epoch and topic id
                committed = committed._replace(leader_epoch=-1, expires_ms=expires_ms)
            effects.records.append(offsets.commit(commit.group_id, each.topic, each.partition, committed))
            outcomes.append(ErrorCode.NONE)
        return outcomes

    def committed(self, group_id: str, member_id: str | None, member_epoch: int) -> GroupOffsets:
        """What the group has committed. A group that does not exist has committed nothing."""
        group = self._groups.get(group_id)
        if group is not None:
            group.check_fetch(member_id, member_epoch)
        return self.offsets.of(group_id)

    def delete_offsets(
        self, group_id: str, partitions: Iterable[tuple[str, int]], effects: GroupEffects
    ) -> list[ErrorCode]:
        """The outcome for each partition, in their order; an offset that does not exist counts as deleted."""
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
            if self.offsets.exists(group_id, topic, partition):
                effects.records.append(offsets.tombstone(group_id, topic, partition))
            outcomes.append(ErrorCode.NONE)
        return outcomes

    # What the coordinator does by itself, one group and at most `limit` records at a time

    def forget_topics(
        self, group_id: str, topics: Collection[str], limit: int, effects: GroupEffects
    ) -> None:
        """These topics are deleted; one of the same name would be another topic."""
        effects.records.extend(islice(self.offsets.of_topics(group_id, topics), limit))

    def forget_stale(
        self, group_id: str, topic_id: Callable[[str], bytes | None], limit: int, effects: GroupEffects
    ) -> None:
        """Forget offsets of topics that do not exist any more; `topic_id` tells which do."""
        effects.records.extend(islice(self.offsets.stale(group_id, topic_id), limit))

    def expire(self, group_id: str, limit: int, effects: GroupEffects) -> None:
        """Forget offsets that were not needed for the retention time, and the group if none is left."""
        group = self._groups.get(group_id)
        if group is None:
            return
        expired = self.offsets.expired(group, self.settings.offsets_retention_ms, effects.now_ms)
        gone = list(islice(expired, limit))
        effects.records.extend(gone)
        if len(gone) == self.offsets.count(group_id) and self._may_be_removed(group) and len(gone) < limit:
            effects.records.extend(group.tombstones())

    def _may_be_removed(self, group: Group) -> bool:
        return group.is_deletable and not self.offsets.has_pending(group.group_id)

    # -- administration -----------------------------------------------------------------------------------

    def delete(self, group_id: str, effects: GroupEffects) -> None:
        group = self._deletable(group_id)
        effects.records.extend(self.offsets.deletion(group_id))
        effects.records.extend(group.tombstones())

    def delete_some_offsets(self, group_id: str, count: int, effects: GroupEffects) -> None:
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

    def new_effects(self, now_ms: int) -> GroupEffects:
        return GroupEffects(now_ms)

    def on_timer(self, timer: GroupTimer, effects: GroupEffects) -> None:
        group = self._groups.get(timer.group_id)
        if group is not None:
            draft = effects.drafts[timer.group_id] = group.draft()
            draft.on_timer(timer, effects)
            self._downgrade_if_due(draft, effects)

    def adopt(self, effects: GroupEffects) -> None:
        self._groups.update(effects.drafts)
        for rebalance in effects.rebalances:
            self.history.add(rebalance)
            self._rebalance_seconds.add(rebalance.duration_ms / 1000)
            self._client_log.info(
                logger,
                f"group {shown(rebalance.group_id)}",
                "group %s: generation %d with %d members after %d ms, because %s",
                shown(rebalance.group_id),
                rebalance.generation,
                len(rebalance.shares),
                rebalance.duration_ms,
                "; ".join(map(str, rebalance.causes[:3])) or "its coordinator changed",
            )

    def settled(self, effects: GroupEffects) -> None:
        changed = set(effects.drafts)
        for key, _ in effects.records:
            changed.add(key.group if isinstance(key, OffsetCommitKey | GroupMetadataKey) else key.group_id)
        if self.changed is not None:
            self.changed |= changed
        for group_id in changed:
            group = self._groups.get(group_id)
            if group is not None and self._has_never_existed(group):
                del self._groups[group_id]
                group = None
            if self.memory is not None:
                self.memory.settle(group_id, group, effects.client_host)

    def _has_never_existed(self, group: Group) -> bool:
        """A client was given an id to join with and did not come back: there is no such group."""
        if not isinstance(group, ClassicGroup) or group.has_existed:
            return False
        return self._may_be_removed(group) and not self.offsets.count(group.group_id)

    def close(self) -> None:
        if self.memory is not None:
            self.memory.clear()

    def replay(self, offset: int, producer_id: int, producer_epoch: int, record: Entry) -> None:
        key, value = record
        if isinstance(key, OffsetCommitKey):
            self._replay_commit(offset, producer_id, key, value)
        elif isinstance(key, GroupMetadataKey):
            if value is None:
                self._remove(key.group, CLASSIC)
                return
            group = self._groups.get(key.group)
            if not isinstance(group, ClassicGroup):
                group = self._groups[key.group] = ClassicGroup(key.group, self.settings)
            group.replay(value)
        else:
            self._replay_consumer_group(record)

    def _replay_commit(
        self, offset: int, producer_id: int, key: OffsetCommitKey, value: OffsetCommitValue | None
    ) -> None:
        self.offsets.replay(offset, producer_id, key, value)
        if value is not None and key.group not in self._groups:
            self._groups[key.group] = ClassicGroup(key.group, self.settings)

    def _replay_consumer_group(self, record: Entry) -> None:
        key, value = record
        if isinstance(key, ConsumerGroupMetadataKey) and value is None:
            self._remove(key.group_id, CONSUMER)
            return
        group = self._groups.get(key.group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return  # of a group that has become a classic one, or is gone
            group = self._groups[key.group_id] = ConsumerGroup(key.group_id, self.environment)
        group.replay(key, value)

    def replay_end_transaction_marker(
        self, producer_id: int, producer_epoch: int, *, committed: bool
    ) -> None:
        groups = self.offsets.end_transaction(producer_id, committed=committed)
        if self.changed is not None:
            self.changed |= groups

    def _remove(self, group_id: str, kind: str) -> None:
        """A tombstone removes a group of its own kind only: the group may have become the other kind."""
        group = self._groups.get(group_id)
        if group is not None and group.kind == kind:
            del self._groups[group_id]
            self.history.forget(group_id)

    def resume(self, effects: GroupEffects) -> None:
        for group in self:
            draft = effects.drafts[group.group_id] = group.draft()
            draft.resume(effects)
