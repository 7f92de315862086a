"""Idempotent producers of real clients over a network that loses answers, breaks connections and is cut.

What was taken but not answered is sent again by the client, and the broker must know it again: every record
is in the log once, and in order.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from kafka import KafkaProducer

import ottla.testing
from ottla.client.consume import Consumer
from ottla.client.offsets import spans
from ottla.client.wire import Wire
from ottla.testing.in_process import InProcessBroker

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
    sent = 0
    while not over.wait(PACE):
        producer.produce(TOPIC, b"%d" % sent, on_delivery=lambda error, _: error and failed.append(error))
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
    futures = []
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
            futures = []
            while not over.is_set():
                futures.append(await producer.send(TOPIC, b"%d" % len(futures)))
                await asyncio.sleep(PACE)
            await asyncio.wait_for(producer.flush(), 60)
            await asyncio.gather(*futures)
            return len(futures)

    return asyncio.run(send())


@pytest.mark.parametrize("send", [with_confluent, with_kafka_python, with_aiokafka])
def test_every_record_is_there_once_and_in_order(
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
        found = [int(record.value or b"") for _, record in Consumer(wire, TOPIC, {0: 0}, {0: end})]
    assert found == list(range(sent))
    assert sent > 500
