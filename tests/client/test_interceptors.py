"""Interceptors of a producer: order, changes, drops, results, and what happens when they raise."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

import ottla
from ottla.client import (
    ClientError,
    ConfigurationError,
    ProducerInterceptor,
    ProducerRecord,
    RecordMetadata,
    SendError,
    SerializationError,
)

Reader = Callable[[str], list[Message]]


class Tag(ProducerInterceptor):
    def __init__(self, name: str) -> None:
        self.name = name
        self.results: list[tuple[ProducerRecord, RecordMetadata | None, ClientError | None]] = []
        self.closed = False

    def on_send(self, record: ProducerRecord) -> ProducerRecord | None:
        if record.value == "drop":
            return None
        return record.replace(
            value=f"{record.value}{self.name}", headers=[*record.headers, (self.name, "seen")]
        )

    def on_ack(
        self, record: ProducerRecord, metadata: RecordMetadata | None, error: ClientError | None
    ) -> None:
        self.results.append((record, metadata, error))

    def close(self) -> None:
        self.closed = True


class Faulty(ProducerInterceptor):
    """Fails in every call."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord | None:
        raise ValueError("no luck in on_send")

    def on_ack(
        self, record: ProducerRecord, metadata: RecordMetadata | None, error: ClientError | None
    ) -> None:
        raise ValueError("no luck in on_ack")

    def close(self) -> None:
        raise ValueError("no luck in close")


def test_interceptors_run_in_order_and_change_or_drop_records(
    servers: str, topic: str, read_all: Reader
) -> None:
    first, second = Tag("1"), Tag("2")
    with ottla.Producer(servers, interceptors=[first, second]) as producer:
        producer.send(topic, "a", partition=0)
        producer.send(topic, "drop", partition=0)
        assert producer.send_and_wait(topic, "drop", partition=0).dropped
        kept = producer.send_and_wait(topic, "b", partition=0)
    assert [(each.value(), each.headers()) for each in read_all(topic)] == [
        (value, [("1", b"seen"), ("2", b"seen")]) for value in (b"a12", b"b12")
    ]
    assert [(record.value, metadata) for record, metadata, _ in first.results][1] == ("b12", kept)
    assert first.results == second.results
    assert first.closed
    assert second.closed


def test_a_record_that_is_sent_to_another_topic_is_placed_there(
    servers: str, make_topic: Callable[[int], str], read_all: Reader
) -> None:
    small, large = make_topic(1), make_topic(4)

    class Redirect:
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return record.replace(topic=large)

    with ottla.Producer(servers, interceptors=[Redirect()], partitioner="round_robin") as producer:
        producer.send(small, "a")
        producer.send(small, "b")

        async def run() -> list[RecordMetadata]:
            return [await producer.asend(small, "c"), await producer.asend(small, "d")]

        assert [(each.topic, each.partition) for each in asyncio.run(run())] == [(large, 2), (large, 3)]
    assert [each.value() for each in read_all(large)] == [b"a", b"b", b"c", b"d"]
    assert not read_all(small)


def test_an_interceptor_that_raises_is_logged_and_loses_no_record(
    servers: str, topic: str, read_all: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    tag = Tag("1")
    with ottla.Producer(servers, interceptors=[Faulty(), tag, Faulty()]) as producer:
        for number in range(100):
            producer.send(topic, str(number), partition=0)
        assert producer.send_and_wait(topic, "last", partition=0).offset == 100
    assert [each.value() for each in read_all(topic)] == [f"{n}1".encode() for n in [*range(100), "last"]]
    assert len(tag.results) == 101
    for call in ("on_send", "on_ack", "close"):
        assert any(f"failed in {call}" in line.message for line in caplog.records)
        assert f"no luck in {call}" in caplog.text


def test_what_is_no_record_is_not_taken_from_an_interceptor(
    servers: str, topic: str, read_all: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd:
        def on_send(self, record: ProducerRecord) -> str:
            return "a record"

    with ottla.Producer(servers, interceptors=[Odd()]) as producer:
        producer.send(topic, "a")
    assert [each.value() for each in read_all(topic)] == [b"a"]
    assert "returned 'str' from on_send" in caplog.text


@pytest.mark.parametrize("given", [Tag, 7, object()])
def test_what_is_no_interceptor_is_refused(given: object) -> None:
    with pytest.raises(ConfigurationError, match="is no interceptor"):
        ottla.Producer(interceptors=[given])


def test_every_failure_reaches_on_ack_once(servers: str, topic: str) -> None:
    tag = Tag("")
    with ottla.Producer(servers, value_serializer=str.encode, interceptors=[tag]) as producer:
        with pytest.raises(SendError):
            producer.send(topic, "x" * 2_000_000)
        with pytest.raises(SendError):
            producer.send_and_wait(topic, "x", partition=50)

        async def run() -> None:
            with pytest.raises(SerializationError):
                await producer.asend(topic, "x", 3.5)
            assert (await producer.asend(topic, "drop")).dropped

        asyncio.run(run())
    errors = [type(error) for _, metadata, error in tag.results if metadata is None]
    assert len(errors) == len(tag.results) == 3
    assert errors[2] is SerializationError


@pytest.mark.parametrize(
    "wrong",
    [{"partition": 2**40}, {"timestamp": 2**70}, {"headers": 7}, {"headers": {"name": 7}}, {"headers": [1]}],
    ids=repr,
)
@pytest.mark.parametrize("intercepted", [False, True])
def test_an_argument_that_cannot_be_is_an_error_of_the_send(wrong: dict[str, Any], intercepted: bool) -> None:
    with (
        ottla.Producer("127.0.0.1:1", interceptors=[Tag("a")] if intercepted else []) as producer,
        pytest.raises(SendError, match="cannot send to 't'"),
    ):
        producer.send("t", "x", **wrong)


def test_an_interceptor_may_send_with_the_producer_that_calls_it(servers: str, topic: str) -> None:
    """A copy of each record goes to an audit topic, from the thread that delivers results."""
    copied = threading.Event()

    class Audit(ProducerInterceptor):
        def on_ack(
            self, record: ProducerRecord, metadata: RecordMetadata | None, error: ClientError | None
        ) -> None:
            if record.header("audit") is None:
                producer.send(topic, b"copy", partition=1, headers={"audit": "1"})
            else:
                copied.set()

    with ottla.Producer(servers, interceptors=[Audit()]) as producer:
        producer.send_and_wait(topic, b"x", partition=0)
        assert copied.wait(60)


def test_acknowledgements_kept_in_a_database(servers: str, topic: str, tmp_path: Path) -> None:
    """A row for each record before it is sent; `pending` ones after a crash are those to look for."""

    class Outbox(ProducerInterceptor):
        def __init__(self, path: Path) -> None:
            self._rows = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._rows.execute("create table if not exists sent (id primary key, state, place, reason)")
            self._lock = threading.Lock()

        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            with self._lock:
                self._rows.execute("insert into sent values (?, 'pending', null, null)", [record.key])
            return record

        def on_ack(
            self, record: ProducerRecord, metadata: RecordMetadata | None, error: ClientError | None
        ) -> None:
            row = (
                ("failed", None, str(error))
                if metadata is None
                else ("written", str(tuple(metadata)[1:3]), None)
            )
            with self._lock:
                self._rows.execute(
                    "update sent set state = ?, place = ?, reason = ? where id = ?", [*row, record.key]
                )

        def close(self) -> None:
            self._rows.close()

    path = tmp_path / "outbox.sqlite"
    with ottla.Producer(servers, interceptors=[Outbox(path)]) as producer:
        for number in range(50):
            producer.send(topic, b"x", f"k{number}", partition=2)
        with pytest.raises(SendError):
            producer.send(topic, b"x" * 2_000_000, "large", partition=2)
    with sqlite3.connect(path) as rows:
        states = dict(rows.execute("select state, count(*) from sent group by state").fetchall())
        assert states == {"written": 50, "failed": 1}
        assert rows.execute("select place from sent where id = 'k49'").fetchone() == ("(2, 49)",)
        [reason] = rows.execute("select reason from sent where id = 'large'").fetchone()
        assert "MSG_SIZE_TOO_LARGE" in reason
