"""Transactions of the producer: commit, abort, positions of a consumer, and the errors that librdkafka
tells apart.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message

import ottla
import ottla.testing
from broker_process import BrokerProcess
from client.consuming import PATIENCE, fill, numbers, until
from client.reading import read_topic
from ottla.client import (
    ClientError,
    FencedError,
    RecordTooLargeError,
    TimedOutError,
    TransactionAbortedError,
    TransactionError,
    polling,
)

Reader = Callable[..., list[Message]]


@pytest.fixture
def identity() -> str:
    return f"tx-{uuid.uuid4().hex[:12]}"


def values(messages: list[Message]) -> list[bytes]:
    return sorted(message.value() or b"" for message in messages)


def test_the_records_of_a_block_are_committed_together(
    servers: str, topic: str, identity: str, read_all: Reader
) -> None:
    with ottla.Producer(servers, transactional_id=identity) as producer:
        for number in range(3):
            with producer.transaction():
                for part in range(3):
                    producer.send(topic, f"{number}-{part}", partition=part)
                if number == 2:
                    producer.flush()
                    assert len(read_all(topic)) == 6, "not yet committed"
        assert len(read_all(topic)) == 9


def test_an_exception_aborts_and_the_producer_goes_on(
    servers: str, topic: str, identity: str, read_all: Reader
) -> None:
    with ottla.Producer(servers, transactional_id=identity) as producer:
        for error in (ZeroDivisionError, KeyboardInterrupt):
            with pytest.raises(error), producer.transaction():
                producer.send_and_wait(topic, b"aborted")
                raise error
        with pytest.raises(RecordTooLargeError), producer.transaction():
            producer.send(topic, b"aborted")
            producer.send(topic, b"x" * 2_000_000)
        with producer.transaction():
            producer.send(topic, b"committed")
    assert values(read_all(topic)) == [b"committed"]
    assert values(read_all(topic, "read_uncommitted")).count(b"aborted") >= 2


def test_a_record_that_fails_unseen_aborts_at_the_commit(
    servers: str, topic: str, identity: str, read_all: Reader
) -> None:
    """`send` reports nothing, so the commit has to: a record that the broker refuses aborts the whole."""
    with ottla.Admin(servers) as admin:
        admin.alter_topic_config(topic, {"max.message.bytes": 1_000})
    with ottla.Producer(servers, transactional_id=identity) as producer:
        with pytest.raises(
            TransactionAbortedError, match="it was aborted, try the whole of it again"
        ) as caught:
            with producer.transaction():
                producer.send(topic, b"small", partition=0)
                producer.send(topic, b"x" * 5_000, partition=1)
        assert caught.value.retriable
        with producer.transaction():
            producer.send(topic, b"after", partition=0)
    assert values(read_all(topic)) == [b"after"]


def test_a_newer_producer_of_the_same_id_fences_the_older(
    servers: str, topic: str, identity: str, read_all: Reader
) -> None:
    with ottla.Producer(servers, transactional_id=identity) as old:
        with old.transaction():
            old.send(topic, b"old")
        with ottla.Producer(servers, transactional_id=identity) as new:
            with new.transaction():
                new.send(topic, b"new")
            with pytest.raises(FencedError, match="close this producer") as caught:
                with old.transaction():
                    old.send(topic, b"zombie")
            assert caught.value.fatal
            with pytest.raises(TransactionError, match="of no use any more"):
                with old.transaction():
                    pass
            with new.transaction():
                new.send(topic, b"new")
    assert values(read_all(topic)) == [b"new", b"new", b"old"]


def test_sends_and_transactions_where_they_cannot_be(servers: str, topic: str, identity: str) -> None:
    with ottla.Producer(servers) as plain:
        with pytest.raises(TransactionError, match="no transactional_id"):
            plain.transaction()
    with ottla.Producer(servers, transactional_id=identity) as producer:
        with producer.transaction():
            producer.send(topic, b"x")
            with pytest.raises(TransactionError, match="one producer has one at a time"):
                with producer.transaction():
                    pass
        with pytest.raises(TransactionError, match=r"send within `with producer.transaction"):
            producer.send(topic, b"x")


def test_closing_in_the_middle_aborts(servers: str, topic: str, identity: str, read_all: Reader) -> None:
    producer = ottla.Producer(servers, transactional_id=identity)
    producer.transaction().__enter__()
    producer.send(topic, b"never")
    producer.flush()
    producer.close()
    with ottla.Producer(servers, transactional_id=identity) as again, again.transaction():
        again.send(topic, b"x")
    assert values(read_all(topic)) == [b"x"]


def test_coroutines_have_transactions_and_a_cancelled_one_aborts(
    servers: str, topic: str, identity: str, read_all: Reader
) -> None:
    async def run() -> None:
        async with ottla.Producer(servers, transactional_id=identity) as producer:
            async with producer.transaction():
                await producer.asubmit(topic, b"kept")

            async def cancelled() -> None:
                async with producer.transaction():
                    await producer.asend(topic, b"dropped")
                    await asyncio.Event().wait()

            task = asyncio.ensure_future(cancelled())
            while len(read_all(topic, "read_uncommitted")) < 2:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with producer.transaction():
                await producer.asubmit(topic, b"kept")

    asyncio.run(run())
    assert values(read_all(topic)) == [b"kept", b"kept"]


def test_a_task_that_is_cancelled_twice_leaves_no_transaction_open(
    servers: str, topic: str, identity: str, read_all: Reader
) -> None:
    async def run() -> None:
        async with ottla.Producer(servers, transactional_id=identity) as producer:

            async def cancelled(begun: asyncio.Event) -> None:
                async with producer.transaction():
                    await producer.asubmit(topic, b"dropped")
                    begun.set()
                    await asyncio.Event().wait()

            for has_begun in (False, True):  # cancelled while it begins, and while it aborts
                begun = asyncio.Event()
                task = asyncio.ensure_future(cancelled(begun))
                await (begun.wait() if has_begun else asyncio.sleep(0))
                for _ in range(3):
                    task.cancel()
                    await asyncio.sleep(0)
                with pytest.raises(asyncio.CancelledError):
                    await task
                async with producer.transaction():
                    await producer.asubmit(topic, b"kept")

    asyncio.run(run())
    assert values(read_all(topic)) == [b"kept", b"kept"]


@pytest.mark.parametrize("fails_at", [None, 7])
def test_consume_transform_produce_writes_each_record_once(
    servers: str, make_topic: Callable[[int], str], identity: str, read_all: Reader, fails_at: int | None
) -> None:
    """With positions in the transaction; a failure in the middle and a new start repeat and lose nothing."""
    source, target = make_topic(2), make_topic(2)
    with ottla.Producer(servers) as producer:
        for number in range(20):
            producer.send(source, b"%d" % number, partition=number % 2)

    def work(fails_at: int | None, until: int) -> None:
        consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": identity, "auto.offset.reset": "earliest"}
            | {"enable.auto.commit": False}
        )
        consumer.subscribe([source])
        done = 0
        try:
            with ottla.Producer(servers, transactional_id=identity) as producer:
                while done < until:
                    messages = consumer.consume(4, 10)
                    with producer.transaction(consumer):
                        for message in messages:
                            assert message.error() is None
                            done += 1
                            if done == fails_at:
                                raise ZeroDivisionError
                            producer.send(target, b"got " + (message.value() or b""), message.key())
        finally:
            consumer.close()

    if fails_at is not None:
        with pytest.raises(ZeroDivisionError):
            work(fails_at, 20)
    work(None, 20 - len(read_all(target)))
    assert values(read_all(target)) == sorted(b"got %d" % n for n in range(20))
    with ottla.Admin(servers) as admin:
        assert sum(admin.group_lag(identity).values()) == 0


def test_a_transaction_lives_through_the_death_of_a_leader() -> None:
    with ottla.testing.cluster(3, topics={"t": 3}) as cluster:
        with ottla.Producer(cluster.bootstrap_servers, transactional_id="tx") as producer:
            with producer.transaction():
                producer.send("t", b"before", partition=0)
            victim = cluster.leader("t", 0)
            with producer.transaction():
                producer.send_and_wait("t", b"during", partition=0)
                cluster.kill(victim)
                producer.send("t", b"during", partition=0)
            with producer.transaction():
                producer.send("t", b"after", partition=0)
        survivors = ",".join(each.bootstrap_servers for n, each in cluster.brokers.items() if n != victim)
        found = [message.value() for message in read_topic(survivors, "t")]
        assert found == [b"before", b"during", b"during", b"after"]


def test_a_callback_that_flushes_while_a_transaction_commits_is_refused(
    servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The commit is what calls back.
    monkeypatch.setattr(polling, "_STAND_BACK_SECONDS", 2 * PATIENCE)
    errors: list[BaseException | None] = []
    with ottla.Producer(servers, transactional_id=uuid.uuid4().hex, linger_ms=200) as producer:

        def flush(_: object) -> None:
            try:
                producer.flush(5)
            except ottla.client.ClientError as error:
                errors.append(error)

        producer._buffer.poll()
        until(lambda: not producer._buffer._poller._sender_polled, "a thread that stands back")
        with producer.transaction():
            producer.submit(topic, b"x").add_done_callback(flush)
    assert ["can send, but not flush" in str(each) for each in errors] == [True]


def test_a_commit_of_positions_ends_in_time_when_the_broker_is_gone(tmp_path: Path, identity: str) -> None:
    with BrokerProcess(tmp_path, {"group.initial.rebalance.delay.ms": 0}) as broker:
        servers = broker.bootstrap_servers
        fill(servers, "source", numbers(0, 5))
        with (
            ottla.Consumer(
                "source", bootstrap_servers=servers, group_id=identity, delivery="exactly-once"
            ) as consumer,
            ottla.Producer(servers, transactional_id=identity) as producer,
        ):
            assert consumer.fetch(timeout=PATIENCE)
            with pytest.raises(TimedOutError, match="make a new one with the same id"):
                with producer.transaction(consumer, timeout=2):
                    producer.send_and_wait("target", b"x")
                    broker.kill()
                    began = time.monotonic()
            assert time.monotonic() - began < 20
            producer.close(1)


class Interrupted:
    """librdkafka's producer; Ctrl-C comes right before or right after it commits."""

    def __init__(self, client: Any, *, committed: bool) -> None:
        self._client = client
        self._committed = committed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def commit_transaction(self, timeout: float) -> None:
        if self._committed:
            self._client.commit_transaction(timeout)
        raise KeyboardInterrupt

    def abort_transaction(self, timeout: float) -> None:
        raise KeyboardInterrupt


def test_ctrl_c_while_a_transaction_is_aborted_ends_the_producer(
    servers: str, topic: str, identity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ottla.Producer(servers, transactional_id=identity) as producer:
        interrupted = Interrupted(producer._client, committed=False)
        monkeypatch.setattr(producer._transactions, "_client", interrupted)
        with pytest.raises(KeyboardInterrupt), producer.transaction():
            producer.send(topic, b"x")
            raise ZeroDivisionError
        with pytest.raises(TransactionError, match="make a new one: an abort was interrupted"):
            producer.transaction().__enter__()


@pytest.mark.parametrize("committed", [False, True])
def test_a_consumer_goes_on_at_the_commit_when_the_end_of_a_transaction_is_not_known(
    servers: str,
    make_topic: Callable[[int], str],
    identity: str,
    read_all: Reader,
    monkeypatch: pytest.MonkeyPatch,
    committed: bool,
) -> None:
    source, target = make_topic(1), make_topic(1)
    fill(servers, source, numbers(0, 20))
    with ottla.Consumer(
        source, bootstrap_servers=servers, group_id=identity, delivery="exactly-once"
    ) as consumer:

        def work(producer: ottla.Producer) -> None:
            with producer.transaction(consumer):
                for record in consumer.fetch(5, 10):
                    producer.send(target, record.value)

        with ottla.Producer(servers, transactional_id=identity) as producer:
            work(producer)
            interrupted = Interrupted(producer._client, committed=committed)
            monkeypatch.setattr(producer._transactions, "_client", interrupted)
            with pytest.raises(KeyboardInterrupt):
                work(producer)
        with ottla.Producer(servers, transactional_id=identity) as producer:
            for _ in range(2 if committed else 3):
                work(producer)
    assert [each.value() for each in read_all(target)] == numbers(0, 20)


def test_records_of_an_aborted_transaction_come_again_although_the_commits_cannot_be_asked_for(
    servers: str, make_topic: Callable[[int], str], identity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_topic(1)
    fill(servers, source, numbers(0, 10))
    with (
        ottla.Consumer(
            source, bootstrap_servers=servers, group_id=identity, delivery="exactly-once"
        ) as consumer,
        ottla.Producer(servers, transactional_id=identity) as producer,
    ):

        def away(*_: object) -> None:
            raise ClientError("the brokers are away")

        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(consumer, "committed", away)
            for record in consumer:
                with producer.transaction(consumer):
                    assert record.offset == 0, "the loop went on after the record of the aborted transaction"
                    raise ZeroDivisionError
        assert next(iter(consumer)).offset == 0


def test_a_task_that_is_cancelled_while_it_opens_a_producer_ends_soon(identity: str) -> None:
    """Without a broker it would take a minute until the thread that asks for a producer id has ended."""

    async def program() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                async with ottla.Producer("127.0.0.1:1", transactional_id=identity):
                    raise AssertionError("there is no broker")

    began = time.monotonic()
    asyncio.run(program())
    assert time.monotonic() - began < PATIENCE / 2
