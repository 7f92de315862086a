"""A group of the consumer protocol (KIP-848): the coordinator assigns the partitions itself.

The group holds what the log says about it (`consumer_state`) and a little that is in memory only. A command
works on a draft of the group: each record that it writes is applied to the draft at once, so that the next
step sees what the one before has done.

The rules of the requests are next to this file: `consumer_heartbeat` for members of this protocol,
`consumer_classic_members` for members that still use the classic one. What both lead to is here: a new epoch,
a new target, a step of a member towards it, the removal of members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from ottla.coordinator import consumer_classic_members, consumer_heartbeat
from ottla.coordinator import rebalance_history as history
from ottla.coordinator.assignors import ASSIGNORS, Partitions, Subscriber, TopicId
from ottla.coordinator.consumer_classic_members import FETCH, REJOIN
from ottla.coordinator.consumer_member import (
    LEAVING,
    Member,
    MemberState,
    current_record,
    metadata_record,
    target_record,
)
from ottla.coordinator.consumer_state import STABLE, ConsumerState
from ottla.coordinator.group import CONSUMER, CONSUMER_PROTOCOL_TYPE, Caller, Join, OffsetCommit
from ottla.coordinator.group_effects import GroupEffects, GroupTimer
from ottla.coordinator.group_environment import ConsumerSettings, GroupEnvironment
from ottla.coordinator.heartbeat_interval import heartbeat_interval_ms
from ottla.coordinator.rebalance_history import Cause, OngoingRebalance
from ottla.coordinator.reconciliation import reconcile
from ottla.coordinator.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    Entry,
)
from ottla.coordinator.runtime.effects import Reply
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.leave_group import MemberIdentity
from ottla.protocol.messages.sync_group import SyncGroupRequest

SESSION, REVOCATION = "session", "revocation"
"""Timers of a member: its session, and the time to give back partitions."""

MEMBER_EPOCH_SINCE = 9
"""The version of OffsetCommit from which on members of this protocol can commit."""


class ConsumerGroup:
    __slots__ = (
        "_checked_version",
        "_environment",
        "_is_state_shared",
        "_ongoing",
        "_shares",
        "group_id",
        "rejoining",
        "state",
    )

    kind = CONSUMER
    protocol_type = CONSUMER_PROTOCOL_TYPE
    pending: frozenset[str] = frozenset()
    """Ids of this protocol are made by the clients."""

    def __init__(self, group_id: str, environment: GroupEnvironment) -> None:
        self.group_id = group_id
        self.state = ConsumerState(group_id)
        self._is_state_shared = False
        """Another draft has the same state, so that it is copied before the first change."""
        self._environment = environment
        # What follows is not in the log.
        self._checked_version = -1
        """The version of the image for which the topics were checked last."""
        self._ongoing: OngoingRebalance | None = None
        self.rejoining: frozenset[str] = frozenset()
        """Members of the classic protocol that were told to join again and have not yet."""
        self._shares: Mapping[str, Partitions] = {}
        """What the members had when the last rebalance was over, by their names."""

    def __repr__(self) -> str:
        return f"<group {self.group_id} {self.state_name}, epoch {self.state.epoch}>"

    def draft(self) -> ConsumerGroup:
        copy = object.__new__(ConsumerGroup)
        copy.group_id = self.group_id
        copy.state = self.state
        copy._is_state_shared = True
        copy._environment = self._environment
        copy._checked_version = self._checked_version
        copy._ongoing = self._ongoing
        copy.rejoining = self.rejoining
        copy._shares = self._shares
        return copy

    # -- the log ------------------------------------------------------------------------------------------

    def write(self, effects: GroupEffects, key: type[Any], value: Any, member_id: str | None = None) -> None:
        """Write a record of the group, or of one of its members, and apply it to this draft."""
        names = (
            {"group_id": self.group_id}
            if member_id is None
            else {
                "group_id": self.group_id,
                "member_id": member_id,
            }
        )
        self.write_all(effects, [(key(**names), value)])

    def write_all(self, effects: GroupEffects, entries: Iterable[Entry]) -> None:
        for key, value in entries:
            effects.write(key, value)
            self.replay(key, value)

    def replay(self, key: Any, value: Any) -> None:
        if self._is_state_shared:
            self.state = self.state.copy()
            self._is_state_shared = False
        self.state.replay(key, value)

    def tombstones(self) -> Sequence[Entry]:
        return list(self.state.tombstones())

    # -- what others see ----------------------------------------------------------------------------------

    @property
    def members(self) -> Mapping[str, Member]:
        return self.state.members

    @property
    def state_name(self) -> str:
        return self.state.name

    @property
    def settings(self) -> ConsumerSettings:
        return self._environment.settings(self.group_id)

    @property
    def assignor_name(self) -> str:
        """The one that most members ask for; the broker's first when none does."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            if member.assignor is not None:
                votes[member.assignor] = votes.get(member.assignor, 0) + 1
        return max(sorted(votes), key=votes.__getitem__) if votes else self.settings.assignors[0]

    @property
    def is_deletable(self) -> bool:
        return not self.members

    def is_subscribed(self, topic: str) -> bool:
        return self.state.is_subscribed(topic)

    def offsets_unused_since(self, topic: str, committed_ms: int) -> int | None:
        return None if self.is_subscribed(topic) else committed_ms

    def topic_id(self, name: str) -> TopicId | None:
        topic = self._environment.image.topics.get(name)
        return topic.id if topic is not None else None

    def topic_name(self, topic: TopicId) -> str | None:
        found = self._environment.image.topics_by_id.get(topic)
        return found.name if found is not None else None

    def heartbeat_interval_ms(self, now_ms: int) -> int:
        ongoing = self._ongoing
        return heartbeat_interval_ms(
            configured_ms=self.settings.heartbeat_interval_ms,
            members=len(self.members),
            members_in_all_groups=self._environment.member_count(),
            rebalancing_ms=None if ongoing is None else max(now_ms - ongoing.began_ms, 0),
        )

    # -- requests -----------------------------------------------------------------------------------------

    def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller, effects: GroupEffects
    ) -> ConsumerGroupHeartbeatResponse:
        """A member of this protocol joins, stays or leaves, as its epoch says. It has an id."""
        if request.member_epoch <= LEAVING:
            return consumer_heartbeat.leave(self, request, effects)
        return consumer_heartbeat.join_or_stay(self, request, caller, effects)

    def join(self, join: Join, effects: GroupEffects) -> None:
        consumer_classic_members.join(self, join, effects)

    def sync(self, request: SyncGroupRequest, reply: Reply, effects: GroupEffects) -> None:
        effects.answer(reply, consumer_classic_members.sync(self, request, effects))

    def heartbeat(self, request: HeartbeatRequest, effects: GroupEffects) -> ErrorCode:
        draft = effects.drafts[self.group_id] = self.draft()
        return consumer_classic_members.heartbeat(draft, request, effects)

    def leave(self, identities: Sequence[MemberIdentity], effects: GroupEffects) -> list[ErrorCode]:
        return consumer_classic_members.leave(self, identities, effects)

    # -- members ------------------------------------------------------------------------------------------

    def update(
        self,
        before: Member,
        updated: Member,
        owned: Partitions | None,
        effects: GroupEffects,
        *,
        at_once: bool = False,
    ) -> Member:
        """Take over what a member says about itself, and move it towards its target.

        With `at_once` the target is brought up to date first, whatever the assignment interval says.
        """
        is_new = updated.member_id not in self.members
        if is_new or before != updated:
            self.write(effects, ConsumerGroupMemberMetadataKey, metadata_record(updated), updated.member_id)
        has_changed = before.topics != updated.topics or before.regex != updated.regex
        causes = []
        if has_changed:
            what = history.JOINED if is_new else history.CHANGED
            causes.append(Cause(what, updated.name, updated.client_id))
        self.check_topics(causes, effects)
        self._make_target(effects, at_once=at_once)
        after = self._reconcile(updated.member_id, owned, effects, subscription_changed=has_changed)
        self.restart_session(after, effects)
        self._conclude(effects)
        return after

    def _reconcile(
        self, member_id: str, owned: Partitions | None, effects: GroupEffects, *, subscription_changed: bool
    ) -> Member:
        """Move a member one step towards its target."""
        state = self.state
        before = self.members[member_id]
        after = reconcile(
            before,
            target_epoch=state.target_epoch,
            target=state.target_of(before),
            subscribed=self._topic_ids_of(before),
            owned=owned,
            is_free=lambda topic, partition: state.owner(topic, partition) in (None, member_id),
            subscription_changed=subscription_changed,
        )
        if after != before:
            self.write(effects, ConsumerGroupCurrentMemberAssignmentKey, current_record(after), member_id)
            if after.state is MemberState.UNREVOKED:
                self._start_revocation(after, effects)
            else:
                self.cancel_revocation(after, effects)
        return after

    def remove(self, causes: Mapping[str, Cause], effects: GroupEffects) -> None:
        """Remove members, each for its cause: the others get what they had."""
        for member_id in causes:
            self.write_all(effects, list(self.state.member_tombstones(member_id)))
            for kind in (SESSION, REVOCATION, REJOIN, FETCH):
                effects.cancel(self.group_id, kind, member_id)
        self.rejoining -= causes.keys()
        self.check_topics(list(causes.values()), effects)
        self._conclude(effects)

    # -- timers -------------------------------------------------------------------------------------------

    def restart_session(self, member: Member, effects: GroupEffects) -> None:
        timeout = self.settings.session_timeout_ms
        if member.classic is not None:
            timeout = member.classic.session_timeout_ms
        effects.set_timer(GroupTimer(self.group_id, SESSION, member.member_id, delay_ms=timeout))

    def cancel_session(self, member: Member, effects: GroupEffects) -> None:
        effects.cancel(self.group_id, SESSION, member.member_id)

    def start_timer(self, kind: str, member: Member, effects: GroupEffects) -> None:
        """Give the member its rebalance timeout for something; see the kinds of timers."""
        effects.set_timer(
            GroupTimer(
                self.group_id,
                kind,
                member.member_id,
                generation=member.epoch,
                delay_ms=member.rebalance_timeout_ms,
            )
        )

    def _start_revocation(self, member: Member, effects: GroupEffects) -> None:
        self.start_timer(REVOCATION, member, effects)

    def cancel_revocation(self, member: Member, effects: GroupEffects) -> None:
        effects.cancel(self.group_id, REVOCATION, member.member_id)

    def on_timer(self, timer: GroupTimer, effects: GroupEffects) -> None:
        member = self.members.get(timer.member_id)
        if member is None:
            return
        if timer.kind == SESSION:
            what = history.SILENT
        elif member.epoch != timer.generation:
            return  # it has done what the timer was for
        elif timer.kind == REVOCATION:
            what = history.DID_NOT_REVOKE
        else:
            what = history.DID_NOT_REJOIN if timer.kind == REJOIN else history.DID_NOT_SYNC
        self.remove({member.member_id: Cause(what, member.name, member.client_id)}, effects)

    def resume(self, effects: GroupEffects) -> None:
        for member in self.members.values():
            self.restart_session(member, effects)
            if member.state is MemberState.UNREVOKED:
                self._start_revocation(member, effects)
        if self.members and self.state_name != STABLE:
            self._ongoing = self._ongoing or OngoingRebalance(effects.now_ms)
        else:
            self._shares = self._current_shares()

    # -- topics, epoch and target -------------------------------------------------------------------------

    def check_topics(self, causes: Sequence[Cause], effects: GroupEffects) -> None:
        """Start a new epoch if there are causes for it, or if the topics of the group have changed."""
        version = self._environment.image.version
        if not causes and version == self._checked_version:
            return
        self._resolve_expressions(effects)
        self._checked_version = version
        metadata_hash = self._hash_of_topics()
        if metadata_hash != self.state.metadata_hash and not causes:
            causes = [Cause(history.TOPICS_CHANGED)]
        if causes:
            value = ConsumerGroupMetadataValue(epoch=self.state.epoch + 1, metadata_hash=metadata_hash)
            self.write(effects, ConsumerGroupMetadataKey, value)
            self._ongoing = (self._ongoing or OngoingRebalance(effects.now_ms)).because(causes)

    def unchecked_expressions(self) -> set[str]:
        """The expressions whose topics the next heartbeat will look up."""
        if self._environment.image.version == self._checked_version:
            return set()
        return self.state.used_expressions()

    def _hash_of_topics(self) -> int:
        """Changes when a subscribed topic appears, goes, is created anew or gets partitions."""
        image = self._environment.image
        digest = blake2b(digest_size=8)
        found = False
        for name in sorted(self.state.subscribed_topics()):
            topic = image.topics.get(name)
            if topic is not None:
                found = True
                digest.update(topic.id + name.encode() + b"\0%d" % len(topic.partitions))
        return int.from_bytes(digest.digest(), "big", signed=True) if found else 0

    def _resolve_expressions(self, effects: GroupEffects) -> None:
        """Look up the topics of every expression in use, and remove the expressions that are not."""
        image = self._environment.image
        used = self.state.used_expressions()
        for expression in used:
            topics = self._environment.topic_matches.matching(expression, image.topics)
            known = self.state.regexes.get(expression)
            if known is None or known.topics != topics:
                value = ConsumerGroupRegularExpressionValue(
                    topics=sorted(topics), version=image.version, timestamp=effects.now_ms
                )
                self._write_expression(effects, expression, value)
        for expression in [each for each in self.state.regexes if each not in used]:
            self._write_expression(effects, expression, None)

    def _write_expression(self, effects: GroupEffects, expression: str, value: Any) -> None:
        key = ConsumerGroupRegularExpressionKey(group_id=self.group_id, regular_expression=expression)
        self.write_all(effects, [(key, value)])

    def _topic_ids_of(self, member: Member) -> frozenset[TopicId]:
        """The topics that a member subscribes to and that exist."""
        topics = self._environment.image.topics
        return frozenset(topics[name].id for name in self.state.topics_of(member) if name in topics)

    def _make_target(self, effects: GroupEffects, *, at_once: bool) -> None:
        """Make a new target if the group has changed and the assignment interval has passed."""
        state = self.state
        if state.epoch <= state.target_epoch:
            return
        since = effects.now_ms - state.target_made_ms
        if not at_once and state.target_made_ms and 0 <= since < self.settings.assignment_interval_ms:
            return
        topics = self._environment.image.topics
        counts = {
            topic.id: len(topic.partitions)
            for name in state.subscribed_topics()
            if (topic := topics.get(name)) is not None
        }
        members = {
            member.member_id: Subscriber(
                topics=self._topic_ids_of(member),
                instance_id=member.instance_id,
                previous=state.target_of(member),
            )
            for member in self.members.values()
        }
        for member_id, target in ASSIGNORS[self.assignor_name](members, counts).items():
            if self.state.target.get(member_id) != target:
                value = target_record(target)
                self.write(effects, ConsumerGroupTargetAssignmentMemberKey, value, member_id)
        self.write(
            effects,
            ConsumerGroupTargetAssignmentMetadataKey,
            ConsumerGroupTargetAssignmentMetadataValue(
                assignment_epoch=state.epoch, assignment_timestamp=effects.now_ms
            ),
        )

    # -- offsets ------------------------------------------------------------------------------------------

    def check_delete(self) -> None:
        if self.members:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def check_offset_delete(self) -> None:
        """Offsets of topics without subscription may always be deleted."""

    def check_commit(self, commit: OffsetCommit, effects: GroupEffects) -> None:
        """A commit with an older epoch may only name partitions that the member has had since (KIP-1251)."""
        if commit.generation < 0 and not self.members:
            return  # an administrator, or a consumer that assigns its partitions itself
        if commit.transactional and commit.names_no_member:
            return
        member = self.state.member(commit.member_id)
        if member.classic is None and not commit.transactional and commit.version < MEMBER_EPOCH_SINCE:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        if commit.generation == member.epoch:
            return
        is_classic = member.classic is not None or commit.transactional
        stale = ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
        if commit.generation > member.epoch:
            raise ApiError(stale)
        for each in commit.offsets:
            given = member.given_in(each.topic_id, each.partition)
            if given is None or commit.generation < given:
                raise ApiError(stale)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None or (member_epoch < 0 and not member_id):
            return
        if member_epoch != self.state.member(member_id).epoch:
            raise ApiError(ErrorCode.STALE_MEMBER_EPOCH)

    # -- the rebalance history ----------------------------------------------------------------------------

    def _current_shares(self) -> dict[str, Partitions]:
        return {
            member.name: {topic: frozenset(owned) for topic, owned in member.assigned.items()}
            for member in self.members.values()
        }

    def _conclude(self, effects: GroupEffects) -> None:
        """If the rebalance is over, add it to the history."""
        if self._ongoing is None or (self.members and self.state_name != STABLE):
            return
        ongoing, self._ongoing = self._ongoing, None
        before, self._shares = self._shares, self._current_shares()
        effects.rebalances.append(
            ongoing.concluded(
                group_id=self.group_id,
                generation=self.state.epoch,
                now_ms=effects.now_ms,
                protocol=self.assignor_name,
                leader=None,
                before=self._with_topic_names(before),
                after=self._with_topic_names(self._shares),
            )
        )

    def _with_topic_names(self, shares: Mapping[str, Partitions]) -> history.Shares:
        """A topic that is gone is shown with its id."""
        by_id = self._environment.image.topics_by_id
        return {
            name: frozenset(
                (by_id[topic].name if topic in by_id else topic.hex(), partition)
                for topic, partitions in share.items()
                for partition in partitions
            )
            for name, share in shares.items()
        }
