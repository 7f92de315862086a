"""A confluent-kafka consumer on a thread of its own, as a member of a group that tests can look at.

The thread polls all the time, as an application would; `owned` and `received` are what it had at its last
turn. As a program (`python group_member.py BOOTSTRAP GROUP TOPIC`) it is a member that can be killed.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition

DEADLINE = 90.0
Place = tuple[str, int]


class Member:
    def __init__(self, bootstrap: str, group: str, topics: Iterable[str], **config: Any) -> None:
        self.owned: frozenset[Place] = frozenset()
        self.received: list[tuple[str, int, int]] = []
        self.revoked: list[Place] = []
        self._orders: list[tuple[Callable[[Consumer], Any], list[Any], threading.Event]] = []
        self._over = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **config,
            }
        )
        self._consumer.subscribe(list(topics), on_revoke=self._on_revoke)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.revoked += [(each.topic, each.partition) for each in partitions]

    def _run(self) -> None:
        while not self._over.is_set():
            message = self._consumer.poll(0.02)
            if message is not None and not message.error():
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                assert topic is not None and partition is not None and offset is not None
                self.received.append((topic, partition, offset))
            self.owned = frozenset((each.topic, each.partition) for each in self._consumer.assignment())
            while self._orders:
                order, results, done = self._orders.pop(0)
                try:
                    results.append(order(self._consumer))
                except KafkaException as error:
                    results.append(error)
                done.set()
        self._consumer.close()
        self.owned = frozenset()

    def do(self, order: Callable[[Consumer], Any]) -> Any:
        """Let the member's own thread do something with its consumer."""
        results: list[Any] = []
        done = threading.Event()
        self._orders.append((order, results, done))
        assert done.wait(DEADLINE), "the member does not answer"
        if isinstance(results[0], KafkaException):
            raise results[0]
        return results[0]

    def close(self) -> None:
        self._over.set()
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()


def until(condition: Callable[[], bool], what: Callable[[], object] = lambda: "") -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)


def await_shared(members: Iterable[Member], places: Iterable[Place]) -> None:
    """Wait until the members own these places, each of them once, and as evenly as can be."""
    members, wanted = list(members), sorted(places)

    def shared() -> bool:
        loads = [len(member.owned) for member in members]
        return (
            sorted(place for member in members for place in member.owned) == wanted
            and max(loads) - min(loads) <= 1
        )

    until(shared, lambda: [sorted(member.owned) for member in members])


if __name__ == "__main__":
    with Member(sys.argv[1], sys.argv[2], [sys.argv[3]]) as member:
        until(lambda: bool(member.owned))
        print("ready", flush=True)
        threading.Event().wait()
