"""The clients of the benchmark of transactions, each run in a process of its own by `bench.clients`.

All are librdkafka through confluent-kafka. A commit is timed from the moment that all records of the
transaction are acknowledged, so it is the cost of the decision and not of the records.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, Producer

from bench.processes import Meter

_STUCK = 60.0  # seconds after which a client gives up
_VALUES = 8


class _Sender:
    """Sends records of one size round the partitions of a topic, and fails when one is refused."""

    def __init__(self, bootstrap: str, topic: str, size: int, partitions: int, **config: Any) -> None:
        self.failures: list[str] = []
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "log_level": 3, "enable.idempotence": True, **config}
        )
        self.producer.list_topics(topic, timeout=_STUCK)
        self._topic, self._partitions = topic, partitions
        self._values = [os.urandom(size) for _ in range(_VALUES)]

    def send(self, count: int) -> None:
        for number in range(count):
            self.send_one(number, self._values[number % _VALUES])

    def send_one(self, number: int, value: bytes) -> None:
        partition = number % self._partitions
        while True:
            try:
                self.producer.produce(self._topic, value, partition=partition, on_delivery=self._delivered)
                return
            except BufferError:
                self.producer.poll(0.01)

    def flush(self) -> None:
        if self.producer.flush(_STUCK) or self.failures:
            raise RuntimeError(f"not all records were acknowledged: {self.failures[:3]}")

    def commit(self) -> int:
        """Nanoseconds until the coordinator has confirmed."""
        self.flush()
        began = time.perf_counter_ns()
        self.producer.commit_transaction(_STUCK)
        return time.perf_counter_ns() - began

    def _delivered(self, error: object, _message: object) -> None:
        if error is not None:
            self.failures.append(str(error))


def _transactional(bootstrap: str, topic: str, size: int, partitions: int) -> _Sender:
    name = f"bench-{uuid.uuid4().hex[:8]}"
    sender = _Sender(bootstrap, topic, size, partitions, **{"transactional.id": name})
    sender.producer.init_transactions(_STUCK)
    return sender


def plainly(
    bootstrap: str, pids: list[int], topic: str, size: int, partitions: int, portion: int, count: int
) -> Any:
    """The same records without transactions: in portions that are waited for, and without waiting."""
    found = {}
    for name, waited in (("in portions", True), ("freely", False)):
        sender = _Sender(bootstrap, topic, size, partitions)
        sender.send(partitions)
        sender.flush()  # a producer id is not counted
        meter = Meter(pids)
        for _ in range(count):
            sender.send(portion)
            if waited:
                sender.flush()
            else:
                sender.producer.poll(0)
        sender.flush()
        found[name] = meter.stop()
    return found


def transactions(
    bootstrap: str, pids: list[int], topic: str, size: int, partitions: int, portion: int, count: int
) -> Any:
    """`count` transactions of `portion` records each, one after the other."""
    sender = _transactional(bootstrap, topic, size, partitions)
    commits = []
    meter = Meter(pids)
    for _ in range(count):
        sender.producer.begin_transaction()
        sender.send(portion)
        commits.append(sender.commit())
    return meter.stop() | {"commits": commits}


def copies(
    bootstrap: str,
    pids: list[int],
    source: str,
    topic: str,
    size: int,
    partitions: int,
    portion: int,
    count: int,
) -> Any:
    """Consume, transform, produce: `count` transactions of `portion` records and the offsets of a group."""
    filler = _Sender(bootstrap, source, size, partitions)
    filler.send(portion * count)
    filler.flush()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 3,
            "group.id": f"bench-{uuid.uuid4().hex[:8]}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([source])
    first = consumer.consume(1, _STUCK)  # joining the group is not counted
    sender = _transactional(bootstrap, topic, size, partitions)
    commits = []
    meter = Meter(pids)
    for _ in range(count):
        messages, first = first, []
        limit = time.monotonic() + _STUCK
        while len(messages) < portion:
            messages += consumer.consume(portion - len(messages), 1.0)
            if time.monotonic() > limit:
                raise RuntimeError(f"only {len(messages)} of {portion} records came")
        sender.producer.begin_transaction()
        for number, message in enumerate(messages):
            value = message.value()
            if message.error() or not isinstance(value, bytes):
                raise RuntimeError(str(message.error()))
            sender.send_one(number, value[::-1])
        sender.producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), _STUCK
        )
        commits.append(sender.commit())
    result = meter.stop()
    done = sum(position.offset for position in consumer.committed(consumer.assignment(), _STUCK))
    if done != portion * count:
        raise RuntimeError(f"{done} of {portion * count} offsets were committed")
    consumer.close()
    return result | {"commits": commits}


TRANSACTION_ROLES: dict[str, Callable[..., Any]] = {
    "plainly": plainly,
    "transactions": transactions,
    "copies": copies,
}
