"""Transactions, with real clients: all is read or nothing, and one producer with an id writes at a time.

Each promise is run with librdkafka, kafka-python and aiokafka, which speak the first transaction protocol.
With `--bootstrap` the same tests run against Apache Kafka.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PurePartition

from conformance.clients.model import Refused
from conformance.clients.transactions import (
    TRANSACTIONAL,
    ConfluentTransactions,
    Fenced,
    TransactionalClient,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from ottla.protocol_client.wire import Wire

DEADLINE = 60.0
MakeTopic = Callable[..., str]


@pytest.fixture
def name() -> str:
    return f"tx-{uuid.uuid4().hex[:12]}"


@pytest.fixture(params=TRANSACTIONAL, ids=list(TRANSACTIONAL))
def kind(request: pytest.FixtureRequest) -> type[TransactionalClient]:
    return TRANSACTIONAL[request.param]


@pytest.fixture
def start(bootstrap: str, kind: type[TransactionalClient]) -> Iterator[Callable[..., TransactionalClient]]:
    """Makes producers with a transactional id, which are closed at the end."""
    started: list[TransactionalClient] = []

    def make(transactional_id: str, **settings: Any) -> TransactionalClient:
        started.append(kind(bootstrap, transactional_id, **settings))
        return started[-1]

    yield make
    for producer in started:
        producer.close()


Start = Callable[..., TransactionalClient]


def read(bootstrap: str, topic: str, partition: int = 0, *, committed: bool = True) -> list[bytes]:
    """All values up to the end that such a reader sees now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "assign-only",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    values: list[bytes] = []
    deadline = time.monotonic() + DEADLINE
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        while True:
            assert time.monotonic() < deadline, values
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                return values
            value = message.value()
            assert value is not None
            values.append(value)
    finally:
        consumer.close()


@pytest.mark.cluster
def test_a_committed_transaction_is_read_whole(
    bootstrap: str, start: Start, make_topic: MakeTopic, name: str
) -> None:
    topic = make_topic(2)
    producer = start(name)
    producer.begin()
    producer.send(topic, b"a", 0)
    producer.send(topic, b"b", 1)
    producer.commit()
    assert (read(bootstrap, topic, 0), read(bootstrap, topic, 1)) == ([b"a"], [b"b"])


@pytest.mark.cluster
def test_an_aborted_transaction_is_skipped_by_readers_of_committed_records(
    bootstrap: str, start: Start, make_topic: MakeTopic, name: str
) -> None:
    topic = make_topic()
    producer = start(name)
    for value, commits in ((b"a", True), (b"b", False), (b"c", True)):
        producer.begin()
        producer.send(topic, value)
        (producer.commit if commits else producer.abort)()
    assert read(bootstrap, topic) == [b"a", b"c"]
    assert read(bootstrap, topic, committed=False) == [b"a", b"b", b"c"]


def test_readers_of_committed_records_stop_before_an_open_transaction(
    bootstrap: str, start: Start, make_topic: MakeTopic, name: str
) -> None:
    topic = make_topic()
    early, late = start(name), start(f"{name}-2")
    early.begin()
    early.send(topic, b"open")
    late.begin()
    late.send(topic, b"behind it")
    late.commit()
    assert read(bootstrap, topic) == []
    assert read(bootstrap, topic, committed=False) == [b"open", b"behind it"]
    early.commit()
    assert read(bootstrap, topic) == [b"open", b"behind it"]


def test_a_waiting_reader_gets_records_when_their_transaction_commits(
    bootstrap: str, start: Start, topic: str, name: str
) -> None:
    producer = start(name)
    producer.begin()
    producer.send(topic, b"a")
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "assign-only",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 30_000,
            "fetch.min.bytes": 1,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        assert consumer.poll(1.0) is None
        began = time.monotonic()
        producer.commit()
        message = consumer.poll(DEADLINE)
        assert message is not None and message.value() == b"a"
        assert time.monotonic() - began < 25  # not when its long poll had run out
    finally:
        consumer.close()


def test_a_second_producer_with_the_same_id_aborts_and_fences_the_first(
    bootstrap: str, start: Start, topic: str, name: str
) -> None:
    first = start(name)
    first.begin()
    first.send(topic, b"of the first")
    second = start(name)
    second.begin()
    second.send(topic, b"of the second")
    second.commit()
    with pytest.raises(Fenced):
        first.send(topic, b"too late")
        first.commit()
    assert read(bootstrap, topic) == [b"of the second"]


@pytest.mark.cluster
def test_a_transaction_that_runs_out_of_time_is_aborted(
    bootstrap: str, start: Start, topic: str, name: str
) -> None:
    producer = start(name, timeout_ms=1_500)
    producer.begin()
    producer.send(topic, b"forgotten")
    other = start(f"{name}-2")
    other.begin()
    other.send(topic, b"behind it")
    other.commit()
    deadline = time.monotonic() + DEADLINE
    while read(bootstrap, topic) != [b"behind it"]:
        assert time.monotonic() < deadline
    with pytest.raises((Fenced, Refused)):
        producer.commit()


def test_a_producer_goes_on_after_its_transaction_was_aborted(
    bootstrap: str, start: Start, topic: str, name: str
) -> None:
    producer = start(name)
    for number in range(10):
        producer.begin()
        producer.send(topic, b"%d" % number)
        (producer.abort if number % 3 == 0 else producer.commit)()
    assert read(bootstrap, topic) == [b"%d" % n for n in range(10) if n % 3]


def test_transactions_of_many_producers_do_not_disturb_each_other(
    bootstrap: str, start: Start, topic: str, name: str
) -> None:
    producers = [start(f"{name}-{number}") for number in range(4)]
    for producer in producers:
        producer.begin()
    for turn in range(3):
        for number, producer in enumerate(producers):
            producer.send(topic, b"%d.%d" % (number, turn))
    for number, producer in reversed(list(enumerate(producers))):
        (producer.commit if number % 2 else producer.abort)()
    assert read(bootstrap, topic) == [b"%d.%d" % (number, turn) for turn in range(3) for number in (1, 3)]


# -- offsets in transactions ------------------------------------------------------------------------------


def committed(bootstrap: str, group: str, topic: str, *, stable: bool) -> tuple[int, int]:
    """The offset that a group has of partition 0, and the error code for it."""
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=group, topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
            )
        ],
        require_stable=stable,
    )
    deadline = time.monotonic() + DEADLINE
    while True:
        with Wire(bootstrap) as any_broker:
            find = FindCoordinatorRequest(coordinator_keys=[group])
            (found,) = any_broker.call(find, version=4).coordinators
        if not found.error_code:
            with Wire(f"{found.host}:{found.port}") as wire:
                (answer,) = wire.call(request, version=9).groups
            if not answer.error_code:
                (partition,) = answer.topics[0].partitions
                return partition.committed_offset, partition.error_code
        assert time.monotonic() < deadline, found


@pytest.mark.cluster
def test_offsets_of_a_transaction_count_when_it_commits(
    bootstrap: str, start: Start, topic: str, name: str
) -> None:
    producer = start(name)
    producer.begin()
    producer.send_offsets({(topic, 0): 5}, name)
    assert committed(bootstrap, name, topic, stable=False) == (-1, 0)
    assert committed(bootstrap, name, topic, stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    producer.commit()
    until_stable(bootstrap, name, topic, 5)


def test_offsets_of_an_aborted_transaction_do_not_count(
    bootstrap: str, start: Start, topic: str, name: str
) -> None:
    producer = start(name)
    producer.begin()
    producer.send_offsets({(topic, 0): 5}, name)
    producer.commit()
    producer.begin()
    producer.send_offsets({(topic, 0): 9}, name)
    producer.abort()
    until_stable(bootstrap, name, topic, 5)


def until_stable(bootstrap: str, group: str, topic: str, offset: int) -> None:
    """Markers may be written after the client has its answer."""
    deadline = time.monotonic() + DEADLINE
    while (told := committed(bootstrap, group, topic, stable=True)) != (offset, 0):
        assert time.monotonic() < deadline, told


def test_a_member_that_has_been_replaced_cannot_commit_offsets_in_a_transaction(
    bootstrap: str, topic: str, name: str
) -> None:
    """Its generation is over, so the partitions belong to another member."""
    stale = _joined(bootstrap, name, topic)
    metadata = stale.consumer_group_metadata()
    stale.close()
    other = _joined(bootstrap, name, topic)
    producer = ConfluentTransactions(bootstrap, name)
    producer.begin()
    positions = [TopicPartition(topic, 0, 3)]
    with pytest.raises(Exception) as refused:
        producer.producer.send_offsets_to_transaction(positions, metadata, DEADLINE)
    expected = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
    assert refused.value.args[0].code() in expected
    producer.abort()
    producer.begin()
    producer.producer.send_offsets_to_transaction(positions, other.consumer_group_metadata(), DEADLINE)
    producer.commit()
    other.close()
    until_stable(bootstrap, name, topic, 3)


def _joined(bootstrap: str, group: str, topic: str) -> Consumer:
    """A member that has the partitions; what it has read meanwhile is gone."""
    consumer = _subscribed(bootstrap, group, topic)
    deadline = time.monotonic() + DEADLINE
    while not consumer.assignment():
        consumer.poll(0.1)
        assert time.monotonic() < deadline
    return consumer


def _subscribed(bootstrap: str, group: str, topic: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    return consumer


@pytest.mark.cluster
def test_consume_transform_produce_is_exactly_once_over_crashes_of_the_processor(
    bootstrap: str, make_topic: MakeTopic, name: str
) -> None:
    """Processors die in the middle of transactions; each input has one output all the same."""
    source, target = make_topic(), make_topic()
    records, done = 40, 0
    feeder = ConfluentTransactions(bootstrap, f"{name}-feeder")
    feeder.begin()
    for number in range(records):
        feeder.producer.produce(source, b"%d" % number, partition=0)
    feeder.commit()
    for dies_at in (7, 13, 21, None):
        consumer = _subscribed(bootstrap, name, source)
        producer = ConfluentTransactions(bootstrap, name)
        deadline = time.monotonic() + DEADLINE
        while done < records:
            assert time.monotonic() < deadline, done
            message = consumer.poll(1.0)
            if message is None or message.error() is not None:
                continue
            producer.begin()
            producer.producer.produce(target, b"x" + (message.value() or b""), partition=0)
            if done == dies_at:
                producer.producer.flush(DEADLINE)  # written, but not committed
                break
            position = [TopicPartition(source, 0, (message.offset() or 0) + 1)]
            metadata = consumer.consumer_group_metadata()
            producer.producer.send_offsets_to_transaction(position, metadata, DEADLINE)
            producer.commit()
            done += 1
        consumer.close()
    assert read(bootstrap, target) == [b"x%d" % number for number in range(records)]


# -- readers of every client ------------------------------------------------------------------------------


def _write_mixed(bootstrap: str, topic: str, name: str) -> None:
    producer = ConfluentTransactions(bootstrap, name)
    for number in range(8):
        producer.begin()
        for record in range(3):
            producer.producer.produce(topic, b"%d.%d" % (number, record), partition=0)
        producer.producer.flush(DEADLINE)
        (producer.abort if number % 2 else producer.commit)()
    producer.begin()
    producer.send(topic, b"last")
    producer.commit()


MIXED = [b"%d.%d" % (number, record) for number in range(0, 8, 2) for record in range(3)] + [b"last"]


def test_kafka_python_reads_committed_records_only(bootstrap: str, topic: str, name: str) -> None:
    _write_mixed(bootstrap, topic, name)
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed", group_id=None)
    values: list[bytes] = []
    deadline = time.monotonic() + DEADLINE
    try:
        consumer.assign([PurePartition(topic, 0)])
        consumer.seek_to_beginning()
        while len(values) < len(MIXED):
            assert time.monotonic() < deadline, values
            for records in consumer.poll(timeout_ms=500).values():
                values += [record.value for record in records]
    finally:
        consumer.close()
    assert values == MIXED


def test_aiokafka_reads_committed_records_only(bootstrap: str, topic: str, name: str) -> None:
    _write_mixed(bootstrap, topic, name)
    assert asyncio.run(_read_with_aiokafka(bootstrap, topic, len(MIXED))) == MIXED


async def _read_with_aiokafka(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    values: list[bytes] = []
    deadline = time.monotonic() + DEADLINE
    await consumer.start()
    try:
        while len(values) < count:
            assert time.monotonic() < deadline, values
            for records in (await consumer.getmany(timeout_ms=500)).values():
                values += [record.value for record in records]
    finally:
        await consumer.stop()
    return values
