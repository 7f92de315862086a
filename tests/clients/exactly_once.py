"""Programs of the JVM that write exactly once, killed while they work, on three brokers that are killed too.

The brokers are processes of their own, topics have three replicas. What counts in the end is what a
read_committed reader finds.
"""

from __future__ import annotations

import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from crash.cluster_processes import ClusterProcesses

PARTITIONS = 3
PATIENCE = 240.0
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
}
"""Of the brokers: transactions of a killed program end soon."""


class JvmProgram:
    """A program that can be killed and started again; its output of all starts is in one file."""

    def __init__(self, command: Sequence[str], output: Path) -> None:
        self._command, self._output = command, output
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=subprocess.STDOUT)

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """kill -9. It must not have ended by itself."""
        assert self.runs, f"it has ended by itself:\n{self.said()[-3000:]}"
        self.end()

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def said(self) -> str:
        return self._output.read_text(errors="replace")


def until(condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {patience:g} s"
        time.sleep(0.05)


def create_topics(bootstrap: str, *names: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for created in admin.create_topics([NewTopic(name, partitions, 3) for name in names]).values():
        created.result(PATIENCE)


def write(bootstrap: str, topic: str, values: Iterable[str]) -> None:
    """Idempotently, one after the other round the partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(PATIENCE) == 0


class Reader:
    """Reads what is committed in a topic, as it comes, without a group."""

    def __init__(self, bootstrap: str, topic: str, partitions: int = PARTITIONS) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "assign-only",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        self.records: dict[int, list[tuple[str | None, str]]] = defaultdict(list)
        """Key and value, by partition."""
        self._partitions = partitions
        self._consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])

    @property
    def values(self) -> list[str]:
        return [value for records in self.records.values() for _, value in records]

    def read(self) -> int:
        """What has come since; the number of records so far."""
        while (message := self._consumer.poll(0.1)) is not None:
            error = message.error()
            if error is None:
                key, value, partition = message.key(), message.value(), message.partition()
                assert isinstance(value, bytes) and partition is not None
                self.records[partition].append(
                    (key.decode() if isinstance(key, bytes) else None, value.decode())
                )
            else:
                assert error.code() == KafkaError._PARTITION_EOF or not error.fatal(), error
        return len(self.values)

    def await_count(self, count: int, what: str) -> None:
        until(lambda: self.read() >= count, f"{count} records ({what}; {len(self.values)} are there)")

    def await_end(self, cluster: ClusterProcesses) -> None:
        """Until all of the log is stable and read: no transaction is open, and nothing more will come."""
        everything = Consumer(
            {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "x", "log_level": 0}
        )
        places = self._consumer.assignment()

        def is_read() -> bool:
            self.read()
            ends = [everything.get_watermark_offsets(place, PATIENCE)[1] for place in places]
            # A partition of which nothing was read has no position yet, and may be empty.
            return [max(0, place.offset) for place in self._consumer.position(places)] == ends

        until(is_read, "stable end of the log")
        everything.close()

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def without_broker(cluster: ClusterProcesses, node: int) -> Iterator[None]:
    """Kill a broker now, and start it again when the work of the block was done without it."""
    cluster.kill(node)
    yield
    cluster.start(node)
    cluster.wait_for_answers()
