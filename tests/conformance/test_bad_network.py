"""Real clients over a network that loses answers, breaks connections and is cut.

What an idempotent producer sent and was not answered it sends again, and the broker must know it again: every
record is in the log once, and in order. A member without heartbeats is expired, and joins again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaProducer

import ottla.testing
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol_client.consume import Consumer as Reader
from ottla.protocol_client.offsets import spans
from ottla.protocol_client.wire import Wire
from ottla.testing.in_process import InProcessBroker
from raw_client import RawClient

pytestmark = pytest.mark.timeout(180)

TOPIC = "t"
TROUBLES = ("lose_answers", "reset", "cut", "lose_answers", "lose_answers", "reset")
TROUBLE_LASTS, CALM_LASTS = 0.5, 0.4
PACE = 0.001
UNANSWERED_MS = 1500  # after which a client sends again

Over = threading.Event


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with ottla.testing.broker(topics={TOPIC: 1}, network=True) as broker:
        yield broker


def with_confluent(address: str, over: Over) -> int:
    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "socket.timeout.ms": UNANSWERED_MS,
            "request.timeout.ms": UNANSWERED_MS,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 200,
            "log_level": 2,
        }
    )
    failed: list[object] = []

    def report(error: object, _: object) -> None:
        if error:
            failed.append(error)

    sent = 0
    while not over.wait(PACE):
        producer.produce(TOPIC, b"%d" % sent, on_delivery=report)
        producer.poll(0)
        sent += 1
    assert producer.flush(60) == 0
    assert not failed
    return sent


def with_kafka_python(address: str, over: Over) -> int:
    producer = KafkaProducer(
        bootstrap_servers=address,
        enable_idempotence=True,
        request_timeout_ms=UNANSWERED_MS,
        delivery_timeout_ms=60_000,
        reconnect_backoff_max_ms=200,
    )
    futures: list[Any] = []
    while not over.wait(PACE):
        futures.append(producer.send(TOPIC, b"%d" % len(futures)))
    producer.flush(60)
    assert all(future.succeeded() for future in futures)
    producer.close()
    return len(futures)


def with_aiokafka(address: str, over: Over) -> int:
    async def send() -> int:
        async with AIOKafkaProducer(
            bootstrap_servers=address, enable_idempotence=True, request_timeout_ms=UNANSWERED_MS
        ) as producer:
            futures: list[Any] = []
            while not over.is_set():
                futures.append(await producer.send(TOPIC, b"%d" % len(futures)))
                await asyncio.sleep(PACE)
            await asyncio.wait_for(producer.flush(), 60)
            await asyncio.gather(*futures)
            return len(futures)

    return asyncio.run(send())


@pytest.mark.parametrize("send", [with_confluent, with_kafka_python, with_aiokafka])
def test_every_record_of_an_idempotent_producer_is_written_once_and_in_order(
    broker: InProcessBroker, send: Callable[[str, Over], int]
) -> None:
    over, network = Over(), broker.network

    def weather() -> None:
        for trouble in TROUBLES:
            over.wait(CALM_LASTS)
            getattr(network, trouble)()
            over.wait(TROUBLE_LASTS)
            network.mend()
        over.set()

    thread = threading.Thread(target=weather)
    thread.start()
    try:
        sent = send(broker.bootstrap_servers, over)
    finally:
        over.set()
        thread.join()
    assert network.lost > 0, "some answers were lost"
    with Wire(broker.direct_servers) as wire:
        end = spans(wire, TOPIC, [0])[0].end
        found = [int(record.value or b"") for _, record in Reader(wire, TOPIC, {0: 0}, {0: end})]
    assert found == list(range(sent))
    assert sent > 500


def test_a_group_continues_after_a_network_cut_longer_than_its_session_timeout() -> None:
    settings = {"group.min.session.timeout.ms": 500, "group.initial.rebalance.delay.ms": 0}
    with ottla.testing.broker(topics={TOPIC: 4}, network=True, settings=settings) as broker:
        ended = threading.Event()
        seen: list[set[int]] = [set(), set()]

        def consume(number: int) -> None:
            consumer = Consumer(
                {
                    "bootstrap.servers": broker.bootstrap_servers,
                    "group.id": "g",
                    "session.timeout.ms": 1000,
                    "heartbeat.interval.ms": 200,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "reconnect.backoff.max.ms": 200,
                    "log_level": 2,
                }
            )
            consumer.subscribe([TOPIC])
            while not ended.is_set():
                message = consumer.poll(0.05)
                if message is not None and message.error() is None:
                    seen[number].add(int(message.value() or b""))
                    consumer.commit(message=message)
            consumer.close()

        def until_seen(count: int) -> None:
            deadline = time.monotonic() + 60
            while len(seen[0] | seen[1]) < count:
                assert time.monotonic() < deadline, f"{len(seen[0] | seen[1])} of {count} were read"
                time.sleep(0.02)

        def members_known() -> int:
            request = DescribeGroupsRequest(groups=["g"])
            return len(beside.call(request, 5).groups[0].members)

        members = [threading.Thread(target=consume, args=(number,)) for number in range(2)]
        for member in members:
            member.start()
        with RawClient(broker.direct_servers) as beside:
            try:
                for number in range(40):
                    beside.produce(TOPIC, b"%d" % number, partition=number % 4)
                until_seen(40)
                broker.network.cut()
                deadline = time.monotonic() + 30
                while members_known():
                    assert time.monotonic() < deadline, "members without heartbeats are expired"
                    time.sleep(0.02)
                for number in range(40, 80):
                    beside.produce(TOPIC, b"%d" % number, partition=number % 4)
                broker.network.mend()
                until_seen(80)
            finally:
                ended.set()
                broker.network.mend()
                for member in members:
                    member.join()
        assert seen[0] | seen[1] == set(range(80))
