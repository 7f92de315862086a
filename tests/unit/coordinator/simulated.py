"""A shard without a broker: the real runtime and groups over a partition in memory, with virtual time.

The partition can refuse appends and can be slow to commit. Time passes only when a test says so, and what is
due happens in order. `restarted` is what a new coordinator makes of the same log.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

from ottla.cluster.image import ClusterImage
from ottla.coordinator.group import Caller, GroupSettings
from ottla.coordinator.group_effects import GroupEffects
from ottla.coordinator.group_environment import ConsumerSettings
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.records import GROUP_RECORDS
from ottla.coordinator.runtime.effects import Reply
from ottla.coordinator.runtime.runtime import CoordinatorRuntime
from ottla.coordinator.runtime.shard import Phase, Shard, TransactionalProducer
from ottla.coordinator.topic_matches import TopicMatches
from ottla.protocol.batches import read_header, stamp
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    write_assignment,
    write_subscription,
)
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.leave_group import MemberIdentity
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.replication.partition import Partition
from ottla.replication.purgatory import Purgatory
from ottla.testing.simulation.virtual_time import Host, SimulatedClock, VirtualTime
from unit.coordinator.forged_batches import marker

SETTINGS = GroupSettings(initial_rebalance_delay_ms=3000)


class NoTopics:
    """The environment of groups that do not look at topics."""

    image = ClusterImage()
    topic_matches = TopicMatches()

    def settings(self, group_id: str) -> ConsumerSettings:
        return ConsumerSettings()

    def member_count(self) -> int:
        return 0


NO_TOPICS = NoTopics()


class ManualScheduler(VirtualTime):
    """Virtual time with the clock that goes with it."""

    def __init__(self) -> None:
        super().__init__()
        self.host = Host("coordinator")
        self.clock = SimulatedClock(self, self.host)

    def run(self, milliseconds: int = 0) -> None:
        """Let time pass, and all that is due until then happen."""
        self.advance(milliseconds / 1000)


class MemoryPartition:
    """What a shard asks of a partition, in memory."""

    topic, index, leader_epoch = "__consumer_offsets", 0, 1
    folder = "__consumer_offsets-0"

    def __init__(self, batches: list[bytes] | None = None) -> None:
        self.batches = list(batches or ())
        self.state = SimpleNamespace(is_leader=True)
        self.high_watermark = self.end_offset
        self.refuses: ApiError | None = None
        self.is_slow = False
        self.failure: ApiError | None = None
        self.verifications: list[object | None] = []
        self.log = self

    config = SimpleNamespace(max_message_bytes=1_048_588)
    log_start_offset = 0

    @property
    def end_offset(self) -> int:
        return read_header(self.batches[-1]).next_offset if self.batches else 0

    def check_in_sync(self) -> None: ...

    def append(
        self, records: memoryview, *, from_client: bool = True, verification: object | None = None
    ) -> Any:
        assert not from_client
        self.verifications.append(verification)
        return self._append(bytearray(records))

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> Any:
        return self._append(bytearray(marker(0, producer_id, producer_epoch, committed=commit)))

    def _append(self, batch: bytearray) -> Any:
        if self.refuses is not None:
            raise self.refuses
        stamp(batch, 0, self.end_offset, self.leader_epoch)
        self.batches.append(bytes(batch))
        if not self.is_slow:
            self.high_watermark = self.end_offset
        return SimpleNamespace(last_offset=self.end_offset - 1)

    def acknowledged(self, end_offset: int, all_replicas: bool, leader_epoch: int) -> bool:
        if self.failure is not None:
            raise self.failure
        if self.leader_epoch != leader_epoch:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.high_watermark >= end_offset

    def read(self, offset: int, max_bytes: int, limit: int) -> Any:
        left = [batch for batch in self.batches if read_header(batch).next_offset > offset]
        return SimpleNamespace(read=lambda: b"".join(left[:3])) if left else None


class Simulated:
    def __init__(
        self,
        settings: GroupSettings = SETTINGS,
        batches: list[bytes] | None = None,
        ids: Iterator[int] | None = None,
    ) -> None:
        self.settings = settings
        self.scheduler = ManualScheduler()
        self.clock = self.scheduler.clock
        self.partition = MemoryPartition(batches)
        self.purgatory = Purgatory(self.scheduler)

        async def in_thread(work: Callable[[], int]) -> int:
            return work()

        self.runtime: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(
            "__consumer_offsets",
            GROUP_RECORDS,
            lambda: GroupShard(settings, NO_TOPICS),
            clock=self.clock,
            scheduler=self.scheduler,
            purgatory=self.purgatory,
            in_thread=in_thread,
            commit_timeout_ms=lambda: 5000,
        )
        self.shard: Shard[GroupShard] = Shard(cast(Partition, self.partition), self.runtime)
        asyncio.run(self.shard.load())
        self.shard.phase = Phase.ACTIVE
        self.ids = ids or itertools.count(1)
        """Of new members; a coordinator that comes after another gives out none that were given out."""

    @property
    def groups(self) -> GroupShard:
        return self.shard.state

    def restarted(self) -> Simulated:
        """A new coordinator that has read what this one has written."""
        return Simulated(self.settings, self.partition.batches, self.ids)

    def commit_all(self) -> None:
        """The followers have caught up."""
        self.partition.high_watermark = self.partition.end_offset
        self.purgatory.notify(self.partition)
        self.scheduler.run()

    def ask(
        self,
        command: Callable[[GroupShard, Reply, GroupEffects], None],
        producer: TransactionalProducer | None = None,
    ) -> Answer:
        answer = Answer()
        self.shard.run(command, producer).then(answer, answer)
        return answer

    # -- requests -----------------------------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        instance: str | None = None,
        topics: tuple[str, ...] = ("t",),
        protocols: tuple[str, ...] = ("range",),
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 30_000,
        version: int = 9,
    ) -> Answer:
        metadata = write_subscription(ConsumerProtocolSubscription(topics=list(topics)))
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name in protocols],
        )
        new_id = f"{instance or 'client'}-{next(self.ids)}"
        caller = Caller("client", "/127.0.0.1", version)
        return self.ask(lambda groups, reply, effects: groups.join(request, new_id, caller, reply, effects))

    def sync(
        self,
        member_id: str,
        generation: int,
        shares: dict[str, set[int]] | None = None,
        *,
        group: str = "g",
        instance: str | None = None,
    ) -> Answer:
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=assignment(partitions))
                for member, partitions in (shares or {}).items()
            ],
        )
        return self.ask(lambda groups, reply, effects: groups.sync(request, reply, effects))

    def heartbeat(
        self, member_id: str, generation: int, *, group: str = "g", instance: str | None = None
    ) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        answer = self.ask(lambda groups, reply, effects: groups.heartbeat(request, reply, effects))
        # With slow followers the answer waits for what was written before; the outcome is known already.
        return ErrorCode.NONE if answer.waits else ErrorCode(answer.error)  # type: ignore[call-arg]

    def leave(self, *members: MemberIdentity, group: str = "g") -> list[ErrorCode]:
        answer = self.ask(
            lambda groups, reply, effects: effects.answer(reply, groups.leave(group, members, effects))
        )
        return [] if answer.waits else [code for _, code in answer.value]

    def new_member(self, **settings: Any) -> tuple[str, Answer]:
        """A member that joins as clients do: it is given an id, and comes back with it."""
        member_id = self.join(**settings).value.member_id
        return member_id, self.join(member_id, **settings)

    def stable(self, members: int = 1, *, group: str = "g") -> list[str]:
        """A group of so many members, each with one partition."""
        joins = [self.new_member(group=group) for _ in range(members)]
        while joins[0][1].waits:
            self.scheduler.run(500)
        ids = [member_id for member_id, _ in joins]
        generation = joins[0][1].value.generation_id
        shares = {member_id: {index} for index, member_id in enumerate(ids)}
        for member_id, answer in joins:
            leads = answer.value.leader == member_id
            self.sync(member_id, generation, shares if leads else None, group=group)
        return ids


class Answer:
    """What a client was answered, once it was."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def __call__(self, answer: Any) -> None:
        assert not self.given, f"answered twice: {self.given[0]} and {answer}"
        self.given.append(answer)

    @property
    def waits(self) -> bool:
        return not self.given

    @property
    def value(self) -> Any:
        assert self.given, "not answered"
        if isinstance(self.given[0], ApiError):
            raise self.given[0]
        return self.given[0]

    @property
    def error(self) -> int:
        assert self.given, "not answered"
        given = self.given[0]
        return int(given.code if isinstance(given, ApiError) else given.error_code)


def assignment(partitions: set[int]) -> bytes:
    assigned = [TopicPartition(topic="t", partitions=sorted(partitions))] if partitions else []
    return write_assignment(ConsumerProtocolAssignment(assigned_partitions=assigned))
