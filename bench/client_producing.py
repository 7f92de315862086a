"""Producers as programs of the client benchmark: ours, plain confluent-kafka and aiokafka, doing the same.

The plain program is `produce` with a callback that looks at the error, in two forms: with `poll(0)` after
each record, as the examples of confluent-kafka have it, and only after each 1,000th (its documentation asks
for polls at regular intervals, no more); both poll when the buffer is full. All are idempotent, have acks=all
and a linger of 5 ms, and send one record before the clock starts, so that connections, metadata and the
producer id are there.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, Message, Producer

import ottla

Figures = dict[str, float]
TASKS = 1_000
"""How many coroutines wait for their records at once."""
AWAITED_LINGER = 1
"""Milliseconds, in these: with more, it is the linger that all of them wait for that is measured."""
RARELY = 1_000
"""A plain producer that polls rarely does so after so many records."""


class Clock:
    """Seconds and CPU seconds of this process since it was made."""

    def __init__(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def stop(self) -> Figures:
        return {"seconds": time.perf_counter() - self._began, "cpu": time.process_time() - self._cpu}


def ottla_send(servers: str, topic: str, size: int, count: int, report_failures: bool = True) -> Figures:
    value = os.urandom(size)
    with ottla.Producer(servers, report_failures=report_failures) as producer:
        producer.send_and_wait(topic, value)
        clock = Clock()
        for _ in range(count):
            producer.send(topic, value)
        producer.flush()
        return clock.stop()


def ottla_unreported(servers: str, topic: str, size: int, count: int) -> Figures:
    return ottla_send(servers, topic, size, count, report_failures=False)


def confluent_send(servers: str, topic: str, size: int, count: int, poll_after: int = 1) -> Figures:
    failures = 0

    def delivered(error: KafkaError | None, message: Message) -> None:
        nonlocal failures
        if error is not None:
            failures += 1

    figures = _confluent(servers, topic, size, count, delivered, poll_after)
    if failures:
        raise RuntimeError(f"{failures} records were not written")
    return figures


def confluent_send_polling_rarely(servers: str, topic: str, size: int, count: int) -> Figures:
    return confluent_send(servers, topic, size, count, RARELY)


def confluent_unreported(servers: str, topic: str, size: int, count: int) -> Figures:
    return _confluent(servers, topic, size, count, None, 1)


def confluent_unreported_polling_rarely(servers: str, topic: str, size: int, count: int) -> Figures:
    return _confluent(servers, topic, size, count, None, RARELY)


def _confluent(
    servers: str,
    topic: str,
    size: int,
    count: int,
    delivered: Callable[[KafkaError | None, Message], None] | None,
    poll_after: int,
) -> Figures:
    value = os.urandom(size)
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.kbytes": 32_768,
            "partitioner": "murmur2_random",
        }
    )
    producer.produce(topic, value)
    producer.flush()
    clock = Clock()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value, callback=delivered)
                break
            except BufferError:
                producer.poll(0.01)
        if number % poll_after == 0:
            producer.poll(0)
    producer.flush()
    return clock.stop()


def ottla_async(servers: str, topic: str, size: int, count: int) -> Figures:
    """Each record is awaited into the buffer; its result is a future."""

    async def run() -> Figures:
        value = os.urandom(size)
        async with ottla.Producer(servers) as producer:
            await producer.asend(topic, value)
            clock = Clock()
            for _ in range(count):
                await producer.asubmit(topic, value)
            await producer.aflush()
            return clock.stop()

    return asyncio.run(run())


def aiokafka_async(servers: str, topic: str, size: int, count: int) -> Figures:
    async def run() -> Figures:
        value = os.urandom(size)
        producer = AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True, linger_ms=5)
        await producer.start()
        await producer.send_and_wait(topic, value)
        clock = Clock()
        for _ in range(count):
            await producer.send(topic, value)
        await producer.flush()
        figures = clock.stop()
        await producer.stop()
        return figures

    return asyncio.run(run())


def ottla_awaited(servers: str, topic: str, size: int, count: int) -> Figures:
    """Many coroutines, each of which waits until its record is written before it sends the next."""

    async def run() -> Figures:
        value = os.urandom(size)
        async with ottla.Producer(servers, linger_ms=AWAITED_LINGER) as producer:
            await producer.asend(topic, value)
            left = iter(range(count))

            async def send() -> None:
                for _ in left:
                    await producer.asend(topic, value)

            clock = Clock()
            await asyncio.gather(*(send() for _ in range(TASKS)))
            return clock.stop()

    return asyncio.run(run())


def aiokafka_awaited(servers: str, topic: str, size: int, count: int) -> Figures:
    async def run() -> Figures:
        value = os.urandom(size)
        producer = AIOKafkaProducer(
            bootstrap_servers=servers, enable_idempotence=True, linger_ms=AWAITED_LINGER
        )
        await producer.start()
        await producer.send_and_wait(topic, value)
        left = iter(range(count))

        async def send() -> None:
            for _ in left:
                await producer.send_and_wait(topic, value)

        clock = Clock()
        await asyncio.gather(*(send() for _ in range(TASKS)))
        figures = clock.stop()
        await producer.stop()
        return figures

    return asyncio.run(run())
