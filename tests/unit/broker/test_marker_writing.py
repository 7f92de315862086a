"""Markers are answered when they are committed, each partition for itself."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from ottla.broker.marker_writing import MarkerWriting, write_markers
from ottla.completion import Completion
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.replication.purgatory import Purgatory
from ottla.testing.simulation.virtual_time import VirtualTime

OFFSETS_TOPIC = "__consumer_offsets"


class Partition:
    """One that takes markers, and has them committed when `commit` is called."""

    leader_epoch = 4

    def __init__(self) -> None:
        self.markers: list[tuple[int, bool]] = []
        self.high_watermark = 0
        self.refuses: ErrorCode | None = None
        self.turn = SimpleNamespace(locked=lambda: False)

    def check_in_sync(self) -> None:
        if self.refuses is not None:
            raise ApiError(self.refuses)

    def append_marker(self, producer_id: int, producer_epoch: int, *, commit: bool, **epochs: int) -> Any:
        self.markers.append((producer_id, commit))
        return SimpleNamespace(last_offset=len(self.markers) - 1)

    def acknowledged(self, end_offset: int, all_replicas: bool, leader_epoch: int) -> bool:
        assert all_replicas
        if leader_epoch != self.leader_epoch:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.high_watermark >= end_offset


class Broker:
    """What marker writing uses of a broker: partitions 0 to 2 of `t`, and the group coordinator."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.purgatory = Purgatory(self.time)
        self.partitions = {("t", index): Partition() for index in range(3)}
        self.partitions[OFFSETS_TOPIC, 0] = Partition()
        self.replicas = SimpleNamespace(leader=self._leader)
        self.groups = SimpleNamespace(end_transaction=self._end_transaction)
        self.of_groups: Completion[None] = Completion()

    def _leader(self, topic: str, index: int) -> Partition:
        found = self.partitions.get((topic, index))
        if found is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return found

    def _end_transaction(self, index: int, *producer: int, **rest: Any) -> Completion[None]:
        return self.of_groups

    def commit(self, index: int) -> None:
        partition = self.partitions["t", index]
        partition.high_watermark = len(partition.markers)
        self.purgatory.notify(partition)
        self.time.advance(0)

    def write(self, *markers: WritableTxnMarker) -> list[WriteTxnMarkersResponse]:
        """Where the response comes in."""
        outcome = write_markers(cast(MarkerWriting, self), WriteTxnMarkersRequest(markers=list(markers)))
        found: list[WriteTxnMarkersResponse] = []
        if isinstance(outcome, WriteTxnMarkersResponse):
            found.append(outcome)
        else:
            outcome.then(found.append, found.append)  # type: ignore[arg-type]
        return found


def marker(producer: int, topics: dict[str, list[int]], *, committed: bool = True) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=producer,
        transaction_result=committed,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=at) for name, at in topics.items()],
    )


def codes(response: WriteTxnMarkersResponse) -> dict[tuple[int, str, int], int]:
    return {
        (each.producer_id, topic.name, partition.partition_index): partition.error_code
        for each in response.markers
        for topic in each.topics
        for partition in topic.partitions
    }


def test_the_answer_waits_until_all_markers_are_committed() -> None:
    broker = Broker()
    found = broker.write(marker(7, {"t": [0, 1]}))
    broker.commit(0)
    assert not found
    broker.commit(1)
    assert codes(found[0]) == {(7, "t", 0): 0, (7, "t", 1): 0}


def test_partitions_fail_one_by_one() -> None:
    broker = Broker()
    broker.partitions["t", 1].refuses = ErrorCode.NOT_ENOUGH_REPLICAS
    found = broker.write(marker(7, {"t": [0, 1, 9]}))
    broker.commit(0)
    assert codes(found[0]) == {
        (7, "t", 0): ErrorCode.NONE,
        (7, "t", 1): ErrorCode.NOT_ENOUGH_REPLICAS,
        (7, "t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_markers_of_producers_that_cannot_be_are_refused() -> None:
    broker = Broker()
    no_epoch = marker(7, {OFFSETS_TOPIC: [0]})
    no_epoch.producer_epoch = -1
    found = broker.write(marker(-1, {"t": [0]}), no_epoch)
    assert set(codes(found[0]).values()) == {ErrorCode.INVALID_REQUEST}
    assert not broker.partitions["t", 0].markers


def test_a_leader_that_is_replaced_meanwhile_says_so() -> None:
    broker = Broker()
    found = broker.write(marker(7, {"t": [0]}))
    broker.partitions["t", 0].leader_epoch += 1
    broker.commit(0)
    assert codes(found[0]) == {(7, "t", 0): ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_markers_that_replicas_do_not_get_in_time_are_sent_again() -> None:
    broker = Broker()
    found = broker.write(marker(7, {"t": [0]}))
    broker.time.advance(31)
    assert codes(found[0]) == {(7, "t", 0): ErrorCode.REQUEST_TIMED_OUT}


def test_the_group_coordinator_writes_to_its_own_topic() -> None:
    broker = Broker()
    found = broker.write(marker(7, {OFFSETS_TOPIC: [0]}))
    assert not found and not broker.partitions[OFFSETS_TOPIC, 0].markers
    broker.of_groups.fail(ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    assert codes(found[0]) == {(7, OFFSETS_TOPIC, 0): ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_markers_of_one_producer_are_answered_together() -> None:
    broker = Broker()
    found = broker.write(marker(7, {"t": [0]}), marker(8, {"t": [0]}, committed=False), marker(7, {"t": [1]}))
    broker.commit(0)
    broker.commit(1)
    assert [each.producer_id for each in found[0].markers] == [7, 8]
    assert broker.partitions["t", 0].markers == [(7, True), (8, False)]


def test_a_marker_is_written_behind_what_a_thread_writes() -> None:
    async def work() -> None:
        broker = Broker()
        partition = broker.partitions["t", 0]
        partition.turn = cast(Any, asyncio.Lock())
        await partition.turn.acquire()
        found = broker.write(marker(7, {"t": [0]}))
        await asyncio.sleep(0)
        assert not partition.markers
        partition.turn.release()
        while not partition.markers:
            await asyncio.sleep(0)
        partition.high_watermark = 1
        while not found:
            broker.purgatory.notify(partition)
            broker.time.advance(0)
            await asyncio.sleep(0)
        assert codes(found[0]) == {(7, "t", 0): 0}

    asyncio.run(asyncio.wait_for(work(), 30))
