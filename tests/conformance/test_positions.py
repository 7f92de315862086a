"""A reader may begin at every kind of position, and asks for offsets by time and by end."""

from __future__ import annotations

import time
from typing import Any

import pytest

from conformance.clients import ConfluentClient
from conformance.clients.model import DEADLINE, EARLIEST, LATEST, Message, Refused, Start

HOUR = 3_600_000


def numbered(count: int, first_timestamp: int | None = None) -> list[Message]:
    return [
        Message(b"%d" % n, timestamp=None if first_timestamp is None else first_timestamp + n * 1000)
        for n in range(count)
    ]


def test_earliest_begins_with_the_first_record(client: Any, topic: str) -> None:
    client.produce(topic, numbered(10))
    with client.reading(topic, 0, EARLIEST) as reader:
        assert [r.offset for r in reader.take(10)] == list(range(10))


def test_latest_sees_nothing_old_and_everything_new(client: Any, topic: str) -> None:
    client.produce(topic, [Message(b"old")] * 5)
    with client.reading(topic, 0, LATEST) as reader:
        # The reader learns where the end is at a moment of its own; so write until it has seen something.
        received: list[Any] = []
        deadline = time.monotonic() + DEADLINE
        while not received:
            assert time.monotonic() < deadline
            client.produce(topic, [Message(b"new")])
            received += reader.poll(0.2)
        client.produce(topic, [Message(b"last")])
        while received[-1].value != b"last":
            received += reader.take(1)
    assert {r.value for r in received[:-1]} == {b"new"}
    assert [r.offset for r in received] == list(range(received[0].offset, received[0].offset + len(received)))


def test_an_offset_begins_exactly_there(client: Any, topic: str) -> None:
    client.produce(topic, numbered(20))
    with client.reading(topic, 0, Start.offset(13)) as reader:
        assert [r.offset for r in reader.take(7)] == list(range(13, 20))


def test_tail_begins_the_given_number_of_records_before_the_end(client: Any, topic: str) -> None:
    client.produce(topic, numbered(20))
    with client.reading(topic, 0, Start.tail(3)) as reader:
        assert [r.offset for r in reader.take(3)] == [17, 18, 19]


def test_a_timestamp_begins_with_the_first_record_not_older(client: Any, bootstrap: str, topic: str) -> None:
    base = int(time.time() * 1000) - HOUR
    ConfluentClient(bootstrap).produce(topic, numbered(20, base))
    with client.reading(topic, 0, Start.timestamp(base + 6500)) as reader:
        received = reader.take(13)
    assert [r.offset for r in received] == list(range(7, 20))
    assert received[0].timestamp == base + 7000


@pytest.mark.needs("lookup")
def test_offsets_are_found_by_timestamp(client: Any, topic: str) -> None:
    base = int(time.time() * 1000) - HOUR
    client.produce(topic, numbered(20, base))
    assert client.offset_at(topic, 0, base) == 0
    assert client.offset_at(topic, 0, base - HOUR) == 0
    assert client.offset_at(topic, 0, base + 5000) == 5
    assert client.offset_at(topic, 0, base + 5001) == 6
    assert client.offset_at(topic, 0, base + 19_000) == 19
    assert client.offset_at(topic, 0, base + 19_001) is None


@pytest.mark.needs("lookup")
def test_the_watermarks_are_the_ends_of_the_log(client: Any, topic: str) -> None:
    assert client.watermarks(topic, 0) == (0, 0)
    client.produce(topic, numbered(8))
    assert client.watermarks(topic, 0) == (0, 8)


@pytest.mark.needs("list-offsets")
def test_the_admin_lists_every_kind_of_offset(client: Any, topic: str) -> None:
    base = int(time.time() * 1000) - HOUR
    stamps = [base + 1000, base + 9000, base + 4000]
    for stamp in stamps:
        client.produce(topic, [Message(b"v", timestamp=stamp)])
    assert client.list_offset(topic, 0, "earliest")[0] == 0
    assert client.list_offset(topic, 0, "latest")[0] == 3
    assert client.list_offset(topic, 0, "max-timestamp") == (1, base + 9000)
    assert client.list_offset(topic, 0, base + 2000) == (1, base + 9000)


@pytest.mark.needs("lookup")
def test_an_offset_outside_the_log_is_refused(client: Any, topic: str) -> None:
    client.produce(topic, numbered(3))
    with pytest.raises(Refused), client.reading(topic, 0, Start.offset(500)) as reader:
        reader.take(1)


@pytest.mark.needs("admin")
def test_an_offset_whose_record_was_deleted_is_refused(client: Any, topic: str) -> None:
    client.produce(topic, numbered(10))
    client.delete_records(topic, 0, 5)
    with pytest.raises(Refused), client.reading(topic, 0, Start.offset(2)) as reader:
        reader.take(1)
    with client.reading(topic, 0, Start.offset(5)) as reader:
        assert [r.offset for r in reader.take(5)] == [5, 6, 7, 8, 9]
