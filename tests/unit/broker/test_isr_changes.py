"""In-sync sets that leaders propose: how they reach the controller, and what its answers do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ottla.broker.isr_changes import IsrChanges
from ottla.cluster.disk_states import DiskReport
from ottla.cluster.image import BrokerNode, ClusterImage
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.alter_partition import (
    AlteredPartition,
    AlteredTopic,
    AlterPartitionRequest,
    AlterPartitionResponse,
)
from ottla.replication.leading import follower_fetched
from ottla.replication.partition import Partition
from ottla.replication.purgatory import Purgatory
from ottla.replication.replica_state import ReplicaState
from ottla.testing.simulation.virtual_time import VirtualTime
from unit.replication.assignments import Assigned
from unit.replication.leaders import in_event_loop
from unit.storage.logs import Store, batch

MAX_LAG_MS = 10_000
EPOCHS = {1: 10, 2: 20, 3: 30}


class Controller:
    """Takes every proposal under the present partition epoch, or answers with what `refuses` says."""

    def __init__(self) -> None:
        self.requests: list[AlterPartitionRequest] = []
        self.under_way = 0
        self.refuses: ErrorCode | None = None
        self.fails: ApiError | None = None
        self.error = ErrorCode.NONE
        self.gate = asyncio.Event()
        self.gate.set()

    async def alter(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        self.requests.append(request)
        assert not self.under_way, "one request at a time"
        self.under_way += 1
        try:
            await self.gate.wait()
        finally:
            self.under_way -= 1
        if self.fails is not None:
            raise self.fails
        if self.error:
            return AlterPartitionResponse(error_code=self.error)
        return AlterPartitionResponse(
            topics=[
                AlteredTopic(
                    topic_id=topic.topic_id, partitions=[self._answer(each) for each in topic.partitions]
                )
                for topic in request.topics
            ]
        )

    def _answer(self, each: Any) -> AlteredPartition:
        if self.refuses is not None:
            return AlteredPartition(partition_index=each.partition_index, error_code=self.refuses)
        return AlteredPartition(
            partition_index=each.partition_index,
            leader_id=1,
            leader_epoch=each.leader_epoch,
            isr=[member.broker_id for member in each.new_isr_with_epochs],
            partition_epoch=each.partition_epoch + 1,
        )


class Broker:
    """Broker 1, which leads some partitions of one topic."""

    def __init__(self, isr: tuple[int, ...], partitions: int = 1) -> None:
        self.store = Store()
        self.clock = self.store.clock
        self.controller = Controller()
        self.image = self.image_of(EPOCHS)
        purgatory = Purgatory(VirtualTime())
        self.partitions: list[Partition] = []
        for index in range(partitions):
            log = self.store.directory.create("t", index, bytes(16), self.store.config)
            partition = Partition(
                "t", index, bytes(16), log, ReplicaState(1, 0, 0), purgatory, lambda _: asyncio.Future()
            )
            partition.assign(Assigned(1, 5, (1, 2, 3), isr, 1))
            self.partitions.append(partition)
        self.changes = IsrChanges(
            1, self.partitions, lambda: self.image, lambda: MAX_LAG_MS, self.controller.alter, self.clock
        )

    @staticmethod
    def image_of(epochs: dict[int, int], fenced: tuple[int, ...] = ()) -> ClusterImage:
        nodes = {n: BrokerNode(n, "h", 1, epoch=epoch, fenced=n in fenced) for n, epoch in epochs.items()}
        return ClusterImage.of(
            version=1, cluster_id="c", controller_id=1, brokers=nodes, topics={}, configs={}
        )

    @property
    def partition(self) -> Partition:
        return self.partitions[0]

    def fetch(self, broker: int, offset: int = 0) -> None:
        """As the fetch handler does."""
        fetch = self.changes.fetch_of(broker, EPOCHS[broker])
        for partition in self.partitions:
            if follower_fetched(partition, fetch, partition.leader_epoch, offset, 0):
                self.changes.noted(partition)

    def isrs(self) -> list[tuple[int, ...]]:
        return [partition.state.isr for partition in self.partitions]


@in_event_loop
async def test_a_follower_that_caught_up_joins_with_the_epoch_it_fetched_under() -> None:
    broker = Broker(isr=(1, 2))
    broker.fetch(3)
    assert await broker.changes.send()
    assert broker.isrs() == [(1, 2, 3)]
    (request,) = broker.controller.requests
    assert (request.broker_id, request.broker_epoch) == (1, 10)
    (data,) = request.topics[0].partitions
    assert (data.leader_epoch, data.partition_epoch) == (5, 1)
    members = [(member.broker_id, member.broker_epoch) for member in data.new_isr_with_epochs]
    assert members == [(1, 10), (2, -1), (3, 30)]
    assert await broker.changes.send() and len(broker.controller.requests) == 1, "nothing is left"


@in_event_loop
async def test_changes_of_many_partitions_share_requests_of_bounded_size() -> None:
    broker = Broker(isr=(1, 2), partitions=1200)
    broker.fetch(3)
    await broker.changes.send()
    await broker.changes.send()
    sizes = [sum(len(topic.partitions) for topic in each.topics) for each in broker.controller.requests]
    assert sizes == [1000, 200]
    assert set(broker.isrs()) == {(1, 2, 3)}


@in_event_loop
async def test_followers_that_lag_leave_all_partitions_with_one_request() -> None:
    broker = Broker(isr=(1, 2, 3), partitions=5)
    for partition in broker.partitions:
        partition.append(batch(1))
    broker.clock.advance(MAX_LAG_MS + 1)
    broker.fetch(2, offset=1)
    await broker.changes.check_lag()
    await broker.changes.send()
    assert set(broker.isrs()) == {(1, 2)} and len(broker.controller.requests) == 1
    assert [partition.high_watermark for partition in broker.partitions] == [1] * 5


@pytest.mark.parametrize("error", [ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH])
@in_event_loop
async def test_a_proposal_with_an_unknown_outcome_stays_under_way_and_is_sent_again(error: ErrorCode) -> None:
    broker = Broker(isr=(1, 2))
    broker.fetch(3)
    broker.controller.fails = ApiError(error)
    assert not await broker.changes.send()
    assert broker.partition.state.maximal_isr == {1, 2, 3}
    broker.controller.fails, broker.controller.error = None, error
    assert not await broker.changes.send()
    broker.controller.error = ErrorCode.NONE
    assert await broker.changes.send()
    assert broker.isrs() == [(1, 2, 3)]
    assert [each.topics[0].partitions[0].partition_epoch for each in broker.controller.requests] == [1, 1, 1]


@in_event_loop
async def test_a_follower_that_the_controller_does_not_accept_is_proposed_again_after_a_pause() -> None:
    broker = Broker(isr=(1, 2))
    broker.controller.refuses = ErrorCode.INELIGIBLE_REPLICA
    for _ in range(20):
        broker.fetch(3)
        assert await broker.changes.send()
    assert len(broker.controller.requests) == 1 and broker.partition.state.proposal is None
    broker.controller.refuses = None
    broker.clock.advance(1000)
    broker.fetch(3)
    await broker.changes.send()
    assert broker.isrs() == [(1, 2, 3)]


@in_event_loop
async def test_a_proposal_under_an_old_partition_epoch_waits_for_the_image() -> None:
    broker = Broker(isr=(1, 2))
    broker.fetch(3)
    broker.controller.refuses = ErrorCode.INVALID_UPDATE_VERSION
    assert not await broker.changes.send()
    assert broker.partition.state.maximal_isr == {1, 2, 3}
    broker.partition.assign(Assigned(1, 5, (1, 2, 3), (1,), 2))
    assert await broker.changes.send()
    assert broker.isrs() == [(1,)] and len(broker.controller.requests) == 1


@in_event_loop
async def test_a_proposal_that_is_sent_again_names_the_epochs_it_was_made_with() -> None:
    """The follower has started again meanwhile, perhaps without the end of its log."""
    broker = Broker(isr=(1, 2))
    broker.fetch(3)
    broker.controller.fails = ApiError(ErrorCode.REQUEST_TIMED_OUT)
    await broker.changes.send()
    broker.image = broker.image_of({**EPOCHS, 3: 31})
    fetch = broker.changes.fetch_of(3, 31)
    follower_fetched(broker.partition, fetch, broker.partition.leader_epoch, 0, 0)
    await broker.changes.send()
    members = broker.controller.requests[-1].topics[0].partitions[0].new_isr_with_epochs
    assert [(member.broker_id, member.broker_epoch) for member in members] == [(1, 10), (2, -1), (3, 30)]


@in_event_loop
async def test_a_deleted_partition_is_not_asked_for_again() -> None:
    broker = Broker(isr=(1, 2))
    broker.fetch(3)
    broker.controller.refuses = ErrorCode.UNKNOWN_TOPIC_ID
    assert not await broker.changes.send()
    broker.partition.close()
    assert await broker.changes.send() and len(broker.controller.requests) == 1


@in_event_loop
async def test_a_follower_that_is_fenced_is_not_waited_for() -> None:
    broker = Broker(isr=(1,))
    broker.fetch(3)
    broker.partition.append(batch(1))
    assert broker.partition.high_watermark == 0
    broker.image = broker.image_of(EPOCHS, fenced=(3,))
    broker.changes.brokers_changed()
    await broker.changes.send()
    assert broker.partition.high_watermark == 1 and not broker.controller.requests


@in_event_loop
async def test_a_follower_that_goes_while_it_is_proposed_is_not_waited_for_after_the_refusal() -> None:
    broker = Broker(isr=(1, 2))
    broker.fetch(3)
    broker.controller.fails = ApiError(ErrorCode.REQUEST_TIMED_OUT)
    assert not await broker.changes.send()
    broker.partition.append(batch(1))
    broker.fetch(2, offset=1)
    broker.image = broker.image_of({1: 10, 2: 20})
    broker.changes.brokers_changed()
    broker.controller.fails, broker.controller.refuses = None, ErrorCode.INELIGIBLE_REPLICA
    assert await broker.changes.send()
    assert broker.isrs() == [(1, 2)] and broker.partition.high_watermark == 1


@in_event_loop
async def test_a_broker_that_does_not_know_its_own_registration_sends_nothing() -> None:
    broker = Broker(isr=(1, 2))
    broker.fetch(3)
    broker.image = broker.image_of({2: 20, 3: 30})
    assert not await broker.changes.send()
    broker.image = broker.image_of(EPOCHS)
    assert await broker.changes.send() and broker.isrs() == [(1, 2, 3)]


@in_event_loop
async def test_changes_that_come_during_a_request_share_the_next_one() -> None:
    broker = Broker(isr=(1,), partitions=3)
    broker.changes.start()
    broker.controller.gate.clear()
    broker.fetch(2)
    await eventually(lambda: bool(broker.controller.requests))
    broker.fetch(3)
    broker.controller.gate.set()
    await eventually(lambda: bool(broker.partition.state.isr == (1, 2)))
    broker.fetch(3)
    await eventually(lambda: set(broker.isrs()) == {(1, 2, 3)})
    assert len(broker.controller.requests) == 2
    await broker.changes.stop()


@in_event_loop
async def test_a_defect_in_sending_does_not_end_the_task(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(isr=(1, 2))
    broker.controller.fails = ValueError("a defect")  # type: ignore[assignment]
    broker.changes.start()
    broker.fetch(3)
    await eventually(lambda: bool(broker.controller.requests))
    broker.controller.fails = None
    await eventually(lambda: broker.isrs() == [(1, 2, 3)])
    assert "a defect" in caplog.text
    await broker.changes.stop()


def test_a_fetch_under_a_former_broker_epoch_is_refused() -> None:
    broker = Broker(isr=(1, 2))
    with pytest.raises(ApiError) as refused:
        broker.changes.fetch_of(3, 29)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("broker_id", "epoch", "may_join"),
    [(3, 30, True), (3, 31, False), (2, 20, False), (7, 70, False), (4, 40, False)],
    ids=["registered", "newer than the image", "fenced", "unknown", "impaired"],
)
def test_only_brokers_that_the_image_has_in_service_may_join(
    broker_id: int, epoch: int, may_join: bool
) -> None:
    broker = Broker(isr=(1, 2))
    image = broker.image_of(EPOCHS, fenced=(2,))
    impaired = BrokerNode(4, "h", 1, epoch=40, disk=DiskReport(impaired=True))
    broker.image = replace(image, brokers={**image.brokers, 4: impaired})
    assert broker.changes.fetch_of(broker_id, epoch).may_join is may_join


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)
