"""Produce, Fetch, ListOffsets and DeleteRecords of a leader with a follower, over the wire.

The follower is the test: it fetches on the listener for brokers as broker 2. The partitions are assigned to
it here, not by the controller, whose image has one broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

import ottla.testing
from ottla.cluster.image import BrokerNode
from ottla.protocol.errors import ErrorCode, error_of
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from ottla.protocol.messages.fetch import ReplicaState as FetchingReplica
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol_client.wire import Wire
from ottla.replication.partition import Partition
from ottla.testing.in_process import InProcessBroker
from unit.replication.assignments import Assigned
from unit.storage.logs import batch

FOLLOWER_EPOCH = 1 << 40
MANY = 300


class Leader:
    """A broker that leads partitions of the topic `t`, each with a follower in sync."""

    def __init__(self, broker: InProcessBroker, partitions: int) -> None:
        assert broker.broker is not None
        self.broker = broker
        self.topic_id = broker.broker.image.topics["t"].id
        self.assigned = Assigned(1, 1, (1, 2), (1, 2), 10)
        self.partitions = [broker.broker.replicas.get("t", index) for index in range(partitions)]
        self.partition = self.partitions[0]
        _, host, port = broker.broker.endpoints[-1]
        self.clients, self.brokers = Wire(broker.bootstrap_servers), Wire(f"{host}:{port}")
        self.threads = ThreadPoolExecutor(2)
        for partition in self.partitions:
            self.on_loop(partition.assign, self.assigned)

    def close(self) -> None:
        self.clients.close()
        self.brokers.close()
        self.threads.shutdown()

    def on_loop(self, work: Callable[..., Any], *args: Any) -> None:
        async def run() -> None:
            work(*args)

        self.broker._call(run())

    def assign(self, **changes: Any) -> None:
        self.assigned = self.assigned.after(**changes)
        for partition in self.partitions:
            self.on_loop(partition.assign, self.assigned)

    def produce(self, acks: int = -1, index: int = 0, timeout_ms: int = 20_000) -> ErrorCode:
        data = PartitionProduceData(index=index, records=batch(1))
        request = ProduceRequest(
            acks=acks, timeout_ms=timeout_ms, topic_data=[TopicProduceData(name="t", partition_data=[data])]
        )
        with Wire(self.broker.bootstrap_servers) as wire:
            (topic,) = wire.call(request, version=9).responses
        return error_of(topic.partition_responses[0].error_code)

    def fetch(
        self,
        offset: int,
        *,
        as_follower: bool = True,
        broker_epoch: int = FOLLOWER_EPOCH,
        log_start: int = 0,
        max_wait_ms: int = 0,
        partitions: int = 1,
    ) -> list[PartitionData]:
        """Without a session."""
        request = self.fetch_request(
            offset,
            as_follower=as_follower,
            broker_epoch=broker_epoch,
            log_start=log_start,
            max_wait_ms=max_wait_ms,
            partitions=partitions,
        )
        wire = self.brokers if as_follower else self.clients
        (topic,) = wire.call(request, version=17, timeout=30).responses
        found: list[PartitionData] = topic.partitions
        return found

    def fetch_request(
        self,
        offset: int,
        *,
        as_follower: bool = True,
        broker_epoch: int = FOLLOWER_EPOCH,
        log_start: int = 0,
        max_wait_ms: int = 0,
        partitions: int = 1,
        session: tuple[int, int] = (0, -1),
    ) -> FetchRequest:
        wanted = [
            FetchPartition(
                partition=index,
                current_leader_epoch=self.assigned.leader_epoch,
                fetch_offset=offset,
                log_start_offset=log_start,
                partition_max_bytes=10_000,
            )
            for index in range(partitions)
        ]
        session_id, session_epoch = session
        return FetchRequest(
            replica_state=FetchingReplica(
                replica_id=2 if as_follower else -1, replica_epoch=broker_epoch if as_follower else -1
            ),
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1_000_000,
            session_id=session_id,
            session_epoch=session_epoch,
            topics=[FetchTopic(topic_id=self.topic_id, partitions=wanted)] if wanted else [],
        )

    def latest(self, version: int = 9) -> tuple[ErrorCode, int]:
        wanted = ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[wanted])])
        (topic,) = self.clients.call(request, version=version).topics
        return error_of(topic.partitions[0].error_code), topic.partitions[0].offset

    def delete_before(self, offset: int, timeout_ms: int = 20_000) -> tuple[ErrorCode, int]:
        wanted = DeleteRecordsPartition(partition_index=0, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name="t", partitions=[wanted])], timeout_ms=timeout_ms
        )
        with Wire(self.broker.bootstrap_servers) as wire:
            (topic,) = wire.call(request, timeout=30).topics
        return error_of(topic.partitions[0].error_code), topic.partitions[0].low_watermark


@pytest.fixture
def leader() -> Iterator[Leader]:
    with ottla.testing.broker(topics={"t": 1}) as broker:
        leader = Leader(broker, 1)
        yield leader
        leader.close()


def wait_for_end(partition: Partition, end: int) -> None:
    deadline = time.monotonic() + 10
    while partition.end_offset < end:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_acks_all_is_answered_when_the_follower_has_the_record(leader: Leader) -> None:
    answer = leader.threads.submit(leader.produce)
    (data,) = leader.fetch(0, max_wait_ms=10_000)
    assert data.records and data.high_watermark == 0
    assert not answer.done()
    (data,) = leader.fetch(1)
    assert data.high_watermark == 1, "the fetch counts before it is answered"
    assert answer.result(10) is ErrorCode.NONE


def test_consumers_do_not_see_what_the_follower_does_not_have(leader: Leader) -> None:
    assert leader.produce(acks=1) is ErrorCode.NONE
    (data,) = leader.fetch(0, as_follower=False)
    assert (data.error_code, data.high_watermark, data.records) == (0, 0, b"")
    waiting = leader.threads.submit(leader.fetch, 0, as_follower=False, max_wait_ms=10_000)
    leader.fetch(1)
    (data,) = waiting.result(10)
    assert data.records and data.high_watermark == 1


def test_a_waiting_fetch_of_a_follower_is_answered_by_an_append(leader: Leader) -> None:
    waiting = leader.threads.submit(leader.fetch, 0, max_wait_ms=10_000)
    assert leader.produce(acks=1) is ErrorCode.NONE
    (data,) = waiting.result(10)
    assert data.records and data.high_watermark == 0


def test_a_fetch_of_many_partitions_is_answered_by_an_append_to_one() -> None:
    with ottla.testing.broker(topics={"t": MANY}) as broker:
        leader = Leader(broker, MANY)
        waiting = leader.threads.submit(leader.fetch, 0, max_wait_ms=20_000, partitions=MANY)
        assert leader.produce(acks=1, index=MANY - 1) is ErrorCode.NONE
        *empty, last = waiting.result(20)
        assert last.records and not any(data.records or data.error_code for data in empty)
        leader.close()


@pytest.mark.parametrize("count", [1, 20])
def test_idle_partitions_of_a_session_are_left_out_until_something_changes(count: int) -> None:
    with ottla.testing.broker(topics={"t": count}) as broker:
        leader = Leader(broker, count)
        follower = Session(leader, partitions=count)
        assert leader.produce(acks=1) is ErrorCode.NONE
        assert [(data.partition_index, bool(data.records)) for data in follower.fetch(None)] == [(0, True)]
        assert [data.high_watermark for data in follower.fetch(1)] == [1]
        assert follower.fetch(None) == []
        progress = leader.partition.state.follower(2)
        assert progress is not None
        before, deadline = progress.caught_up_ms, time.monotonic() + 10
        while progress.caught_up_ms == before:
            assert time.monotonic() < deadline, "it is in sync as long as it fetches"
            assert follower.fetch(None, max_wait_ms=5) == []
        leader.on_loop(leader.partition.delete_records_before, 1)
        while not (changed := follower.fetch(None, max_wait_ms=5)):
            assert time.monotonic() < deadline
        assert [data.log_start_offset for data in changed] == [1]
        waiting = leader.threads.submit(follower.fetch, None, max_wait_ms=10_000)
        assert leader.produce(acks=1, index=count - 1) is ErrorCode.NONE
        (data,) = waiting.result(10)
        assert data.partition_index == count - 1 and data.records
        leader.assign(leader_epoch=2)
        codes = {data.error_code for data in follower.fetch(None)}
        assert codes == {ErrorCode.FENCED_LEADER_EPOCH}
        leader.close()


def test_a_former_run_of_a_broker_does_not_end_the_session_of_the_present_one(leader: Leader) -> None:
    follower = Session(leader, partitions=1)
    request = leader.fetch_request(0, broker_epoch=FOLLOWER_EPOCH - 1, session=(0, 0))
    answer = leader.brokers.call(request, version=17)
    (data,) = answer.responses[0].partitions
    assert (data.error_code, answer.session_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    assert follower.fetch(None) == []


class Session:
    """A follower's fetch session."""

    def __init__(self, leader: Leader, partitions: int) -> None:
        self.leader = leader
        leader.on_loop(self._show_follower)
        request = leader.fetch_request(0, partitions=partitions, session=(0, 0))
        self.id = leader.brokers.call(request, version=17).session_id
        self.epoch = 0

    def _show_follower(self) -> None:
        """Only brokers that the image has get sessions that clients cannot take."""
        broker = self.leader.broker.broker
        assert broker is not None
        image = broker.follower.image
        node = BrokerNode(2, "localhost", 9092, epoch=FOLLOWER_EPOCH)
        broker.follower.image = replace(image, brokers={**image.brokers, 2: node})

    def fetch(self, offset: int | None, max_wait_ms: int = 0) -> list[PartitionData]:
        """What is new, with another offset for partition 0 unless that is None."""
        self.epoch += 1
        request = self.leader.fetch_request(
            offset or 0,
            partitions=0 if offset is None else 1,
            max_wait_ms=max_wait_ms,
            session=(self.id, self.epoch),
        )
        answer = self.leader.brokers.call(request, version=17, timeout=30)
        assert not answer.error_code
        return [data for topic in answer.responses for data in topic.partitions]


def test_a_deposed_leader_refuses_its_producers_at_once(leader: Leader) -> None:
    answer = leader.threads.submit(leader.produce)
    wait_for_end(leader.partition, 1)
    leader.assign(leader=2, leader_epoch=2)
    assert answer.result(10) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_producers_learn_that_too_few_replicas_are_left_in_sync(leader: Leader) -> None:
    leader.on_loop(leader.partition.require_in_sync, 2)
    answer = leader.threads.submit(leader.produce)
    wait_for_end(leader.partition, 1)
    leader.assign(isr=(1,))
    assert answer.result(10) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert leader.produce() is ErrorCode.NOT_ENOUGH_REPLICAS
    assert leader.produce(acks=1) is ErrorCode.NONE


def test_a_fetch_under_a_former_broker_epoch_is_refused_and_does_not_count(leader: Leader) -> None:
    assert leader.produce(acks=1) is ErrorCode.NONE
    leader.fetch(0)
    (data,) = leader.fetch(1, broker_epoch=FOLLOWER_EPOCH - 1)
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert leader.partition.high_watermark == 0


def test_the_latest_offset_is_not_known_before_followers_have_fetched_from_a_new_leader(
    leader: Leader,
) -> None:
    assert leader.produce(acks=1) is ErrorCode.NONE
    assert leader.latest() == (ErrorCode.NONE, 0)
    leader.assign(leader_epoch=2)
    assert leader.latest()[0] is ErrorCode.OFFSET_NOT_AVAILABLE
    assert leader.latest(version=4)[0] is ErrorCode.LEADER_NOT_AVAILABLE
    leader.fetch(1)
    assert leader.latest() == (ErrorCode.NONE, 1)


def test_deleted_records_are_answered_for_when_the_followers_in_service_have_deleted_them(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        assert leader.produce(acks=1) is ErrorCode.NONE
    leader.fetch(3)
    assert leader.delete_before(1) == (ErrorCode.NONE, 1), "a follower that is not registered does not count"
    monkeypatch.setattr(
        "ottla.replication.replica_state.ReplicaState.low_watermark",
        lambda state, start, _: min(start, state.follower(2).log_start_offset),
    )
    assert leader.delete_before(2, timeout_ms=10)[0] is ErrorCode.REQUEST_TIMED_OUT
    answer = leader.threads.submit(leader.delete_before, 3)
    leader.fetch(3, log_start=2)
    assert not answer.done()
    leader.fetch(3, log_start=3)
    assert answer.result(10) == (ErrorCode.NONE, 3)
