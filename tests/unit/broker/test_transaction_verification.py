"""Leaders ask the coordinators of transactions about partitions: in batches, and in terms producers know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any

import pytest

from ottla.broker.transaction_verification import (
    Abilities,
    Place,
    Retries,
    TransactionVerification,
    of_committer,
    of_producer,
)
from ottla.completion import Completion
from ottla.peer.client import PeerUnreachable
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)

HERE, THERE = 1, 2
OLD = Abilities(adds=False, knows_abortable=False)
NEW = Abilities(adds=True, knows_abortable=True)
A, B = ("t", 0), ("t", 1)


class Coordinator:
    """The coordinator of this broker; `codes` are its next answers, the last one for good."""

    def __init__(self, *codes: ErrorCode) -> None:
        self.codes = list(codes)
        self.asked: list[tuple[Any, ...]] = []

    def verify_or_add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[Place],
        add: bool,
    ) -> Completion[dict[Place, ErrorCode]]:
        self.asked.append((transactional_id, producer_id, producer_epoch, list(partitions), add))
        code = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
        answer: Completion[dict[Place, ErrorCode]] = Completion()
        answer.resolve(dict.fromkeys(partitions, code))
        return answer


class Peer:
    """Another broker, which holds back its answers until `let` is set."""

    def __init__(self, refused: Collection[str] = ()) -> None:
        self.let = asyncio.Event()
        self.refused = refused
        self.requests: list[AddPartitionsToTxnRequest] = []

    async def call(self, request: AddPartitionsToTxnRequest, *, timeout: float) -> AddPartitionsToTxnResponse:
        self.requests.append(request)
        await self.let.wait()
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    transactional_id=each.transactional_id,
                    topic_results=[
                        AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                AddPartitionsToTxnPartitionResult(
                                    partition_index=index, partition_error_code=self._code(each)
                                )
                                for index in topic.partitions
                            ],
                        )
                        for topic in each.topics
                    ],
                )
                for each in request.transactions
            ]
        )

    def _code(self, transaction: Any) -> ErrorCode:
        is_refused = transaction.transactional_id in self.refused
        return ErrorCode.PRODUCER_FENCED if is_refused else ErrorCode.NONE


class Unreachable:
    async def call(self, request: object, *, timeout: float) -> Any:
        raise PeerUnreachable(("there", 9092), "it is gone", maybe_done=False)


def verification(
    coordinator: int | None = HERE,
    local: Coordinator | None = None,
    peer: object = None,
    enabled: bool = True,
    retry_seconds: float = 0.1,
) -> TransactionVerification:
    loop = asyncio.get_running_loop()
    return TransactionVerification(
        HERE,
        lambda transactional_id: coordinator,
        local or Coordinator(),
        lambda broker_id: peer,  # type: ignore[arg-type, return-value]
        loop.time,
        lambda: True,
        lambda: Retries(pause=0.02, seconds=retry_seconds),
    )


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 30))


def test_partitions_of_the_transaction_may_be_written_to() -> None:
    async def work() -> None:
        local = Coordinator(ErrorCode.NONE)
        assert await verification(local=local).errors("tx", 7, 1, [A, B], OLD) == {}
        assert local.asked == [("tx", 7, 1, [A, B], False)]
        assert await verification(local=local).errors("tx", 7, 1, [A], NEW) == {}
        assert local.asked[1:] == [("tx", 7, 1, [A], True)]

    run(work)


@pytest.mark.parametrize(
    ("code", "old", "new"),
    [
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE),
        (
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ),
    ],
)
def test_errors_are_those_that_the_client_knows(code: ErrorCode, old: ErrorCode, new: ErrorCode) -> None:
    async def work() -> None:
        asking = verification(local=Coordinator(code))
        assert await asking.errors("tx", 7, 1, [A], OLD) == {A: old}
        assert await asking.errors("tx", 7, 1, [A], NEW) == {A: new}

    run(work)


def test_no_coordinator_is_asked_about_an_empty_id() -> None:
    async def work() -> None:
        local = Coordinator(ErrorCode.NONE)
        assert await verification(local=local).errors("", 7, 1, [A], OLD) == {A: ErrorCode.INVALID_REQUEST}
        assert not local.asked

    run(work)


def test_versions_tell_what_a_client_can() -> None:
    assert [of_producer(version) for version in (10, 11, 12)] == [OLD, Abilities(False, True), NEW]
    assert [of_committer(version) for version in (3, 4, 5)] == [OLD, Abilities(False, True), NEW]


def test_a_transaction_without_a_coordinator_can_be_tried_again() -> None:
    async def work() -> None:
        expected = {A: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert await verification(None).errors("tx", 7, 1, [A], OLD) == expected

    run(work)


def test_adding_waits_for_the_end_of_the_transaction_before() -> None:
    async def work() -> None:
        busy = ErrorCode.CONCURRENT_TRANSACTIONS
        local = Coordinator(busy, busy, ErrorCode.NONE)
        assert await verification(local=local).errors("tx", 7, 1, [A, B], NEW) == {}
        assert len(local.asked) == 3

    run(work)


def test_adding_is_given_up_after_a_moment() -> None:
    async def work() -> None:
        local = Coordinator(ErrorCode.CONCURRENT_TRANSACTIONS)
        for client in (OLD, NEW):
            impatient = verification(local=local, retry_seconds=0.0)
            found = await impatient.errors("tx", 7, 1, [A], client)
            assert found == {A: ErrorCode.CONCURRENT_TRANSACTIONS}
        assert len(local.asked) == 2

    run(work)


def test_questions_that_come_during_a_request_share_the_next_one() -> None:
    async def work() -> None:
        peer = Peer(refused=["bad"])
        asking = verification(THERE, peer=peer)
        tasks = [asyncio.create_task(asking.errors("first", 7, 1, [A], OLD))]
        while not peer.requests:
            await asyncio.sleep(0)
        tasks += [
            asyncio.create_task(asking.errors(name, 7, 1, [place], OLD))
            for name, place in (("good", A), ("good", B), ("bad", A))
        ]
        await asyncio.sleep(0)
        peer.let.set()
        found = await asyncio.gather(*tasks)
        assert found == [{}, {}, {}, {A: ErrorCode.INVALID_PRODUCER_EPOCH}]
        first, second = peer.requests
        assert [each.transactional_id for each in first.transactions] == ["first"]
        assert [(each.transactional_id, each.topics[0].partitions) for each in second.transactions] == [
            ("good", [0, 1]),
            ("bad", [0]),
        ]

    run(work)


def test_two_epochs_of_a_producer_are_not_asked_about_in_one_request() -> None:
    """The request has one entry for each transactional id."""

    async def work() -> None:
        peer = Peer()
        asking = verification(THERE, peer=peer)
        tasks = [asyncio.create_task(asking.errors("tx", 7, 1, [("t", 9)], OLD))]
        while not peer.requests:
            await asyncio.sleep(0)
        tasks += [asyncio.create_task(asking.errors("tx", 7, epoch, [A], OLD)) for epoch in (1, 2, 1)]
        await asyncio.sleep(0)
        peer.let.set()
        await asyncio.gather(*tasks)
        epochs = [[each.producer_epoch for each in request.transactions] for request in peer.requests]
        assert epochs == [[1], [1], [2], [1]]

    run(work)


def test_a_coordinator_that_is_not_reached_can_be_asked_again() -> None:
    async def work() -> None:
        asking = verification(THERE, peer=Unreachable())
        for _ in range(2):
            found = await asking.errors("tx", 7, 1, [A, B], OLD)
            assert found == {A: ErrorCode.NETWORK_EXCEPTION, B: ErrorCode.NETWORK_EXCEPTION}

    run(work)


def test_nobody_waits_for_a_broker_that_stops() -> None:
    async def work() -> None:
        peer = Peer()
        asking = verification(THERE, peer=peer)
        tasks = [asyncio.create_task(asking.errors("first", 7, 1, [A], OLD))]
        while not peer.requests:
            await asyncio.sleep(0)
        tasks.append(asyncio.create_task(asking.errors("second", 7, 1, [A], OLD)))
        await asyncio.sleep(0)
        await asking.stop()
        assert await asyncio.gather(*tasks) == [{A: ErrorCode.NETWORK_EXCEPTION}] * 2

    run(work)
