"""The runtime in a broker: where groups live, loading after a start, settings of the topic, stopping."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import ottla.testing
from ottla.client.wire import Wire
from ottla.coordinator.coordinator import partition_of
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup


@pytest.mark.parametrize(
    ("group", "partition"),
    # As Apache Kafka 4.3.1 placed them among its 50 partitions.
    [("", 0), ("ret", 1), ("cg", 22), ("nope2", 24), ("simple", 26), ("st", 31)],
)
def test_groups_live_where_kafka_puts_them(group: str, partition: int) -> None:
    assert partition_of(group, 50) == partition


def test_the_hash_is_javas_for_any_text() -> None:
    assert partition_of("polygenelubricants", 50) == 0  # the lowest integer, which has no opposite
    assert partition_of("\U0001f600", 1000) == 1772899 % 1000


def when_loaded(ask: Callable[[], int]) -> int:
    """The error code that is answered once the coordinator has loaded the group, as a client would wait."""
    deadline = time.monotonic() + 30.0
    while (code := ask()) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        assert time.monotonic() < deadline, "the coordinator still loads"
    return code


def commit(wire: Wire, group: str, offset: int, topic: str = "t") -> int:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [OffsetCommitRequestTopic(name=topic, partitions=[partition])]
    request = OffsetCommitRequest(group_id=group, topics=topics)
    return when_loaded(lambda: int(wire.call(request, version=9).topics[0].partitions[0].error_code))


def committed(wire: Wire, group: str) -> dict[str, int]:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    assert not when_loaded(lambda: wire.call(request, version=9).groups[0].error_code)
    (answer,) = wire.call(request, version=9).groups
    return {topic.name: topic.partitions[0].committed_offset for topic in answer.topics}


def find(wire: Wire, group: str) -> None:
    (found,) = wire.call(FindCoordinatorRequest(coordinator_keys=[group]), version=4).coordinators
    assert not found.error_code


def test_the_topic_of_the_offsets_is_made_when_somebody_first_asks() -> None:
    settings = {"offsets.topic.num.partitions": 3, "offsets.topic.segment.bytes": 2_000_000}
    with ottla.testing.broker(topics={"t": 1}, **settings) as broker, Wire(broker.bootstrap_servers) as wire:
        assert commit(wire, "g", 1) == ErrorCode.NOT_COORDINATOR
        find(wire, "g")
        assert commit(wire, "g", 1) == ErrorCode.NONE
        asked = MetadataRequest(topics=[MetadataRequestTopic(name="__consumer_offsets")])
        (topic,) = wire.call(asked, version=9).topics
        assert (topic.is_internal, len(topic.partitions)) == (True, 3)
        assert broker.broker is not None
        log = broker.broker.replicas.get("__consumer_offsets", 0).log
        assert log.config.is_compacted
        assert log.config.segment_bytes == 2_000_000


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_new_start_reads_the_groups_from_the_log(ending: str) -> None:
    codec = {"offsets.topic.compression.codec": 3, "offsets.topic.num.partitions": 4}
    with ottla.testing.broker(topics={"t": 1}, **codec) as broker:
        with Wire(broker.bootstrap_servers) as wire:
            find(wire, "g")
            for number in range(50):
                assert commit(wire, f"g{number}", number) == ErrorCode.NONE
        getattr(broker, ending)()
        broker.start()
        with Wire(broker.bootstrap_servers) as wire:
            find(wire, "g")
            assert not when_loaded(lambda: wire.call(ListGroupsRequest()).error_code)
            assert len(wire.call(ListGroupsRequest()).groups) == 50
            assert [committed(wire, f"g{number}") for number in range(50)] == [{"t": n} for n in range(50)]


def test_offsets_of_a_topic_deleted_while_they_were_not_watched_are_forgotten_on_loading() -> None:
    with ottla.testing.broker(topics={"t": 1, "u": 1}, **{"offsets.topic.num.partitions": 1}) as broker:
        with Wire(broker.bootstrap_servers) as wire:
            find(wire, "g")
            assert commit(wire, "g", 1) == ErrorCode.NONE
            assert commit(wire, "g", 2, "u") == ErrorCode.NONE
            # A topic of the same name that is another one.
            gone = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=30_000)
            assert not wire.call(gone, version=6).responses[0].error_code
        broker.create_topic("t")
        broker.restart()
        with Wire(broker.bootstrap_servers) as wire:
            find(wire, "g")
            assert committed(wire, "g") == {"u": 2}
