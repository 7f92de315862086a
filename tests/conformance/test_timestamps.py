"""Timestamps: the producer's own by default, the broker's where the topic says so."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from conformance.clients.model import EARLIEST, Message

MINUTE = 60_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.needs("timestamps")
def test_create_time_is_kept_to_the_millisecond(client: Any, topic: str) -> None:
    stamps = [now_ms() - MINUTE, now_ms() - 5 * MINUTE, now_ms() - 1]
    client.produce(topic, [Message(b"v", timestamp=stamp) for stamp in stamps], codec="gzip")
    with client.reading(topic, 0, EARLIEST) as reader:
        assert [r.timestamp for r in reader.take(3)] == stamps


def test_a_record_without_a_timestamp_gets_the_clients_time(client: Any, topic: str) -> None:
    before = now_ms()
    client.produce(topic, [Message(b"v")])
    after = now_ms()
    with client.reading(topic, 0, EARLIEST) as reader:
        assert before <= reader.take(1)[0].timestamp <= after


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.needs("timestamps")
def test_log_append_time_is_the_brokers_time(client: Any, make_topic: Callable[..., str], codec: str) -> None:
    topic = make_topic(config={"message.timestamp.type": "LogAppendTime"})
    before = now_ms()
    client.produce(
        topic, [Message(b"%d" % n, timestamp=now_ms() - 9 * MINUTE) for n in range(10)], codec=codec
    )
    after = now_ms()
    with client.reading(topic, 0, EARLIEST) as reader:
        received = reader.take(10)
    assert [r.value for r in received] == [b"%d" % n for n in range(10)]
    assert all(before <= r.timestamp <= after for r in received)


@pytest.mark.needs("timestamps", "lookup")
def test_records_of_a_log_append_time_topic_are_found_by_the_brokers_time(
    client: Any, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(config={"message.timestamp.type": "LogAppendTime"})
    client.produce(topic, [Message(b"v", timestamp=now_ms() - 60 * MINUTE)])
    with client.reading(topic, 0, EARLIEST) as reader:
        stamp = reader.take(1)[0].timestamp
    assert client.offset_at(topic, 0, stamp) == 0
    assert client.offset_at(topic, 0, stamp + 1) is None
