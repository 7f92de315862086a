"""Offsets that were committed in a transaction count when it commits, not before, and never if it aborts.

First as a coordinator reads them from its log, which may have been Kafka's; how they are written is in
`test_txn_offset_commit`.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import ottla.testing
from ottla.coordinator.group import GroupSettings
from ottla.coordinator.offsets import Committed, commit, tombstone
from ottla.coordinator.records import Entry
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseTopics,
)
from ottla.protocol_client.wire import Wire
from unit.coordinator.forged_batches import entries, marker
from unit.coordinator.simulated import Simulated

HOUR = 3_600_000
SETTINGS = GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=HOUR)
FIRST, SECOND = 7001, 7002
"""Producers."""


def at(offset: int, partition: int = 0, group: str = "g") -> Entry:
    return commit(group, "t", partition, Committed(offset, committed_ms=0))


def loaded(*batches: bytes) -> Simulated:
    return Simulated(SETTINGS, list(batches))


def offsets(shard: Simulated, group: str = "g") -> dict[int, int]:
    return {partition: each.offset for partition, each in shard.groups.offsets.of(group).get("t", {}).items()}


def test_offsets_of_an_open_transaction_are_invisible() -> None:
    shard = loaded(entries(0, [at(5)]), entries(1, [at(9), at(3, 1)], producer_id=FIRST))
    assert offsets(shard) == {0: 5}
    assert shard.groups.offsets.pending_of("g") == {("t", 0), ("t", 1)}


def test_offsets_of_a_transaction_become_visible_with_its_commit_marker() -> None:
    shard = loaded(
        entries(0, [at(5)]),
        entries(1, [at(9), at(3, 1)], producer_id=FIRST),
        marker(3, FIRST, 0, committed=True),
    )
    assert offsets(shard) == {0: 9, 1: 3}
    assert not shard.groups.offsets.has_pending("g")


def test_offsets_of_a_transaction_are_dropped_with_its_abort_marker() -> None:
    shard = loaded(
        entries(0, [at(5)]),
        entries(1, [at(9), at(3, 1)], producer_id=FIRST),
        marker(3, FIRST, 0, committed=False),
    )
    assert offsets(shard) == {0: 5}
    assert not shard.groups.offsets.has_pending("g")


def test_a_marker_ends_the_transaction_of_its_own_producer_only() -> None:
    shard = loaded(
        entries(0, [at(1)], producer_id=FIRST),
        entries(1, [at(2, 1)], producer_id=SECOND),
        marker(2, SECOND, 0, committed=True),
    )
    assert offsets(shard) == {1: 2}
    assert shard.groups.offsets.pending_of("g") == {("t", 0)}


def test_transactions_of_one_producer_follow_each_other() -> None:
    shard = loaded(
        entries(0, [at(1)], producer_id=FIRST),
        marker(1, FIRST, 0, committed=False),
        entries(2, [at(2)], producer_id=FIRST),
        marker(3, FIRST, 0, committed=True),
        entries(4, [at(3)], producer_id=FIRST),
    )
    assert offsets(shard) == {0: 2}


def test_a_commit_outside_of_transactions_counts_if_it_is_later_in_the_log() -> None:
    shard = loaded(
        entries(0, [at(9), at(9, 1)], producer_id=FIRST),
        entries(2, [at(20)]),
        marker(3, FIRST, 0, committed=True),
    )
    assert offsets(shard) == {0: 20, 1: 9}


def test_a_deleted_offset_is_not_brought_back_by_a_commit_marker() -> None:
    shard = loaded(
        entries(0, [at(9)], producer_id=FIRST),
        entries(1, [tombstone("g", "t", 0)]),
        marker(2, FIRST, 0, committed=True),
    )
    assert offsets(shard) == {}
    assert not shard.groups.offsets.has_pending("g")


def test_a_group_with_pending_offsets_neither_expires_nor_is_left_behind_when_it_is_deleted() -> None:
    shard = loaded(entries(0, [at(5)]), entries(1, [at(9), at(1, 1)], producer_id=FIRST))
    shard.scheduler.run(2 * HOUR)
    shard.shard.execute(lambda groups, effects: groups.expire("g", 100, effects))
    assert offsets(shard) == {0: 5}
    shard.shard.execute(lambda groups, effects: groups.delete("g", effects))
    assert (offsets(shard), shard.groups.offsets.has_pending("g")) == ({}, False)
    after = Simulated(SETTINGS, [*shard.partition.batches, marker(5, FIRST, 0, committed=True)])
    assert (offsets(after), after.groups.get("g")) == ({}, None)


def test_a_group_that_only_has_aborted_offsets_goes_with_the_next_expiry() -> None:
    shard = loaded(entries(0, [at(9)], producer_id=FIRST), marker(1, FIRST, 0, committed=False))
    shard.shard.execute(lambda groups, effects: groups.expire("g", 100, effects))
    assert shard.groups.get("g") is None


def test_pending_offsets_of_a_deleted_topic_are_forgotten() -> None:
    shard = loaded(
        entries(0, [at(5)]),
        entries(1, [at(9), at(3, 1), at(1, group="other")], producer_id=FIRST),
    )
    assert set(shard.groups.offsets.groups()) == {"g", "other"}
    shard.shard.execute(lambda groups, effects: groups.forget_topics("g", ["t"], 100, effects))
    shard.shard.execute(lambda groups, effects: groups.forget_topics("other", ["t"], 100, effects))
    after = Simulated(SETTINGS, [*shard.partition.batches, marker(7, FIRST, 0, committed=True)])
    assert (offsets(after), offsets(after, "other")) == ({}, {})


def test_the_next_coordinator_forgets_pending_offsets_of_topics_that_were_deleted_meanwhile() -> None:
    shard = loaded(entries(0, [at(9)], producer_id=FIRST))
    shard.shard.execute(lambda groups, effects: groups.forget_stale("g", lambda topic: None, 100, effects))
    assert not shard.groups.offsets.has_pending("g")


# -- in a broker ------------------------------------------------------------------------------------------


def fetched(wire: Wire, *, require_stable: bool, everything: bool = False) -> OffsetFetchResponseTopics:
    topics = None if everything else [OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])]
    group = OffsetFetchRequestGroup(group_id="g", topics=topics)
    request = OffsetFetchRequest(groups=[group], require_stable=require_stable)
    deadline = time.monotonic() + 30
    while (answer := wire.call(request, version=9).groups[0]).error_code:
        assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert time.monotonic() < deadline
    topic: OffsetFetchResponseTopics
    (topic,) = answer.topics
    return topic


def told(topic: OffsetFetchResponseTopics) -> list[tuple[int, int, int]]:
    return [(each.partition_index, each.committed_offset, each.error_code) for each in topic.partitions]


@pytest.mark.parametrize("everything", [False, True])
def test_require_stable_returns_a_retriable_error_during_an_open_transaction(
    everything: bool,
) -> None:
    with ottla.testing.broker(topics={"t": 2}, settings={"offsets.topic.num.partitions": 1}) as broker:
        with Wire(broker.bootstrap_servers) as wire:
            (found,) = wire.call(FindCoordinatorRequest(coordinator_keys=["g"]), version=4).coordinators
            assert not found.error_code
        broker.stop()
        log = Path(broker.data) / "__consumer_offsets-0" / "00000000000000000000.log"
        log.write_bytes(entries(0, [at(5), at(6, 1)]) + entries(2, [at(9)], producer_id=FIRST))
        broker.start()
        with Wire(broker.bootstrap_servers) as wire:
            unstable = int(ErrorCode.UNSTABLE_OFFSET_COMMIT)
            stable = fetched(wire, require_stable=True, everything=everything)
            assert told(stable) == [(0, -1, unstable), (1, 6, 0)]
            assert told(fetched(wire, require_stable=False, everything=everything)) == [(0, 5, 0), (1, 6, 0)]
