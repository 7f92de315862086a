"""InitProducerId, the sequence numbers of idempotent producers, and DescribeProducers."""

from __future__ import annotations

from typing import Any

from differential.peer import Peer
from differential.scenario import Answers, scenario
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.produce import ProduceRequest


def _send(
    peer: Peer,
    version: int,
    topic: str,
    producer: int,
    sequence: int,
    epoch: int = 0,
    count: int = 1,
    partition: int = 0,
) -> Any:
    batch = peer.batch(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    return peer.produce(topic, {partition: batch}, version)


@scenario(InitProducerIdRequest)
def asking_for_an_id(peer: Peer, version: int) -> Answers:
    peer.producer_id()  # the first id may take a moment after the start of a broker
    first = peer.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), version)
    second = peer.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), version)
    yield "distinct", first.producer_id != second.producer_id
    peer.producer_ids += [first.producer_id, second.producer_id]
    yield "first", first
    yield "second", second
    for timeout in (0, -1, 0x7FFFFFFF):
        answer = peer.call(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=timeout), version
        )
        peer.producer_ids.append(answer.producer_id)
        yield f"timeout {timeout}", answer


@scenario(InitProducerIdRequest, first=3)
def asking_with_an_id(peer: Peer, version: int) -> Answers:
    mine = peer.producer_id()
    for producer, epoch in (
        (mine, 0),
        (mine, 5),
        (mine, -1),
        (-1, 0),
        (-2, 0),
        (777_000_010, 3),
        (mine, 32767),
    ):
        answer = peer.call(
            InitProducerIdRequest(
                transactional_id=None,
                transaction_timeout_ms=60_000,
                producer_id=producer,
                producer_epoch=epoch,
            ),
            version,
        )
        if answer.producer_id >= 0:
            peer.producer_ids.append(answer.producer_id)
        yield f"{'mine' if producer == mine else producer} {epoch}", answer


@scenario(InitProducerIdRequest)
def asking_with_an_empty_transactional_id(peer: Peer, version: int) -> Answers:
    yield (
        "empty",
        peer.call(InitProducerIdRequest(transactional_id="", transaction_timeout_ms=60_000), version),
    )


@scenario(ProduceRequest)
def sequences_in_order(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    producer = peer.producer_id()
    yield "0-2", _send(peer, version, topic, producer, 0, count=3)
    yield "3", _send(peer, version, topic, producer, 3)
    yield "3 again", _send(peer, version, topic, producer, 3)
    yield "0-2 again", _send(peer, version, topic, producer, 0, count=3)
    yield "0-1, part of a batch", _send(peer, version, topic, producer, 0, count=2)
    yield "1-2, part of a batch", _send(peer, version, topic, producer, 1, count=2)
    yield "2-4, over the edge", _send(peer, version, topic, producer, 2, count=3)
    yield "5, a gap", _send(peer, version, topic, producer, 5)
    yield "4", _send(peer, version, topic, producer, 4)
    yield "the log", peer.fetch(topic, 0, 12, max_wait_ms=0)


@scenario(ProduceRequest)
def the_window_of_five(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    producer = peer.producer_id()
    for sequence in range(7):
        yield f"{sequence}", _send(peer, version, topic, producer, sequence)
    for sequence in range(7):
        yield f"{sequence} again", _send(peer, version, topic, producer, sequence)
    yield "7", _send(peer, version, topic, producer, 7)


@scenario(ProduceRequest)
def epochs_rise(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    producer = peer.producer_id()
    yield "epoch 0", _send(peer, version, topic, producer, 0)
    yield "epoch 1, sequence 1", _send(peer, version, topic, producer, 1, epoch=1)
    yield "epoch 1, sequence 0", _send(peer, version, topic, producer, 0, epoch=1)
    yield "epoch 0 again", _send(peer, version, topic, producer, 1)
    yield "epoch 0, first batch again", _send(peer, version, topic, producer, 0)
    yield "epoch 5, sequence 0", _send(peer, version, topic, producer, 0, epoch=5)
    yield "epoch 4, sequence 0", _send(peer, version, topic, producer, 0, epoch=4)
    yield "epoch 32767", _send(peer, version, topic, producer, 0, epoch=32767)
    yield "epoch 5 again", _send(peer, version, topic, producer, 1, epoch=5)


@scenario(ProduceRequest)
def producers_never_seen_before(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", partitions=2)
    yield "sequence 0", _send(peer, version, topic, 777_000_001, 0)
    yield "sequence 5", _send(peer, version, topic, 777_000_002, 5)
    yield "sequence 6 behind it", _send(peer, version, topic, 777_000_002, 6)
    yield "epoch 3, sequence 0", _send(peer, version, topic, 777_000_003, 0, epoch=3)
    yield "epoch 3, sequence 9", _send(peer, version, topic, 777_000_004, 9, epoch=3)
    yield "known on another partition", _send(peer, version, topic, 777_000_001, 1, partition=1)


@scenario(ProduceRequest)
def sequences_wrap_around(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    last = 0x7FFFFFFF
    yield "near the end", _send(peer, version, topic, 777_000_005, last - 1)
    yield "over the edge", _send(peer, version, topic, 777_000_005, last, count=3)
    yield "over the edge again", _send(peer, version, topic, 777_000_005, last, count=3)
    yield "2", _send(peer, version, topic, 777_000_005, 2)
    yield "0", _send(peer, version, topic, 777_000_005, 0)


@scenario(ProduceRequest)
def idempotent_without_waiting_for_all(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    producer = peer.producer_id()
    for acks in (1, -1):
        batch = peer.batch(1, producer_id=producer, producer_epoch=0, base_sequence=0)
        yield f"acks {acks}", peer.produce(topic, batch, version, acks=acks)


@scenario(ProduceRequest)
def duplicates_after_records_were_deleted(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    producer = peer.producer_id()
    for sequence in range(3):
        _send(peer, version, topic, producer, sequence)
    partition = DeleteRecordsPartition(partition_index=0, offset=-1)
    topics = [DeleteRecordsTopic(name=topic, partitions=[partition])]
    yield "deleted", peer.call(DeleteRecordsRequest(topics=topics, timeout_ms=5000), 2)
    yield "1 again", _send(peer, version, topic, producer, 1)
    yield "3", _send(peer, version, topic, producer, 3)


@scenario(ProduceRequest)
def duplicates_on_a_topic_stamped_by_the_broker(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", configs={"message.timestamp.type": "LogAppendTime"})
    producer = peer.producer_id()
    yield "first", _send(peer, version, topic, producer, 0, count=2)
    yield "again", _send(peer, version, topic, producer, 0, count=2)


@scenario(DescribeProducersRequest)
def describing_producers(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", partitions=2)

    def describe(name: str, *partitions: int) -> Any:
        request = DescribeProducersRequest(
            topics=[TopicRequest(name=name, partition_indexes=list(partitions))]
        )
        return peer.call(request, version)

    yield "none yet", describe(topic, 0, 1)
    _send(peer, 9, topic, 777_000_001, 0, count=3)
    yield "one", describe(topic, 0, 1)
    _send(peer, 9, topic, 777_000_001, 3, count=2)
    yield "moved on", describe(topic, 0)
    _send(peer, 9, topic, 777_000_001, 0, epoch=2)
    yield "a higher epoch", describe(topic, 0)
    _send(peer, 9, topic, 777_000_001, 7, partition=1)
    yield "on the other partition", describe(topic, 1)
    yield "unknown partition", describe(topic, 2, 0)
    yield "unknown topic", describe(peer.named("nobody"), 0)
    yield "an impossible name", describe("no such/topic", 0)
    yield "nothing", peer.call(DescribeProducersRequest(topics=[]), version)
    yield "no partitions", describe(topic)
