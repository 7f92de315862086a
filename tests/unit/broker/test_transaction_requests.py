"""Requests about transactions that name very much are answered in small steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.handlers.transaction_admin import describe_transactions
from ottla.broker.handlers.transactions import add_partitions_to_txn
from ottla.cluster.image import ClusterImage
from ottla.completion import Completion
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest

MANY = 20_000


def carried_out(work: Any) -> tuple[Any, int]:
    """The response, and how many steps led to it."""
    steps = 0
    while True:
        try:
            next(work)
        except StopIteration as finished:
            if not hasattr(finished.value, "__next__"):
                return finished.value, steps
            work = finished.value
        steps += 1


@pytest.mark.parametrize("version", [3, 5])
def test_many_partitions_that_do_not_exist_are_refused_in_steps(version: int) -> None:
    image = ClusterImage.of(version=1, cluster_id="c", controller_id=1, brokers={}, topics={}, configs={})
    topics = [AddPartitionsToTxnTopic(name="gone", partitions=list(range(MANY)))]
    request = AddPartitionsToTxnRequest()
    if version == 3:
        request.v3_and_below_transactional_id, request.v3_and_below_topics = "tx", topics
    else:
        request.transactions = [AddPartitionsToTxnTransaction(transactional_id="tx", topics=topics)]
    broker, context = SimpleNamespace(image=image), SimpleNamespace(version=version)
    response, steps = carried_out(add_partitions_to_txn(cast(Any, broker), request, cast(Any, context)))
    (topic,) = (
        response.results_by_topic_v3_and_below
        if version == 3
        else response.results_by_transaction[0].topic_results
    )
    codes = {each.partition_error_code for each in topic.results_by_partition}
    assert (len(topic.results_by_partition), codes) == (MANY, {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    assert steps >= 100


def test_no_error_is_kept_for_each_id_that_is_described() -> None:
    """An exception holds on to its traceback: 100,000 of them are hundreds of megabytes."""
    counted = 0

    class CountedApiError(ApiError):
        def __init__(self) -> None:
            nonlocal counted
            super().__init__(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
            counted += 1

        def __del__(self) -> None:
            nonlocal counted
            counted -= 1

    broker = SimpleNamespace(
        transactions=SimpleNamespace(describe=lambda _: Completion.failed(CountedApiError()))
    )
    request = DescribeTransactionsRequest(transactional_ids=[f"tx-{n}" for n in range(1000)])
    work = describe_transactions(cast(Any, broker), request, cast(Any, None))
    most = 0
    for _ in range(900):
        next(work)
        most = max(most, counted)
    assert most <= 2
    response, _ = carried_out(work)
    assert {each.error_code for each in response.transaction_states} == {ErrorCode.TRANSACTIONAL_ID_NOT_FOUND}
    assert len(response.transaction_states) == 1000


def test_the_answers_about_many_transactions_are_put_together_in_steps() -> None:
    image = ClusterImage.of(version=1, cluster_id="c", controller_id=1, brokers={}, topics={}, configs={})
    topics = [AddPartitionsToTxnTopic(name="gone", partitions=[0])]
    names = [f"tx-{number}" for number in range(2000)]
    request = AddPartitionsToTxnRequest(
        transactions=[AddPartitionsToTxnTransaction(transactional_id=name, topics=topics) for name in names]
    )
    broker, context = SimpleNamespace(image=image), SimpleNamespace(version=5)
    work = add_partitions_to_txn(cast(Any, broker), request, cast(Any, context))
    while True:
        try:
            next(work)
        except StopIteration as finished:
            response, steps = carried_out(finished.value)
            break
    assert [each.transactional_id for each in response.results_by_transaction] == names
    assert steps >= 20
