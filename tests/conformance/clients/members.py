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
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, TypeVar

import aiokafka
import kafka
from confluent_kafka import Consumer, KafkaException, TopicPartition
from kafka.errors import KafkaError

HEARTBEAT_MS = 200
SESSION_MS = 6000
CLOSE_WITHIN = 20.0  # seconds; up to a session is spent in waiting for others
METADATA_MS = 300
_Result = TypeVar("_Result")


class Read(NamedTuple):
    topic: str
    partition: int
    offset: int
    value: bytes | None


Owned = set[tuple[str, int]]


class Member(Protocol):
    revocations: int
    """How often partitions were taken from it."""

    def poll(self, seconds: float) -> list[Read]: ...

    def owned(self) -> Owned: ...

    def commit(self) -> None:
        """Commit what was read, and wait for the answer."""

    def commit_later(self, told: Callable[[int], None]) -> None:
        """Commit what was read of the one partition and go on; `told` gets the offset afterwards."""

    def rewind(self, topic: str, partition: int, offset: int) -> None:
        """Read on from an earlier offset."""

    def close(self) -> None:
        """Leave the group."""


class ConfluentMember:
    """librdkafka; eager with the assignor range unless told otherwise."""

    settings: Mapping[str, Any] = {
        "partition.assignment.strategy": "range",
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "session.timeout.ms": SESSION_MS,
    }

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
        self.revocations = 0
        self._told: Callable[[int], None] | None = None
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": "confluent",
            "auto.offset.reset": reset,
            "enable.auto.commit": auto_commit,
            "auto.commit.interval.ms": 200,
            "topic.metadata.refresh.interval.ms": METADATA_MS,
            "metadata.max.age.ms": 1000,
            "fetch.wait.max.ms": 100,
            "log_level": 0,
            "on_commit": self._committed,
            **self.settings,
        }
        if instance is not None:
            config["group.instance.id"] = instance
        self.consumer = Consumer(config)
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

    def commit_later(self, told: Callable[[int], None]) -> None:
        self._told = told
        self.consumer.commit(asynchronous=True)

    def _committed(self, error: Any, partitions: list[TopicPartition]) -> None:
        if self._told is None:  # a commit of its own
            return
        assert error is None, error
        (partition,) = partitions
        assert partition.error is None, partition
        self._told(partition.offset)

    def rewind(self, topic: str, partition: int, offset: int) -> None:
        self.consumer.seek(TopicPartition(topic, partition, offset))

    def close(self) -> None:
        self.consumer.close()


class CooperativeMember(ConfluentMember):
    settings = {**ConfluentMember.settings, "partition.assignment.strategy": "cooperative-sticky"}


class _CountingRevocations(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: KafkaPythonMember) -> None:
        self._member = member

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._member.revocations += bool(revoked)

    def on_partitions_assigned(self, assigned: Any) -> None:
        pass


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
        self.revocations = 0
        counting = _CountingRevocations(self)
        if any(topic.startswith("^") for topic in topics):
            self.consumer.subscribe(pattern=topics[0], listener=counting)
        else:
            self.consumer.subscribe(topics, listener=counting)
        self._read: queue.SimpleQueue[Read] = queue.SimpleQueue()
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """Polls all the time, as an application does.

        A rebalance of kafka-python 3.0 that outlasts a poll is lost without a poll for a while, so
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

    def commit_later(self, told: Callable[[int], None]) -> None:
        def done(offsets: dict[Any, Any], outcome: Any) -> None:
            assert not isinstance(outcome, Exception), outcome
            (committed,) = offsets.values()
            told(committed.offset)

        self._do(lambda: self.consumer.commit_async(callback=done))

    def rewind(self, topic: str, partition: int, offset: int) -> None:
        self._do(lambda: self.consumer.seek(kafka.TopicPartition(topic, partition), offset))

    def close(self) -> None:
        self._stopping = True
        self._thread.join(30)
        self.consumer.close(autocommit=False)


class _CountingRevocationsLater(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: AiokafkaMember) -> None:
        self._member = member

    async def on_partitions_revoked(self, revoked: Any) -> None:
        self._member.revocations += bool(revoked)

    async def on_partitions_assigned(self, assigned: Any) -> None:
        pass


class AiokafkaMember:
    """Its event loop runs in a thread, as in an application: one that stands still while other members are
    polled cannot answer a rebalance, and members expel each other in turns."""

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
        self._thread = threading.Thread(target=self._loop.run_forever, name="aiokafka", daemon=True)
        self._thread.start()
        self.revocations = 0

        async def start() -> aiokafka.AIOKafkaConsumer:
            consumer = aiokafka.AIOKafkaConsumer(
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
            counting = _CountingRevocationsLater(self)
            if any(topic.startswith("^") for topic in topics):
                consumer.subscribe(pattern=topics[0], listener=counting)
            else:
                consumer.subscribe(topics, listener=counting)
            # Starting waits for the first assignment, which may need members that this thread must poll.
            self._starting = asyncio.ensure_future(consumer.start())
            return consumer

        self.consumer = self._run(start())

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _started(self, seconds: float | None = None) -> None:
        await asyncio.wait([self._starting], timeout=seconds)

    def poll(self, seconds: float) -> list[Read]:
        if not self._starting.done():
            self._run(self._started(seconds))
            return []
        polled = self._run(self.consumer.getmany(timeout_ms=int(seconds * 1000)))
        return [Read(r.topic, r.partition, r.offset, r.value) for records in polled.values() for r in records]

    def owned(self) -> Owned:
        return {(each.topic, each.partition) for each in self.consumer.assignment()}

    def commit(self) -> None:
        self._run(self.consumer.commit())

    def commit_later(self, told: Callable[[int], None]) -> None:
        (partition,) = self.consumer.assignment()

        async def commit() -> None:
            position = await self.consumer.position(partition)
            await self.consumer.commit({partition: position})
            told(position)

        self._committing = asyncio.run_coroutine_threadsafe(commit(), self._loop)

    def rewind(self, topic: str, partition: int, offset: int) -> None:
        async def seek() -> None:
            self.consumer.seek(aiokafka.TopicPartition(topic, partition), offset)

        self._run(seek())

    def close(self) -> None:
        self._run(self._started())
        # One that commits by itself and has lost its coordinator asks it for ever while it is being closed,
        # without looking for it (its `commit_offsets`). Such a one is left to itself: its session ends it.
        with contextlib.suppress(TimeoutError):
            self._run(asyncio.wait_for(self.consumer.stop(), CLOSE_WITHIN))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class KcatMember:
    """kcat in a process of its own, so that it can be killed without leaving the group.

    It can neither be told to commit nor to rewind.
    """

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: list[str],
        *,
        instance: str | None = None,
        reset: str = "earliest",
        auto_commit: bool = False,
        strategy: str = "range,roundrobin",
    ) -> None:
        settings: dict[str, Any] = {
            "partition.assignment.strategy": strategy,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "auto.offset.reset": reset,
            "enable.auto.commit": str(auto_commit).lower(),
            "auto.commit.interval.ms": 200,
            "topic.metadata.refresh.interval.ms": METADATA_MS,
            "metadata.max.age.ms": 1000,
            "fetch.wait.max.ms": 100,
        }
        if instance is not None:
            settings["group.instance.id"] = instance
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

    def _said(self) -> list[tuple[str, str]]:
        pattern = r"rebalanced[^\n]*(assign|revoke)\w*(?::| of)[^\n]*?((?:\S+ \[\d+\](?:, )?)+)\n"
        return re.findall(pattern, self._text["err"].decode())

    @property
    def revocations(self) -> int:
        return sum(what == "revoke" for what, _ in self._said())

    def owned(self) -> Owned:
        """By what it has said about its assignment."""
        owned: Owned = set()
        for what, places in self._said():
            named = {(topic, int(p)) for topic, p in re.findall(r"(\S+) \[(\d+)\]", places)}
            owned = owned | named if what == "assign" else owned - named
        return owned

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(3)
            except subprocess.TimeoutExpired:  # it hangs if a topic of its expression was deleted
                self.kill()
        self._selector.close()
        self.process.communicate()


MEMBERS: dict[str, type[Any]] = {
    "confluent-eager": ConfluentMember,
    "confluent-cooperative": CooperativeMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AiokafkaMember,
}
"""The libraries, which do all that a test asks for."""

READERS: dict[str, type[Any]] = {**MEMBERS, "kcat": KcatMember}
"""With the program that only reads."""
