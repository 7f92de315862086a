"""What the tests of consumers share: topics with records, waiting for a condition, groups of their own."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import Producer

from ottla.client import ConsumerRecord
from ottla.client.consumer import Consumer

PATIENCE = 60.0


def fill(
    servers: str,
    topic: str,
    values: Iterable[bytes | None],
    *,
    key: Callable[[int], bytes | None] = lambda number: b"%d" % number,
    partition: int | None = None,
    timestamp: Callable[[int], int] | None = None,
) -> None:
    """Write these values with confluent-kafka; `key` and `timestamp` are asked with the value's number."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20})
    for number, value in enumerate(values):
        more: dict[str, Any] = {} if partition is None else {"partition": partition}
        if timestamp is not None:
            more["timestamp"] = timestamp(number)
        producer.produce(topic, value, key=key(number), **more)
        producer.poll(0)
    assert not producer.flush(PATIENCE), "not all records were written"


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def group() -> str:
    return f"g-{uuid.uuid4().hex[:12]}"


def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """So many records, one by one."""
    found: list[ConsumerRecord] = []
    while len(found) < count:
        record = consumer.poll(PATIENCE)
        assert record is not None, f"only {len(found)} of {count} records came"
        found.append(record)
    return found


def until(condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {patience:g} s"
        time.sleep(0.005)
