"""Clients of a simulated broker: a producer, a consumer and a group member, each a task that never gives up.

They behave as good clients do: they try again after errors that may pass, a producer keeps its sequence over
retries, a member rejoins when it is told to. All they learn goes into the `History`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any, Protocol, TypeVar

from ottla.peer.client import PeerUnreachable
from ottla.protocol.batches import headers
from ottla.protocol.errors import ErrorCode, error_of
from ottla.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    read_assignment,
    write_assignment,
    write_subscription,
)
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.protocol.records import Record, decode_batch, encode_batch
from ottla.protocol_client.assignment import range_shares
from ottla.testing.simulation.virtual_time import START_MS
from simulation.history import History, Partition, Violation

logger = logging.getLogger("ottla.simulation")

TIMEOUT = 5.0
MAX_SIZE = 1 << 20
_EARLIEST, _LATEST = -2, -1
_LEADERSHIP_MOVES = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OFFSET_NOT_AVAILABLE)
_Answer = TypeVar("_Answer")
FETCH_VERSION, PRODUCE_VERSION, JOIN_VERSION, COMMIT_VERSION, OFFSETS_VERSION = 12, 9, 5, 7, 7


class Caller(Protocol):
    """A `PeerClient`, or what speaks to several brokers."""

    async def call(self, request: Any, *, timeout: float, version: int | None = None) -> Any: ...


class Retry(Exception):
    """The broker refused for now."""


def passing(code: int) -> None:
    """Raise Retry for an error that may pass, Violation for one that a good client never gets."""
    if code:
        error = error_of(code)
        if not error.retriable:
            raise Violation(f"a good client was refused with {error.name}")
        raise Retry(error.name)


async def answered(client: Caller, request: Any, version: int | None = None) -> Any:
    """The response, asked for until there is one."""
    while True:
        try:
            return await client.call(request, timeout=TIMEOUT, version=version)
        except PeerUnreachable:
            await asyncio.sleep(0.1)


class Producer:
    """Idempotent: one batch under way for a partition, sent again until it is acknowledged.

    `may_lose`: acknowledged records may get lost, so its sequence may be refused.
    """

    def __init__(
        self, name: str, client: Caller, history: History, rng: Random, *, may_lose: bool = True
    ) -> None:
        self.name = name
        self._may_lose = may_lose
        self._client = client
        self._history = history
        self._rng = rng
        self._id: tuple[int, int] | None = None
        self._sequences: dict[Partition, int] = {}
        self._count = 0

    async def run(self, partitions: list[Partition], pause: float) -> None:
        while True:
            await self.send(self._rng.choice(partitions), self._rng.randint(1, 5))
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.5))

    async def send(self, partition: Partition, count: int) -> None:
        values = []
        for _ in range(count):
            self._count += 1
            values.append(f"{self.name}:{self._count}")
            self._history.send(self.name, partition, values[-1])
        offset = await self._until_acknowledged(partition, values)
        for place, value in enumerate(values):
            self._history.acknowledge(partition, offset + place, value)

    async def _until_acknowledged(self, partition: Partition, values: list[str]) -> int:
        topic, index = partition
        while True:
            if self._id is None:
                self._id = await self._new_id()
            sequence = self._sequences.get(partition, 0)
            now = START_MS + int(asyncio.get_running_loop().time() * 1000)
            records = [Record(n, now, None, value.encode(), []) for n, value in enumerate(values)]
            batch = encode_batch(
                records, producer_id=self._id[0], producer_epoch=self._id[1], base_sequence=sequence
            )
            data = TopicProduceData(
                name=topic, partition_data=[PartitionProduceData(index=index, records=batch)]
            )
            request = ProduceRequest(acks=-1, timeout_ms=3000, topic_data=[data])
            response = await answered(self._client, request, PRODUCE_VERSION)
            result = response.responses[0].partition_responses[0]
            logger.info(
                "%s: %d records from sequence %d on in %s-%d: %s, offset %d",
                self.name,
                len(values),
                sequence,
                topic,
                index,
                error_of(result.error_code).name,
                result.base_offset,
            )
            if not result.error_code:
                self._sequences[partition] = sequence + len(values)
                return int(result.base_offset)
            error = error_of(result.error_code)
            if self._may_lose and error in (
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                ErrorCode.UNKNOWN_PRODUCER_ID,
            ):
                # Records before this one were lost with the power: start over, as real producers do.
                self._id = None
            elif not error.retriable:
                raise Violation(f"{self.name} was refused with {error.name}: {result.error_message}")
            await asyncio.sleep(0.1)

    async def _new_id(self) -> tuple[int, int]:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        while True:
            response = await answered(self._client, request)
            if not response.error_code:
                self._sequences.clear()
                return response.producer_id, response.producer_epoch
            if not error_of(response.error_code).retriable:
                raise Violation(f"no producer id: {error_of(response.error_code).name}")
            await asyncio.sleep(0.1)


async def fetch_once(
    client: Caller, partition: Partition, offset: int, max_wait_ms: int
) -> tuple[ErrorCode | None, list[tuple[int, str]]]:
    """The records from `offset` on that one fetch gives, or the error."""
    topic, index = partition
    wanted = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=64 * 1024)
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=64 * 1024,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )
    response = await answered(client, request, FETCH_VERSION)
    data = response.responses[0].partitions[0]
    if data.error_code:
        return error_of(data.error_code), []
    view = memoryview(data.records)
    return None, [
        (record.offset, (record.value or b"").decode())
        for position, header in headers(view)
        for record in decode_batch(view[position : position + header.size], max_size=MAX_SIZE)
        if record.offset >= offset
    ]


async def whole_log(client: Caller, partition: Partition, *, may_lose: bool = False) -> dict[int, str]:
    """All records of a partition, from offset 0 on unless its start `may_lose` records."""
    start, end = [await _offset(client, partition, which) for which in (_EARLIEST, _LATEST)]
    if start and not may_lose:
        raise Violation(f"{partition} begins at {start}, though nothing was ever deleted")
    log: dict[int, str] = {}
    while start < end:
        error, records = await _with_leader(partial(fetch_once, client, partition, start, 0))
        if error is not None or not records:
            raise Violation(f"{partition} ends at {end}, but offset {start} gives {error or 'nothing'}")
        log.update(records)
        start = records[-1][0] + 1
    return log


async def _with_leader(
    ask: Callable[[], Awaitable[tuple[ErrorCode | None, _Answer]]],
) -> tuple[ErrorCode | None, _Answer]:
    """Ask, and ask again while leadership moves: a preferred leader may be elected at any time."""
    for _ in range(50):
        error, answer = await ask()
        if error not in _LEADERSHIP_MOVES:
            break
        await asyncio.sleep(0.1)
    return error, answer


async def _offset(client: Caller, partition: Partition, which: int) -> int:
    error, offset = await _with_leader(partial(_offset_once, client, partition, which))
    if error is not None:
        raise Violation(f"{partition} has no offsets: {error.name}")
    return offset


async def _offset_once(client: Caller, partition: Partition, which: int) -> tuple[ErrorCode | None, int]:
    asked = ListOffsetsPartition(partition_index=partition[1], timestamp=which)
    topic = ListOffsetsTopic(name=partition[0], partitions=[asked])
    request = ListOffsetsRequest(replica_id=-1, topics=[topic])
    response = await answered(client, request, version=6)
    found = response.topics[0].partitions[0]
    return (error_of(found.error_code) if found.error_code else None), int(found.offset)


class Consumer:
    """Reads one partition from its start, for ever. `may_lose`: the log may become shorter."""

    def __init__(self, client: Caller, history: History, *, may_lose: bool = True) -> None:
        self._may_lose = may_lose
        self._client = client
        self._history = history

    async def run(self, partition: Partition) -> None:
        offset = 0
        while True:
            error, records = await fetch_once(self._client, partition, offset, 1000)
            if error is ErrorCode.OFFSET_OUT_OF_RANGE and self._may_lose:
                offset = 0  # the log is shorter after a loss of power
            elif error is not None and not error.retriable:
                raise Violation(f"a consumer of {partition} at {offset} was refused with {error.name}")
            for at, value in records:
                self._history.consume(partition, at, value, offset - 1)
                offset = at + 1
            await asyncio.sleep(0.2)


class Member:
    """A member of a classic group with the range assignor. It reads, and commits what it has read."""

    def __init__(self, group: str, client: Caller, history: History, topic: str, partitions: int) -> None:
        self._group = group
        self._client = client
        self._history = history
        self._topic = topic
        self._partitions = partitions
        self._id = ""
        self._generation = -1
        self._owned: list[int] = []

    async def run(self) -> None:
        while True:
            try:
                await answered(self._client, FindCoordinatorRequest(key=self._group, key_type=0), version=2)
                await self._join()
                await self._work()
            except Retry:
                await asyncio.sleep(0.2)

    async def _join(self) -> None:
        subscription = write_subscription(ConsumerProtocolSubscription(topics=[self._topic]))
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=6000,
            rebalance_timeout_ms=8000,
            member_id=self._id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription)],
        )
        response = await self._call(request, JOIN_VERSION, timeout=20.0)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._id = response.member_id
            raise Retry("a member id is required")
        self._check(response.error_code)
        self._id, self._generation = response.member_id, response.generation_id
        shares = []
        if response.leader == self._id:
            subscriptions = {each.member_id: [self._topic] for each in response.members}
            for member, share in range_shares(subscriptions, {self._topic: self._partitions}).items():
                assigned = [TopicPartition(topic=t, partitions=p) for t, p in share.items()]
                shares.append(
                    SyncGroupRequestAssignment(
                        member_id=member,
                        assignment=write_assignment(ConsumerProtocolAssignment(assigned_partitions=assigned)),
                    )
                )
        synced = await self._call(
            SyncGroupRequest(
                group_id=self._group,
                generation_id=self._generation,
                member_id=self._id,
                assignments=shares,
            ),
            3,
            timeout=20.0,
        )
        self._check(synced.error_code)
        assignment = read_assignment(synced.assignment)
        self._owned = [n for each in assignment.assigned_partitions for n in each.partitions]
        owned = [(self._topic, n) for n in self._owned]
        self._history.own(self._group, self._generation, self._id, owned)

    async def _work(self) -> None:
        positions = await committed_offsets(self._client, self._group, self._topic, self._owned)
        positions = {n: max(offset, 0) for n, offset in positions.items()}
        while True:
            beat = HeartbeatRequest(group_id=self._group, generation_id=self._generation, member_id=self._id)
            self._check((await self._call(beat, 3)).error_code)
            for n in self._owned:
                _, records = await fetch_once(self._client, (self._topic, n), positions[n], 0)
                if records:
                    positions[n] = records[-1][0] + 1
                    await self._commit(n, positions[n])
            await asyncio.sleep(1.0)

    async def _commit(self, partition: int, offset: int) -> None:
        part = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=self._generation,
            member_id=self._id,
            topics=[OffsetCommitRequestTopic(name=self._topic, partitions=[part])],
        )
        response = await self._call(request, COMMIT_VERSION)
        self._check(response.topics[0].partitions[0].error_code)
        self._history.commit(self._group, (self._topic, partition), offset)

    async def _call(self, request: Any, version: int, timeout: float = TIMEOUT) -> Any:
        try:
            return await self._client.call(request, timeout=timeout, version=version)
        except PeerUnreachable as error:
            raise Retry(str(error)) from None

    def _check(self, code: int) -> None:
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._id = ""
        if code in (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.REBALANCE_IN_PROGRESS,
        ):
            raise Retry(error_of(code).name)
        passing(code)


async def committed_offsets(client: Caller, group: str, topic: str, partitions: list[int]) -> dict[int, int]:
    """What the group has committed, -1 where nothing is; asked for until the coordinator answers."""
    while True:
        request = OffsetFetchRequest(
            group_id=group, topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=partitions)]
        )
        response = await answered(client, request, OFFSETS_VERSION)
        if not response.error_code:
            found = {p.partition_index: p.committed_offset for t in response.topics for p in t.partitions}
            return {n: found.get(n, -1) for n in partitions}
        await asyncio.sleep(0.2)
