"""A producer and a consumer that note the longest time in which they got nothing: `python -m bench.failover
ROLE BOOTSTRAP TOPIC SECONDS`.

Both check what they are told: the producer that every record is acknowledged, the consumer that it gets every
offset once and in order.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

_RATE = 200
"""Records a second."""


class _Gaps:
    """The longest time between two events."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._last: float | None = None

    def event(self) -> None:
        now = time.monotonic()
        if self._last is not None:
            self.longest = max(self.longest, now - self._last)
        self._last = now


def produce(bootstrap: str, topic: str, seconds: float) -> Any:
    gaps, failed = _Gaps(), []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "enable.idempotence": True,
            "linger.ms": 0,
            "topic.metadata.refresh.fast.interval.ms": 50,
            "retry.backoff.ms": 50,
            "reconnect.backoff.ms": 20,
        }
    )

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(str(error))
        gaps.event()

    producer.produce(topic, b"first", partition=0, on_delivery=delivered)
    producer.flush(60)
    print("ready", flush=True)
    began, sent = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        while sent < passed * _RATE:
            producer.produce(topic, b"%d" % sent, partition=0, on_delivery=delivered)
            sent += 1
        producer.poll(0.002)
    producer.flush(60)
    return {"longest": gaps.longest, "failed": failed[:3], "sent": sent}


def consume(bootstrap: str, topic: str, seconds: float) -> Any:
    gaps, wrong, expected = _Gaps(), 0, 0
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "group.id": "failover",
            "enable.auto.commit": False,
            "topic.metadata.refresh.fast.interval.ms": 50,
            "retry.backoff.ms": 50,
            "reconnect.backoff.ms": 20,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    print("ready", flush=True)
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        message = consumer.poll(0.05)
        if message is None or message.error():
            continue
        gaps.event()
        offset = message.offset() or 0
        wrong += offset != expected
        expected = offset + 1
    consumer.close()
    return {"longest": gaps.longest, "wrong": wrong, "read": expected}


if __name__ == "__main__":
    role = {"produce": produce, "consume": consume}[sys.argv[1]]
    print(json.dumps(role(sys.argv[2], sys.argv[3], float(sys.argv[4]))), flush=True)
