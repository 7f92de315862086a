"""What the producer does when a broker refuses, forgets or hangs up."""

from __future__ import annotations

import threading

import pytest

from ottla.protocol.batches import read_header
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.protocol.records import decode_batch
from ottla.protocol_client.produce import Producer, Rejected
from ottla.protocol_client.wire import Wire

from .scripted_broker import CLOSE, ScriptedBroker


def wire_to(broker: ScriptedBroker) -> Wire:
    return Wire(broker.bootstrap, connect_timeout=5, request_timeout=10)


def produced(
    error: int = 0, offset: int = 0, partition: int = 0, message: str | None = None
) -> ProduceResponse:
    answer = PartitionProduceResponse(
        index=partition, error_code=error, base_offset=offset, error_message=message
    )
    return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[answer])])


def producing_broker() -> ScriptedBroker:
    broker = ScriptedBroker()
    broker.answer(
        InitProducerIdRequest,
        lambda request, version: InitProducerIdResponse(producer_id=9, producer_epoch=0),
    )
    return broker


def test_a_batch_is_sent_again_unchanged_after_a_passing_error() -> None:
    broker = producing_broker()
    answers = [produced(ErrorCode.NOT_LEADER_OR_FOLLOWER), CLOSE, produced()]
    broker.answer(ProduceRequest, lambda request, version: answers.pop(0))
    with broker, wire_to(broker) as wire, Producer(wire, "t") as producer:
        producer.add(None, b"once")
    sent = [bytes(r.topic_data[0].partition_data[0].records) for r in broker.of(ProduceRequest)]
    assert len(sent) == 3
    assert len(set(sent)) == 1
    assert read_header(sent[0]).producer_id == 9
    assert producer.acknowledged == 1


def test_a_duplicate_sequence_error_counts_as_acknowledged() -> None:
    broker = producing_broker()
    broker.answer(ProduceRequest, lambda request, version: produced(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, -1))
    with broker, wire_to(broker) as wire, Producer(wire, "t") as producer:
        producer.add(None, b"once")
    assert producer.acknowledged == 1


def test_a_batch_that_is_too_large_is_halved_until_it_fits() -> None:
    broker = producing_broker()
    log: list[bytes] = []
    sequences: list[int] = []

    def take(request: ProduceRequest, version: int) -> ProduceResponse:
        view = request.topic_data[0].partition_data[0].records
        assert view is not None
        records = decode_batch(view, max_size=1 << 20)
        if len(records) > 3:
            return produced(ErrorCode.MESSAGE_TOO_LARGE)
        sequences.append(read_header(view).base_sequence)
        log.extend(r.value or b"" for r in records)
        return produced(offset=len(log) - len(records))

    broker.answer(ProduceRequest, take)
    with broker, wire_to(broker) as wire, Producer(wire, "t") as producer:
        for number in range(10):
            producer.add(None, b"%d" % number)
    assert log == [b"%d" % number for number in range(10)]
    assert sequences == [0, 2, 5, 7]
    assert producer.offsets == {0: (0, 9)}


def test_a_single_record_that_is_too_large_is_named() -> None:
    broker = producing_broker()

    def take(request: ProduceRequest, version: int) -> ProduceResponse:
        view = request.topic_data[0].partition_data[0].records
        assert view is not None
        records = decode_batch(view, max_size=1 << 20)
        big = any(len(r.value or b"") > 100 for r in records)
        return produced(ErrorCode.MESSAGE_TOO_LARGE if big else 0)

    broker.answer(ProduceRequest, take)
    with broker, wire_to(broker) as wire:
        producer = Producer(wire, "t")
        for number in range(8):
            producer.add(None, b"x" * (200 if number == 5 else 1))
        with pytest.raises(Rejected) as failure:
            producer.flush()
    assert failure.value.number == 6
    assert failure.value.count == 1
    assert failure.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_refusal_contains_the_error_message_of_the_broker() -> None:
    broker = producing_broker()
    broker.answer(
        ProduceRequest,
        lambda request, version: produced(ErrorCode.INVALID_RECORD, message="a key is missing"),
    )
    with broker, wire_to(broker) as wire:
        producer = Producer(wire, "t")
        producer.add(None, b"v")
        with pytest.raises(Rejected, match="a key is missing"):
            producer.flush()


def test_the_time_limit_ends_an_error_that_does_not_pass() -> None:
    broker = producing_broker()
    broker.answer(ProduceRequest, lambda request, version: produced(ErrorCode.NOT_ENOUGH_REPLICAS))
    with broker, wire_to(broker) as wire:
        producer = Producer(wire, "t", timeout=0.2)
        producer.add(None, b"v")
        with pytest.raises(ApiError) as failure:
            producer.flush()
    assert failure.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert len(broker.of(ProduceRequest)) > 1


def test_without_acknowledgements_nothing_is_waited_for() -> None:
    broker = ScriptedBroker()
    arrived = threading.Event()
    broker.answer(ProduceRequest, lambda request, version: arrived.set())
    with broker, wire_to(broker) as wire, Producer(wire, "t", acks=0) as producer:
        producer.add(None, b"v")
        producer.flush()
        assert producer.acknowledged == 1
        assert arrived.wait(5)


def test_a_broker_without_producer_ids_gets_batches_without_them() -> None:
    broker = ScriptedBroker()
    del broker.versions[InitProducerIdRequest.api_key]
    broker.answer(ProduceRequest, lambda request, version: produced())
    with broker, wire_to(broker) as wire, Producer(wire, "t") as producer:
        producer.add(None, b"v")
    header = read_header(broker.of(ProduceRequest)[0].topic_data[0].partition_data[0].records)
    assert (header.producer_id, header.base_sequence) == (-1, -1)


def test_topic_names_are_used_where_the_broker_has_no_ids() -> None:
    broker = producing_broker()
    broker.topic_id = bytes(16)
    broker.answer(ProduceRequest, lambda request, version: produced())
    with broker, wire_to(broker) as wire, Producer(wire, "t") as producer:
        producer.add(None, b"v")
    assert [(r.topic_data[0].name, v) for r, v in broker.seen if isinstance(r, ProduceRequest)] == [("t", 12)]
