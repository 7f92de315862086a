"""A group of consumers that reads a topic under faults and remembers what it was promised.

Each member reads, and commits what it has read every so often. What is checked while it runs: a partition is
read without a gap, and begins, whenever a member gets it, no earlier than the last commit that was
acknowledged before. What is checked at the end: no acknowledged commit is gone, everything was read, and
everything that was read is in the log at the offset where it was read.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from crash.load import PATIENCE

COMMIT_SECONDS = 0.3
_CLASSIC = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
"""In the consumer protocol the broker sets them."""


class GroupLoad:
    def __init__(
        self,
        bootstrap: str,
        topic: str,
        group: str,
        members: int,
        *,
        protocol: str = "classic",
        settings: Callable[[str], Mapping[str, Any]] = lambda name: {},
    ) -> None:
        """`settings`: more of them for the member of this name."""
        self.bootstrap = bootstrap
        self.topic = topic
        self.group = group
        self.protocol = protocol
        self.settings = settings
        self.lock = threading.Lock()
        self.read: dict[int, dict[int, int]] = defaultdict(dict)
        """By partition: offset to the number in the record."""
        self.committed: dict[int, int] = defaultdict(int)
        """By partition: the largest offset whose commit was acknowledged."""
        self.commits = 0
        self.refused = 0
        self.wrong: list[str] = []
        self.ending = threading.Event()
        self._members = [_Member(self, number) for number in range(members)]

    def start(self) -> None:
        for member in self._members:
            member.start()

    def has_read(self, ends: list[int]) -> bool:
        """True when every partition was read up to its end."""
        with self.lock:
            return all(len(self.read[partition]) >= end for partition, end in enumerate(ends))

    def describe(self) -> str:
        """Where its members are, for the report of a failure."""
        members = "; ".join(member.describe() for member in self._members)
        return f"{self.group}: committed {dict(self.committed)}, {self.refused} commits refused; {members}"

    def finish(self) -> None:
        self.ending.set()
        for member in self._members:
            member.join(PATIENCE)
            assert not member.is_alive(), f"{member.name} hangs: it {member.doing}"

    def check(self, bootstrap: str, written: dict[int, dict[int, int]]) -> None:
        """`written`: by partition, number of a record to its offset."""
        assert self.wrong == []
        for partition, numbers in written.items():
            offsets = {offset: number for number, offset in numbers.items()}
            assert self.read[partition] == offsets, f"what was read of partition {partition} is not the log"
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": self.group, "log_level": 0})
        try:
            asked = [TopicPartition(self.topic, partition) for partition in sorted(written)]
            for found in consumer.committed(asked, PATIENCE):
                assert found.error is None and found.offset >= self.committed[found.partition], (
                    f"commit of {self.committed[found.partition]} is lost: {found}"
                )
        finally:
            consumer.close()


class _Member(threading.Thread):
    def __init__(self, load: GroupLoad, number: int) -> None:
        super().__init__(name=f"{load.group}-{number}")
        self._load = load
        self._least: dict[int, int] = {}
        """By partition that was assigned and not read yet: where it begins at the earliest."""
        self._next: dict[int, int] = {}
        """By partition: the offset after what was read."""
        self.doing = "begins"
        """For the report of one that hangs."""
        self._consumer = Consumer(
            {
                "bootstrap.servers": load.bootstrap,
                "group.id": load.group,
                "client.id": self.name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "group.protocol": load.protocol,
                **(_CLASSIC if load.protocol == "classic" else {}),
                "fetch.wait.max.ms": 100,
                "reconnect.backoff.max.ms": 200,
                "socket.timeout.ms": 4000,
                "check.crcs": True,
                "log_level": 0,
                **load.settings(self.name),
            }
        )

    def run(self) -> None:
        self.doing = "subscribes"
        self._consumer.subscribe(
            [self._load.topic], on_assign=self._assigned, on_revoke=self._gone, on_lost=self._gone
        )
        due = time.monotonic() + COMMIT_SECONDS
        while not self._load.ending.is_set():
            self.doing = "reads"
            for message in self._consumer.consume(200, 0.1):
                self._take(message)
            if time.monotonic() >= due:
                self._commit()
                due = time.monotonic() + COMMIT_SECONDS
        self._commit()
        self.doing = "closes"
        self._consumer.close()

    def describe(self) -> str:
        return f"{self.name} {self.doing}, has yet to read {self._least} and reads on at {self._next}"

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        with self._load.lock:
            for each in partitions:
                self._next.pop(each.partition, None)
                self._least[each.partition] = self._load.committed[each.partition]

    def _gone(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._next.pop(each.partition, None)
            self._least.pop(each.partition, None)

    def _take(self, message: Message) -> None:
        partition, offset, value = message.partition(), message.offset(), message.value()
        if message.error() is not None or partition is None or offset is None or value is None:
            return  # librdkafka tells of brokers that are away, and tries again
        load = self._load
        with load.lock:
            least = self._least.pop(partition, None)
            if least is not None and offset < least:
                load.wrong.append(f"{self.name} begins {partition} at {offset}, committed was {least}")
            expected = self._next.get(partition, offset)
            if offset != expected:
                load.wrong.append(f"{self.name} read offset {offset} of {partition} where {expected} was due")
            before = load.read[partition].setdefault(offset, int(value))
            if before != int(value):
                load.wrong.append(f"offset {offset} of {partition} was {before} and is {int(value)}")
        self._next[partition] = offset + 1

    def _commit(self) -> None:
        offsets = [TopicPartition(self._load.topic, each, after) for each, after in self._next.items()]
        if not offsets:
            return
        self.doing = "commits"
        try:
            answers = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            self._load.refused += 1
            return
        with self._load.lock:
            self._load.commits += 1
            for answer in answers or ():
                if answer.error is None:
                    committed = self._load.committed
                    committed[answer.partition] = max(committed[answer.partition], answer.offset)
