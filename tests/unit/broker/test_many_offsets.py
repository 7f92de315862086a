"""Groups with more offsets than fit into one batch of the log that keeps them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import ottla.testing
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from ottla.protocol_client.wire import Wire

COUNT = 1_500


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    """A broker whose batches hold some 300 offsets."""
    with ottla.testing.broker(topics={"many": COUNT}, settings={"message.max.bytes": 30_000}) as broker:
        with Wire(broker.bootstrap_servers) as wire:
            wire.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
            deadline = time.monotonic() + 30
            while commit(wire, "first", 1) != {0}:
                assert time.monotonic() < deadline
            yield wire


def commit(wire: Wire, group: str, count: int) -> set[int]:
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=index, committed_metadata="m")
        for index in range(count)
    ]
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name="many", partitions=partitions)],
    )
    (topic,) = wire.call(request, 8).topics
    assert [each.partition_index for each in topic.partitions] == list(range(count))
    return {each.error_code for each in topic.partitions}


def committed(wire: Wire, *groups: OffsetFetchRequestGroup) -> list[dict[int, int]]:
    answer = wire.call(OffsetFetchRequest(groups=list(groups)), 8)
    return [
        {each.partition_index: each.committed_offset for topic in group.topics for each in topic.partitions}
        for group in answer.groups
    ]


def test_a_commit_larger_than_a_batch_is_written_in_several(wire: Wire) -> None:
    assert commit(wire, "large", COUNT) == {0}
    found = committed(wire, OffsetFetchRequestGroup(group_id="large", topics=None))
    assert found == [{index: index for index in range(COUNT)}]


def test_a_group_whose_offsets_do_not_fit_into_a_batch_can_be_deleted(wire: Wire) -> None:
    assert commit(wire, "deleted", COUNT) == {0}
    results = wire.call(DeleteGroupsRequest(groups_names=["deleted", "nobody"]), 2).results
    assert [(result.group_id, result.error_code) for result in results] == [("deleted", 0), ("nobody", 69)]
    assert committed(wire, OffsetFetchRequestGroup(group_id="deleted", topics=None)) == [{}]


def test_duplicate_groups_and_partitions_in_offset_fetch_are_merged(wire: Wire) -> None:
    assert commit(wire, "asked", 5) == {0}

    def some(*indexes: int) -> OffsetFetchRequestGroup:
        topic = OffsetFetchRequestTopics(name="many", partition_indexes=list(indexes))
        return OffsetFetchRequestGroup(group_id="asked", topics=[topic])

    assert committed(wire, some(1, 1, 7), some(2)) == [{1: 1, 7: -1, 2: 2}]
    everything = OffsetFetchRequestGroup(group_id="asked", topics=None)
    assert committed(wire, some(1), everything) == [{index: index for index in range(5)}]
