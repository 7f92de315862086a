"""What an application does in the callbacks of a producer: `on_ack` of interceptors, and those of futures."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Message

import ottla
from client.consuming import PATIENCE, until
from ottla.client import (
    ClientError,
    ClosedError,
    ProducerInterceptor,
    ProducerRecord,
    QueueFullError,
    RecordMetadata,
    SendError,
    TimedOutError,
    polling,
)
from ottla.client.deliveries import send_error
from ottla.client.producer import SENDS_BETWEEN_POLLS

Reader = Callable[[str], list[Message]]
NOBODY = "127.0.0.1:1"
"""An address where no broker listens."""


class OnAck(ProducerInterceptor):
    """Calls a function with each result, and keeps the results."""

    def __init__(self, function: Callable[[], object] = lambda: None) -> None:
        self.function = function
        self.results: list[tuple[ProducerRecord, RecordMetadata | None, ClientError | None]] = []
        self.times_closed = 0

    def on_ack(
        self, record: ProducerRecord, metadata: RecordMetadata | None, error: ClientError | None
    ) -> None:
        self.results.append((record, metadata, error))
        self.function()

    def close(self) -> None:
        self.times_closed += 1


def test_callbacks_may_send_and_nothing_else(servers: str, topic: str, read_all: Reader) -> None:
    """confluent-kafka aborts the process when one polls or flushes."""
    count, errors = 3 * SENDS_BETWEEN_POLLS, []
    with ottla.Producer(servers) as producer:

        def echo(_: object) -> None:
            producer.send(topic, b"echo")
            for action in (producer.flush, producer.close, partial(producer.send_and_wait, topic)):
                with pytest.raises(ClientError, match="not flush, close, wait for a record"):
                    action()
                errors.append(action)

        for _ in range(count):
            producer.submit(topic, b"first").add_done_callback(echo)
        until(lambda: len(errors) == 3 * count, "callbacks")
        producer.flush()
    assert Counter(each.value() for each in read_all(topic)) == {b"first": count, b"echo": count}


def test_a_callback_that_finds_the_buffer_full_is_told_at_once_and_holds_nothing_up(
    servers: str, topic: str, read_all: Reader
) -> None:
    sent, refused = 0, 0

    def echo(_: object) -> None:
        nonlocal sent, refused
        for _ in range(2):
            try:
                producer.send(topic, b"echo")
                sent += 1
            except QueueFullError as error:
                assert "a callback of the producer cannot wait" in str(error)
                refused += 1

    config = {"queue.buffering.max.messages": 100}
    with ottla.Producer(
        servers, max_block_ms=int(PATIENCE * 1_000), linger_ms=100, config=config
    ) as producer:
        for _ in range(90):
            producer.submit(topic, b"first").add_done_callback(echo)
        producer.flush(PATIENCE / 2)
    assert refused
    assert sent + refused == 180
    assert Counter(each.value() for each in read_all(topic)) == {b"first": 90, b"echo": sent}


def test_ctrl_c_within_a_callback_reaches_the_sender(
    servers: str, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """confluent-kafka loses it, and has a SystemError in its place."""
    monkeypatch.setattr(polling, "_STAND_BACK_SECONDS", 2 * PATIENCE)  # so that the sender is called back
    came: list[object] = []

    def interrupt(error: object, message: object) -> None:
        came.append(threading.current_thread())
        signal.raise_signal(signal.SIGINT)

    with ottla.Producer(servers) as producer:
        producer.send_and_wait(topic, b"x")
        monkeypatch.setattr(producer, "_on_failure", interrupt)
        producer._buffer.poll()
        until(lambda: not producer._buffer._poller._sender_polled, "a thread that stands back")
        for call_back in (producer._buffer.poll, producer.flush):
            producer.send(topic, b"x")
            deadline = time.monotonic() + PATIENCE
            with pytest.raises(KeyboardInterrupt):
                while time.monotonic() < deadline:
                    call_back()
    assert came == [threading.main_thread()] * 2
    assert caplog.text.count("the result of one record may be lost") == 2


def test_an_exit_in_a_callback_keeps_no_result_from_others(
    servers: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It comes in the producer's thread, which calls back whatever happens."""

    def leave() -> None:
        if len(first.results) == 1:
            raise SystemExit("enough")

    first, second = OnAck(leave), OnAck()
    with ottla.Producer(servers, interceptors=[first, second]) as producer:
        producer.submit(topic, b"x").result(PATIENCE)
        assert producer.send_and_wait(topic, b"y", timeout=PATIENCE).topic == topic
        until(lambda: len(second.results) == 2, "the results of both")
    assert "a callback of the producer failed" in caplog.text


def test_on_ack_of_a_record_that_found_no_space_does_not_wait_for_space() -> None:
    """It is called in the event loop, which would stand still."""
    refused: list[str] = []

    def send_again() -> None:
        if not refused:
            with pytest.raises(QueueFullError) as error:
                producer.send("t", b"again")
            refused.append(str(error.value))

    async def run() -> None:
        await producer.asubmit("t", b"first")
        with pytest.raises(QueueFullError, match="max_block_ms"):
            await producer.asend("t", b"second")
        await producer.aclose(0.1)

    producer = ottla.Producer(
        NOBODY,
        max_block_ms=200,
        config={"queue.buffering.max.messages": 1},
        interceptors=[OnAck(send_again)],
    )
    asyncio.run(run())
    assert "a callback of the producer cannot wait" in refused[0]


def test_a_callback_does_not_wait_for_the_partitions_of_a_topic(servers: str, topic: str) -> None:
    raised: list[ClientError] = []

    def send_elsewhere(_: object) -> None:
        with pytest.raises(SendError) as error:
            producer.send(f"{topic}-other", b"x")
        raised.append(error.value)

    with ottla.Producer(servers, partitioner=lambda record, key, layout: 0) as producer:
        producer.submit(topic, b"x").add_done_callback(send_elsewhere)
        until(lambda: raised, "the callback")
    assert "a callback of the producer cannot wait for them" in str(raised[0])
    assert raised[0].retriable


def test_a_callback_that_waits_with_a_coroutine_is_refused(servers: str, topic: str) -> None:
    refused: list[object] = []

    async def enter() -> None:
        async with producer:
            pass

    def wait(_: object) -> None:
        waits: list[Callable[[], Coroutine[Any, Any, object]]] = [
            partial(producer.asend, topic, b"y"),
            enter,
            partial(producer.__aexit__, None, None, None),
            producer.aflush,
            producer.aclose,
        ]
        for each in waits:
            with pytest.raises(ClientError, match="not flush, close, wait for a record"):
                asyncio.run(each())
            refused.append(each)

    with ottla.Producer(servers) as producer:
        producer.submit(topic, b"x").add_done_callback(wait)
        until(lambda: len(refused) == 5, "the callback")


def test_a_send_that_is_cancelled_while_it_waits_for_space_reaches_on_ack() -> None:
    interceptor = OnAck()

    async def run() -> None:
        producer = ottla.Producer(
            NOBODY, config={"queue.buffering.max.messages": 1}, interceptors=[interceptor]
        )
        await producer.asubmit("t", b"first")
        waiting = asyncio.ensure_future(producer.asend("t", b"second"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert [(record.value, str(error)) for record, _, error in interceptor.results] == [
            (b"second", "the send to 't' was cancelled before the buffer had space")
        ]
        await producer.aclose(0.1)

    asyncio.run(run())


def test_ctrl_c_while_a_failure_is_noted_does_not_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def interrupted(*arguments: Any) -> ClientError:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyboardInterrupt
        return send_error(*arguments)

    monkeypatch.setattr("ottla.client.producer.send_error", interrupted)
    monkeypatch.setattr(polling, "_STAND_BACK_SECONDS", 2 * PATIENCE)  # so that this thread is called back
    producer = ottla.Producer(NOBODY, delivery_timeout_ms=100, config={"log_level": 0})
    producer._buffer.poll()
    until(lambda: not producer._buffer._poller._sender_polled, "a thread that stands back")
    producer.send("t", b"x")
    with pytest.raises(KeyboardInterrupt):
        producer.flush(PATIENCE)
    with pytest.raises(SendError, match=r"1 record\(s\) were not written"):
        producer.close()


def test_a_producer_that_another_thread_closes_is_waited_for_no_longer_than_asked() -> None:
    producer = ottla.Producer(NOBODY)
    producer.submit("t", b"x")
    closing = threading.Thread(target=producer.close, args=[3])
    closing.start()
    until(lambda: producer._buffer.produce is not producer._client.produce, "the other thread")
    began = time.monotonic()
    with pytest.raises(TimedOutError, match="another thread is still closing"):
        producer.close(0.1)
    assert time.monotonic() - began < 2
    closing.join(PATIENCE)
    producer.close(0.1)


def test_a_producer_is_closed_whole_although_ctrl_c_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def interrupted() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyboardInterrupt
        stop_and_wait()

    interceptor = OnAck()
    producer = ottla.Producer(NOBODY, interceptors=[interceptor])
    stop_and_wait = producer._buffer._poller.stop_and_wait
    monkeypatch.setattr(producer._buffer._poller, "stop_and_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    assert interceptor.times_closed == 1
    assert not producer._buffer._poller._thread.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        producer._client.flush(0)


def test_a_closed_producer_says_so_when_a_partitioner_asks_for_partitions() -> None:
    producer = ottla.Producer(NOBODY, partitioner=lambda record, key, layout: 0)
    producer.close()
    with pytest.raises(ClosedError):
        producer.send("t", b"x")


def test_interceptors_are_closed_once_by_many_threads() -> None:
    interceptor = OnAck()
    producer = ottla.Producer(NOBODY, interceptors=[interceptor])
    producer.submit("t", b"x")
    threads = [threading.Thread(target=producer.close, args=[0.3]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert interceptor.times_closed == 1
