"""A partition as its readers see it: which of them it refuses, and where their logs parted from its own."""

import asyncio
from typing import Any, cast

import pytest

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.replication.follower_progress import FollowerFetch
from ottla.replication.leading import check_follower
from ottla.replication.partition import Partition
from ottla.replication.purgatory import Purgatory
from ottla.replication.replica_state import ReplicaState
from unit.storage.logs import Store, batch, from_producer


@pytest.fixture
def partition() -> Partition:
    """Led here in epoch 6, with records 0 to 2 of epoch 3 and 3 and 4 of epoch 6; broker 2 has a replica."""
    log = Store().log
    state = ReplicaState(1, 0, 0)
    purgatory = Purgatory(cast(Any, None))
    partition = Partition("t", 0, bytes(16), log, state, purgatory, lambda work: asyncio.Future())
    for epoch, count in ((3, 3), (6, 2)):
        assert state.assign(1, epoch, (1, 2), (1,), epoch)
        log.begin_epoch(epoch)
        partition.append(batch(count))
    return partition


def test_a_reader_whose_records_are_in_the_log_has_not_diverged(partition: Partition) -> None:
    assert partition.divergence(3, 3) is None
    assert partition.divergence(6, 5) is None


@pytest.mark.parametrize(
    ("last_fetched_epoch", "fetch_offset", "parted_at"),
    [
        pytest.param(3, 4, (3, 3), id="the epoch ended before"),
        pytest.param(5, 3, (3, 3), id="the epoch is unknown here"),
        pytest.param(6, 9, (6, 5), id="the log is shorter"),
    ],
)
def test_a_reader_learns_where_its_log_parted_from_the_leaders(
    partition: Partition, last_fetched_epoch: int, fetch_offset: int, parted_at: tuple[int, int]
) -> None:
    assert partition.divergence(last_fetched_epoch, fetch_offset) == parted_at


def test_a_reader_with_an_epoch_newer_than_the_leaders_is_out_of_range(partition: Partition) -> None:
    with pytest.raises(ApiError) as refused:
        partition.divergence(7, 5)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_only_a_broker_with_a_replica_may_fetch_as_a_follower(partition: Partition) -> None:
    check_follower(partition, FollowerFetch(2, 20, True, 0, 100))
    with pytest.raises(ApiError) as refused:
        check_follower(partition, FollowerFetch(3, 30, True, 0, 100))
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_the_epochs_of_its_first_and_last_record_are_known(partition: Partition) -> None:
    assert (partition.epoch_at_log_start, partition.latest_epoch) == (3, 6)
    partition.delete_records_before(4)
    assert (partition.log_start_offset, partition.epoch_at_log_start) == (4, 6)


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_wrong_sequence_counts_only_at_a_leader_that_hears_from_the_controller(is_silent: bool) -> None:
    """Another one may lack what its successor took."""
    state = ReplicaState(1, 0, 0)
    state.assign(1, 1, (1, 2), (1,), 1)
    partition = Partition(
        "t",
        0,
        bytes(16),
        Store().log,
        state,
        Purgatory(cast(Any, None)),
        lambda work: asyncio.Future(),
        may_be_deposed=lambda: is_silent,
    )
    partition.append(from_producer(0, 2))
    with pytest.raises(ApiError) as refused:
        partition.append(from_producer(5))
    expected = ErrorCode.NOT_LEADER_OR_FOLLOWER if is_silent else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused.value.code is expected
    assert partition.append(from_producer(2)).first_offset == 2, "what fits is taken"
