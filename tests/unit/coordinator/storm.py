"""Many members of many groups in one event loop, and a check of what they own.

A member here is as small as a correct one can be: it gives up what it owned before it reports that to the
broker, and takes what it is assigned when it gets the assignment. `Owners` checks at every step that nothing
has two owners. A probe in its own process measures meanwhile how long other clients wait for the broker.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from ottla.peer.client import PeerClient
from ottla.peer.tcp import TcpConnector
from ottla.protocol.errors import ErrorCode, error_of
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from ottla.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    read_assignment,
    write_assignment,
    write_subscription,
)
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.protocol.schema import Request
from raw_client import RawClient

TOPIC = "storm"
SESSION_MS = 6000
REBALANCE_MS = 30_000
REQUEST_TIMEOUT = 60.0
SETTINGS: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.session.timeout.ms": SESSION_MS,
    "group.consumer.min.session.timeout.ms": SESSION_MS,
}
"""For the broker, so that the death of a member is noticed within seconds."""

_CLASSIC_HEARTBEAT = 0.3


class Owners:
    """The owner of each partition, over all groups. Nothing may have two owners, now or in one generation."""

    def __init__(self) -> None:
        self._now: dict[tuple[str, int], object] = {}
        self._given: dict[tuple[str, int, int], object] = {}
        self.changes = 0

    def take(self, group: str, generation: int, member: Member, partitions: set[int]) -> None:
        """Members of the consumer protocol own things over many epochs, and need not be in the same one."""
        for partition in partitions:
            before = self._now.setdefault((group, partition), member)
            assert before is member, f"{group}: {partition} is {before}'s, and given to {member}"
            if isinstance(member, ClassicMember):
                given = self._given.setdefault((group, generation, partition), member)
                assert given is member, f"{group}: generation {generation} gives {partition} to two members"
        member.owned |= partitions
        self.changes += 1

    def drop(self, group: str, member: Member, partitions: set[int]) -> None:
        for partition in partitions:
            assert self._now.pop((group, partition)) is member
        member.owned -= partitions


class Channel:
    """A connection to the broker. A member has one request in flight on it."""

    def __init__(self, client: PeerClient) -> None:
        self._client = client

    @classmethod
    @asynccontextmanager
    async def open(cls, bootstrap: str) -> AsyncIterator[Channel]:
        host, _, port = bootstrap.rpartition(":")
        client = PeerClient(
            (host, int(port)), client_id="storm", sockets=TcpConnector(), rng=random.Random(), max_in_flight=1
        )
        try:
            yield cls(client)
        finally:
            await client.close()

    async def call(self, request: Request) -> Any:
        return await self._client.call(request, timeout=REQUEST_TIMEOUT)


class Member:
    """A member until it leaves, or dies."""

    def __init__(self, bootstrap: str, group: str, partitions: int, topic_id: bytes, owners: Owners) -> None:
        self.group = group
        self.owned: set[int] = set()
        self.generation = -1
        """Or its epoch."""
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._topic_id = topic_id
        self._owners = owners
        self._id = ""
        self._over = asyncio.Event()
        self._silently = False

    def leave(self, *, silently: bool = False) -> None:
        self._silently = silently
        self._over.set()

    async def run(self) -> None:
        async with Channel.open(self._bootstrap) as channel:
            try:
                await self._live(channel)
            finally:
                self._give_up(self.owned)
            if not self._silently:
                await self._leave_group(channel)

    async def _live(self, channel: Channel) -> None:
        raise NotImplementedError

    async def _leave_group(self, channel: Channel) -> None:
        raise NotImplementedError

    def _give_up(self, partitions: set[int]) -> None:
        self._owners.drop(self.group, self, set(partitions))

    async def _over_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._over.wait(), seconds)
        except TimeoutError:
            return False
        return True


class ClassicMember(Member):
    """Eager: gives up everything in every rebalance. The leader assigns the partitions round robin."""

    async def _live(self, channel: Channel) -> None:
        while not self._over.is_set():
            if not await self._take_part(channel):
                continue
            while not await self._over_within(_CLASSIC_HEARTBEAT):
                beat = HeartbeatRequest(
                    group_id=self.group, generation_id=self.generation, member_id=self._id
                )
                if not self._still_member((await channel.call(beat)).error_code):
                    break
            self._give_up(self.owned)

    async def _take_part(self, channel: Channel) -> bool:
        subscription = write_subscription(ConsumerProtocolSubscription(topics=[TOPIC]))
        joined = await channel.call(
            JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self._id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="deal", metadata=subscription)],
            )
        )
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._id = joined.member_id
            return False
        if not self._still_member(joined.error_code):
            return False
        self.generation = joined.generation_id
        shares = self._deal([each.member_id for each in joined.members]) if joined.leader == self._id else []
        synced = await channel.call(
            SyncGroupRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self._id,
                protocol_type="consumer",
                protocol_name="deal",
                assignments=shares,
            )
        )
        if not self._still_member(synced.error_code):
            return False
        assigned = read_assignment(synced.assignment).assigned_partitions
        self._owners.take(
            self.group, self.generation, self, {index for each in assigned for index in each.partitions}
        )
        return True

    def _still_member(self, error: int) -> bool:
        """False when it has to join (again)."""
        if error == ErrorCode.NONE:
            return True
        assert error in (
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
        ), error_of(error)
        if error == ErrorCode.UNKNOWN_MEMBER_ID:
            self._id = ""
        return False

    def _deal(self, members: list[str]) -> list[SyncGroupRequestAssignment]:
        return [
            SyncGroupRequestAssignment(
                member_id=member,
                assignment=write_assignment(
                    ConsumerProtocolAssignment(
                        assigned_partitions=[
                            TopicPartition(
                                topic=TOPIC, partitions=[*range(number, self._partitions, len(members))]
                            )
                        ]
                    )
                ),
            )
            for number, member in enumerate(sorted(members))
        ]

    async def _leave_group(self, channel: Channel) -> None:
        if self._id:
            await channel.call(
                LeaveGroupRequest(group_id=self.group, members=[MemberIdentity(member_id=self._id)])
            )


class ConsumerMember(Member):
    """Of the consumer protocol: takes what is free, gives back what is asked for, keeps the rest."""

    async def _live(self, channel: Channel) -> None:
        self._id = str(uuid.uuid4())
        self.generation = 0
        tell = True
        while True:
            answer = await channel.call(self._heartbeat(tell))
            if answer.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
                self._give_up(self.owned)
                self.generation, tell = 0, True
                continue
            assert answer.error_code == ErrorCode.NONE, (error_of(answer.error_code), answer.error_message)
            assert answer.member_epoch >= self.generation, "epochs only grow"
            self.generation, tell = answer.member_epoch, False
            if answer.assignment is not None:
                assigned = {p for topic in answer.assignment.topic_partitions for p in topic.partitions}
                tell = assigned != self.owned
                self._give_up(self.owned - assigned)
                self._owners.take(self.group, self.generation, self, assigned - self.owned)
            if await self._over_within(0 if tell else answer.heartbeat_interval_ms / 1000):
                return

    def _heartbeat(self, tell: bool) -> ConsumerGroupHeartbeatRequest:
        owned = (
            [TopicPartitions(topic_id=self._topic_id, partitions=sorted(self.owned))] if self.owned else []
        )
        joining = self.generation == 0
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self._id,
            member_epoch=self.generation,
            rebalance_timeout_ms=REBALANCE_MS if joining else -1,
            subscribed_topic_names=[TOPIC] if joining else None,
            topic_partitions=owned if tell else None,
        )

    async def _leave_group(self, channel: Channel) -> None:
        await channel.call(
            ConsumerGroupHeartbeatRequest(group_id=self.group, member_id=self._id, member_epoch=-1)
        )


MEMBERS: dict[str, type[Member]] = {"classic": ClassicMember, "consumer": ConsumerMember}


class Storm:
    """Members of one protocol, at one broker whose topic has so many partitions."""

    def __init__(self, bootstrap: str, protocol: str, partitions: int, topic_id: bytes) -> None:
        self.owners = Owners()
        self._kind = MEMBERS[protocol]
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._topic_id = topic_id
        self._running: dict[Member, asyncio.Task[None]] = {}

    def start(self, group: str) -> Member:
        member = self._kind(self._bootstrap, group, self._partitions, self._topic_id, self.owners)
        self._running[member] = asyncio.create_task(member.run())
        return member

    async def end(self, member: Member, *, silently: bool = False) -> None:
        member.leave(silently=silently)
        await self._running.pop(member)

    async def end_all(self) -> None:
        members = list(self._running)
        for member in members:
            member.leave(silently=True)
        await asyncio.gather(*(self._running.pop(member) for member in members))

    async def churn(
        self, group: str, members: int, seconds: float, silently: float, rng: random.Random
    ) -> list[Member]:
        """Members come and go, this share of them without leaving the group. At the end, members that run
        stay, and the others start at once."""
        over = time.monotonic() + seconds

        def at_most(longest: float) -> float:
            return max(0.0, min(rng.uniform(0, longest), over - time.monotonic()))

        async def place() -> Member:
            while True:
                await asyncio.sleep(at_most(seconds / 4))
                member = self.start(group)
                await self._while_well([member], at_most(seconds / 3))
                if time.monotonic() >= over:
                    return member
                await self.end(member, silently=rng.random() < silently)

        return await asyncio.gather(*(place() for _ in range(members)))

    async def settle(self, groups: dict[str, list[Member]], within: float) -> float:
        """Wait until every group has one generation and all partitions are owned; the seconds it took."""
        began = time.monotonic()
        waiting = dict(groups)
        while waiting:
            assert time.monotonic() - began < within, {
                group: (sorted({m.generation for m in members}), sum(len(m.owned) for m in members))
                for group, members in waiting.items()
            }
            await self._while_well([m for members in waiting.values() for m in members], 0.02)
            for group, members in list(waiting.items()):
                if self._settled(members):
                    del waiting[group]
        return time.monotonic() - began

    def _settled(self, members: Sequence[Member]) -> bool:
        loads = [len(member.owned) for member in members]
        same = len({member.generation for member in members}) == 1
        return same and sum(loads) == self._partitions and max(loads) - min(loads) <= 1

    async def _while_well(self, members: Sequence[Member], seconds: float) -> None:
        """Sleep; but fail with a member that fails."""
        await asyncio.sleep(seconds)
        for member in members:
            task = self._running.get(member)
            if task is not None and task.done():
                task.result()


async def ready(bootstrap: str, protocol: str, partitions: int) -> Storm:
    """A storm that can begin: the topic is known, and the broker coordinates groups."""
    async with Channel.open(bootstrap) as channel:
        answer = await channel.call(MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]))
        deadline = time.monotonic() + 20
        groups = [f"g-{number}" for number in range(200)]  # of all partitions of the topic of the offsets
        while True:
            found = await channel.call(FindCoordinatorRequest(coordinator_keys=groups))
            described = await channel.call(DescribeGroupsRequest(groups=groups))
            errors = {each.error_code for each in (*found.coordinators, *described.groups)}
            if errors <= {ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND}:
                return Storm(bootstrap, protocol, partitions, answer.topics[0].topic_id)
            assert time.monotonic() < deadline, errors
            await asyncio.sleep(0.02)


class Probe:
    """Writes and reads a small record every few milliseconds, and reports how long each request took."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_probe, args=(bootstrap, topic, theirs), daemon=True)
        self._process.start()
        assert self._pipe.poll(30) and self._pipe.recv() == "ready"

    def p99_since_last(self) -> float:
        """In milliseconds."""
        self._pipe.send("tell")
        assert self._pipe.poll(30), "the probe does not answer"
        times = sorted(self._pipe.recv())
        assert times
        return float(times[min(len(times) - 1, len(times) * 99 // 100)]) * 1e3

    def close(self) -> None:
        self._pipe.send("end")
        self._process.join(10)
        assert self._process.exitcode == 0


def _probe(bootstrap: str, topic: str, pipe: Connection) -> None:
    times: list[float] = []

    def timed(request: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        answer = request()
        times.append(time.perf_counter() - began)
        assert answer.error_code == ErrorCode.NONE, answer
        return answer

    with RawClient(bootstrap, timeout=30) as client:
        for _ in range(100):  # thrown away
            client.produce(topic, b"x" * 100)
        pipe.send("ready")
        while True:
            written = timed(lambda: client.produce(topic, b"x" * 100))
            timed(partial(client.fetch, topic, written.base_offset, max_bytes=1000))
            if pipe.poll(0.01):
                if pipe.recv() == "end":
                    return
                pipe.send(times)
                times.clear()
