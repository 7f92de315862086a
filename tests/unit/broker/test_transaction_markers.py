"""Markers reach the leaders of a transaction's partitions, whatever leaders do meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker import transaction_markers
from ottla.broker.transaction_markers import TransactionMarkers
from ottla.cluster.image import NO_LEADER, BrokerNode, ClusterImage, PartitionState, TopicImage
from ottla.completion import Completion
from ottla.coordinator.transactions.endings import MarkersDue
from ottla.coordinator.transactions.transaction import Transaction, TransactionState
from ottla.peer.client import PeerUnreachable
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

HERE, THERE = 1, 2
Place = tuple[str, int]
Codes = Callable[[Place], ErrorCode]
DEADLINE = 20.0


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_markers, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(transaction_markers, "_LONGEST_PAUSE", 0.002)


def fine(_: Place) -> ErrorCode:
    return ErrorCode.NONE


def answered(request: WriteTxnMarkersRequest, code_of: Codes = fine) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=code_of((topic.name, index))
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


class World:
    """This broker and another one; the topic `t` has a partition for each leader in `leaders`."""

    def __init__(self, leaders: Iterable[int]) -> None:
        self.lead(leaders)
        self.here: Codes = fine
        self.there: Codes = fine
        self.unreachable = 0
        self.is_newest = True
        self.requests: list[tuple[int, WriteTxnMarkersRequest]] = []
        self.shard = SimpleNamespace(leader_epoch=5, has_ended=False)
        self.done: list[str] = []
        self.sender = TransactionMarkers(
            HERE,
            lambda: self.image,
            lambda: cast(Any, SimpleNamespace(client=lambda *_: self)),
            self._write_here,
            self._has_newest_image,
        )

    def lead(self, leaders: Iterable[int]) -> None:
        states = tuple(PartitionState((each,), (each,), each) for each in leaders)
        topics = {"t": TopicImage("t", b"t" * 16, states)} if states else {}
        brokers = {each: BrokerNode(each, "host", 9092) for each in (HERE, THERE)}
        self.image = ClusterImage.of(
            version=1, cluster_id="c", controller_id=1, brokers=brokers, topics=topics, configs={}
        )

    def _write_here(
        self, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse | Completion[WriteTxnMarkersResponse]:
        self.requests.append((HERE, request))
        return answered(request, self.here)

    async def call(self, request: WriteTxnMarkersRequest, *, timeout: float) -> WriteTxnMarkersResponse:
        self.requests.append((THERE, request))
        await asyncio.sleep(0)
        if self.unreachable:
            self.unreachable -= 1
            raise PeerUnreachable(("host", 9092), "cut", maybe_done=True)
        return answered(request, self.there)

    async def _has_newest_image(self) -> bool:
        return self.is_newest

    def due(self, *indexes: int, producer_id: int = 7) -> MarkersDue:
        name = f"tx-{producer_id}"
        transaction = Transaction(
            name,
            producer_id,
            producer_epoch=3,
            state=TransactionState.PREPARE_COMMIT,
            partitions=frozenset(("t", index) for index in indexes),
            client_version=2,
        )
        return MarkersDue(cast(Any, self.shard), transaction, lambda: self.done.append(name))

    async def settled(self, *dues: MarkersDue) -> None:
        async with asyncio.timeout(DEADLINE):
            while any(due.remaining for due in dues):
                await asyncio.sleep(0.001)
        await self.sender.stop()


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_each_leader_gets_the_markers_of_its_partitions() -> None:
    async def test() -> None:
        world = World([HERE, THERE, THERE])
        due = world.due(0, 1, 2)
        world.sender.send(due)
        assert due.remaining == {("t", 1), ("t", 2)}  # what is led here is written at once
        await world.settled(due)
        assert world.done == ["tx-7"]
        sent = {
            (broker, index): marker
            for broker, request in world.requests
            for marker in request.markers
            for topic in marker.topics
            for index in topic.partition_indexes
        }
        assert sorted(sent) == [(HERE, 0), (THERE, 1), (THERE, 2)]
        for marker in sent.values():
            assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (7, 3, True)
            assert (marker.coordinator_epoch, marker.transaction_version) == (5, 2)

    run(test())


def test_markers_of_many_partitions_here_leave_time_for_other_work() -> None:
    async def test() -> None:
        world = World([HERE] * 500)
        due = world.due(*range(500))
        world.sender.send(due)
        others = 0
        async with asyncio.timeout(DEADLINE):
            while due.remaining:
                others += 1
                await asyncio.sleep(0)
        await world.sender.stop()
        assert others >= 20
        assert world.done == ["tx-7"]
        written = [index for _, request in world.requests for index in _indexes(request)]
        assert sorted(written) == list(range(500))
        assert max(len(_indexes(request)) for _, request in world.requests) <= 25

    run(test())


def _indexes(request: WriteTxnMarkersRequest) -> list[int]:
    return [
        index for marker in request.markers for topic in marker.topics for index in topic.partition_indexes
    ]


def test_transactions_that_end_while_a_request_is_under_way_share_the_next_one() -> None:
    async def test() -> None:
        world = World([THERE])
        dues = [world.due(0, producer_id=each) for each in range(10)]
        for due in dues:
            world.sender.send(due)
        await world.settled(*dues)
        assert len(world.requests) <= 2
        assert len(world.done) == 10

    run(test())


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    ],
)
def test_what_a_leader_refuses_is_sent_again_and_only_that(code: ErrorCode) -> None:
    async def test() -> None:
        world = World([THERE, THERE])
        refusals = iter([code, code])
        world.there = lambda place: next(refusals, ErrorCode.NONE) if place == ("t", 1) else ErrorCode.NONE
        due = world.due(0, 1)
        world.sender.send(due)
        await world.settled(due)
        asked = [
            sorted(topic.partition_indexes)
            for _, request in world.requests
            for topic in request.markers[0].topics
        ]
        assert asked == [[0, 1], [1], [1]]

    run(test())


def test_a_partition_that_knows_a_higher_epoch_is_settled() -> None:
    async def test() -> None:
        world = World([HERE])
        world.here = lambda _: ErrorCode.INVALID_PRODUCER_EPOCH
        due = world.due(0)
        world.sender.send(due)
        assert world.done == ["tx-7"]

    run(test())


def test_an_answer_that_does_not_come_is_asked_for_again() -> None:
    async def test() -> None:
        world = World([THERE])
        world.unreachable = 3
        due = world.due(0)
        world.sender.send(due)
        await world.settled(due)
        assert len(world.requests) == 4

    run(test())


@pytest.mark.parametrize("leader", [HERE, THERE, None])
def test_an_error_that_nobody_expects_does_not_lose_a_marker(leader: int | None) -> None:
    async def test() -> None:
        world = World([] if leader is None else [leader])
        defects = iter([True, True])

        def defective(_: object) -> ErrorCode:
            if next(defects, False):
                raise RuntimeError("a defect")
            return ErrorCode.NONE

        async def is_newest() -> bool:
            return defective(None) is ErrorCode.NONE

        world.here = world.there = defective
        world.sender._has_newest_image = is_newest
        due = world.due(0)
        world.sender.send(due)
        await world.settled(due)
        assert world.done == ["tx-7"]

    run(test())


def test_markers_follow_the_leadership_and_wait_while_there_is_none() -> None:
    async def test() -> None:
        world = World([NO_LEADER])
        due = world.due(0)
        world.sender.send(due)
        await asyncio.sleep(0)
        assert not world.requests
        world.lead([HERE])
        await world.settled(due)
        assert [broker for broker, _ in world.requests] == [HERE]

    run(test())


def test_a_partition_that_was_deleted_needs_no_marker() -> None:
    async def test() -> None:
        world = World([HERE])
        due = world.due(0, 1)
        world.sender.send(due)
        await world.settled(due)
        assert world.done == ["tx-7"]

    run(test())


def test_a_partition_is_not_taken_for_deleted_by_an_old_image() -> None:
    async def test() -> None:
        world = World([])
        world.is_newest = False
        due = world.due(0)
        world.sender.send(due)
        async with asyncio.timeout(DEADLINE):
            while len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0)
        assert due.remaining
        world.lead([THERE])
        await world.settled(due)
        assert [broker for broker, _ in world.requests] == [THERE]

    run(test())


def test_a_coordinator_that_was_replaced_sends_no_more() -> None:
    async def test() -> None:
        world = World([HERE])
        world.here = lambda _: ErrorCode.NOT_LEADER_OR_FOLLOWER
        due = world.due(0)
        world.sender.send(due)
        world.shard.has_ended = True
        sent = len(world.requests)
        asked_again = asyncio.Event()
        asyncio.get_running_loop().call_later(0.02, asked_again.set)  # later than every pause
        await asked_again.wait()
        assert len(world.requests) == sent

    run(test())
