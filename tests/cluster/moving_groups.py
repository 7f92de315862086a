"""A group of real clients that reads while its coordinator moves, and what has to hold meanwhile.

Two members read a topic to which records are written all the time, and commit what they have read. Nothing is
lost: all that was acknowledged is read. Nothing is repeated beyond the commits: what lies before an offset
whose commit was answered is not read again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import aiokafka.errors
import kafka.errors
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from conformance.clients.members import MEMBERS, ConfluentMember, Member, Read
from ottla.testing.in_process_cluster import InProcessCluster

PATIENCE = 120.0
TOPIC, PARTITIONS = "t", 4
REFUSALS = (KafkaException, kafka.errors.KafkaError, aiokafka.errors.KafkaError, TimeoutError)
"""What a commit may fail with while the coordinator moves or the group rebalances."""


class ConsumerProtocolMember(ConfluentMember):
    """librdkafka with the protocol of KIP-848."""

    settings = {"group.protocol": "consumer"}


KINDS: dict[str, type[Any]] = {
    "confluent": MEMBERS["confluent-eager"],
    "confluent-consumer-protocol": ConsumerProtocolMember,
    "kafka-python": MEMBERS["kafka-python"],
    "aiokafka": MEMBERS["aiokafka"],
}


class Feed:
    """Writes records all the time, on a thread of its own, and counts those that were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.ends = dict.fromkeys(range(PARTITIONS), 0)
        """By partition: the offset behind the last record that was acknowledged."""
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": PATIENCE * 1000,
                "linger.ms": 5,
                "log_level": 0,
            }
        )
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._over.wait(0.01):
            self._producer.produce(TOPIC, str(number), partition=number % PARTITIONS, on_delivery=self._done)
            self._producer.poll(0)
            number += 1
        assert self._producer.flush(PATIENCE) == 0

    def _done(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        self.ends[message.partition() or 0] = (message.offset() or 0) + 1

    def stop(self) -> None:
        self._over.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


class ReadingMember:
    """A member on a thread of its own."""

    def __init__(self, member: Member, reading: Reading) -> None:
        self.member = member
        self._reading = reading
        self._over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                read = self.member.poll(0.1)
                if read:
                    self._reading.took(read)
                    self._commit()
        except BaseException as defect:
            self._reading.failures.append(defect)
            raise
        finally:
            self.member.close()

    def _commit(self) -> None:
        # A commit is of what was read before it; what another member reads meanwhile is not in it.
        with suppress(*REFUSALS):
            self.member.commit()
            self._reading.committed(self.member)

    def stop(self) -> None:
        self._over.set()


class Reading:
    """The group, from its first member to its last."""

    def __init__(
        self, cluster: InProcessCluster, kind: type[Any], group: str = "g", members: int = 2
    ) -> None:
        self.failures: list[BaseException] = []
        self._lock = threading.Lock()
        self._seen: dict[int, set[int]] = {index: set() for index in range(PARTITIONS)}
        self._next: dict[tuple[int, int], int] = {}  # by member and partition: behind what it read
        self._committed = dict.fromkeys(range(PARTITIONS), 0)
        self._feed = Feed(cluster.bootstrap_servers)
        self._members = [
            ReadingMember(kind(cluster.bootstrap_servers, group, [TOPIC]), self) for _ in range(members)
        ]

    def __enter__(self) -> Self:
        self.goes_on()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._feed.stop()
            if error is None:
                self._until(self._has_all, "all records to be read")
        finally:
            for member in self._members:
                member.stop()
            for member in self._members:
                member.thread.join(PATIENCE)
        assert not self.failures, self.failures

    def took(self, read: list[Read]) -> None:
        with self._lock:
            for record in read:
                partition, offset = record.partition, record.offset
                assert offset >= self._committed[partition], (
                    f"{partition}:{offset} is read again, although {self._committed[partition]} was committed"
                )
                self._seen[partition].add(offset)
                self._next[threading.get_ident(), partition] = offset + 1

    def committed(self, member: Member) -> None:
        """The thread's member has committed all that it had read of the partitions that it owns."""
        with self._lock:
            for _, partition in member.owned():
                behind = self._next.get((threading.get_ident(), partition), 0)
                self._committed[partition] = max(self._committed[partition], behind)

    def goes_on(self) -> None:
        """Return when records that are written from now on have been read and committed."""
        ends = dict(self._feed.ends)
        self._until(
            lambda: all(self._committed[index] > end for index, end in ends.items()),
            f"commits beyond {ends}",
        )

    def _has_all(self) -> bool:
        return all(len(self._seen[index]) >= end for index, end in self._feed.ends.items())

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert not self.failures, self.failures
            assert time.monotonic() < deadline, f"waited for {what}; committed {self._committed}"
            time.sleep(0.02)
