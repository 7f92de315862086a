"""A replica that is cut off in the middle of transactions: what it knows of them goes with its records.

A leader that the others do not reach any more takes records of one transaction and the abort marker of
another, which are in no other log. When it follows the next leader it truncates them. Producers, aborted
transactions and the last stable offset have to be those of what is left, which shows when it leads again.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

import ottla.testing
from conformance.group_member import until
from ottla.coordinator.transactions.coordinator import TRANSACTION_TOPIC
from ottla.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from ottla.protocol.records import Record, encode_batch
from ottla.protocol_client.consume import Consumer
from ottla.protocol_client.offsets import LATEST, list_offsets
from ottla.protocol_client.wire import Wire
from ottla.testing.in_process_cluster import InProcessCluster
from raw_client import RawClient
from wire_producer import WireProducer

TOPIC = "t"
NODES = (1, 2, 3)
LOST = 4711
"""The id of a producer whose records are lost."""
SETTINGS = {
    "transaction.state.log.num.partitions": 1,
    "transaction.partition.verification.enable": False,  # so that a leader takes records of no transaction
    "broker.session.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 500,
}

pytestmark = pytest.mark.timeout(300)


def client_of(brokers: InProcessCluster, node: int) -> RawClient:
    return RawClient(brokers[node].direct_servers, timeout=60)


def producers_of(client: RawClient, partition: int) -> dict[int, int]:
    """Where the open transaction of each producer begins; -1: it has none."""
    request = DescribeProducersRequest(topics=[TopicRequest(name=TOPIC, partition_indexes=[partition])])
    (found,) = client.call(request, 0).topics[0].partitions
    assert found.error_code == 0, found
    return {each.producer_id: each.current_txn_start_offset for each in found.active_producers}


def write_without_replicas(client: RawClient, partition: int, kept: WireProducer) -> None:
    """Records of a transaction of `LOST`, and a marker that aborts the one of `kept`."""
    batch = encode_batch(
        [Record(0, 1, None, b"lost", [])],
        producer_id=LOST,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    data = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=partition, records=batch)])
    request = ProduceRequest(transactional_id="lost", acks=1, timeout_ms=10_000, topic_data=[data])
    answer = client.call(request, 9).responses[0].partition_responses[0]
    assert answer.error_code == 0, answer
    marker = WritableTxnMarker(
        producer_id=kept.producer_id,
        producer_epoch=kept.epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[partition])],
        coordinator_epoch=1000,
    )
    client.send(WriteTxnMarkersRequest(markers=[marker]), 1)  # answered when replicas have it: never


def leader_known_to(brokers: InProcessCluster, node: int, topic: str, partition: int) -> int:
    running: Any = brokers[node].broker
    return int(running.image.partition(topic, partition).leader)


def committed(brokers: InProcessCluster, partition: int) -> list[bytes]:
    with Wire(brokers.bootstrap_servers) as wire:
        ends = list_offsets(wire, TOPIC, {partition: LATEST}, timeout=60)
        reader = Consumer(wire, TOPIC, {partition: 0}, ends, read_committed=True, timeout=60)
        return [record.value or b"" for _, record in reader]


def test_what_a_truncated_replica_knows_of_transactions_is_that_of_what_is_left() -> None:
    with (
        ottla.testing.cluster(3, topics={TOPIC: 3}, settings=SETTINGS, network=True) as brokers,
        ExitStack() as open_,
    ):

        def client(node: int) -> RawClient:
            return open_.enter_context(client_of(brokers, node))

        kept = WireProducer(client(1), "kept")
        until(lambda: _is_made(brokers, kept), lambda: "there is no coordinator")
        coordinator = brokers.leader(TRANSACTION_TOPIC)
        partition = next(n for n in range(3) if brokers.leader(TOPIC, n) != coordinator)
        old = brokers.leader(TOPIC, partition)
        kept.client, kept.leader = client(coordinator), client(old)
        assert kept.init() == 0
        assert kept.send(TOPIC, b"one", partition) == kept.end() == 0
        assert kept.send(TOPIC, b"two", partition) == 0
        for other in set(NODES) - {old}:
            brokers.cut(old, other)
        write_without_replicas(client(old), partition, kept)
        cut_off = client(old)
        until(
            lambda: (
                producers_of(cut_off, partition).get(kept.producer_id) == -1
                and producers_of(cut_off, partition).get(LOST, -1) >= 0
            ),
            lambda: f"{producers_of(cut_off, partition)}",
        )
        until(
            lambda: leader_known_to(brokers, coordinator, TOPIC, partition) not in (old, -1),
            lambda: "nobody else leads",
        )
        new = leader_known_to(brokers, coordinator, TOPIC, partition)
        assert kept.end() == 0
        kept.leader = client(new)
        assert kept.send(TOPIC, b"aborted", partition) == kept.end(commit=False) == 0
        brokers.mend()
        brokers.wait_until_in_sync(TOPIC, TRANSACTION_TOPIC)
        until(
            lambda: producers_of(kept.leader, partition) == {kept.producer_id: -1},  # type: ignore[arg-type]
            lambda: "the last marker is not written",
        )
        for other in set(NODES) - {old}:
            brokers.kill(other)
        brokers.wait_for_leader(TOPIC, partition)
        assert brokers.leader(TOPIC, partition) == old
        assert producers_of(client(old), partition) == {kept.producer_id: -1}
        until(
            lambda: committed(brokers, partition) == [b"one", b"two"],
            lambda: f"{committed(brokers, partition)}",
        )


def _is_made(brokers: InProcessCluster, producer: WireProducer) -> bool:
    """The first request for a coordinator makes its topic."""
    producer.find()
    return brokers.leader(TRANSACTION_TOPIC) > 0
