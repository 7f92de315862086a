"""Offsets are written in the transaction of a producer, by members of the group or by unnamed clients."""

from __future__ import annotations

import pytest

from ottla.coordinator.group import GroupSettings, NewOffset, OffsetCommit
from ottla.coordinator.offsets import NO_OFFSET
from ottla.coordinator.runtime.shard import TransactionalProducer
from ottla.protocol.batches import NO_SEQUENCE, read_header
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.storage.verification import UNCHECKED
from unit.coordinator.simulated import Answer, Simulated

SETTINGS = GroupSettings(initial_rebalance_delay_ms=0)
TOPIC_ID = b"t" * 16
PRODUCER = TransactionalProducer(7001, 3, UNCHECKED)


def commit(
    shard: Simulated,
    offset: int,
    *,
    member_id: str = "",
    generation: int = -1,
    instance: str | None = None,
    producer: TransactionalProducer | None = PRODUCER,
) -> Answer:
    new = NewOffset("t", TOPIC_ID, 0, offset, -1, "")
    request = OffsetCommit(
        "g", member_id, instance, generation, [new], version=3, transactional=producer is not None
    )
    return shard.ask(
        lambda groups, reply, effects: effects.answer(reply, groups.commit(request, effects)), producer
    )


def end(shard: Simulated, *, committed: bool) -> Answer:
    answer = Answer()
    shard.shard.end_transaction(
        PRODUCER.producer_id,
        PRODUCER.producer_epoch,
        committed=committed,
        coordinator_epoch=1,
        transaction_version=2,
    ).then(answer, answer)
    return answer


def offset(shard: Simulated) -> int:
    found = shard.groups.offsets.get("g", "t", 0)
    return NO_OFFSET if found is None else found.offset


def code(answer: Answer) -> ErrorCode:
    assert answer.given
    given = answer.given[0]
    if isinstance(given, ApiError):
        return given.code
    (outcome,) = given
    return ErrorCode(outcome)  # type: ignore[call-arg]


@pytest.mark.parametrize("committed", [True, False])
def test_offsets_are_pending_until_the_marker(committed: bool) -> None:
    shard = Simulated(SETTINGS)
    assert code(commit(shard, 1, producer=None)) is ErrorCode.NONE
    assert code(commit(shard, 5)) is ErrorCode.NONE
    assert offset(shard) == 1
    assert shard.groups.offsets.pending_of("g") == {("t", 0)}
    assert not end(shard, committed=committed).waits
    expected = 5 if committed else 1
    for each in (shard, shard.restarted()):
        assert offset(each) == expected
        assert not each.groups.offsets.has_pending("g")


def test_the_batch_belongs_to_the_transaction() -> None:
    shard = Simulated(SETTINGS)
    commit(shard, 5)
    header = read_header(shard.partition.batches[-1])
    assert header.is_transactional and not header.is_control
    assert (header.producer_id, header.producer_epoch) == (PRODUCER.producer_id, PRODUCER.producer_epoch)
    assert header.base_sequence == NO_SEQUENCE
    assert shard.partition.verifications == [UNCHECKED]


def test_the_end_of_a_transaction_is_answered_when_the_marker_is_committed() -> None:
    shard = Simulated(SETTINGS)
    commit(shard, 5)
    shard.partition.is_slow = True
    answer = end(shard, committed=True)
    reading = shard.ask(lambda groups, reply, effects: effects.answer(reply, offset(shard)))
    assert answer.waits and reading.waits
    shard.commit_all()
    assert (answer.given, reading.value) == ([None], 5)


def test_a_marker_that_the_log_refuses_leaves_the_offsets_pending() -> None:
    shard = Simulated(SETTINGS)
    commit(shard, 5)
    shard.partition.refuses = ApiError(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    (refused,) = end(shard, committed=True).given
    assert refused.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert shard.groups.offsets.pending_of("g") == {("t", 0)}
    shard.partition.refuses = None
    end(shard, committed=True)
    assert offset(shard) == 5


def test_offsets_that_the_log_refuses_are_not_pending() -> None:
    shard = Simulated(SETTINGS)
    shard.partition.refuses = ApiError(ErrorCode.INVALID_TXN_STATE)
    assert code(commit(shard, 5)) is ErrorCode.INVALID_TXN_STATE
    assert not shard.groups.offsets.has_pending("g")


def test_a_coordinator_that_is_not_the_leader_any_more_writes_no_marker() -> None:
    shard = Simulated(SETTINGS)
    commit(shard, 5)
    batches = len(shard.partition.batches)
    shard.partition.leader_epoch += 1
    (refused,) = end(shard, committed=True).given
    assert refused.code is ErrorCode.NOT_COORDINATOR
    assert len(shard.partition.batches) == batches


def test_only_members_of_the_present_generation_commit() -> None:
    shard = Simulated(SETTINGS)
    (member,) = shard.stable()
    assert code(commit(shard, 1, member_id=member, generation=1)) is ErrorCode.NONE
    assert code(commit(shard, 1, member_id=member, generation=2)) is ErrorCode.ILLEGAL_GENERATION
    assert code(commit(shard, 1, member_id="nobody", generation=1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code(commit(shard, 1, member_id=member)) is ErrorCode.ILLEGAL_GENERATION
    assert code(commit(shard, 1, instance="nobody")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_client_that_names_no_member_commits_beside_members() -> None:
    """As those do that speak older versions: only the epoch of their producer is fenced."""
    shard = Simulated(SETTINGS)
    shard.stable()
    assert code(commit(shard, 1)) is ErrorCode.NONE
    assert code(commit(shard, 1, producer=None)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_generation_of_a_group_that_does_not_exist_is_illegal() -> None:
    shard = Simulated(SETTINGS)
    assert code(commit(shard, 1, generation=3, member_id="m")) is ErrorCode.ILLEGAL_GENERATION
    assert shard.groups.get("g") is None


def test_members_may_commit_in_a_transaction_while_the_group_waits_for_its_assignment() -> None:
    shard = Simulated(SETTINGS)
    member, joined = shard.new_member()
    while joined.waits:
        shard.scheduler.run(500)
    assert code(commit(shard, 1, member_id=member, generation=1)) is ErrorCode.NONE
    outside = commit(shard, 1, member_id=member, generation=1, producer=None)
    assert code(outside) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_transactional_commit_is_no_heartbeat() -> None:
    shard = Simulated(SETTINGS)
    (member,) = shard.stable()
    for _ in range(3):
        shard.scheduler.run(4_000)
        last = commit(shard, 1, member_id=member, generation=1)
    assert code(last) is ErrorCode.UNKNOWN_MEMBER_ID
