"""A transactional producer that works under faults and remembers which of its transactions were committed.

Each transaction writes a few numbers to all partitions of a topic, and is committed or aborted. When a
producer cannot go on, another one with the same transactional id takes its place, and the outcome of the
transaction under way is not known. What is checked at the end, as a consumer sees it that reads committed
records only: every committed transaction is there whole, once and in order; of aborted ones there is nothing;
the others are there whole or not at all. And nothing keeps such a consumer from reading on.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from crash.load import PATIENCE

COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"
_STEP_SECONDS = 5.0
_MOST_RECORDS = 20
_ABORTED_SHARE = 0.25


@dataclass(slots=True)
class Transaction:
    numbers: range
    outcome: str = UNKNOWN


class TransactionLoad(threading.Thread):
    def __init__(self, bootstrap: str, topic: str, partitions: int, seed: int) -> None:
        super().__init__(name="transaction-load")
        self._servers = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._rng = random.Random(seed)
        self._ending = threading.Event()
        self._next = 0
        self.transactions: list[Transaction] = []
        self.producers = 0

    def run(self) -> None:
        while not self._ending.is_set():
            producer = self._new_producer()
            if producer is not None:
                self._work(producer)

    def count(self, outcome: str) -> int:
        return sum(each.outcome == outcome for each in self.transactions)

    def finish(self) -> None:
        """Ends the load. A last producer ends what an earlier one left open, and commits."""
        self._ending.set()
        self.join(2 * PATIENCE)
        assert not self.is_alive(), "the transactional producer hangs"
        deadline = time.monotonic() + PATIENCE
        before = self.count(COMMITTED)
        while self.count(COMMITTED) == before:
            assert time.monotonic() < deadline, "no transaction can be committed any more"
            producer = self._new_producer()
            if producer is not None:
                self._transaction(producer, self._partitions, commit=True)

    def _work(self, producer: Producer) -> None:
        """Transactions of one producer, until it cannot go on."""
        while not self._ending.is_set():
            records = self._rng.randint(1, _MOST_RECORDS)
            if not self._transaction(producer, records, commit=self._rng.random() >= _ABORTED_SHARE):
                return
            self._ending.wait(0.05)

    def _new_producer(self) -> Producer | None:
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "transactional.id": "numbers",
                "transaction.timeout.ms": 20_000,
                "message.timeout.ms": 15_000,
                "socket.timeout.ms": 4000,
                "linger.ms": 1,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.interval.ms": 2000,
                "log_level": 0,
            }
        )
        self.producers += 1
        try:
            producer.init_transactions(4 * _STEP_SECONDS)
        except KafkaException:
            return None
        return producer

    def _transaction(self, producer: Producer, records: int, *, commit: bool) -> bool:
        """Whether the producer can go on."""
        transaction = Transaction(range(self._next, self._next + records))
        self._next += records
        self.transactions.append(transaction)
        try:
            producer.begin_transaction()
            for number in transaction.numbers:
                producer.produce(self._topic, b"%d" % number, partition=number % self._partitions)
        except KafkaException:
            return False
        if commit:
            error = self._ended(lambda: producer.commit_transaction(_STEP_SECONDS))
            if error is None:
                transaction.outcome = COMMITTED
                return True
            if not error.txn_requires_abort():
                return False
        if self._ended(lambda: producer.abort_transaction(_STEP_SECONDS)) is not None:
            return False
        transaction.outcome = ABORTED
        return True

    def _ended(self, end: Callable[[], object]) -> KafkaError | None:
        """Tries to end a transaction until it has an answer, or may be tried no more."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                end()
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if error.retriable() and time.monotonic() < deadline:
                    continue
                return error
            return None

    # -- what a consumer of committed records sees ----------------------------------------------------------

    def check(self, bootstrap: str) -> None:
        seen: dict[int, int] = defaultdict(int)
        for partition in range(self._partitions):
            numbers = self._read(bootstrap, partition)
            assert numbers == sorted(set(numbers)), f"partition {partition} is not in order, or not once"
            assert all(number % self._partitions == partition for number in numbers)
            for number in numbers:
                seen[number] += 1
        for transaction in self.transactions:
            there = sum(seen[number] for number in transaction.numbers)
            whole = len(transaction.numbers)
            allowed = {COMMITTED: {whole}, ABORTED: {0}, UNKNOWN: {0, whole}}[transaction.outcome]
            assert there in allowed, f"{there} of {whole} records of a transaction: {transaction}"

    def _read(self, bootstrap: str, partition: int) -> list[int]:
        """The numbers of a partition, up to the end of what is stable, which must be the end of the log."""
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "assign-only",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "check.crcs": True,
                "log_level": 0,
            }
        )
        place = TopicPartition(self._topic, partition, OFFSET_BEGINNING)
        try:
            _, end = consumer.get_watermark_offsets(place, PATIENCE)
            consumer.assign([place])
            numbers: list[int] = []
            deadline = time.monotonic() + PATIENCE
            while True:
                assert time.monotonic() < deadline, f"{self._topic}-{partition} is not stable up to {end}"
                message = consumer.poll(1.0)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    numbers.append(int(message.value() or b""))
                elif error.code() == KafkaError._PARTITION_EOF and (message.offset() or 0) >= end:
                    return numbers
        finally:
            consumer.close()
