"""Records go in and come out unchanged, whatever the client, the codec, the acks level and the size."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from conformance.clients.model import EARLIEST, Message, Start

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SLOW = pytest.mark.slow


def written(count: int, size: int = 100) -> list[Message]:
    return [
        Message(key=b"k%d" % n, value=b"record %d " % n + b"x" * size, headers=(("n", b"%d" % n),))
        if n % 10 == 0
        else Message(key=b"k%d" % n, value=b"record %d " % n + b"x" * size)
        for n in range(count)
    ]


def contents(messages: list[Message]) -> list[Any]:
    return [(m.key, m.value, m.headers) for m in messages]


# The other codecs of every client are in test_every_client_reads_the_records_of_every_other_client.
@pytest.mark.parametrize("codec", ["none", "zstd", *(pytest.param(c, marks=SLOW) for c in CODECS[1:4])])
def test_records_of_every_codec_come_back_unchanged_and_in_order(client: Any, topic: str, codec: str) -> None:
    messages = written(50)
    client.produce(topic, messages, codec=codec)
    with client.reading(topic, 0, EARLIEST) as reader:
        received = reader.take(50)
    assert [r.content for r in received] == contents(messages)
    assert [r.offset for r in received] == list(range(50))


@pytest.mark.cluster
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_of_every_acks_level_are_kept(client: Any, topic: str, acks: str) -> None:
    messages = written(30)
    client.produce(topic, messages, acks=acks)
    with client.reading(topic, 0, EARLIEST) as reader:
        assert [r.content for r in reader.take(30)] == contents(messages)


@pytest.mark.needs("offsets")
@pytest.mark.parametrize("acks", ["1", "all"])
def test_the_producer_learns_the_offset_of_every_record(client: Any, topic: str, acks: str) -> None:
    first = client.produce(topic, written(7), acks=acks)
    second = client.produce(topic, written(5), acks=acks)
    assert [d.offset for d in first + second] == list(range(12))
    assert {d.partition for d in first + second} == {0}


@pytest.mark.cluster
@pytest.mark.needs("idempotence")
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_an_idempotent_producer_writes_every_record_once(client: Any, topic: str, codec: str) -> None:
    messages = [Message(b"%d" % n) for n in range(500)]
    client.produce(topic, messages, idempotent=True, codec=codec)
    client.produce(topic, messages, idempotent=True, codec=codec)
    with client.reading(topic, 0, EARLIEST) as reader:
        assert [r.value for r in reader.take(1000)] == [m.value for m in messages] * 2


@pytest.mark.parametrize(
    "size", [1, *(pytest.param(n, marks=SLOW) for n in (100, 10_000, 100_000)), 1_000_000]
)
def test_records_from_one_byte_to_a_megabyte_come_back_unchanged(client: Any, topic: str, size: int) -> None:
    values = [random.Random(size + n).randbytes(size) for n in range(3)]
    client.produce(topic, [Message(value) for value in values])
    with client.reading(topic, 0, EARLIEST) as reader:
        assert [r.value for r in reader.take(3)] == values


def test_a_compressed_megabyte_comes_back_unchanged(client: Any, topic: str) -> None:
    value = random.Random(1).randbytes(1000) * 1000
    client.produce(topic, [Message(value), Message(value)], codec="zstd")
    with client.reading(topic, 0, EARLIEST) as reader:
        assert [r.value for r in reader.take(2)] == [value, value]


def test_keys_and_values_may_be_null(client: Any, topic: str) -> None:
    messages = [Message(b"v"), Message(b"v", key=b"k"), Message(None, key=b"k")]
    client.produce(topic, messages)
    with client.reading(topic, 0, EARLIEST) as reader:
        assert [(r.key, r.value) for r in reader.take(3)] == [(None, b"v"), (b"k", b"v"), (b"k", None)]


@pytest.mark.needs("timestamps")  # kcat cannot tell empty from null when it sends
def test_an_empty_key_or_value_is_not_a_null_one(client: Any, topic: str) -> None:
    client.produce(topic, [Message(b"", key=b""), Message(b"", key=None), Message(None, key=b"")])
    with client.reading(topic, 0, EARLIEST) as reader:
        assert [(r.key, r.value) for r in reader.take(3)] == [(b"", b""), (None, b""), (b"", None)]


def test_headers_keep_their_order_and_repeated_names(client: Any, topic: str) -> None:
    headers = (("trace", b"abc"), ("n", b"1"), ("n", b"2"), ("a" * 200, b"long name"))
    client.produce(topic, [Message(b"v", headers=headers), Message(b"w")])
    with client.reading(topic, 0, EARLIEST) as reader:
        assert [r.headers for r in reader.take(2)] == [headers, ()]


@pytest.mark.needs("null-headers")
def test_the_value_of_a_header_may_be_null(client: Any, topic: str) -> None:
    client.produce(topic, [Message(b"v", headers=(("empty", None), ("full", b"x")))])
    with client.reading(topic, 0, EARLIEST) as reader:
        assert reader.take(1)[0].headers == (("empty", None), ("full", b"x"))


def test_each_partition_is_a_log_of_its_own(client: Any, make_topic: Callable[..., str]) -> None:
    topic = make_topic(3)
    for partition in range(3):
        messages = [Message(b"%d-%d" % (partition, n)) for n in range(10 + partition)]
        client.produce(topic, messages, partition=partition)
    for partition in range(3):
        with client.reading(topic, partition, EARLIEST) as reader:
            received = reader.take(10 + partition)
        assert [r.value for r in received] == [b"%d-%d" % (partition, n) for n in range(10 + partition)]
        assert {r.partition for r in received} == {partition}


def test_ten_thousand_records_arrive_in_order_without_gaps(client: Any, topic: str) -> None:
    client.produce(topic, [Message(b"%d" % n) for n in range(10_000)], codec="lz4")
    with client.reading(topic, 0, EARLIEST) as reader:
        received = reader.take(10_000)
    assert [r.offset for r in received] == list(range(10_000))
    assert [r.value for r in received] == [b"%d" % n for n in range(10_000)]


@pytest.mark.cluster
def test_every_client_reads_the_records_of_every_other_client(client: Any, reader: Any, topic: str) -> None:
    messages = written(20)
    for codec in CODECS:
        client.produce(topic, messages, codec=codec)
    with reader.reading(topic, 0, EARLIEST) as reading:
        received = reading.take(20 * len(CODECS))
    assert [r.content for r in received] == contents(messages) * len(CODECS)
    assert [r.offset for r in received] == list(range(20 * len(CODECS)))


def test_reading_can_begin_inside_a_compressed_batch(client: Any, topic: str) -> None:
    client.produce(topic, [Message(b"%d" % n) for n in range(100)], codec="zstd")
    with client.reading(topic, 0, Start.offset(37)) as reader:
        assert [r.value for r in reader.take(63)] == [b"%d" % n for n in range(37, 100)]


def test_a_waiting_reader_gets_a_record_as_soon_as_it_is_written(client: Any, topic: str) -> None:
    """A fetch that found nothing waits in the broker and is woken by the append, not by its timeout."""
    client.produce(topic, [Message(b"first")])
    with client.reading(topic, 0, EARLIEST) as reader:
        assert [r.value for r in reader.take(1)] == [b"first"]
        assert reader.poll(0.3) == []
        began = time.monotonic()
        client.produce(topic, [Message(b"second")])
        assert [r.value for r in reader.take(1)] == [b"second"]
        assert time.monotonic() - began < 5


def test_several_megabytes_are_read_through_many_fetches(client: Any, make_topic: Callable[..., str]) -> None:
    topic = make_topic(config={"segment.bytes": str(1 << 20)})
    values = [random.Random(n).randbytes(50_000) for n in range(200)]
    client.produce(topic, [Message(value) for value in values])
    with client.reading(topic, 0, EARLIEST) as reader:
        received = reader.take(200)
    assert [r.offset for r in received] == list(range(200))
    assert [r.value for r in received] == values


def test_a_record_larger_than_the_fetch_size_is_still_delivered(client: Any, topic: str) -> None:
    values = [random.Random(n).randbytes(300_000) for n in range(3)]
    for value in values:
        client.produce(topic, [Message(value)])
    with client.reading(topic, 0, EARLIEST, fetch_bytes=1000) as reader:
        assert [r.value for r in reader.take(3)] == values


@pytest.mark.cluster
def test_one_reader_follows_many_partitions(client: Any, make_topic: Callable[..., str]) -> None:
    """Twice over, so that a fetch session meets partitions with news and partitions without."""
    topic = make_topic(12)
    expected: dict[int, list[bytes | None]] = {partition: [] for partition in range(12)}

    def write(partition: int) -> None:
        messages = [Message(b"%d-%d" % (partition, n)) for n in range(30)]
        client.produce(topic, messages, partition=partition)
        expected[partition] += [m.value for m in messages]

    write(3)
    write(7)
    with client.reading_all(topic, 12) as reader:
        received = reader.take(60)
        for partition in (0, 3, 11):
            write(partition)
        received += reader.take(90)
    by_partition = {p: [r.value for r in received if r.partition == p] for p in range(12)}
    assert by_partition == expected


@pytest.mark.parametrize("topic_codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_a_topic_with_a_codec_of_its_own_takes_records_of_any_other(
    client: Any, make_topic: Callable[..., str], topic_codec: str
) -> None:
    topic = make_topic(config={"compression.type": topic_codec})
    messages = written(20)
    client.produce(topic, messages, codec="lz4")
    client.produce(topic, messages, codec="none")
    with client.reading(topic, 0, EARLIEST) as reader:
        received = reader.take(40)
    assert [r.content for r in received] == contents(messages) * 2
    assert [r.offset for r in received] == list(range(40))
