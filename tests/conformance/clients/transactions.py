"""Transactional producers of the three Python clients, behind one interface for tests.

Each has `begin`, `send`, `commit`, `abort`, `send_offsets` and `close`. A producer that another one with its
transactional id has replaced raises `Fenced`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PurePartition
from kafka.errors import KafkaError as PureError
from kafka.structs import OffsetAndMetadata

from conformance.clients.model import Refused

DEADLINE = 60.0
_FENCED = {47, 90}
"""INVALID_PRODUCER_EPOCH and PRODUCER_FENCED: which one a client gets depends on what it asks first."""

Offsets = Mapping[tuple[str, int], int]


class Fenced(Exception):
    """Another producer with the same transactional id has taken over."""


class TransactionalClient(Protocol):
    name: str

    def __init__(self, bootstrap: str, transactional_id: str, *, timeout_ms: int = 60_000) -> None: ...

    def begin(self) -> None: ...

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        """Write a record, and return when the broker has it."""

    def send_offsets(self, offsets: Offsets, group: str) -> None:
        """Commit offsets of a group, as one that is not a member."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class ConfluentTransactions:
    name = "confluent-kafka"

    def __init__(self, bootstrap: str, transactional_id: str, *, timeout_ms: int = 60_000) -> None:
        self._bootstrap = bootstrap
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
                "linger.ms": 0,
            }
        )
        _confluent(self.producer.init_transactions, DEADLINE)

    def begin(self) -> None:
        _confluent(self.producer.begin_transaction)

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        problems: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                problems.append(error)

        def produce() -> None:
            self.producer.produce(topic, value, partition=partition, on_delivery=delivered)
            assert not self.producer.flush(DEADLINE)

        _confluent(produce)
        for error in problems:
            # What librdkafka purges when it has been fenced, it reports as such.
            raise Fenced if error.code() in (*_FENCED, *_PURGED) else Refused(error.code(), error.str())

    def send_offsets(self, offsets: Offsets, group: str) -> None:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": group})
        try:
            positions = [TopicPartition(topic, index, at) for (topic, index), at in offsets.items()]
            metadata = consumer.consumer_group_metadata()
            _confluent(self.producer.send_offsets_to_transaction, positions, metadata, DEADLINE)
        finally:
            consumer.close()

    def commit(self) -> None:
        _confluent(self.producer.commit_transaction, DEADLINE)

    def abort(self) -> None:
        _confluent(self.producer.abort_transaction, DEADLINE)

    def close(self) -> None:
        """It has no end of its own, and leaves its transaction open."""


_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._FENCED)


def _confluent(call: Any, *arguments: Any) -> None:
    try:
        call(*arguments)
    except (KafkaException, SystemError) as problem:
        # The library raises a fatal error also amid delivery reports, which Python complains about.
        raised = problem if isinstance(problem, KafkaException) else problem.__cause__
        if not isinstance(raised, KafkaException):
            raise
        error = raised.args[0]
        if error.code() in (*_FENCED, KafkaError._FENCED):
            raise Fenced from problem
        raise Refused(error.code(), error.str()) from problem


class KafkaPythonTransactions:
    name = "kafka-python"

    def __init__(self, bootstrap: str, transactional_id: str, *, timeout_ms: int = 60_000) -> None:
        self._bootstrap = bootstrap
        self.producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            linger_ms=0,
        )
        _pure(self.producer.init_transactions)

    def begin(self) -> None:
        _pure(self.producer.begin_transaction)

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        _pure(lambda: self.producer.send(topic, value, partition=partition).get(DEADLINE))

    def send_offsets(self, offsets: Offsets, group: str) -> None:
        consumer = KafkaConsumer(bootstrap_servers=self._bootstrap, group_id=group)
        try:
            positions = {
                PurePartition(topic, index): OffsetAndMetadata(at, "", -1)
                for (topic, index), at in offsets.items()
            }
            _pure(self.producer.send_offsets_to_transaction, positions, consumer.group_metadata())
        finally:
            consumer.close()

    def commit(self) -> None:
        _pure(self.producer.commit_transaction)

    def abort(self) -> None:
        _pure(self.producer.abort_transaction)

    def close(self) -> None:
        with suppress(PureError):
            self.producer.close(timeout=1)


def _pure(call: Any, *arguments: Any) -> None:
    try:
        call(*arguments)
    except PureError as error:
        _raise(error)


class AiokafkaTransactions:
    name = "aiokafka"

    def __init__(self, bootstrap: str, transactional_id: str, *, timeout_ms: int = 60_000) -> None:
        self._loop = asyncio.new_event_loop()

        async def start() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                linger_ms=0,
            )
            await producer.start()
            return producer

        self.producer = self._loop.run_until_complete(start())

    def _run(self, work: Any) -> None:
        try:
            self._loop.run_until_complete(asyncio.wait_for(work, DEADLINE))
        except AioError as error:
            _raise(error)

    def begin(self) -> None:
        self._run(self.producer.begin_transaction())

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._run(self.producer.send_and_wait(topic, value, partition=partition))

    def send_offsets(self, offsets: Offsets, group: str) -> None:
        positions = {AioTopicPartition(topic, index): at for (topic, index), at in offsets.items()}
        self._run(self.producer.send_offsets_to_transaction(positions, group))

    def commit(self) -> None:
        self._run(self.producer.commit_transaction())

    def abort(self) -> None:
        self._run(self.producer.abort_transaction())

    def close(self) -> None:
        with suppress(AioError):
            self._loop.run_until_complete(self.producer.stop())
        self._loop.close()


def _raise(error: Any) -> None:
    code = getattr(error, "errno", None) or -1
    if code in _FENCED or "Fenced" in type(error).__name__:
        raise Fenced from error
    raise Refused(code, str(error)) from error


TRANSACTIONAL: dict[str, type[TransactionalClient]] = {
    client.name: client for client in (ConfluentTransactions, KafkaPythonTransactions, AiokafkaTransactions)
}
