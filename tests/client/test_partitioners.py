"""Where records go, on a real broker: each partitioner, topics that grow, topics that are missing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

import ottla
import ottla.testing
from ottla.client import ProducerRecord, SendError, UnknownTopicError
from ottla.client.partitioners import ByLocation, TopicLayout, keyed

Reader = Callable[[str], list[Message]]
KEYS = [b"", b"a", b"user-42", *(b"key-%d" % n for n in range(60)), "schlüssel".encode()]


def partitions_of(messages: list[Message]) -> dict[bytes | None, int | None]:
    return {each.key(): each.partition() for each in messages}


def test_a_key_goes_where_librdkafkas_murmur2_sends_it(
    servers: str, make_topic: Callable[[int], str], read_all: Reader
) -> None:
    ours, in_python, theirs = (make_topic(7) for _ in range(3))
    with ottla.Producer(servers) as producer, ottla.Producer(servers, partitioner=keyed) as slow:
        for key in KEYS:
            producer.send(ours, b"", key)
            slow.send(in_python, b"", key)
    plain = Producer({"bootstrap.servers": servers, "partitioner": "murmur2_random"})
    for key in KEYS:
        plain.produce(theirs, b"", key)
    assert plain.flush(60) == 0
    expected = partitions_of(read_all(theirs))
    assert partitions_of(read_all(ours)) == expected
    assert partitions_of(read_all(in_python)) == expected
    assert len(set(expected.values())) == 7


@pytest.mark.parametrize("partitioner", ["round_robin", "random", "sticky"])
def test_records_spread_over_all_partitions_whatever_their_key(
    servers: str, topic: str, read_all: Reader, partitioner: str
) -> None:
    with ottla.Producer(servers, partitioner=partitioner) as producer:
        for _ in range(300):
            producer.send(topic, b"x" * 1_000, b"one key")
    counts = Counter(each.partition() for each in read_all(topic))
    assert set(counts) == {0, 1, 2}
    if partitioner == "round_robin":
        assert set(counts.values()) == {100}
    if partitioner == "sticky":  # 17 of these records fill a batch
        assert sorted(count % 17 for count in counts.values()) == [0, 0, 300 % 17]


def test_a_function_of_ones_own_decides(servers: str, topic: str, read_all: Reader) -> None:
    def by_size(record: ProducerRecord, key: bytes | None, layout: TopicLayout) -> int:
        assert (len(layout), layout.topic, key) == (3, topic, b"k")
        return min(len(record.value), len(layout) - 1)

    with ottla.Producer(servers, partitioner=by_size) as producer:
        for value in ("", "a", "aa", "aaa"):
            producer.send(topic, value, "k")
        producer.send(topic, "explicit", "k", partition=0)
        assert asyncio.run(producer.asend(topic, "aaaa", "k")).partition == 2
    assert [each.partition() for each in read_all(topic)] == [0, 0, 1, 2, 2, 2]


@pytest.mark.parametrize("answer", [3, -1, "0", None])
def test_a_partition_that_is_not_there_is_refused(servers: str, topic: str, answer: object) -> None:
    with ottla.Producer(servers, partitioner=lambda *_: answer) as producer:  # type: ignore[arg-type]
        with pytest.raises(SendError, match=r"the partitioner chose .* of 3 partition"):
            producer.send(topic, b"x")


def test_a_partitioner_that_raises_fails_the_send(servers: str, topic: str) -> None:
    with ottla.Producer(servers, partitioner=lambda *_: 1 // 0) as producer:
        with pytest.raises(SendError, match="the partitioner failed"):
            producer.send(topic, b"x")


def test_records_of_a_region_stay_in_its_partitions(
    servers: str, make_topic: Callable[[int], str], read_all: Reader
) -> None:
    topic = make_topic(6)
    near = ByLocation("region", {"eu": [0, 1], "us": [2, 3], "later": [90]})
    with ottla.Producer(servers, partitioner=near) as producer:
        for number in range(120):
            region = ("eu", "us", "later", "unknown")[number % 4]
            producer.send(topic, region, None if number % 3 else b"k%d" % number, headers={"region": region})
    places: dict[bytes | None, set[int | None]] = {}
    for message in read_all(topic):
        places.setdefault(message.value(), set()).add(message.partition())
    assert places[b"eu"] == {0, 1}
    assert places[b"us"] == {2, 3}
    assert len(places[b"unknown"] | places[b"later"]) > 3


def test_records_of_a_rack_go_to_the_leaders_in_it() -> None:
    with ottla.testing.broker(topics={"t": 4}, broker_rack="rack-a") as broker:
        near = ByLocation(lambda record: record.value.decode())
        with ottla.Producer(broker.bootstrap_servers, partitioner=near) as producer:
            found = {producer.send_and_wait("t", b"rack-a").partition for _ in range(8)}
            assert found == {0, 1, 2, 3}
            elsewhere = producer.send_and_wait("t", b"rack-b", b"k")
            assert elsewhere.partition == keyed(ProducerRecord("t"), b"k", TopicLayout("t", 4))


def grow(servers: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(60)


def test_partitions_that_are_added_are_used(servers: str, make_topic: Callable[[int], str]) -> None:
    topic = make_topic(2)
    with ottla.Producer(servers, partitioner="round_robin", metadata_max_age_ms=100) as producer:
        assert {producer.send_and_wait(topic, b"x").partition for _ in range(4)} == {0, 1}
        grow(servers, topic, 5)
        seen: set[int] = set()
        for _ in range(2_000):
            seen.add(producer.send_and_wait(topic, b"x").partition)
            if len(seen) == 5:
                break
        assert seen == {0, 1, 2, 3, 4}


def test_a_new_partition_may_be_named_at_once(servers: str, make_topic: Callable[[int], str]) -> None:
    topic = make_topic(1)
    with ottla.Producer(servers) as producer:
        producer.send_and_wait(topic, b"x")
        grow(servers, topic, 3)
        assert producer.send_and_wait(topic, b"x", partition=2).partition == 2
        with pytest.raises(UnknownTopicError):
            producer.send_and_wait(topic, b"x", partition=3)


def test_a_partitioner_waits_for_a_missing_topic_and_then_gives_up() -> None:
    with ottla.testing.broker(auto_create_topics_enable=False) as broker:
        with ottla.Producer(
            broker.bootstrap_servers, partitioner="round_robin", max_block_ms=300
        ) as producer:
            with pytest.raises(UnknownTopicError, match="create the topic first"):
                producer.send("missing", b"x")
            with pytest.raises(UnknownTopicError):
                asyncio.run(producer.asend("missing", b"x"))
            broker.create_topic("missing", 2)
            assert {producer.send_and_wait("missing", b"x").partition for _ in range(2)} == {0, 1}
