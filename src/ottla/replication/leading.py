"""What a leader does with its followers' fetches and with the answers of the controller.

A follower's fetch says what it has: that moves the high watermark, and may show that the follower can join
the in-sync set (ISR). What to ask the controller for is decided by `ReplicaState`; here the log, the clock
and the requests that wait are brought together with it. Callers are the fetch handler and
`broker/isr_changes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.replication.follower_progress import FollowerFetch, FollowerProgress
from ottla.replication.partition import Partition
from ottla.replication.replica_state import IsrProposal


def check_follower(partition: Partition, fetch: FollowerFetch) -> None:
    """Refuse a follower without a replica of the partition, or whose broker has started again since."""
    follower = partition.state.follower(fetch.broker_id)
    if follower is None:
        raise ApiError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"broker {fetch.broker_id} has no replica of {partition.topic}-{partition.index}",
        )
    if fetch.broker_epoch < follower.broker_epoch:
        raise ApiError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"broker {fetch.broker_id} has started again since, with epoch {follower.broker_epoch}",
        )


def follower_fetched(
    partition: Partition, fetch: FollowerFetch, leader_epoch: int, offset: int, log_start: int
) -> bool:
    """A follower whose log does not diverge asks for `offset`. True when the ISR may have to grow."""
    log, state = partition.log, partition.state
    follower = state.follower(fetch.broker_id)
    if follower is None or not log.log_start_offset <= offset <= log.end_offset:
        return False
    start_before = follower.log_start_offset
    moved = state.fetched(fetch, leader_epoch, offset, log_end=log.end_offset, log_start=log_start)
    if moved or follower.log_start_offset != start_before:
        partition.wake()
    return state.may_expand


def is_idle(
    partition: Partition, fetch: FollowerFetch, leader_epoch: int, offset: int, log_start: int
) -> bool:
    """Whether a follower in sync asks once more for the log end: then it has been counted as caught up.

    False, and no change, when there may be more to do or to tell. A follower asks for its idle partitions
    with every fetch, so this is made to be cheap.
    """
    log, state = partition.log, partition.state
    if (
        log.end_offset != offset
        or state.leader_epoch != leader_epoch
        or fetch.broker_id not in state.isr
        or log.failure is not None
        or partition.is_closed
    ):
        return False
    follower = state.follower(fetch.broker_id)  # None unless this replica leads
    return follower is not None and follower.repeats(fetch, offset, log_start)


def isr_due(
    partition: Partition,
    broker_epoch: Callable[[int], int | None],
    max_lag_ms: int,
    *,
    check_lag: bool,
) -> IsrProposal | None:
    """What to ask the controller for: an ISR without followers that lag, or with some that caught up.

    It is under way from now on. `broker_epoch` gives the epoch under which a broker is registered and not
    fenced, else None.
    """
    state, end = partition.state, partition.log.end_offset
    now_ms = int(partition.log.monotonic() * 1000)
    _stop_waiting(
        partition,
        lambda broker, follower: (
            broker_epoch(broker) != follower.broker_epoch
            or not follower.is_caught_up(end, now_ms, max_lag_ms)
        ),
    )
    due = state.shrink_due(now_ms, max_lag_ms, end) if check_lag else None
    due = due or state.expand_due(broker_epoch)
    return None if due is None else state.propose(due)


def forget_gone(partition: Partition, broker_epoch: Callable[[int], int | None]) -> None:
    """Brokers came, went or were fenced: one that was about to join and is gone is not waited for.

    One that the controller is being asked for counts until the answer, and not after a refusal.
    """
    _stop_waiting(partition, lambda broker, follower: broker_epoch(broker) != follower.broker_epoch)


def _stop_waiting(partition: Partition, leaves: Callable[[int, FollowerProgress], bool]) -> None:
    if partition.state.stop_waiting_for(leaves):
        partition.wake()


def isr_altered(
    partition: Partition,
    proposal: IsrProposal,
    leader: int,
    leader_epoch: int,
    isr: Iterable[int],
    partition_epoch: int,
) -> None:
    """The controller has answered for a proposal, with the state that holds now."""
    partition.state.altered(proposal, leader, leader_epoch, isr, partition_epoch)
    partition.wake()


def isr_refused(partition: Partition, proposal: IsrProposal) -> None:
    """The controller has refused a proposal under the epochs that are known here."""
    state = partition.state
    isr_altered(partition, proposal, state.leader, state.leader_epoch, state.isr, state.partition_epoch)
