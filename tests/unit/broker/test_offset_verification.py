"""Offsets of a transaction are written with a guard that the coordinator has confirmed, or not at all."""

from __future__ import annotations

import asyncio
from types import GeneratorType, SimpleNamespace
from typing import Any

import pytest

from ottla.broker.handlers.txn_offset_commit import txn_offset_commit
from ottla.broker.transaction_verification import MOST_VERIFICATIONS, Verification
from ottla.completion import Completion
from ottla.coordinator.runtime.shard import TransactionalProducer
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.storage.verification import VerificationGuard

PLACE = ("__consumer_offsets", 3)


class Broker:
    """What TxnOffsetCommit uses of a broker. A marker comes during the first `markers` questions."""

    def __init__(self, markers: int = 0, refused: ErrorCode | None = None) -> None:
        topic = SimpleNamespace(id=b"t" * 16, partitions=[None])
        self.image = SimpleNamespace(topics={"t": topic})
        self.groups = SimpleNamespace(
            partition=lambda group: "partition", partition_of=lambda group: PLACE[1], run=self._run
        )
        self.verification = SimpleNamespace(begin=self._begin, errors=self._errors)
        self.written: list[TransactionalProducer] = []
        self.confirmed: list[VerificationGuard] = []
        self._markers = markers
        self._refused = refused
        self._guard = VerificationGuard()

    def _begin(self, *producer: object) -> Verification:
        return Verification(self._guard, is_open=True)

    async def _errors(self, *question: object) -> dict[Any, ErrorCode]:
        if self._refused is not None:
            return {PLACE: self._refused}
        self.confirmed.append(self._guard)
        if self._markers:
            self._markers -= 1
            self._guard = VerificationGuard()
        return {}

    def _run(self, group: str, command: object, producer: TransactionalProducer) -> Completion[Any]:
        self.written.append(producer)
        answer: Completion[Any] = Completion()
        answer.resolve(None)
        return answer

    async def in_slices(self, steps: Any, context: object) -> Any:
        return result_of(steps)

    def commit(self, version: int = 5) -> ErrorCode:
        partition = TxnOffsetCommitRequestPartition(committed_metadata="")
        topics = [TxnOffsetCommitRequestTopic(name="t", partitions=[partition])]
        request = TxnOffsetCommitRequest(transactional_id="tx", group_id="g", producer_id=7, topics=topics)
        steps = txn_offset_commit(self, request, SimpleNamespace(version=version))  # type: ignore[arg-type]
        response = asyncio.run(result_of(steps))
        return ErrorCode(response.topics[0].partitions[0].error_code)  # type: ignore[call-arg]


def result_of(steps: Any) -> Any:
    assert isinstance(steps, GeneratorType)
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            return finished.value


@pytest.mark.parametrize("markers", [0, 1, MOST_VERIFICATIONS - 1])
def test_offsets_are_written_with_a_guard_that_was_confirmed(markers: int) -> None:
    broker = Broker(markers)
    assert broker.commit() is ErrorCode.NONE
    (producer,) = broker.written
    assert producer.verification is broker.confirmed[-1]
    assert len(broker.confirmed) == markers + 1


def test_offsets_of_the_first_protocol_keep_the_guard_that_a_marker_has_ended() -> None:
    """They may be late ones of the transaction before. The log knows that guard no more, and refuses them."""
    broker = Broker(markers=1)
    broker.commit(version=4)
    (producer,) = broker.written
    assert [producer.verification] == broker.confirmed


def test_a_guard_that_was_not_confirmed_is_not_used() -> None:
    broker = Broker(markers=MOST_VERIFICATIONS)
    assert broker.commit() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert not broker.written


@pytest.mark.parametrize(
    ("refused", "version", "told"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, 4, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.NETWORK_EXCEPTION, 4, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NETWORK_EXCEPTION, 1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_what_the_coordinator_refuses_is_not_written(
    refused: ErrorCode, version: int, told: ErrorCode
) -> None:
    broker = Broker(refused=refused)
    assert broker.commit(version) is told
    assert not broker.written


def test_a_group_that_is_not_coordinated_here_is_refused() -> None:
    broker = Broker()

    def partition(group: str) -> None:
        raise ApiError(ErrorCode.NOT_COORDINATOR)

    broker.groups.partition = partition
    partitions = [TxnOffsetCommitRequestPartition(committed_metadata="")]
    request = TxnOffsetCommitRequest(
        group_id="g", topics=[TxnOffsetCommitRequestTopic(name="t", partitions=partitions)]
    )
    context: Any = SimpleNamespace(version=4)
    response = result_of(txn_offset_commit(broker, request, context))  # type: ignore[arg-type]
    assert response.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
