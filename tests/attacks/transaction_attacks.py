"""Requests about transactions with as many entries as fit, and producers that are invented.

Brokers ask each other about many transactions at a time (AddPartitionsToTxn since version 4), and tools about
all that there are. Any client can send the same.
"""

from __future__ import annotations

import time

from attacks.attack import MB, Target, attack
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_TOPIC = "many"
_TRANSACTION = 1
_NOT_FOUND = 105
_AT_A_TIME = 200
_IDS = 2_000


def prepare(target: Target) -> None:
    target.create_topic(_TOPIC)
    deadline = time.monotonic() + 60
    with target.client() as client:
        while (
            client.call(FindCoordinatorRequest(key_type=_TRANSACTION, coordinator_keys=["x"]), 4)
            .coordinators[0]
            .error_code
        ):
            assert time.monotonic() < deadline, "transactions have no coordinator"


def producers(target: Target, ids: list[str]) -> list[InitProducerIdResponse]:
    """One for each transactional id."""
    found = []
    with target.client() as client:
        for start in range(0, len(ids), _AT_A_TIME):
            some = ids[start : start + _AT_A_TIME]
            for each in some:
                request = InitProducerIdRequest(transactional_id=each, transaction_timeout_ms=60_000)
                client.send(request, 4)
            found += [client.receive() for _ in some]
    assert not any(each.error_code for each in found), found[0]
    return found


def addition(
    name: str, producer_id: int, producer_epoch: int, *, verify_only: bool
) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        transactional_id=name,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        verify_only=verify_only,
        topics=[AddPartitionsToTxnTopic(name=_TOPIC, partitions=[0])],
    )


@attack("AddPartitionsToTxn for 20,000 invented transactions", memory=128 * MB, prepare=prepare)
def add_to_many_invented_transactions(target: Target) -> None:
    transactions = [addition(f"invented-{n}", n, 0, verify_only=bool(n % 2)) for n in range(20_000)]
    with target.client() as client:
        answer = client.call(AddPartitionsToTxnRequest(transactions=transactions), 5)
    assert len(answer.results_by_transaction) == 20_000


@attack(f"AddPartitionsToTxn for {_IDS:,} transactions", memory=128 * MB, prepare=prepare)
def add_to_many_transactions(target: Target) -> None:
    names = [f"real-{number}" for number in range(_IDS)]
    transactions = [
        addition(name, each.producer_id, each.producer_epoch, verify_only=False)
        for name, each in zip(names, producers(target, names), strict=True)
    ]
    with target.client() as client:
        answer = client.call(AddPartitionsToTxnRequest(transactions=transactions), 5)
        codes = {
            each.partition_error_code
            for transaction in answer.results_by_transaction
            for topic in transaction.topic_results
            for each in topic.results_by_partition
        }
        assert codes == {0}
        described = client.call(DescribeTransactionsRequest(transactional_ids=names), 0)
    assert {each.transaction_state for each in described.transaction_states} == {"Ongoing"}


@attack("DescribeTransactions of 100,000 invented ids", memory=128 * MB, prepare=prepare)
def describe_many_invented_transactions(target: Target) -> None:
    names = [f"invented-{number}" for number in range(100_000)]
    with target.client() as client:
        answer = client.call(DescribeTransactionsRequest(transactional_ids=names), 0)
    assert {each.error_code for each in answer.transaction_states} == {_NOT_FOUND}
