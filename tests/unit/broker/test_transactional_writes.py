"""Records and offsets of transactions, and the markers that end them, as a broker takes them.

The coordinator of transactions is left out where that is possible: with verification switched off leaders
take what older clients send.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import ottla.testing
from ottla.broker import fetch_attempt
from ottla.protocol.batches import headers
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from ottla.protocol.records import Record, encode_batch
from ottla.protocol_client.wire import Wire
from ottla.storage import stored_segment
from ottla.storage.transaction_index import TransactionIndex

PRODUCER, OTHER = 7001, 7002
OFFSETS_TOPIC = "__consumer_offsets"
FIRST_PROTOCOL, SECOND_PROTOCOL = 9, 12
"""Versions of Produce."""


@pytest.fixture(scope="module")
def unverified() -> Iterator[Wire]:
    """A broker whose leaders ask no coordinator."""
    settings = {"transaction.partition.verification.enable": False, "offsets.topic.num.partitions": 1}
    with ottla.testing.broker(settings=settings) as broker, Wire(broker.bootstrap_servers) as wire:
        yield wire


@pytest.fixture(scope="module")
def verified() -> Iterator[Wire]:
    with (
        ottla.testing.broker(topics={"t": 2}, settings={"offsets.topic.num.partitions": 1}) as broker,
        Wire(broker.bootstrap_servers) as wire,
    ):
        yield wire


_topics = iter(range(1_000))


def new_topic(wire: Wire, partitions: int = 1) -> str:
    from ottla.protocol_client.admin import create_topic

    name = f"t-{next(_topics)}"
    create_topic(wire, name, partitions=partitions)
    return name


def produce(
    wire: Wire,
    topic: str,
    sequence: int,
    *,
    version: int = FIRST_PROTOCOL,
    producer: int = PRODUCER,
    epoch: int = 0,
) -> Any:
    batch = encode_batch(
        [Record(0, 1_000, b"k", b"v", [])],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    data = PartitionProduceData(index=0, records=memoryview(batch))
    request = ProduceRequest(
        transactional_id="tx",
        acks=-1,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
    return wire.call(request, version).responses[0].partition_responses[0]


def end(wire: Wire, topic: str, *, committed: bool, producer: int = PRODUCER, partition: int = 0) -> int:
    marker = WritableTxnMarker(
        producer_id=producer,
        producer_epoch=0,
        transaction_result=committed,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
    )
    response = wire.call(WriteTxnMarkersRequest(markers=[marker]), 1)
    return int(response.markers[0].topics[0].partitions[0].error_code)


def fetch(wire: Wire, topic: str) -> Any:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        isolation_level=1, max_bytes=1 << 20, topics=[FetchTopic(topic=topic, partitions=[partition])]
    )
    return wire.call(request, 11).responses[0].partitions[0]


def commit(wire: Wire, topic: str, offset: int, *, group: str = "g", producer: int = PRODUCER) -> int:
    partition = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    request = TxnOffsetCommitRequest(
        transactional_id="tx",
        group_id=group,
        producer_id=producer,
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[partition])],
    )
    return int(wire.call(request, 3).topics[0].partitions[0].error_code)


def committed(wire: Wire, topic: str, *, group: str = "g", stable: bool) -> tuple[int, int]:
    topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=stable
    )
    (partition,) = wire.call(request, 9).groups[0].topics[0].partitions
    return partition.committed_offset, partition.error_code


def find(wire: Wire, group: str = "g") -> None:
    (found,) = wire.call(FindCoordinatorRequest(coordinator_keys=[group]), 4).coordinators
    assert not found.error_code


def test_readers_of_committed_records_wait_for_the_marker(unverified: Wire) -> None:
    topic = new_topic(unverified)
    assert [produce(unverified, topic, sequence).base_offset for sequence in range(2)] == [0, 1]
    before = fetch(unverified, topic)
    assert (before.high_watermark, before.last_stable_offset, list(headers(before.records or b""))) == (
        2,
        0,
        [],
    )
    assert end(unverified, topic, committed=True) == ErrorCode.NONE
    after = fetch(unverified, topic)
    assert (after.last_stable_offset, after.aborted_transactions) == (3, [])
    assert [header.is_control for _, header in headers(after.records)] == [False, False, True]


def test_an_aborted_transaction_is_named_to_readers(unverified: Wire) -> None:
    topic = new_topic(unverified)
    produce(unverified, topic, 0)
    assert end(unverified, topic, committed=False) == ErrorCode.NONE
    (aborted,) = fetch(unverified, topic).aborted_transactions
    assert (aborted.producer_id, aborted.first_offset) == (PRODUCER, 0)


@pytest.mark.parametrize("partitions", [2, 40])
def test_a_request_with_two_producers_is_refused_as_a_whole(unverified: Wire, partitions: int) -> None:
    topic = new_topic(unverified, partitions)

    def codes(*producers: tuple[int, int]) -> set[int]:
        """Of a batch for each partition, those of the first partitions by these producers."""
        data = []
        for index in range(partitions):
            producer, epoch = producers[min(index, len(producers) - 1)]
            batch = encode_batch(
                [Record(0, 1_000, b"k", b"v", [])],
                producer_id=producer,
                producer_epoch=epoch,
                base_sequence=0,
                transactional=True,
            )
            data.append(PartitionProduceData(index=index, records=memoryview(batch)))
        request = ProduceRequest(
            transactional_id="tx",
            acks=-1,
            timeout_ms=10_000,
            topic_data=[TopicProduceData(name=topic, partition_data=data)],
        )
        answers = unverified.call(request, FIRST_PROTOCOL).responses[0].partition_responses
        assert [each.index for each in answers] == list(range(partitions))
        return {each.error_code for each in answers}

    assert codes((PRODUCER, 0), (OTHER, 0)) == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert codes((PRODUCER, 0), (PRODUCER, 1)) == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert codes((PRODUCER, 0)) == {ErrorCode.NONE}


def test_a_retry_of_a_batch_is_answered_with_its_offset(unverified: Wire) -> None:
    topic = new_topic(unverified)
    answers = [produce(unverified, topic, sequence) for sequence in (0, 1, 1, 0)]
    assert [(each.error_code, each.base_offset) for each in answers] == [(0, 0), (0, 1), (0, 1), (0, 0)]


def test_markers_for_what_is_not_there_are_refused(unverified: Wire) -> None:
    assert end(unverified, "nobody", committed=True) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_offsets_of_a_transaction_count_with_the_commit_marker(unverified: Wire) -> None:
    topic = new_topic(unverified)
    find(unverified)
    assert commit(unverified, topic, 5) == ErrorCode.NONE
    assert committed(unverified, topic, stable=False) == (-1, ErrorCode.NONE)
    assert committed(unverified, topic, stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert end(unverified, OFFSETS_TOPIC, committed=True) == ErrorCode.NONE
    assert committed(unverified, topic, stable=True) == (5, ErrorCode.NONE)
    assert commit(unverified, topic, 9) == ErrorCode.NONE
    assert end(unverified, OFFSETS_TOPIC, committed=False) == ErrorCode.NONE
    assert committed(unverified, topic, stable=True) == (5, ErrorCode.NONE)


def test_a_group_without_a_name_is_refused(unverified: Wire) -> None:
    topic = new_topic(unverified)
    find(unverified)
    assert commit(unverified, topic, 5, group="") == ErrorCode.INVALID_GROUP_ID
    assert commit(unverified, "nobody", 5) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_open_transactions_and_pending_offsets_survive_a_restart() -> None:
    settings = {"transaction.partition.verification.enable": False, "offsets.topic.num.partitions": 1}
    with ottla.testing.broker(topics={"t": 1}, settings=settings) as broker:
        with Wire(broker.bootstrap_servers) as wire:
            find(wire)
            produce(wire, "t", 0)
            commit(wire, "t", 5)
        broker.kill()
        broker.start()
        with Wire(broker.bootstrap_servers) as wire:
            find(wire)
            assert fetch(wire, "t").last_stable_offset == 0
            assert committed(wire, "t", stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            assert produce(wire, "t", 1).error_code == ErrorCode.NONE
            for topic in ("t", OFFSETS_TOPIC):
                assert end(wire, topic, committed=True) == ErrorCode.NONE
            assert fetch(wire, "t").last_stable_offset == 3
            assert committed(wire, "t", stable=True) == (5, ErrorCode.NONE)


@pytest.mark.parametrize("many", [1, 256], ids=["in slices", "at once"])
def test_a_fetch_reads_a_large_index_of_aborted_transactions_in_pieces(
    monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    from ottla.protocol_client.admin import create_topic

    pieces: list[int] = []

    def noting(self: TransactionIndex, data: bytes, *offsets: int) -> None:
        pieces.append(len(data))
        decode_more(self, data, *offsets)

    decode_more = TransactionIndex.decode_more
    settings = {"transaction.partition.verification.enable": False}
    with ottla.testing.broker(settings=settings) as broker:
        with Wire(broker.bootstrap_servers) as wire:
            create_topic(wire, "t", partitions=1, configs={"segment.bytes": "1048576"})
            for number in range(3):
                assert produce(wire, "t", number).error_code == ErrorCode.NONE
                assert end(wire, "t", committed=False) == ErrorCode.NONE
            large = encode_batch([Record(0, 1_000, b"k", bytes(600_000), [])])
            for _ in range(2):  # the second one begins the next segment
                data = PartitionProduceData(index=0, records=memoryview(bytearray(large)))
                topic = TopicProduceData(name="t", partition_data=[data])
                wire.call(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic]), FIRST_PROTOCOL)
        broker.stop()
        broker.start()
        monkeypatch.setattr(stored_segment, "_TRANSACTIONS_AT_ONCE", 34)
        monkeypatch.setattr(fetch_attempt, "_MANY", many)
        monkeypatch.setattr(TransactionIndex, "decode_more", noting)
        with Wire(broker.bootstrap_servers) as wire:
            aborted = fetch(wire, "t").aborted_transactions
    assert [(each.producer_id, each.first_offset) for each in aborted] == [(PRODUCER, n) for n in (0, 2, 4)]
    assert pieces == [34, 34, 34]


@pytest.mark.parametrize("version", [FIRST_PROTOCOL, SECOND_PROTOCOL])
def test_no_record_is_taken_that_no_coordinator_has_confirmed(verified: Wire, version: int) -> None:
    answer = produce(verified, "t", 0, version=version)
    assert answer.error_code in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert answer.base_offset == -1
    assert fetch(verified, "t").high_watermark == 0


def test_no_offset_is_taken_that_no_coordinator_has_confirmed(verified: Wire) -> None:
    find(verified)
    refused = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert commit(verified, "t", 5) in refused
    assert committed(verified, "t", stable=True) == (-1, ErrorCode.NONE)


class MarkerMeanwhile:
    """The coordinator, and markers that come to the partition while it is asked."""

    def __init__(self, broker: Any, producer_id: int, epoch: int, version: int, markers: int) -> None:
        self.inner = broker.verification._local
        self.partition = broker.replicas.leader("t", 0)
        self.producer_id, self.epoch, self.version, self.markers = producer_id, epoch, version, markers
        self.asked = 0
        broker.verification._local = self

    def verify_or_add(self, *question: Any) -> Any:
        self.asked += 1
        if self.asked <= self.markers:
            self.partition.append_marker(
                self.producer_id,
                self.epoch,
                commit=True,
                coordinator_epoch=0,
                transaction_version=self.version,
            )
        return self.inner.verify_or_add(*question)


def initialized(wire: Wire) -> int:
    """The producer of the transactional id."""
    wire.call(FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"]), 4)
    request = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
    return int(wire.call(request, 5).producer_id)


def test_a_marker_of_the_transaction_before_does_not_refuse_the_next_one() -> None:
    """The first batch comes while markers are still written, or are sent again: it is verified once more."""
    with ottla.testing.broker(topics={"t": 1}) as broker, Wire(broker.bootstrap_servers) as wire:
        producer_id = initialized(wire)
        first = produce(wire, "t", 0, version=SECOND_PROTOCOL, producer=producer_id)
        assert first.error_code == ErrorCode.NONE
        ending = EndTxnRequest(transactional_id="tx", producer_id=producer_id, committed=True)
        assert wire.call(ending, 5).producer_epoch == 1
        between = MarkerMeanwhile(broker.broker, producer_id, 1, version=2, markers=2)
        second = produce(wire, "t", 0, version=SECOND_PROTOCOL, producer=producer_id, epoch=1)
        assert second.error_code == ErrorCode.NONE
        assert between.asked == 3


def test_a_late_batch_of_the_first_protocol_does_not_get_into_the_next_transaction() -> None:
    """Its transaction ends while the coordinator is asked, and the next one has the same partition."""
    with ottla.testing.broker(topics={"t": 1}) as broker, Wire(broker.bootstrap_servers) as wire:
        producer_id = initialized(wire)
        adding = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx",
            v3_and_below_producer_id=producer_id,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
        )
        (added,) = wire.call(adding, 3).results_by_topic_v3_and_below
        assert added.results_by_partition[0].partition_error_code == ErrorCode.NONE
        between = MarkerMeanwhile(broker.broker, producer_id, 0, version=0, markers=1)
        late = produce(wire, "t", 0, producer=producer_id)
        assert late.error_code == ErrorCode.INVALID_TXN_STATE
        assert between.asked == 1
