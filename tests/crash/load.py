"""Load for crash tests that remembers what it was promised, and the check that the promise was kept.

Two kinds of writers run while the broker is killed. `IdempotentLoad` is librdkafka with idempotence over
all partitions of a topic: it retries through every crash, so in the end each partition holds exactly its
sequence. `PlainLoad` sends one record after the other on one partition with acks=all and never retries:
what was acknowledged must be at the offset that was named, what was not may be there or not, but never
twice.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from ottla.protocol.codec import Malformed
from raw_client import RawClient

PATIENCE = 60.0
QUEUE = 150


def numbered(number: int) -> bytes:
    """A value that int() reads, long enough for segments to roll during a test."""
    return b"%-150d" % number


class IdempotentLoad(threading.Thread):
    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        queue: int = QUEUE,
        pause: float = 0.003,
        settings: Mapping[str, Any] = {},
    ) -> None:
        """`queue` records wait for their answers at most; `pause` seconds between two looks at the queue."""
        super().__init__(name="idempotent-load")
        self.topic = topic
        self._queue = queue
        self._pause = pause
        self.sent = [0] * partitions
        self.acknowledged: dict[int, dict[int, int]] = defaultdict(dict)
        """By partition: number of the record to the offset that the broker named."""
        self.errors: list[str] = []
        self._ending = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 50,
                "message.timeout.ms": 300_000,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "socket.timeout.ms": 10_000,
                "log_level": 0,
                **settings,
            },
            error_cb=self._on_error,
        )

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.errors.append(f"fatal: {error.str()}")

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.errors.append(error.str())
        else:
            self.acknowledged[message.partition()][int(message.value())] = message.offset()

    def run(self) -> None:
        while not self._ending.is_set():
            # A bounded queue keeps the load alive through a crash without a flood behind it.
            while len(self._producer) < self._queue:
                partition = sum(self.sent) % len(self.sent)
                self._producer.produce(
                    self.topic,
                    numbered(self.sent[partition]),
                    partition=partition,
                    on_delivery=self._delivered,
                )
                self.sent[partition] += 1
            self._producer.poll(0.005)
            self._ending.wait(self._pause)

    @property
    def progress(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def stop(self) -> None:
        """Sends no more."""
        self._ending.set()
        self.join(PATIENCE)

    def finish(self) -> None:
        """Ends the load; all that was sent is acknowledged then."""
        self.stop()
        assert self._producer.flush(PATIENCE) == 0, "records stayed without an answer"
        assert self.errors == []

    def check(self, bootstrap: str) -> None:
        for partition, count in enumerate(self.sent):
            values = read_all(bootstrap, self.topic, partition)
            assert [int(value) for _, value in values] == list(range(count)), (
                f"partition {partition} does not hold its sequence exactly once: {_first_gap(values)}"
            )
            assert {int(value): offset for offset, value in values} == self.acknowledged[partition]


class PlainLoad(threading.Thread):
    def __init__(self, bootstrap: str, topic: str, partition: int) -> None:
        super().__init__(name=f"plain-load-{partition}")
        self.bootstrap = bootstrap
        self.topic = topic
        self.partition = partition
        self.acknowledged: dict[int, int] = {}
        self.refused: list[str] = []
        self._ending = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._ending.is_set():
            try:
                with RawClient(self.bootstrap, timeout=10) as client:
                    while not self._ending.is_set():
                        number += 1
                        answer = client.produce(self.topic, numbered(number), partition=self.partition)
                        if answer.error_code:
                            self.refused.append(f"error {answer.error_code}: {answer.error_message}")
                        else:
                            self.acknowledged[number] = answer.base_offset
            except (OSError, Malformed):
                self._ending.wait(0.01)  # the broker is down; it comes back

    @property
    def progress(self) -> int:
        return len(self.acknowledged)

    def finish(self) -> None:
        self._ending.set()
        self.join(PATIENCE)
        assert self.refused == []

    def check(self, bootstrap: str) -> None:
        values = read_all(bootstrap, self.topic, self.partition)
        numbers = [int(value) for _, value in values]
        assert numbers == sorted(set(numbers)), f"not in order or not once: {_first_gap(values)}"
        found = {int(value): offset for offset, value in values}
        lost = {n: offset for n, offset in self.acknowledged.items() if found.get(n) != offset}
        assert not lost, f"acknowledged and lost or moved: {dict(list(lost.items())[:10])}"


def read_all(bootstrap: str, topic: str, partition: int, *, gaps: bool = False) -> list[tuple[int, bytes]]:
    """Every committed record of a partition, and proof that the offsets have no gap, unless transactions
    have left some."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "assign-only",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        values: list[tuple[int, bytes]] = []
        deadline = time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < deadline, f"the end of {topic}-{partition} was not reached"
            message = consumer.poll(1.0)
            if message is None:
                continue
            error, offset, value = message.error(), message.offset(), message.value()
            if error is None:
                assert offset is not None and value is not None
                values.append((offset, value))
            elif error.code() == KafkaError._PARTITION_EOF:
                break
    finally:
        consumer.close()
    assert gaps or [offset for offset, _ in values] == list(range(len(values))), _first_gap(values)
    return values


def _first_gap(values: list[tuple[int, bytes]]) -> str:
    for (offset, value), (next_offset, next_value) in pairwise(values):
        if int(next_value) != int(value) + 1 or next_offset != offset + 1:
            return f"after offset {offset} ({value!r}) comes offset {next_offset} ({next_value!r})"
    return f"{len(values)} records without a gap, the last {values[-1] if values else None}"
