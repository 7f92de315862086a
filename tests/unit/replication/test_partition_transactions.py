"""Transactions as the leader of a partition sees them: verified first batches, markers, what readers get."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.replication.partition import Partition
from ottla.replication.partition_reading import Isolation
from ottla.replication.purgatory import Purgatory
from ottla.replication.replica_state import ReplicaState
from ottla.storage.log import Log
from ottla.storage.verification import UNCHECKED
from unit.storage.logs import Store, batch, from_producer

COMMITTED = Isolation.LAST_STABLE_OFFSET


def in_transaction(sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0) -> memoryview:
    return from_producer(sequence, count, producer=producer, epoch=epoch, transactional=True)


@pytest.fixture
def partition() -> Partition:
    """Led here, without followers."""
    state = ReplicaState(1, 0, 0)
    purgatory = Purgatory(cast(Any, None))
    partition = Partition("t", 0, bytes(16), Store().log, state, purgatory, lambda work: asyncio.Future())
    state.assign(1, 0, (1,), (1,), 0)
    return partition


def refused(call: Any, *arguments: Any, **options: Any) -> ErrorCode:
    with pytest.raises(ApiError) as refusal:
        call(*arguments, **options)
    return refusal.value.code


def begin(partition: Partition, sequence: int = 0, *, producer: int = 7, epoch: int = 0) -> None:
    guard = partition.begin_verification(producer, epoch, sequence)
    assert guard is not None
    partition.append(in_transaction(sequence, producer=producer, epoch=epoch), verification=guard)


class TestVerification:
    def test_the_first_batch_of_a_transaction_needs_a_guard(self, partition: Partition) -> None:
        assert refused(partition.append, in_transaction(0)) == ErrorCode.INVALID_TXN_STATE
        guard = partition.begin_verification(7, 0, 0)
        assert partition.append(in_transaction(0), verification=guard).first_offset == 0

    def test_no_guard_is_needed_while_the_transaction_is_open(self, partition: Partition) -> None:
        begin(partition)
        assert partition.begin_verification(7, 0, 1) is None
        assert partition.append(in_transaction(1)).first_offset == 1

    def test_a_newer_epoch_is_verified_although_an_older_one_has_an_open_transaction(
        self, partition: Partition
    ) -> None:
        begin(partition)
        assert refused(partition.append, in_transaction(0, epoch=1)) == ErrorCode.INVALID_TXN_STATE

    def test_a_marker_ends_the_verification_that_runs(self, partition: Partition) -> None:
        guard = partition.begin_verification(7, 0, 0)
        partition.append_marker(7, 0, commit=False, coordinator_epoch=0)
        again = partition.begin_verification(7, 0, 0)
        assert again is not guard
        late = refused(partition.append, in_transaction(0), verification=guard)
        assert late == ErrorCode.INVALID_TXN_STATE
        assert partition.append(in_transaction(0), verification=again).first_offset == 1

    def test_requests_of_one_producer_share_a_guard(self, partition: Partition) -> None:
        assert partition.begin_verification(7, 0, 0) is partition.begin_verification(7, 0, 1)

    def test_of_several_batches_in_flight_the_first_must_come_first(self, partition: Partition) -> None:
        guard = partition.begin_verification(7, 0, 1)
        partition.begin_verification(7, 0, 0)
        late = refused(partition.append, in_transaction(1), verification=guard)
        assert late == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        partition.append(in_transaction(0), verification=guard)
        assert partition.append(in_transaction(1)).first_offset == 1

    def test_a_client_with_an_epoch_for_each_transaction_begins_with_sequence_0(
        self, partition: Partition
    ) -> None:
        guard = partition.begin_verification(7, 0, 5, bumps_epoch=True)
        late = refused(partition.append, in_transaction(5), verification=guard)
        assert late == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_what_needs_no_verification_is_appended(self, partition: Partition) -> None:
        assert partition.append(in_transaction(0), verification=UNCHECKED).first_offset == 0

    def test_a_coordinators_transactional_records_are_verified_too(self, partition: Partition) -> None:
        records = from_producer(-1, producer=7, transactional=True)
        assert refused(partition.append, records, from_client=False) == ErrorCode.INVALID_TXN_STATE
        guard = partition.begin_verification(7, 0, -1)
        assert partition.append(records, from_client=False, verification=guard).first_offset == 0

    def test_a_retry_needs_no_guard(self, partition: Partition) -> None:
        guard = partition.begin_verification(7, 0, 0)
        partition.append(in_transaction(0), verification=guard)
        assert partition.append(in_transaction(0), verification=guard).duplicate
        assert partition.append(in_transaction(0)).duplicate

    def test_a_batch_of_an_ended_transaction_is_no_retry(self, partition: Partition) -> None:
        begin(partition)
        partition.append_marker(7, 0, commit=False, coordinator_epoch=0)
        guard = partition.begin_verification(7, 0, 0)
        again = refused(partition.append, in_transaction(0), verification=guard)
        assert again == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_an_unknown_number_of_producers_cannot_use_up_memory(self, partition: Partition) -> None:
        first = partition.begin_verification(1, 0, 0)
        for producer in range(2, 12_000):
            partition.begin_verification(producer, 0, 0)
        assert len(partition.log.producers._verifications) == 10_000
        assert partition.begin_verification(1, 0, 0) is first, "a request holds it"

    def test_a_verification_that_was_given_up_is_forgotten(self, partition: Partition) -> None:
        partition.begin_verification(7, 0, 0)
        partition.log.expire_producers(partition.log._clock.now_ms() + 1000, 1000)
        assert not len(partition.log.producers._verifications)


class TestMarkers:
    def test_a_marker_is_written_also_where_no_transaction_is_open(self, partition: Partition) -> None:
        info = partition.append_marker(7, 3, commit=True, coordinator_epoch=2)
        assert (info.first_offset, info.last_offset) == (0, 0)
        state = partition.log.producers.get(7)
        assert state is not None
        assert (state.epoch, state.coordinator_epoch, state.transaction_start) == (3, 2, -1)

    def test_a_marker_of_an_older_producer_epoch_is_refused(self, partition: Partition) -> None:
        begin(partition, epoch=4)
        for version in (0, 1, 2):
            late = refused(
                partition.append_marker, 7, 3, commit=True, coordinator_epoch=0, transaction_version=version
            )
            assert late == ErrorCode.INVALID_PRODUCER_EPOCH
        assert partition.end_offset == 1

    def test_a_marker_of_a_replaced_coordinator_is_refused(self, partition: Partition) -> None:
        begin(partition)
        partition.append_marker(7, 0, commit=True, coordinator_epoch=5)
        begin(partition, 1)
        zombie = refused(partition.append_marker, 7, 0, commit=True, coordinator_epoch=4)
        assert zombie == ErrorCode.TRANSACTION_COORDINATOR_FENCED
        partition.append_marker(7, 0, commit=True, coordinator_epoch=5)

    @pytest.mark.parametrize("start", [Store.reopen, Store.crash])
    def test_it_is_refused_after_a_restart_too(self, start: Callable[[Store], Log]) -> None:
        store = Store()
        store.log.append_marker(7, 0, 0, commit=True, coordinator_epoch=5)
        log = start(store)
        zombie = refused(log.append_marker, 7, 0, 0, commit=False, coordinator_epoch=4)
        assert zombie == ErrorCode.TRANSACTION_COORDINATOR_FENCED
        log.append_marker(7, 0, 0, commit=False, coordinator_epoch=5)

    def test_a_follower_learns_of_it_from_the_marker_that_it_copies(self) -> None:
        leader, follower = Store(), Store()
        leader.log.append_marker(7, 0, 0, commit=True, coordinator_epoch=5)
        (copied,) = leader.files(".log").values()
        follower.log.append_replicated(memoryview(bytearray(copied)))
        zombie = refused(follower.log.append_marker, 7, 0, 0, commit=False, coordinator_epoch=4)
        assert zombie == ErrorCode.TRANSACTION_COORDINATOR_FENCED

    def test_with_version_2_a_late_marker_cannot_end_a_later_transaction(self, partition: Partition) -> None:
        def end(epoch: int) -> None:
            partition.append_marker(7, epoch, commit=True, coordinator_epoch=0, transaction_version=2)

        begin(partition)
        assert refused(end, 0) == ErrorCode.INVALID_PRODUCER_EPOCH
        end(1)
        end(1)  # a retry, while no transaction is open
        begin(partition, epoch=1)
        assert refused(end, 1) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert partition.last_stable_offset == 3
        end(2)
        assert partition.last_stable_offset == partition.end_offset

    def test_after_a_marker_with_a_new_epoch_sequences_begin_anew(self, partition: Partition) -> None:
        begin(partition)
        partition.append_marker(7, 1, commit=True, coordinator_epoch=0, transaction_version=2)
        guard = partition.begin_verification(7, 1, 0, bumps_epoch=True)
        assert partition.append(in_transaction(0, epoch=1), verification=guard).first_offset == 2

    def test_only_a_leader_writes_markers(self, partition: Partition) -> None:
        partition.state.assign(2, 1, (1, 2), (2,), 1)
        late = refused(partition.append_marker, 7, 0, commit=True, coordinator_epoch=0)
        assert late == ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_a_marker_waits_for_the_writes_that_came_before(self, partition: Partition) -> None:
        async def scenario() -> None:
            order = []
            async with partition.turn:
                marker = asyncio.ensure_future(
                    partition.append_marker_in_turn(7, 0, commit=True, coordinator_epoch=0)
                )
                marker.add_done_callback(lambda done: order.append("marker"))
                for _ in range(5):
                    await asyncio.sleep(0)
                order.append("write")
            assert (await marker).first_offset == 0
            assert order == ["write", "marker"]

        asyncio.run(scenario())


class TestReading:
    def test_readers_of_committed_records_stop_at_an_open_transaction(self, partition: Partition) -> None:
        partition.append(batch(2))
        begin(partition)
        partition.append(batch(1))
        assert (partition.high_watermark, partition.last_stable_offset) == (4, 2)
        assert partition.end_for(COMMITTED) == 2
        assert partition.read(2, 1000, COMMITTED, True).records is None
        partition.append_marker(7, 0, commit=True, coordinator_epoch=0)
        assert partition.last_stable_offset == 5
        assert not partition.read(2, 1000, COMMITTED, True).aborted

    def test_readers_of_committed_records_learn_of_aborted_transactions(self, partition: Partition) -> None:
        begin(partition)
        begin(partition, producer=8)
        partition.append_marker(8, 0, commit=False, coordinator_epoch=0)
        partition.append_marker(7, 0, commit=False, coordinator_epoch=0)
        aborted = partition.read(0, 1000, COMMITTED, True).aborted
        assert [(each.producer_id, each.first_offset) for each in aborted] == [(8, 1), (7, 0)]
        assert not partition.read(0, 1000, Isolation.HIGH_WATERMARK, True).aborted

    def test_a_transaction_that_began_before_the_log_holds_readers_at_its_start(
        self, partition: Partition
    ) -> None:
        begin(partition)
        partition.append(batch(3))
        partition.delete_records_before(2)
        assert partition.last_stable_offset == 2

    def test_a_marker_counts_for_readers_when_it_is_replicated(self, partition: Partition) -> None:
        partition.state.assign(1, 1, (1, 2), (1, 2), 1)
        begin(partition)
        partition.append_marker(7, 0, commit=True, coordinator_epoch=0)
        assert partition.last_stable_offset == 0
        partition.state.high_watermark = 1
        assert partition.last_stable_offset == 0
        partition.state.high_watermark = 2
        assert partition.last_stable_offset == 2

    def test_ended_transactions_are_not_kept_for_ever_without_readers(self, partition: Partition) -> None:
        for number in range(20):
            begin(partition, number)
            partition.append_marker(7, 0, commit=True, coordinator_epoch=0)
        assert len(partition.log.producers._finished) <= 2
