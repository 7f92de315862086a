"""The small client against a real broker: every request it knows, and records through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ottla.protocol.apis import APIS
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol_client.admin import (
    alter_topic,
    create_topic,
    delete_topic,
    grow_topic,
    replica_sizes,
    topic_settings,
)
from ottla.protocol_client.consume import Consumer
from ottla.protocol_client.offsets import EARLIEST, LATEST, list_offsets, spans
from ottla.protocol_client.partitioner import partition_of
from ottla.protocol_client.produce import Producer
from ottla.protocol_client.wire import Wire


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    with Wire(bootstrap) as wire:
        yield wire


def test_metadata_in_every_version(wire: Wire) -> None:
    for version in range(APIS[MetadataRequest.api_key].max_version + 1):
        response = wire.call(MetadataRequest(topics=[]), version=version)
        assert response.brokers, version


def test_a_request_is_sent_to_the_given_node(wire: Wire) -> None:
    wire.metadata([])
    for node in wire.nodes:
        cluster = wire.call(DescribeClusterRequest(), node=node)
        assert node in {broker.broker_id for broker in cluster.brokers}
    assert wire.controller() in wire.nodes


def test_topics_are_created_grown_changed_and_deleted(wire: Wire, name: str) -> None:
    made = create_topic(wire, name, partitions=2, configs={"retention.ms": "5000"})
    assert made.num_partitions == 2
    grow_topic(wire, name, 4)
    assert len(wire.topic(name, patience=10).partitions) == 4
    alter_topic(wire, name, {"cleanup.policy": "compact"}, unset=["retention.ms"])
    settings = {s.name: s for s in topic_settings(wire, name, wire.controller())}
    assert (settings["cleanup.policy"].value, settings["cleanup.policy"].source) == ("compact", 1)
    assert settings["retention.ms"].source == 5
    assert {p for _, topic, p in replica_sizes(wire) if topic == name} == {0, 1, 2, 3}
    with pytest.raises(ApiError) as refused:
        create_topic(wire, name)
    assert refused.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    delete_topic(wire, name)
    with pytest.raises(ApiError) as gone:
        delete_topic(wire, name)
    assert gone.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("codec", list(Codec))
def test_records_pass_unchanged_with_every_codec(wire: Wire, topic: str, codec: Codec) -> None:
    given: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]] = [
        (b"k", b"v", [("h", b"1"), ("h", None)], 1700000000000),
        (None, None, [], 1700000000001),
        (b"", b"", [("", b"")], 1700000000002),
        (bytes(range(256)), b"\x00" * 300_000, [], 1700000000003),
    ]
    with Producer(wire, topic, codec=codec) as producer:
        for key, value, headers, timestamp in given:
            producer.add(key, value, headers, timestamp)
    assert producer.offsets == {0: (0, 3)}
    found = [
        (r.key, r.value, r.headers, r.timestamp)
        for _, r in Consumer(wire, topic, {0: 0}, {0: 4}, read_committed=True)
    ]
    assert found == given


def test_keyed_records_go_to_their_partition_and_others_are_spread(
    wire: Wire, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(4)
    with Producer(wire, topic) as producer:
        for number in range(100):
            producer.add(b"key-%d" % number, b"keyed")
        for _ in range(100):
            producer.add(None, b"x" * 1000)
    stops = {p: span.end for p, span in spans(wire, topic, range(4)).items()}
    found = list(Consumer(wire, topic, dict.fromkeys(range(4), 0), stops))
    assert len(found) == 200
    assert all(p == partition_of(r.key, 4) for p, r in found if r.key is not None)
    assert {p for p, r in found if r.key is None} == {0, 1, 2, 3}


def test_an_unknown_partition_is_refused(wire: Wire, topic: str) -> None:
    with pytest.raises(ApiError, match="has no partition 3, only 0"):
        Producer(wire, topic).add(None, b"v", partition=3)


def test_offsets_by_time(wire: Wire, topic: str) -> None:
    with Producer(wire, topic) as producer:
        for number in range(5):
            producer.add(None, b"v", timestamp=1000 * number)
    for time, offset in ((EARLIEST, 0), (LATEST, 5), (0, 0), (2000, 2), (2001, 3), (9999, -1)):
        assert list_offsets(wire, topic, {0: time}) == {0: offset}, time


def test_a_waiting_consumer_gets_new_records(wire: Wire, bootstrap: str, topic: str) -> None:
    following = iter(Consumer(wire, topic, {0: 0}, max_wait=0.05))
    with Wire(bootstrap) as other, Producer(other, topic) as producer:
        for number in range(3):
            producer.add(None, b"%d" % number)
            producer.flush()
            assert next(following)[1].value == b"%d" % number


def test_a_topic_larger_than_one_response_is_read_whole(wire: Wire, topic: str) -> None:
    with Producer(wire, topic) as producer:
        for number in range(3000):
            producer.add(None, b"%06d" % number + b"x" * 994)
    reader = Consumer(wire, topic, {0: 0}, {0: 3000}, max_bytes=200_000, partition_max_bytes=100_000)
    assert [int((r.value or b"")[:6]) for _, r in reader] == list(range(3000))
