"""Consumers as programs of the client benchmark: ours, plain confluent-kafka and aiokafka, doing the same.

All read a topic that was filled before, in a group of their own, committing by themselves every five seconds,
and look at the value of each record. The clock starts when the first record is there, so joining the group
is not measured. The plain programs are what confluent-kafka's documentation shows: `poll` in a loop, or
`consume` of 500, and a look at the error. They have the same `fetch.queue.backoff.ms` as our consumer:
with librdkafka's default of a second they would stand still whenever their queue is full.

The pool has no plain counterpart. It is compared with the time that its workers need at the least
(`pool_bound`), and with workers that sleep as long and do nothing else (`sleeping_threads`,
`sleeping_tasks`): what a machine, and Python's timers, allow.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import Counter
from typing import Any

from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer

import ottla
from bench.client_producing import Clock, Figures
from ottla.client import AsyncConsumer, ConsumerRecord, Pool

BATCH = 500
KEYS = 100
WORKERS = 32
WORK = 0.01
"""Seconds that a handler of the pool sleeps."""
_BACKOFF = {"fetch.queue.backoff.ms": 10}


def fill(servers: str, topic: str, size: int, count: int) -> None:
    """Records of this size, with `KEYS` keys in turn: the keys decide on the partitions."""
    value = bytes(size)
    with ottla.Producer(servers) as producer:
        for number in range(count):
            producer.send(topic, value, key=key_of(number))


def key_of(number: int) -> bytes:
    return b"key-%d" % (number % KEYS)


def _group() -> str:
    return f"bench-{uuid.uuid4().hex[:12]}"


class _Wrong(RuntimeError):
    """The program did not see what is in the topic."""


def _checked(figures: Figures, read: int, expected: int) -> Figures:
    if read != expected:
        raise _Wrong(f"{read} bytes were read, not {expected}")
    return figures


# -- one by one -------------------------------------------------------------------------------------------


def ottla_iterator(servers: str, topic: str, size: int, count: int) -> Figures:
    left, read, clock = count, 0, Clock()
    with ottla.Consumer(topic, bootstrap_servers=servers, group_id=_group()) as consumer:
        for record in consumer:
            read += len(record.value)
            left -= 1
            if left == count - 1:
                clock = Clock()
            if not left:
                break
        return _checked(clock.stop(), read, size * count)


def confluent_poll(servers: str, topic: str, size: int, count: int) -> Figures:
    left, read, clock = count, 0, Clock()
    consumer = _confluent(servers, topic)
    while left:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            raise RuntimeError(str(message.error()))
        read += len(message.value() or b"")
        left -= 1
        if left == count - 1:
            clock = Clock()
    figures = clock.stop()
    consumer.close()
    return _checked(figures, read, size * count)


def ottla_async_iterator(servers: str, topic: str, size: int, count: int) -> Figures:
    async def run() -> Figures:
        left, read, clock = count, 0, Clock()
        async with AsyncConsumer(topic, bootstrap_servers=servers, group_id=_group()) as consumer:
            async for record in consumer:
                read += len(record.value)
                left -= 1
                if left == count - 1:
                    clock = Clock()
                if not left:
                    break
            return _checked(clock.stop(), read, size * count)

    return asyncio.run(run())


def aiokafka_iterator(servers: str, topic: str, size: int, count: int) -> Figures:
    async def run() -> Figures:
        left, read, clock = count, 0, Clock()
        consumer = _aiokafka(servers, topic)
        await consumer.start()
        async for record in consumer:
            read += len(record.value)
            left -= 1
            if left == count - 1:
                clock = Clock()
            if not left:
                break
        figures = clock.stop()
        await consumer.stop()
        return _checked(figures, read, size * count)

    return asyncio.run(run())


# -- in batches -------------------------------------------------------------------------------------------


def ottla_batches(servers: str, topic: str, size: int, count: int) -> Figures:
    left, read, clock = count, 0, Clock()
    with ottla.Consumer(topic, bootstrap_servers=servers, group_id=_group()) as consumer:
        for batch in consumer.batches(BATCH):
            if left == count:
                clock = Clock()
            for record in batch:
                read += len(record.value)
            left -= len(batch)
            if not left:
                break
        return _checked(clock.stop(), read, size * count)


def confluent_batches(servers: str, topic: str, size: int, count: int) -> Figures:
    left, read, clock = count, 0, Clock()
    consumer = _confluent(servers, topic)
    while left:
        batch = consumer.consume(min(BATCH, left), 1.0)
        if left == count and batch:
            clock = Clock()
        for message in batch:
            if message.error():
                raise RuntimeError(str(message.error()))
            read += len(message.value() or b"")
        left -= len(batch)
    figures = clock.stop()
    consumer.close()
    return _checked(figures, read, size * count)


def ottla_async_batches(servers: str, topic: str, size: int, count: int) -> Figures:
    async def run() -> Figures:
        left, read, clock = count, 0, Clock()
        async with AsyncConsumer(topic, bootstrap_servers=servers, group_id=_group()) as consumer:
            async for batch in consumer.batches(BATCH):
                if left == count:
                    clock = Clock()
                for record in batch:
                    read += len(record.value)
                left -= len(batch)
                if not left:
                    break
            return _checked(clock.stop(), read, size * count)

    return asyncio.run(run())


def aiokafka_batches(servers: str, topic: str, size: int, count: int) -> Figures:
    async def run() -> Figures:
        left, read, clock = count, 0, Clock()
        consumer = _aiokafka(servers, topic)
        await consumer.start()
        while left:
            found = await consumer.getmany(timeout_ms=1_000, max_records=BATCH)
            if left == count and found:
                clock = Clock()
            for batch in found.values():
                for record in batch:
                    read += len(record.value)
                left -= len(batch)
        figures = clock.stop()
        await consumer.stop()
        return _checked(figures, read, size * count)

    return asyncio.run(run())


def _confluent(servers: str, topic: str) -> Consumer:
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": _group(), "auto.offset.reset": "earliest", **_BACKOFF}
    )
    consumer.subscribe([topic])
    return consumer


def _aiokafka(servers: str, topic: str) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(topic, bootstrap_servers=servers, group_id=_group(), auto_offset_reset="earliest")


# -- the pool ---------------------------------------------------------------------------------------------


def pool_threads(servers: str, topic: str, size: int, count: int) -> Figures:
    with ottla.Consumer(topic, bootstrap_servers=servers, group_id=_group()) as consumer:
        watch = _Watch(count)

        def work(record: ConsumerRecord) -> None:
            watch.begins()
            time.sleep(WORK)
            watch.ends(pool)

        pool = Pool(work, consumer, workers=WORKERS)
        pool.run()
        return watch.figures


def pool_tasks(servers: str, topic: str, size: int, count: int) -> Figures:
    with ottla.Consumer(topic, bootstrap_servers=servers, group_id=_group()) as consumer:
        watch = _Watch(count)

        async def work(record: ConsumerRecord) -> None:
            watch.begins()
            await asyncio.sleep(WORK)
            watch.ends(pool)

        pool = Pool(work, consumer, workers=WORKERS)
        pool.run()
        return watch.figures


def pool_bound(servers: str, topic: str, size: int, count: int) -> Figures:
    """No run can be faster: all workers sleep all the time, and the records of a key follow one another."""
    longest = max(Counter(key_of(number) for number in range(count)).values())
    return {"seconds": max(count * WORK / WORKERS, longest * WORK), "cpu": 0.0}


def sleeping_threads(servers: str, topic: str, size: int, count: int) -> Figures:
    left, lock = iter(range(count)), threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if next(left, None) is None:
                    return
            time.sleep(WORK)

    threads = [threading.Thread(target=work) for _ in range(WORKERS)]
    clock = Clock()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return clock.stop()


def sleeping_tasks(servers: str, topic: str, size: int, count: int) -> Figures:
    async def run() -> Figures:
        left = iter(range(count))

        async def work(number: int) -> None:
            await asyncio.sleep(
                WORK * number / WORKERS
            )  # those of a pool do not wake at the same time either
            for _ in left:
                await asyncio.sleep(WORK)

        clock = Clock()
        await asyncio.gather(*(work(number) for number in range(WORKERS)))
        return clock.stop()

    return asyncio.run(run())


class _Watch:
    """From the first record that a handler gets to the last one that is done."""

    def __init__(self, count: int) -> None:
        self.figures: Figures = {}
        self._left = count
        self._clock: Clock | None = None
        self._lock = threading.Lock()

    def begins(self) -> None:
        if self._clock is None:
            with self._lock:
                self._clock = self._clock or Clock()

    def ends(self, pool: Any) -> None:
        with self._lock:
            self._left -= 1
            if not self._left and self._clock is not None:
                self.figures = self._clock.stop()
                pool.stop()
