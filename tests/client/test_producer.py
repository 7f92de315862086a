"""The producer against real brokers: results, forms of sending, failures, back-pressure and its end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from confluent_kafka import Message

import ottla
import ottla.testing
from client.consuming import PATIENCE, until
from ottla.client import (
    Avro,
    ClosedError,
    Json,
    QueueFullError,
    RecordTooLargeError,
    SendError,
    SerializationError,
    TimedOutError,
    UnknownTopicError,
)
from ottla.client.producer import SENDS_BETWEEN_POLLS

Reader = Callable[[str], list[Message]]
NOBODY = "127.0.0.1:1"
"""An address where no broker listens."""


def test_a_blocking_send_says_where_the_record_is(servers: str, topic: str, read_all: Reader) -> None:
    with ottla.Producer(servers) as producer:
        first = producer.send_and_wait(
            topic, b"one", b"k", partition=1, timestamp=1_700_000_000_000, headers={"h": "x"}
        )
        second = producer.send_and_wait(topic, "two", "k", partition=1)
    assert first == (topic, 1, 0, 1_700_000_000_000)
    assert (second.partition, second.offset) == (1, 1)
    assert second.timestamp is not None
    assert abs(second.timestamp / 1000 - time.time()) < 600
    one, two = read_all(topic)
    assert (one.key(), one.value(), one.headers()) == (b"k", b"one", [("h", b"x")])
    assert one.timestamp()[1] == 1_700_000_000_000
    assert (two.key(), two.value()) == (b"k", b"two")


def test_records_that_are_sent_and_forgotten_arrive_in_order(
    servers: str, topic: str, read_all: Reader
) -> None:
    with ottla.Producer(servers, compression_type="lz4", linger_ms=1) as producer:
        for number in range(5_000):
            producer.send(topic, str(number), partition=number % 3)
        producer.flush()
        assert len(producer) == 0
    for partition in range(3):
        numbers = [int(each.value() or b"") for each in read_all(topic) if each.partition() == partition]
        assert numbers == list(range(partition, 5_000, 3))


def test_a_value_of_none_deletes_and_a_missing_key_is_none(
    servers: str, topic: str, read_all: Reader
) -> None:
    with ottla.Producer(servers, value_serializer="json") as producer:
        producer.send_and_wait(topic, None, "k")
        producer.send_and_wait(topic, {"a": 1})
    found = {each.key(): each.value() for each in read_all(topic)}
    assert found == {b"k": None, None: b'{"a":1}'}


def test_futures_of_many_records_give_each_its_own_place(servers: str, topic: str) -> None:
    with ottla.Producer(servers) as producer:
        futures = [producer.submit(topic, b"x", partition=0) for _ in range(100)]
        assert [each.result(60).offset for each in futures] == list(range(100))


def test_coroutines_send_and_get_results(servers: str, topic: str, read_all: Reader) -> None:
    async def run() -> list[int]:
        async with ottla.Producer(servers) as producer:
            first = await producer.asend(topic, b"a", partition=0)
            rest = await asyncio.gather(*(producer.asend(topic, b"b", partition=0) for _ in range(500)))
            later = await producer.asubmit(topic, b"c", partition=0)
            await producer.aflush()
            return [first.offset, *sorted(each.offset for each in rest), (await later).offset]

    assert asyncio.run(run()) == list(range(502))
    assert len(read_all(topic)) == 502


def test_a_coroutine_that_flushes_does_not_wait_for_the_linger(servers: str, topic: str) -> None:
    async def run() -> None:
        linger = int(PATIENCE * 1_000)
        async with ottla.Producer(servers, linger_ms=linger, delivery_timeout_ms=10 * linger) as producer:
            results = [await producer.asubmit(topic, b"a", partition=0) for _ in range(3_000)]
            async with asyncio.timeout(PATIENCE / 2):
                await producer.aflush()
            assert [(await each).offset for each in results] == list(range(3_000))

    asyncio.run(run())


def test_a_coroutine_that_sends_hears_of_the_failure(servers: str, topic: str) -> None:
    async def run() -> None:
        async with ottla.Producer(servers, value_serializer="json") as producer:
            with pytest.raises(SerializationError, match="cannot serialize the value"):
                await producer.asend(topic, {1j})
            with pytest.raises(RecordTooLargeError):
                await producer.asend(topic, "x" * 1_100_000)
            with pytest.raises(UnknownTopicError, match="_UNKNOWN_PARTITION"):
                await producer.asend(topic, 1, partition=99)

    asyncio.run(run())


@dataclass
class Order:
    number: int
    item: str


SCHEMA = """{"type": "record", "name": "Order", "fields": [
    {"name": "number", "type": "int"}, {"name": "item", "type": "string"}]}"""


@pytest.mark.parametrize("form", [Json(Order), Avro(SCHEMA, Order)], ids=["json", "avro"])
def test_dataclasses_go_through_a_serializer(
    servers: str, topic: str, read_all: Reader, form: Json | Avro
) -> None:
    with ottla.Producer(servers, key_serializer="str", value_serializer=form) as producer:
        producer.send(topic, Order(7, "tea"), "k")
    [message] = read_all(topic)
    assert form.deserialize(message.value() or b"") == Order(7, "tea")


def test_what_is_not_bytes_needs_a_serializer_and_the_error_says_so(servers: str, topic: str) -> None:
    with ottla.Producer(servers) as producer:
        with pytest.raises(
            SerializationError, match=r"the value .* is a dict, not bytes or str: give value_ser"
        ):
            producer.send(topic, {})
        with pytest.raises(SerializationError, match="key_serializer="):
            producer.send(topic, b"", 7)


def test_a_serializer_may_add_headers(servers: str, topic: str, read_all: Reader) -> None:
    def stamped(value: str, context: ottla.client.SerializationContext) -> bytes:
        context.headers.append(("schema", b"1"))
        return value.encode()

    with ottla.Producer(servers, value_serializer=stamped) as producer:
        producer.send(topic, "x", headers={"a": "b"})
    assert [each.headers() for each in read_all(topic)] == [[("a", b"b"), ("schema", b"1")]]


def test_several_threads_share_a_producer(servers: str, topic: str, read_all: Reader) -> None:
    with ottla.Producer(servers) as producer, ThreadPoolExecutor(8) as threads:

        def work(thread: int) -> list[int]:
            for number in range(300):
                producer.send(topic, f"{thread}-{number}", partition=thread % 3)
            return [producer.send_and_wait(topic, f"{thread}-last", partition=thread % 3).offset]

        assert len(list(threads.map(work, range(8)))) == 8
    values = [each.value() for each in read_all(topic)]
    assert Counter(values) == Counter(f"{t}-{n}".encode() for t in range(8) for n in [*range(300), "last"])
    for thread in range(8):
        mine = [value for value in values if value and value.startswith(b"%d-" % thread)]
        assert mine[:-1] == [b"%d-%d" % (thread, n) for n in range(300)], (
            "each thread's records keep their order"
        )


def test_results_come_without_a_further_call_after_a_burst_of_sends(servers: str, topic: str) -> None:
    with ottla.Producer(servers) as producer:
        for number in range(3 * SENDS_BETWEEN_POLLS):
            producer.send(topic, b"%d" % number)
        until(lambda: len(producer) == 0, "results")

        async def run() -> int:
            futures = [await producer.asubmit(topic, b"a") for _ in range(3 * SENDS_BETWEEN_POLLS)]
            return len({(result.partition, result.offset) for result in await asyncio.gather(*futures)})

        assert asyncio.run(run()) == 3 * SENDS_BETWEEN_POLLS


def test_a_full_buffer_makes_senders_wait_and_loses_nothing(
    servers: str, topic: str, read_all: Reader
) -> None:
    small = {"queue.buffering.max.messages": 50}
    with ottla.Producer(servers, config=small) as producer:
        for number in range(2_000):
            producer.send(topic, b"%d" % number, partition=0)

    async def run() -> None:
        async with ottla.Producer(servers, config=small) as producer:
            await asyncio.gather(*(producer.asend(topic, b"a", partition=0) for _ in range(1_000)))

    asyncio.run(run())
    values = [each.value() for each in read_all(topic)]
    assert values[:2_000] == [b"%d" % n for n in range(2_000)]
    assert values[2_000:] == [b"a"] * 1_000


def test_waiting_for_space_does_not_hold_the_event_loop_and_ends() -> None:
    async def run() -> int:
        producer = ottla.Producer(NOBODY, max_block_ms=500, config={"queue.buffering.max.messages": 1})
        await producer.asubmit("t", b"first")
        waiting = asyncio.ensure_future(producer.asend("t", b"second"))
        turns = 0
        while not waiting.done():
            turns += 1
            await asyncio.sleep(0.01)
        with pytest.raises(QueueFullError, match="no space for a record to 't'"):
            await waiting
        await producer.aclose(0.1)
        return turns

    assert asyncio.run(run()) > 5


def test_the_buffer_of_a_blocking_producer_is_bounded_too() -> None:
    producer = ottla.Producer(NOBODY, max_block_ms=100, buffer_memory=2_048)
    with pytest.raises(QueueFullError, match="max_block_ms or buffer_memory"):
        for _ in range(100):
            producer.send("t", b"x" * 1_000)
    until(lambda: len(producer) == 2, "end of librdkafka's other events, which count for a moment")
    with pytest.raises(SendError, match=r"2 record\(s\) were not written"):
        producer.close(timeout=0.2)


def test_closing_takes_no_longer_than_asked_and_tells_of_the_rest() -> None:
    producer = ottla.Producer(NOBODY)
    waiting = producer.submit("t", b"x")
    producer.send("t", b"y")
    began = time.monotonic()
    with pytest.raises(SendError, match=r"1 record\(s\) were not written; .*_PURGE_QUEUE"):
        producer.close(timeout=0.5)
    assert time.monotonic() - began < 20
    with pytest.raises(SendError, match="closed before the record was sent"):
        waiting.result(0)
    producer.close()
    for send in (producer.send, producer.send_and_wait):
        with pytest.raises(ClosedError):
            send("t", b"z")


def test_flush_raises_for_records_that_nobody_waited_for() -> None:
    with ottla.Producer(NOBODY, delivery_timeout_ms=300) as producer:
        producer.send("t", b"x")
        producer.send("t", b"y")
        with pytest.raises(SendError, match=r"2 record\(s\) were not written; .*are they up\?") as caught:
            producer.flush()
        assert caught.value.name == "_MSG_TIMED_OUT"
        producer.flush()


def test_flush_and_blocking_sends_can_be_bounded() -> None:
    producer = ottla.Producer(NOBODY)
    with pytest.raises(TimedOutError, match="may still be written"):
        producer.send_and_wait("t", b"x", timeout=0.1)
    with pytest.raises(TimedOutError, match=r"1 record\(s\) are not answered after 0.1 s"):
        producer.flush(0.1)
    producer.close(0.1)


def test_the_errors_of_a_block_win_over_those_of_closing(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError), ottla.Producer(NOBODY, delivery_timeout_ms=300) as producer:
        producer.send("t", b"x")
        raise ZeroDivisionError
    assert "1 record(s) were not written" in caplog.text


def test_a_topic_that_is_missing_is_an_error_that_says_what_to_do() -> None:
    quickly = {"topic.metadata.propagation.max.ms": 200}
    with ottla.testing.broker(auto_create_topics_enable=False) as broker:
        with ottla.Producer(broker.bootstrap_servers, config=quickly) as producer:
            with pytest.raises(UnknownTopicError, match="create the topic first"):
                producer.send_and_wait("missing", b"x")
            broker.create_topic("missing", 1)
            assert producer.send_and_wait("missing", b"x").offset == 0


def test_a_broker_that_restarts_loses_nothing_of_an_idempotent_producer(tmp_path: object) -> None:
    with ottla.testing.broker(topics={"t": 1}) as broker:
        with ottla.Producer(broker.bootstrap_servers) as producer:
            for number in range(3_000):
                producer.send("t", b"%d" % number)
                if number == 1_000:
                    broker.kill()
                if number == 2_000:
                    broker.restart()
            producer.flush()
            assert producer.send_and_wait("t", b"last").offset == 3_000
