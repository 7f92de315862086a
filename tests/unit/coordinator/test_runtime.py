"""The runtime in a broker: where groups live, loading after a start, settings of the topic, stopping."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

import ottla.testing
from ottla.coordinator.partitioning import java_hash, partition_of
from ottla.coordinator.runtime import runtime
from ottla.protocol.batches import HEADER_SIZE, headers
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
from ottla.protocol_client.wire import Wire


@pytest.mark.parametrize(
    ("group", "partition"),
    # As Apache Kafka 4.3.1 placed them among its 50 partitions.
    [("", 0), ("ret", 1), ("cg", 22), ("nope2", 24), ("simple", 26), ("st", 31)],
)
def test_groups_belong_to_the_same_partition_as_in_kafka(group: str, partition: int) -> None:
    assert partition_of(group, 50) == partition


def test_the_hash_is_javas_for_any_text() -> None:
    assert partition_of("polygenelubricants", 50) == 0  # the lowest integer, which has no opposite
    assert partition_of("\U0001f600", 1000) == 1772899 % 1000


def hash_by_definition(text: str) -> int:
    value = 0
    utf16 = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(utf16[::2], utf16[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value


@given(st.text(max_size=600))
def test_the_hash_is_a_polynomial_in_31(text: str) -> None:
    assert java_hash(text) == hash_by_definition(text)


def test_finding_the_partition_of_a_long_group_id_is_faster_than_a_loop_over_it() -> None:
    group = "g" * 8_000

    def least_seconds(call: Callable[[], int]) -> float:
        return min(timeit.repeat(call, time.thread_time, number=1, repeat=20))

    loop = least_seconds(lambda: hash_by_definition(group))
    assert least_seconds(lambda: partition_of(group, 50)) < loop / 2


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


def test_the_offsets_topic_is_created_at_the_first_find_coordinator() -> None:
    settings = {"offsets.topic.num.partitions": 3, "offsets.topic.segment.bytes": 2_000_000}
    with (
        ottla.testing.broker(topics={"t": 1}, settings=settings) as broker,
        Wire(broker.bootstrap_servers) as wire,
    ):
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
def test_groups_are_loaded_from_the_log_at_a_restart(ending: str) -> None:
    codec = {"offsets.topic.compression.codec": 3, "offsets.topic.num.partitions": 4}
    with ottla.testing.broker(topics={"t": 1}, settings=codec) as broker:
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


def test_offsets_of_a_topic_deleted_before_loading_are_removed_on_loading() -> None:
    with ottla.testing.broker(
        topics={"t": 1, "u": 1}, settings={"offsets.topic.num.partitions": 1}
    ) as broker:
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


def flipped_length(data: bytearray) -> None:
    data[8] ^= 0x40


def flipped_record(data: bytearray) -> None:
    data[-3] ^= 1


def unreadable_records(data: bytearray) -> None:
    """Records that no coordinator wrote, under a checksum that is right."""
    last = [(position, header) for position, header in headers(data)][-1][0]
    data[last + HEADER_SIZE :] = b"\xff" * (len(data) - last - HEADER_SIZE)
    data[last + 17 : last + 21] = crc32c(bytes(data[last + 21 :])).to_bytes(4, "big")


def swapped_batches(data: bytearray) -> None:
    first, second = [data[p : p + h.size] for p, h in headers(data)][:2]
    data[: len(first) + len(second)] = second + first


@pytest.mark.parametrize("damage", [flipped_length, flipped_record, unreadable_records, swapped_batches])
def test_a_partition_that_cannot_be_read_fails_its_own_groups_only_and_is_tried_again(
    damage: Callable[[bytearray], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(runtime, "LOAD_DAMAGED_AGAIN_SECONDS", 0.05)
    names = [f"g{number}" for number in range(20)]
    with ottla.testing.broker(topics={"t": 1}, settings={"offsets.topic.num.partitions": 2}) as broker:
        with Wire(broker.bootstrap_servers) as wire:
            find(wire, "g0")
            for name in names:
                assert commit(wire, name, 7) == ErrorCode.NONE
        broker.stop()
        path = broker.data / "__consumer_offsets-1" / "00000000000000000000.log"
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damage(damaged)
        path.write_bytes(damaged)
        broker.start()
        lost = {name for name in names if partition_of(name, 2) == 1}
        with Wire(broker.bootstrap_servers) as wire:
            assert not when_loaded(lambda: wire.call(ListGroupsRequest()).error_code)
            assert {group.group_id for group in wire.call(ListGroupsRequest()).groups} == set(names) - lost
            for name in lost:
                assert commit(wire, name, 8) == ErrorCode.NOT_COORDINATOR
            for name in set(names) - lost:
                assert committed(wire, name) == {"t": 7}
            assert "__consumer_offsets-1" in caplog.text
            with path.open("r+b") as file:
                file.write(whole)
            assert broker.broker is not None
            is_online = broker.broker.directory.logs["__consumer_offsets", 1].failure is None
            assert is_online == (damage in (flipped_record, unreadable_records))
            if is_online:
                deadline = time.monotonic() + 30
                while commit(wire, min(lost), 8) != ErrorCode.NONE:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
                assert len(wire.call(ListGroupsRequest()).groups) == 20
