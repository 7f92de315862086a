"""Reading a topic as a member of a consumer group, in the classic protocol.

    with GroupConsumer(wire, "payments", "billing") as consumer:
        for partition, records in consumer.chunks():
            ...
            consumer.done(partition, records[-1].offset + 1)

The group shares the partitions out among its members. `Membership` is the talk with the coordinator: join,
fetch the assignment (or make it, as the leader), heartbeat, leave. `GroupConsumer` reads what it was given,
commits what its caller has done with, and lets go of everything before each rebalance.

There is no thread. Heartbeats go out between two fetches and between two chunks, which is often enough for
any caller that keeps taking records. One that stops taking them for longer than the session timeout is put
out of the group, so that others read on; it joins again when it goes on, from what was committed. So a record
may be seen twice, by two members, but none is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from ottla.protocol.codec import Malformed
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.protocol.records import Record
from ottla.protocol_client.assignment import ASSIGNORS
from ottla.protocol_client.consume import Consumer
from ottla.protocol_client.group_offsets import commit_offsets, committed_offsets
from ottla.protocol_client.groups import Place, ask, coordinator
from ottla.protocol_client.lag import ends
from ottla.protocol_client.wire import BrokerUnreachable, Wire, check

SESSION_TIMEOUT = 45.0
REBALANCE_TIMEOUT = 60.0
HEARTBEAT_INTERVAL = 3.0
COMMIT_INTERVAL = 1.0
TOPIC_CHECK_INTERVAL = 10.0
CLOSE_TIMEOUT = 5.0
"""Who goes has no time to wait for a broker that is away."""

_LOST = frozenset((ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID))
"""The group went on without us: what we had belongs to others."""


class Rebalancing(Exception):
    """The group gathers anew: join again."""


class Membership:
    """One member of a group, as the coordinator sees it."""

    def __init__(self, wire: Wire, group_id: str, topic: str) -> None:
        self.wire = wire
        self.group_id = group_id
        self.topic = topic
        self.member_id = ""
        self.generation = -1
        self._watched: dict[str, int] | None = None
        """What the leader has shared out: topics and their partitions. None when another member leads."""
        self._beat_at = self._checked_at = 0.0

    def join(self) -> list[int]:
        """Enter the group, or its next generation; the partitions that are ours in it."""
        while True:
            try:
                joined = self._join()
                self.member_id, self.generation = joined.member_id, joined.generation_id
                self._beat_at = self._checked_at = time.monotonic()
                return self._sync(joined)
            except ApiError as error:
                if error.code == ErrorCode.UNKNOWN_MEMBER_ID:
                    self.member_id = ""
                elif error.code not in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
                    raise

    def beat(self) -> None:
        """A heartbeat, if one is due. Rebalancing when the group gathers, a _LOST error when we are out."""
        now = time.monotonic()
        if now - self._beat_at < HEARTBEAT_INTERVAL:
            return
        request = HeartbeatRequest(
            group_id=self.group_id, generation_id=self.generation, member_id=self.member_id
        )
        try:
            ask(self.wire, self.group_id, request, lambda response: check(response.error_code))
        except ApiError as error:
            if error.code == ErrorCode.REBALANCE_IN_PROGRESS:
                raise Rebalancing from None
            raise
        self._beat_at = time.monotonic()
        if self._watched is not None and now - self._checked_at >= TOPIC_CHECK_INTERVAL:
            self._checked_at = now
            if self._topics_changed(self._watched):
                raise Rebalancing

    def _topics_changed(self, watched: dict[str, int]) -> bool:
        try:
            return self._count_partitions(watched) != watched
        except BrokerUnreachable:
            return False  # not known now; the next check will show

    def leave(self) -> None:
        """Leave, so that the others need not wait for the session timeout; no error if no broker can be
        reached."""
        if not self.member_id:
            return
        request = LeaveGroupRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            members=[MemberIdentity(member_id=self.member_id, reason="the command ended")],
        )
        try:
            node = coordinator(self.wire, self.group_id)
            self.wire.call(request, node=node, timeout=min(self.wire.request_timeout, CLOSE_TIMEOUT))
        except (BrokerUnreachable, ApiError):
            return  # then the session timeout does it
        finally:
            self.member_id, self.generation = "", -1

    def _join(self) -> JoinGroupResponse:
        subscription = write_subscription(ConsumerProtocolSubscription(topics=[self.topic]), version=1)
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=int(SESSION_TIMEOUT * 1000),
            rebalance_timeout_ms=int(REBALANCE_TIMEOUT * 1000),
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=name, metadata=subscription) for name in ASSIGNORS],
        )

        def answer(response: JoinGroupResponse) -> JoinGroupResponse:
            if response.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                check(response.error_code)
            return response

        patience = REBALANCE_TIMEOUT + self.wire.request_timeout
        response = ask(self.wire, self.group_id, request, answer, timeout=patience)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            request.member_id = self.member_id = response.member_id
            response = ask(self.wire, self.group_id, request, answer, timeout=patience)
        return response

    def _sync(self, joined: JoinGroupResponse) -> list[int]:
        assignments = []
        self._watched = None
        if joined.leader == joined.member_id and not joined.skip_assignment:
            assignments = self._share_out(joined)
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )

        def answer(response: Any) -> list[int]:
            check(response.error_code)
            if not response.assignment:
                return []
            try:
                shares = read_assignment(response.assignment).assigned_partitions
            except Malformed as error:
                raise ApiError(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the group's leader sent no assignment: {error}"
                ) from None
            return sorted(p for share in shares if share.topic == self.topic for p in share.partitions)

        patience = REBALANCE_TIMEOUT + self.wire.request_timeout
        return ask(self.wire, self.group_id, request, answer, timeout=patience)

    def _share_out(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        subscriptions = {}
        for member in joined.members:
            try:
                subscriptions[member.member_id] = read_subscription(member.metadata).topics
            except Malformed:
                subscriptions[member.member_id] = []
        topics = {topic for wanted in subscriptions.values() for topic in wanted}
        self._watched = self._count_partitions(topics)
        shares = ASSIGNORS[joined.protocol_name or "range"](subscriptions, self._watched)
        return [
            SyncGroupRequestAssignment(
                member_id=member,
                assignment=write_assignment(
                    ConsumerProtocolAssignment(
                        assigned_partitions=[
                            TopicPartition(topic=topic, partitions=partitions)
                            for topic, partitions in share.items()
                        ]
                    ),
                    version=1,
                ),
            )
            for member, share in shares.items()
        ]

    def _count_partitions(self, topics: set[str] | Mapping[str, int]) -> dict[str, int]:
        found = {t.name or "": len(t.partitions) for t in self.wire.metadata(sorted(topics)).topics}
        return {topic: found.get(topic, 0) for topic in topics}


class GroupConsumer:
    """Reads its share of a topic. Use in a `with`: at its end it commits and leaves the group."""

    def __init__(
        self,
        wire: Wire,
        topic: str,
        group_id: str,
        begin: Callable[[list[int]], Mapping[int, int]],
        *,
        stop: Mapping[int, int] | None = None,
        read_committed: bool = False,
        timeout: float = 30.0,
        notice: Callable[[str], None] = lambda text: None,
        skip: Callable[[str], None] | None = None,
    ) -> None:
        """`begin` says where to start in partitions for which the group has committed nothing. `skip` is
        called with batches that cannot be read, see `Consumer`."""
        self.wire = wire
        self.topic = topic
        self.member = Membership(wire, group_id, topic)
        self._begin = begin
        self._stop = stop
        self._read_committed = read_committed
        self._timeout = timeout
        self._notice = notice
        self._skip = skip
        self._reader: Consumer | None = None
        self._done: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._commit_at = 0.0

    def __enter__(self) -> GroupConsumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def chunks(self) -> Iterator[tuple[int, list[Record]]]:
        """Batches of our partitions, through all rebalances. Ends when `stop` is reached in all we have."""
        while True:
            partitions = self.member.join()
            try:
                yield from self._read(partitions)
                return
            except Rebalancing:
                self._commit_last()
                self._notice("the group rebalances")
            except ApiError as error:
                if error.code not in _LOST:
                    raise
                self._notice(f"the group went on without this member ({error.message}); joining again")
            self._done, self._reader = {}, None

    def done(self, partition: int, next_offset: int) -> None:
        """The caller has done with all records of `partition` before this offset: they may be committed."""
        if partition in self._done:
            self._done[partition] = next_offset

    def close(self) -> None:
        """Commit and leave. What was interrupted half-way must not keep the connection from this."""
        self.wire.close()
        self.wire.request_timeout = min(self.wire.request_timeout, CLOSE_TIMEOUT)
        self._commit_last()
        self.member.leave()

    def _read(self, partitions: list[int]) -> Iterator[tuple[int, list[Record]]]:
        start = self._positions(partitions)
        self._done = dict(start)
        self._commit_at = time.monotonic()
        self._notice(f"reading {_partitions_text(partitions)} of {self.topic}")
        stop = None if self._stop is None else {p: self._stop.get(p, start[p]) for p in partitions}
        reader = Consumer(
            self.wire,
            self.topic,
            start,
            stop,
            read_committed=self._read_committed,
            timeout=self._timeout,
            notice=self._notice,
            between=self._between,
            skip=self._skip,
        )
        self._reader = reader
        for chunk in reader.chunks():
            yield chunk
            self.member.beat()
        self._done.update(reader.positions)
        while self._stop is None:  # more members than partitions: wait for a share
            time.sleep(HEARTBEAT_INTERVAL / 10)
            self.member.beat()

    def _between(self) -> None:
        """All that was read so far has been taken by the caller, which asks for more."""
        if self._reader is not None:
            self._done.update(self._reader.positions)
        self.member.beat()
        if time.monotonic() - self._commit_at >= COMMIT_INTERVAL:
            self._commit_at = time.monotonic()
            self._commit()

    def _commit(self) -> None:
        new = {p: offset for p, offset in self._done.items() if offset != self._committed.get(p)}
        if not new or self.member.generation < 0:
            return
        places: dict[Place, int] = {(self.topic, p): offset for p, offset in new.items()}
        member = self.member
        try:
            commit_offsets(
                self.wire,
                member.group_id,
                places,
                member_id=member.member_id,
                generation=member.generation,
            )
        except ApiError as error:
            if error.code != ErrorCode.REBALANCE_IN_PROGRESS:
                raise
            raise Rebalancing from None
        self._committed.update(new)

    def _commit_last(self) -> None:
        """Before the partitions go to others. If it fails, they read from the commit before."""
        try:
            self._commit()
        except (ApiError, BrokerUnreachable) as error:
            self._notice(f"the last offsets are not committed ({error}); some records will be read again")
        except Rebalancing:
            self._notice("the last offsets are not committed; some records will be read again")

    def _positions(self, partitions: list[int]) -> dict[int, int]:
        """Where the group left off, moved into what the partitions still hold."""
        committed = committed_offsets(self.wire, self.member.group_id)
        found = {p: committed[self.topic, p].offset for p in partitions if (self.topic, p) in committed}
        self._committed = dict(found)  # where to start in the others is committed as well, so that it stays
        new = [p for p in partitions if p not in found]
        if new:
            found |= self._begin(new)
        held = ends(self.wire, [(self.topic, p) for p in partitions])
        for partition, offset in found.items():
            span = held.get((self.topic, partition))
            if span is not None and not span.start <= offset <= span.end:
                found[partition] = min(max(offset, span.start), span.end)
                self._notice(
                    f"partition {partition}: the committed offset {offset} is not there any more, "
                    f"going on at {found[partition]}"
                )
        return found


def _partitions_text(partitions: list[int]) -> str:
    if not partitions:
        return "no partition"
    return f"partition{'' if len(partitions) == 1 else 's'} {', '.join(map(str, partitions))}"
