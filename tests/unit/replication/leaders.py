"""A leader in the test's process: partitions on disks in memory, and Fetch answered from them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from ottla.broker.fetch_session import FetchSession, Wanted
from ottla.broker.fetch_sessions import FetchSessions
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.offset_for_leader_epoch import EpochEndOffset as EpochEnd
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from ottla.protocol.schema import Request
from ottla.replication.partition import Partition
from ottla.replication.purgatory import Purgatory
from ottla.replication.replica_state import ReplicaState
from unit.storage.logs import Store

TOPIC_ID = bytes(range(16))
LEADER, FOLLOWER = 1, 2

Key = tuple[bytes, int]


def in_event_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is a coroutine, as a function."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def main() -> None:
            await test(*args, **kwargs)

        asyncio.run(main())

    return run


def replica(broker: int, store: Store | None = None, index: int = 0, **options: Any) -> Partition:
    """A replica of partition `index` of the topic, on a disk of its own, without a leader yet."""
    loop = asyncio.get_running_loop()
    log = (store or Store()).log
    return Partition(
        "topic",
        index,
        TOPIC_ID,
        log,
        ReplicaState(broker, log.end_offset, log.log_start_offset),
        Purgatory(loop),
        lambda work: loop.run_in_executor(None, work),
        **options,
    )


def assign(partition: Partition, leader: int, epoch: int) -> None:
    """Let the replica take over who leads."""
    brokers = (LEADER, FOLLOWER)
    if partition.state.assign(leader, epoch, brokers, brokers, epoch):
        partition.log.begin_epoch(epoch)


class ScriptedLeader:
    """Answers from its partitions at once; `twist` may change what it says of a partition."""

    def __init__(self, *partitions: Partition) -> None:
        self.partitions: dict[Key, Partition] = {(p.topic_id, p.index): p for p in partitions}
        self.sessions = FetchSessions(10, lambda low, high: 7 + len(self.requests))
        self.requests: list[Request] = []
        self.twist: Callable[[Key, PartitionData], None] = lambda key, data: None
        self.failure: Exception | None = None

    @property
    def fetches(self) -> list[FetchRequest]:
        return [request for request in self.requests if isinstance(request, FetchRequest)]

    async def call(self, request: Request, *, timeout: float) -> Any:
        self.requests.append(request)
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        if isinstance(request, FetchRequest):
            return self._fetch(request)
        if isinstance(request, ListOffsetsRequest):
            return self._list_offsets(request)
        assert isinstance(request, OffsetForLeaderEpochRequest)
        return self._epoch_ends(request)

    def _fetch(self, request: FetchRequest) -> FetchResponse:
        wanted = [
            Wanted(
                topic.topic_id,
                each.partition,
                each.fetch_offset,
                each.partition_max_bytes,
                each.current_leader_epoch,
                each.last_fetched_epoch,
                each.log_start_offset,
            )
            for topic in request.topics
            for each in topic.partitions
        ]
        session: FetchSession | None
        if request.session_epoch == 0:
            self.sessions.close(request.session_id)
            session = self.sessions.open(True, wanted, 0)
        else:
            found = self.sessions.resume(request.session_id, request.session_epoch, True, 0)
            if isinstance(found, ErrorCode):
                return FetchResponse(error_code=found)
            gone = [
                (topic.topic_id, each) for topic in request.forgotten_topics_data for each in topic.partitions
            ]
            self.sessions.update(found, wanted, gone)
            session, wanted = found, found.wanted()
        topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[])
        for want in wanted:
            data = self._read(want)
            key = TOPIC_ID, want.partition
            self.twist(key, data)
            size = len(data.records or b"")
            diverges = data.diverging_epoch.epoch >= 0
            news = session is None or session.worth_telling(
                key, data.error_code, size, data.high_watermark, data.log_start_offset, diverges
            )
            if news or request.session_epoch == 0:
                topic.partitions.append(data)
        return FetchResponse(session_id=session.id if session else 0, responses=[topic])

    def _read(self, want: Wanted) -> PartitionData:
        data = PartitionData(partition_index=want.partition, high_watermark=-1, records=b"")
        try:
            partition = self._partition(want.partition, want.current_leader_epoch)
            data.high_watermark, data.log_start_offset = partition.high_watermark, partition.log_start_offset
            if want.last_fetched_epoch >= 0:
                parted = partition.divergence(want.last_fetched_epoch, want.fetch_offset)
                if parted is not None:
                    data.diverging_epoch = EpochEndOffset(epoch=parted[0], end_offset=parted[1])
                    return data
            found = partition.log.read(want.fetch_offset, want.max_bytes, partition.end_offset)
            data.records = memoryview(found.read()) if found else b""
        except ApiError as error:
            data.error_code = error.code
        return data

    def _partition(self, index: int, leader_epoch: int) -> Partition:
        partition = self.partitions.get((TOPIC_ID, index))
        if partition is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        partition.check_epoch(leader_epoch)
        if not partition.state.is_leader:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    def _list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            answers = []
            for each in topic.partitions:
                start = self._partition(each.partition_index, each.current_leader_epoch).log_start_offset
                answers.append(
                    ListOffsetsPartitionResponse(partition_index=each.partition_index, offset=start)
                )
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        return ListOffsetsResponse(topics=topics)

    def _epoch_ends(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        topics = []
        for topic in request.topics:
            answers = []
            for each in topic.partitions:
                partition = self._partition(each.partition, each.current_leader_epoch)
                epoch, end = partition.end_of_epoch(each.leader_epoch)
                answers.append(EpochEnd(partition=each.partition, leader_epoch=epoch, end_offset=end))
            topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
        return OffsetForLeaderEpochResponse(topics=topics)
