"""Members of consumer groups, one class per client library, in words that all of them understand.

A member is told what to subscribe to and is polled now and then; it says what it was given and what it owns.
Heartbeats are short, so that a rebalance takes tenths of seconds. Nothing is committed unless a test says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import re
import selectors
import subprocess
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import kafka
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, KafkaException
from kafka.errors import KafkaError

HEARTBEAT_MS = 200
SESSION_MS = 6000
METADATA_MS = 300


class Read(NamedTuple):
    topic: str
    partition: int
    offset: int
    value: bytes | None


Owned = set[tuple[str, int]]


class Member(Protocol):
    def poll(self, seconds: float) -> list[Read]: ...

    def owned(self) -> Owned: ...

    def commit(self) -> None:
        """Commit what was read, and wait for the answer."""

    def close(self) -> None:
        """Leave the group."""


class ConfluentMember:
    """librdkafka; eager with the assignor range unless told otherwise."""

    strategy = "range"

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: list[str],
        *,
        instance: str | None = None,
        reset: str = "earliest",
        auto_commit: bool = False,
        settings: Mapping[str, Any] = {},
    ) -> None:
        self.revocations = 0
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": "confluent",
            "partition.assignment.strategy": self.strategy,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "session.timeout.ms": SESSION_MS,
            "auto.offset.reset": reset,
            "enable.auto.commit": auto_commit,
            "auto.commit.interval.ms": 200,
            "topic.metadata.refresh.interval.ms": METADATA_MS,
            "metadata.max.age.ms": 1000,
            "fetch.wait.max.ms": 100,
            "log_level": 0,
        }
        if instance is not None:
            config["group.instance.id"] = instance
        self.consumer = Consumer({**config, **settings})
        self.consumer.subscribe(topics, on_revoke=self._revoked)

    def _revoked(self, consumer: Consumer, partitions: list[Any]) -> None:
        self.revocations += 1

    def poll(self, seconds: float) -> list[Read]:
        first = self.consumer.poll(seconds)
        messages = [] if first is None else [first, *self.consumer.consume(500, 0)]
        return [
            Read(m.topic() or "", m.partition() or 0, m.offset() or 0, m.value())
            for m in messages
            if not m.error()
        ]

    def owned(self) -> Owned:
        return {(each.topic, each.partition) for each in self.consumer.assignment()}

    def commit(self) -> None:
        for each in self.consumer.commit(asynchronous=False) or ():
            if each.error is not None:
                raise KafkaException(each.error)

    def close(self) -> None:
        self.consumer.close()


class CooperativeMember(ConfluentMember):
    strategy = "cooperative-sticky"


class KafkaPythonMember:
    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: list[str],
        *,
        instance: str | None = None,
        reset: str = "earliest",
        auto_commit: bool = False,
    ) -> None:
        self.consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            group_instance_id=instance,
            client_id="kafka-python",
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=SESSION_MS,
            auto_offset_reset=reset,
            enable_auto_commit=auto_commit,
            auto_commit_interval_ms=200,
            metadata_max_age_ms=METADATA_MS,
            fetch_max_wait_ms=100,
        )
        if any(topic.startswith("^") for topic in topics):
            self.consumer.subscribe(pattern=topics[0])
        else:
            self.consumer.subscribe(topics)
        self._read: queue.SimpleQueue[Read] = queue.SimpleQueue()
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """Polls all the time, as an application does.

        A rebalance of kafka-python 3.0 that outlasts a poll is lost when nobody polls on for a while, so
        members cannot take turns in the thread of the test.
        """
        while not self._stopping:
            for records in self.consumer.poll(timeout_ms=1000).values():
                for r in records:
                    self._read.put(Read(r.topic, r.partition, r.offset, r.value))
            while not self._work.empty():
                work, outcome = self._work.get()
                try:
                    outcome.set_result(work())
                except KafkaError as error:
                    outcome.set_exception(error)

    def _do(self, work: Callable[[], Any]) -> Any:
        outcome: Future[Any] = Future()
        self._work.put((work, outcome))
        return outcome.result(30)

    def poll(self, seconds: float) -> list[Read]:
        read = []
        with contextlib.suppress(queue.Empty):
            read.append(self._read.get(timeout=seconds))
            while True:
                read.append(self._read.get_nowait())
        return read

    def owned(self) -> Owned:
        return {(each.topic, each.partition) for each in self.consumer.assignment()}

    def commit(self) -> None:
        self._do(self.consumer.commit)

    def close(self) -> None:
        self._stopping = True
        self._thread.join(30)
        self.consumer.close(autocommit=False)


class AiokafkaMember:
    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: list[str],
        *,
        instance: str | None = None,
        reset: str = "earliest",
        auto_commit: bool = False,
    ) -> None:
        self._loop = asyncio.new_event_loop()

        async def start() -> AIOKafkaConsumer:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                group_id=group,
                group_instance_id=instance,
                client_id="aiokafka",
                heartbeat_interval_ms=HEARTBEAT_MS,
                session_timeout_ms=SESSION_MS,
                auto_offset_reset=reset,
                enable_auto_commit=auto_commit,
                auto_commit_interval_ms=200,
                metadata_max_age_ms=METADATA_MS,
                fetch_max_wait_ms=100,
            )
            if any(topic.startswith("^") for topic in topics):
                consumer.subscribe(pattern=topics[0])
            else:
                consumer.subscribe(topics)
            # Starting waits for the first assignment, which may need members that this thread must poll.
            self._starting = asyncio.ensure_future(consumer.start())
            return consumer

        self.consumer = self._loop.run_until_complete(start())

    def poll(self, seconds: float) -> list[Read]:
        if not self._starting.done():
            self._loop.run_until_complete(asyncio.wait([self._starting], timeout=seconds))
            return []
        polled = self._loop.run_until_complete(self.consumer.getmany(timeout_ms=int(seconds * 1000)))
        return [Read(r.topic, r.partition, r.offset, r.value) for records in polled.values() for r in records]

    def owned(self) -> Owned:
        return {(each.topic, each.partition) for each in self.consumer.assignment()}

    def commit(self) -> None:
        self._loop.run_until_complete(self.consumer.commit())

    def close(self) -> None:
        self._loop.run_until_complete(self._starting)
        self._loop.run_until_complete(self.consumer.stop())
        self._loop.close()


class KcatMember:
    """kcat in a process of its own, so that it can be killed without a word to anybody."""

    def __init__(self, bootstrap: str, group: str, topics: list[str], *, reset: str = "earliest") -> None:
        settings = {
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "auto.offset.reset": reset,
            "enable.auto.commit": "false",
            "fetch.wait.max.ms": 100,
        }
        command = ["kcat", "-b", bootstrap, *(f"-X{name}={value}" for name, value in settings.items())]
        command += ["-u", "-f", r"%t %p %o %s\n", "-G", group, *topics]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._selector = selectors.DefaultSelector()
        self._text = {"out": b"", "err": b""}
        for name, pipe in (("out", self.process.stdout), ("err", self.process.stderr)):
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe.fileno(), selectors.EVENT_READ, name)

    def poll(self, seconds: float) -> list[Read]:
        for key, _ in self._selector.select(seconds):
            with contextlib.suppress(BlockingIOError):
                self._text[key.data] += os.read(key.fd, 1 << 16)
        lines, _, self._text["out"] = self._text["out"].rpartition(b"\n")
        fields = (line.split(b" ", 3) for line in lines.split(b"\n") if line)
        return [Read(t.decode(), int(p), int(o), value) for t, p, o, value in fields]

    def owned(self) -> Owned:
        """By what it last said about its assignment."""
        said = re.findall(r"rebalanced[^\n]*: (assigned|revoked): ([^\n]*)\n", self._text["err"].decode())
        if not said or said[-1][0] == "revoked":
            return set()
        return {(topic, int(p)) for topic, p in re.findall(r"(\S+) \[(\d+)\]", said[-1][1])}

    def commit(self) -> None:
        raise NotImplementedError("kcat commits by itself or not at all")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(10)
        self._selector.close()
        self.process.communicate()


MEMBERS: dict[str, type[Any]] = {
    "confluent-eager": ConfluentMember,
    "confluent-cooperative": CooperativeMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AiokafkaMember,
}
