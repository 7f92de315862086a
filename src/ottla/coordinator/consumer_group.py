"""A group of the consumer protocol at work: what happens at a heartbeat (KIP-848).

One request does it all. With it a member joins (epoch 0), stays, changes its subscription, tells what it owns
and leaves (epoch -1, or -2 when it is static and will come back). The steps of a heartbeat:

1. Is the member who it says it is, in the epoch that it should be in? If not it is fenced: it must give up
   everything and join anew.
2. Take over what it says about itself. If its subscription or the topics of the group changed, the group's
   epoch grows.
3. If the target is older than the epoch, make a new one; not more often than the assignment interval allows.
4. Let the member take its next step towards the target (`reconciliation`).

A member learns of changes at its next heartbeat only, so how soon that is decides how long a rebalance takes.
The answer says when: soon while the group is under way, later when it is stable (`heartbeat_pace`).

A null field of a request has not changed. A member is told its assignment when it changed, when it joins, and
when it sends everything, as clients do after an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ottla.coordinator import journal
from ottla.coordinator.assignors import ASSIGNORS, Partitions, Subscriber, TopicId
from ottla.coordinator.consumer_member import (
    JOINING,
    LEAVING_FOR_A_WHILE,
    Member,
    MemberState,
    as_partitions,
    current_record,
    metadata_record,
    target_record,
)
from ottla.coordinator.consumer_state import STABLE, ConsumerState, Ongoing
from ottla.coordinator.effects import Alarm, Effects
from ottla.coordinator.group import Caller
from ottla.coordinator.heartbeat_pace import heartbeat_interval_ms
from ottla.coordinator.journal import Cause, Rebalance
from ottla.coordinator.re2_syntax import InvalidExpression
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
)
from ottla.coordinator.regex_subscriptions import compiled
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

SESSION, REVOCATION = "session", "revocation"
"""The alarms of a member: it is silent, or it does not give back what it shall."""
REJOIN, FETCH = "rejoin", "fetch"
"""And of one that speaks the classic protocol: it does not join again, or has not fetched its share."""

MEMBER_EPOCH_SINCE = 9
"""The version of OffsetCommit from which on members of this protocol can commit."""


class ConsumerGroup(ConsumerState):
    __slots__ = ()

    # -- heartbeats ---------------------------------------------------------------------------------------

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller, effects: Effects
    ) -> ConsumerGroupHeartbeatResponse:
        """A member joins or stays. It has an id: the broker gives one to those who bring none."""
        owned = None if request.topic_partitions is None else as_partitions(request.topic_partitions)
        before = self._identify(request, owned, effects)
        wishes = _with_wishes(before, request, caller)
        if wishes.regex and wishes.regex != before.regex:
            _check_expression(wishes.regex)
        after = self.update(before, wishes, owned, effects)
        is_whole = (
            request.rebalance_timeout_ms != -1
            and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
            and owned is not None
        )
        told = request.member_epoch == JOINING or is_whole or after.assigned != before.assigned
        return ConsumerGroupHeartbeatResponse(
            member_id=after.member_id,
            member_epoch=after.epoch,
            heartbeat_interval_ms=self._interval(effects.now_ms),
            assignment=_assignment(after) if told else None,
        )

    def update(
        self,
        before: Member,
        wishes: Member,
        owned: Partitions | None,
        effects: Effects,
        *,
        at_once: bool = False,
    ) -> Member:
        """Take over what a member says about itself, and let it go on; `at_once` with the newest target."""
        self._take_over(before, wishes, effects)
        self._make_target(effects, at_once=at_once)
        after = self.step(wishes.member_id, owned, effects, subscription_changed=_differ(before, wishes))
        self.expect(after, effects)
        self._conclude(effects)
        return after

    def _identify(
        self, request: ConsumerGroupHeartbeatRequest, owned: Partitions | None, effects: Effects
    ) -> Member:
        """The member that sends this, as it was until now; a new one for who joins."""
        member_id, instance_id = request.member_id, request.instance_id
        if request.member_epoch == JOINING:
            return self.joining(member_id, instance_id, effects)
        if instance_id is not None:
            member = self.static_member(member_id, instance_id)
        else:
            member = self.member(member_id)
        epoch = request.member_epoch
        # The answer that brought the new epoch may have been lost: who still has the one before, and nothing
        # that is not its own, is told again.
        is_late = epoch == member.previous_epoch and owned is not None and member.owns_all(owned)
        if epoch > member.epoch or (epoch < member.epoch and not is_late):
            raise ApiError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"The consumer group member has a {'greater' if epoch > member.epoch else 'smaller'} member "
                f"epoch ({epoch}) than the one known by the group coordinator ({member.epoch}). The member "
                "must abandon all its partitions and rejoin.",
            )
        return member

    def joining(self, member_id: str, instance_id: str | None, effects: Effects) -> Member:
        """Who joins: new, back again, or one of us who asks once more."""
        returning = self.expects_back(instance_id)
        if returning is not None:
            return self.replace_static(returning, member_id, effects)
        present = self._static.get(instance_id) if instance_id is not None else None
        if present is not None and present != member_id:
            raise ApiError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group because "
                f"the instance id is owned by {present} member.",
            )
        member = self.members.get(member_id)
        if member is not None:
            return member
        limit = self.settings.max_size
        if len(self.members) >= limit:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {limit} members.",
            )
        return Member(member_id, instance_id)

    def replace_static(self, old: Member, member_id: str, effects: Effects) -> Member:
        """A static member comes back, as a rule under another id: it takes the place of its former self."""
        target = self.target_of(old)
        for key, value in list(self._member_tombstones(old.member_id)):
            self._write(effects, key, value)
        effects.cancel(self.group_id, SESSION, old.member_id)
        new = replace(old, member_id=member_id, epoch=JOINING, previous_epoch=JOINING, revoking={})
        names = {"group_id": self.group_id, "member_id": member_id}
        self._write(effects, ConsumerGroupMemberMetadataKey(**names), metadata_record(new))
        self._write(effects, ConsumerGroupTargetAssignmentMemberKey(**names), target_record(target))
        self._write(effects, ConsumerGroupCurrentMemberAssignmentKey(**names), current_record(new))
        return self.members[member_id]

    def _take_over(self, before: Member, wishes: Member, effects: Effects) -> None:
        """What the member says about itself, and what follows for the epoch of the group."""
        is_new = wishes.member_id not in self.members
        if is_new or before != wishes:
            key = ConsumerGroupMemberMetadataKey(group_id=self.group_id, member_id=wishes.member_id)
            self._write(effects, key, metadata_record(wishes))
        causes = []
        if _differ(before, wishes):
            causes.append(Cause(journal.JOINED if is_new else journal.CHANGED, wishes.name, wishes.client_id))
        self.check_topics(causes, effects)

    def check_topics(self, causes: Sequence[Cause], effects: Effects) -> None:
        """Let the epoch grow if there are causes, or if the topics of the group are not what they were."""
        version = self._surroundings.image.version
        if not causes and version == self._checked:
            return
        self._resolve_expressions(effects)
        self._checked = version
        found = self.hash_of_topics()
        if found != self.metadata_hash and not causes:
            causes = [Cause(journal.TOPICS_CHANGED)]
        if causes:
            self.bump(causes, found, effects)

    def unchecked_expressions(self) -> set[str]:
        """The expressions whose topics the next heartbeat will ask for."""
        if self._surroundings.image.version == self._checked:
            return set()
        return {member.regex for member in self.members.values() if member.regex}

    def bump(self, causes: Iterable[Cause], metadata_hash: int, effects: Effects) -> None:
        """A new epoch."""
        self._write(
            effects,
            ConsumerGroupMetadataKey(group_id=self.group_id),
            ConsumerGroupMetadataValue(epoch=self.epoch + 1, metadata_hash=metadata_hash),
        )
        ongoing = self._ongoing or Ongoing(effects.now_ms)
        room = journal.MAX_CAUSES - len(ongoing.causes)
        self._ongoing = ongoing._replace(causes=(*ongoing.causes, *list(causes)[:room]))

    def _resolve_expressions(self, effects: Effects) -> None:
        """Find the topics of every expression in use anew, and forget those that are not."""
        image = self._surroundings.image
        used = {member.regex for member in self.members.values() if member.regex}
        for expression in used:
            topics = self._surroundings.topic_matches.matching(expression, image.topics)
            known = self.regexes.get(expression)
            if known is None or known.topics != topics:
                self._write(
                    effects,
                    ConsumerGroupRegularExpressionKey(group_id=self.group_id, regular_expression=expression),
                    ConsumerGroupRegularExpressionValue(
                        topics=sorted(topics), version=image.version, timestamp=effects.now_ms
                    ),
                )
        for expression in [each for each in self.regexes if each not in used]:
            key = ConsumerGroupRegularExpressionKey(group_id=self.group_id, regular_expression=expression)
            self._write(effects, key, None)

    # -- the target ---------------------------------------------------------------------------------------

    def _make_target(self, effects: Effects, *, at_once: bool) -> None:
        """Decide anew who shall have what, if the group has changed and it has been long enough."""
        if self.epoch <= self.target_epoch:
            return
        since = effects.now_ms - self.target_made_ms
        if not at_once and self.target_made_ms and 0 <= since < self.settings.assignment_interval_ms:
            return
        image = self._surroundings.image
        counts = {
            topic.id: len(topic.partitions)
            for name in self.subscribed_topics()
            if (topic := image.topics.get(name)) is not None
        }
        members = {
            member.member_id: Subscriber(
                topics=self.topic_ids_of(member),
                instance_id=member.instance_id,
                previous=self.target_of(member),
            )
            for member in self.members.values()
        }
        for member_id, target in ASSIGNORS[self.assignor_name](members, counts).items():
            if self.target.get(member_id) != target:
                key = ConsumerGroupTargetAssignmentMemberKey(group_id=self.group_id, member_id=member_id)
                self._write(effects, key, target_record(target))
        self._write(
            effects,
            ConsumerGroupTargetAssignmentMetadataKey(group_id=self.group_id),
            ConsumerGroupTargetAssignmentMetadataValue(
                assignment_epoch=self.epoch, assignment_timestamp=effects.now_ms
            ),
        )

    def has_free_for(self, member: Member) -> bool:
        """Whether a partition that the member waits for has become free."""
        return any(
            self.owner(topic, partition) is None
            for topic, partitions in self.target_of(member).items()
            for partition in partitions
        )

    def topic_ids_of(self, member: Member) -> frozenset[TopicId]:
        """The topics that a member subscribes to and that exist."""
        topics = self._surroundings.image.topics
        return frozenset(topics[name].id for name in self.topics_of(member) if name in topics)

    def step(
        self,
        member_id: str,
        owned: Partitions | None,
        effects: Effects,
        *,
        subscription_changed: bool = False,
    ) -> Member:
        """Let a member take its next step towards the target."""
        before = self.members[member_id]

        def is_free(topic: TopicId, partition: int) -> bool:
            return self.owner(topic, partition) in (None, member_id)

        after = reconcile(
            before,
            target_epoch=self.target_epoch,
            target=self.target_of(before),
            subscribed=self.topic_ids_of(before),
            owned=owned,
            is_free=is_free,
            subscription_changed=subscription_changed,
        )
        if after != before:
            key = ConsumerGroupCurrentMemberAssignmentKey(group_id=self.group_id, member_id=member_id)
            self._write(effects, key, current_record(after))
            if after.state is MemberState.UNREVOKED:
                self._expect_back(after, effects)
            else:
                effects.cancel(self.group_id, REVOCATION, member_id)
        return after

    def _expect_back(self, member: Member, effects: Effects) -> None:
        """The member has its time to give back what it shall."""
        effects.set_alarm(
            Alarm(
                self.group_id,
                REVOCATION,
                member.member_id,
                generation=member.epoch,
                delay_ms=member.rebalance_timeout_ms,
            )
        )

    def expect(self, member: Member, effects: Effects) -> None:
        """The member has shown itself: its session begins anew."""
        session = self.settings.session_timeout_ms
        if member.classic is not None:
            session = member.classic.session_timeout_ms
        effects.set_alarm(Alarm(self.group_id, SESSION, member.member_id, delay_ms=session))

    def _interval(self, now_ms: int) -> int:
        return heartbeat_interval_ms(
            configured_ms=self.settings.heartbeat_interval_ms,
            members=len(self.members),
            members_in_all_groups=self._surroundings.member_count(),
            under_way_ms=None if self._ongoing is None else max(now_ms - self._ongoing.began_ms, 0),
        )

    # -- leaving ------------------------------------------------------------------------------------------

    def leave(
        self, request: ConsumerGroupHeartbeatRequest, effects: Effects
    ) -> ConsumerGroupHeartbeatResponse:
        if request.instance_id is not None:
            member = self.static_member(request.member_id, request.instance_id)
        else:
            member = self.member(request.member_id)
        if request.member_epoch == LEAVING_FOR_A_WHILE:
            self._leave_for_a_while(member, effects)
        else:
            self.remove({member.member_id: Cause(journal.LEFT, member.name, member.client_id)}, effects)
        return ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)

    def _leave_for_a_while(self, member: Member, effects: Effects) -> None:
        """It keeps its partitions, but is not reading: what it was giving back is free."""
        kept = {topic: dict.fromkeys(partitions, 0) for topic, partitions in member.assigned.items()}
        gone = replace(
            member, epoch=LEAVING_FOR_A_WHILE, assigned=kept, revoking={}, state=MemberState.STABLE
        )
        key = ConsumerGroupCurrentMemberAssignmentKey(group_id=self.group_id, member_id=member.member_id)
        self._write(effects, key, current_record(gone))
        effects.cancel(self.group_id, REVOCATION, member.member_id)

    def remove(self, causes: dict[str, Cause], effects: Effects) -> None:
        """Members are gone, each for its cause: the others are entitled to what they had."""
        for member_id in causes:
            for key, value in list(self._member_tombstones(member_id)):
                self._write(effects, key, value)
            for kind in (SESSION, REVOCATION, REJOIN, FETCH):
                effects.cancel(self.group_id, kind, member_id)
        self.rejoining -= causes.keys()
        self.check_topics(list(causes.values()), effects)
        self._conclude(effects)

    def on_alarm(self, alarm: Alarm, effects: Effects) -> None:
        member = self.members.get(alarm.member_id)
        if member is None:
            return
        if alarm.kind == SESSION:
            what = journal.SILENT
        elif member.epoch != alarm.generation:
            return  # it has gone on
        elif alarm.kind == REVOCATION:
            what = DID_NOT_GIVE_BACK
        else:
            what = journal.DID_NOT_REJOIN if alarm.kind == REJOIN else journal.DID_NOT_SYNC
        self.remove({member.member_id: Cause(what, member.name, member.client_id)}, effects)

    def resume(self, effects: Effects) -> None:
        """Read from the log by a new coordinator: wait for the members again."""
        for member in self.members.values():
            self.expect(member, effects)
            if member.state is MemberState.UNREVOKED:
                self._expect_back(member, effects)
        if self.members and self.state_name != STABLE:
            self._ongoing = self._ongoing or Ongoing(effects.now_ms)
        else:
            self._shares = self._current_shares()

    # -- offsets ------------------------------------------------------------------------------------------

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        effects: Effects,
        *,
        version: int = MEMBER_EPOCH_SINCE,
        partitions: Iterable[tuple[TopicId, int]] = (),
    ) -> None:
        """An older epoch may commit what the member has had since then, no more (KIP-1251)."""
        if generation < 0 and not self.members:
            return  # an administrator, or a consumer that assigns its partitions itself
        member = self.member(member_id)
        if member.classic is None and version < MEMBER_EPOCH_SINCE:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        if generation == member.epoch:
            return
        stale = ErrorCode.ILLEGAL_GENERATION if member.classic is not None else ErrorCode.STALE_MEMBER_EPOCH
        if generation > member.epoch:
            raise ApiError(stale)
        for topic, partition in partitions:
            given = member.given_in(topic, partition)
            if given is None or generation < given:
                raise ApiError(stale)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None or (member_epoch < 0 and not member_id):
            return
        member = self.member(member_id)
        if member_epoch != member.epoch:
            raise ApiError(ErrorCode.STALE_MEMBER_EPOCH)

    # -- the journal --------------------------------------------------------------------------------------

    def _current_shares(self) -> dict[str, Partitions]:
        return {
            member.name: {topic: frozenset(owned) for topic, owned in member.assigned.items()}
            for member in self.members.values()
        }

    def _conclude(self, effects: Effects) -> None:
        """If the rebalance is over, tell the journal."""
        if self._ongoing is None or (self.members and self.state_name != STABLE):
            return
        ongoing, self._ongoing = self._ongoing, None
        shares = self._current_shares()
        before, after = self._named(self._shares), self._named(shares)
        self._shares = shares
        effects.rebalances.append(
            Rebalance(
                group_id=self.group_id,
                generation=self.epoch,
                causes=ongoing.causes,
                began_ms=ongoing.began_ms,
                ended_ms=effects.now_ms,
                protocol=self.assignor_name,
                leader=None,
                shares=after,
                moves=journal.moves_between(before, after),
                joined=tuple(sorted(after.keys() - before.keys())),
                left=tuple(sorted(before.keys() - after.keys())),
            )
        )

    def _named(self, shares: Mapping[str, Partitions]) -> journal.Shares:
        """With the names of topics; one that is gone goes by its id."""
        by_id = self._surroundings.image.topics_by_id
        return {
            name: frozenset(
                (by_id[topic].name if topic in by_id else topic.hex(), partition)
                for topic, partitions in share.items()
                for partition in partitions
            )
            for name, share in shares.items()
        }


DID_NOT_GIVE_BACK = "a member did not give back partitions within its rebalance timeout"


def _with_wishes(member: Member, request: ConsumerGroupHeartbeatRequest, caller: Caller) -> Member:
    """The member with what it says about itself; what it does not mention stays."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout = request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        topics=member.topics if names is None else frozenset(names),
        regex=member.regex if regex is None else regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout == -1 else timeout,
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
        classic=None,
    )


def _differ(before: Member, after: Member) -> bool:
    """Whether the subscription changed; who is new and wants nothing has not changed anything."""
    return before.topics != after.topics or before.regex != after.regex


def _check_expression(expression: str) -> None:
    try:
        compiled(expression)
    except InvalidExpression as error:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{expression}` is not a valid regular expression: {error}.",
        ) from None


def _assignment(member: Member) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic, partitions=sorted(partitions))
            for topic, partitions in member.assigned.items()
        ]
    )
