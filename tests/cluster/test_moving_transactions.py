"""Transactions whose coordinator dies in the middle: they end as the producer was told, whole or not at all.

The producer speaks the second protocol (KIP-890): leaders add partitions, and each transaction has an epoch.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest

import ottla.testing
from conformance.group_member import until
from ottla.coordinator.transactions.coordinator import TRANSACTION_TOPIC
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records import Record, encode_batch
from ottla.protocol.schema import Request
from ottla.protocol_client.connection import BrokerUnreachable
from ottla.protocol_client.consume import Consumer
from ottla.protocol_client.groups import TRANSACTION, ask
from ottla.protocol_client.offsets import LATEST, list_offsets
from ottla.protocol_client.wire import Wire, check
from ottla.testing.in_process_cluster import InProcessCluster
from zookeeper_server import shared_server

TOPIC, PARTITIONS = "t", 2
NAME = "tx"
PATIENCE = 60.0
_BY_NAME = 12

pytestmark = pytest.mark.timeout(300)


class Producer:
    """A transactional producer over raw requests, which asks again as clients do."""

    def __init__(self, brokers: InProcessCluster) -> None:
        self._brokers = brokers
        self._sequences = dict.fromkeys(range(PARTITIONS), 0)
        request = InitProducerIdRequest(transactional_id=NAME, transaction_timeout_ms=60_000)
        answer: InitProducerIdResponse = _ask_coordinator(brokers, request)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    def send(self, text: str) -> None:
        """To every partition."""
        for index in range(PARTITIONS):
            batch = encode_batch(
                [Record(0, 1, None, text.encode(), [])],
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=self._sequences[index],
                transactional=True,
            )
            data = TopicProduceData(
                name=TOPIC, partition_data=[PartitionProduceData(index=index, records=batch)]
            )
            request = ProduceRequest(transactional_id=NAME, acks=-1, timeout_ms=10_000, topic_data=[data])
            until(lambda: self._sent(index, request), lambda: f"{text} is not written")  # noqa: B023
            self._sequences[index] += 1

    def _sent(self, index: int, request: ProduceRequest) -> bool:
        try:
            with Wire(self._brokers.bootstrap_servers) as wire:
                leader = next(p for p in wire.topic(TOPIC).partitions if p.partition_index == index).leader_id
                answer = wire.call(request, _BY_NAME, leader)
            check(answer.responses[0].partition_responses[0].error_code)
        except BrokerUnreachable:
            return False
        except ApiError as error:
            assert error.code.retriable, error
            return False
        return True

    def end(self, *, commit: bool) -> None:
        request = EndTxnRequest(
            transactional_id=NAME,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        answer: EndTxnResponse = _ask_coordinator(self._brokers, request)
        assert (answer.producer_id, answer.producer_epoch) == (self.producer_id, self.epoch + 1)
        self.epoch = answer.producer_epoch
        self._sequences = dict.fromkeys(range(PARTITIONS), 0)


def _ask_coordinator(brokers: InProcessCluster, request: Request) -> Any:
    """The answer, from whichever broker coordinates the transactional id at last."""
    answers: list[Any] = []

    def asked() -> bool:
        try:
            with Wire(brokers.bootstrap_servers) as wire:
                answers.append(ask(wire, NAME, request, _checked, timeout=PATIENCE, kind=TRANSACTION))
        except BrokerUnreachable:
            return False  # it died, and the others do not know it yet
        return True

    until(asked, lambda: f"nobody answers {request}")
    return answers[0]


def _checked(response: Any) -> Any:
    check(response.error_code)
    return response


def cluster(**settings: object) -> InProcessCluster:
    return ottla.testing.cluster(
        3,
        topics={TOPIC: PARTITIONS},
        settings={
            "transaction.state.log.num.partitions": 1,
            "broker.session.timeout.ms": 2000,
            "broker.heartbeat.interval.ms": 500,
            **settings,
        },
    )


def committed(brokers: InProcessCluster) -> list[list[str]]:
    """What readers of committed records find in each partition: all of it, so no transaction is open."""
    found: list[list[str]] = [[] for _ in range(PARTITIONS)]
    with Wire(brokers.bootstrap_servers) as wire:
        ends = list_offsets(wire, TOPIC, dict.fromkeys(range(PARTITIONS), LATEST), timeout=PATIENCE)
        reader = Consumer(wire, TOPIC, dict.fromkeys(ends, 0), ends, read_committed=True, timeout=PATIENCE)
        for index, record in reader:
            found[index].append((record.value or b"").decode())
    return found


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_transaction_ends_as_asked_although_its_coordinator_dies(commit: bool) -> None:
    with cluster() as brokers:
        producer = Producer(brokers)
        producer.send("before")
        producer.end(commit=True)
        first = brokers.leader(TRANSACTION_TOPIC)
        producer.send("open")
        brokers.kill(first)
        brokers.wait_for_leader(TRANSACTION_TOPIC, other_than=first)
        producer.end(commit=commit)
        brokers[first].start()
        brokers.wait_until_in_sync(TRANSACTION_TOPIC, TOPIC)
        producer.send("decided")
        producer.end(commit=commit)
        brokers.kill(brokers.leader(TRANSACTION_TOPIC))  # its markers may be written, or not
        producer.send("after")
        producer.end(commit=True)
        expected = ["before", "open", "decided", "after"] if commit else ["before", "after"]
        assert committed(brokers) == [expected] * PARTITIONS


def test_a_transaction_goes_on_although_its_coordinator_moves_on_zookeeper() -> None:
    registry = f"zookeeper://{shared_server().address}/{uuid.uuid4().hex}"
    with cluster(**{"ottla.registry": registry}) as brokers:
        producer = Producer(brokers)
        producer.send("committed")
        first = brokers.leader(TRANSACTION_TOPIC)
        brokers.stop(first)  # it hands its leaderships over
        second = brokers.wait_for_leader(TRANSACTION_TOPIC, other_than=first)
        producer.end(commit=True)
        producer.send("aborted")
        brokers[first].start()
        brokers.wait_until_in_sync(TRANSACTION_TOPIC, TOPIC)
        brokers.kill(second)
        producer.end(commit=False)
        producer.send("last")
        producer.end(commit=True)
        assert committed(brokers) == [["committed", "last"]] * PARTITIONS


def test_an_instance_that_was_replaced_stays_fenced_by_the_next_coordinator() -> None:
    with cluster() as brokers:
        zombie = Producer(brokers)
        zombie.send("zombie")
        heir = Producer(brokers)
        brokers.kill(brokers.leader(TRANSACTION_TOPIC))
        with pytest.raises(ApiError) as refused:
            zombie.end(commit=True)
        assert refused.value.code is ErrorCode.PRODUCER_FENCED
        heir.send("heir")
        heir.end(commit=True)
        assert committed(brokers) == [["heir"]] * PARTITIONS
