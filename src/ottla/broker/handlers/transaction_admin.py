"""DescribeTransactions (65) and ListTransactions (66): transactions as an administrator sees them.

A broker answers for the transactional ids that it coordinates; tools ask all brokers, or the right one. All
answers show committed state.

Version notes. ListTransactions filters by duration since 1 (KIP-994), and by a regular expression, which must
match the whole id, since 2 (KIP-1152). An id that has no open transaction has no beginning, so it counts as
older than any duration, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from ottla.broker.dispatch import RequestContext
from ottla.broker.group_requests import collected
from ottla.broker.portions import in_portions
from ottla.broker.ports import Time, TransactionAccess
from ottla.broker.request_scheduler import Steps
from ottla.completion import Completion
from ottla.coordinator.re2_syntax import InvalidExpression
from ottla.coordinator.regex_subscriptions import compiled
from ottla.coordinator.runtime.effects import Reply
from ottla.coordinator.transactions.shard import TransactionEffects, TransactionShard
from ottla.coordinator.transactions.transaction import Transaction, TransactionState
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages import describe_transactions as describing
from ottla.protocol.messages import list_transactions as listing

_STATES: dict[str, TransactionState | None] = {
    **{state.text: state for state in TransactionState},
    "PrepareEpochFence": None,
}
"""The names that a filter may contain. The last one is a state of Kafka that is never seen here."""
_AT_A_TIME = 500
_MATCHED_AT_A_TIME = 20
_DESCRIBED_AT_A_TIME = 100


class TransactionDescription(Time, TransactionAccess, Protocol):
    """A duration is measured with the clock."""


def describe_transactions(
    broker: TransactionDescription,
    request: describing.DescribeTransactionsRequest,
    context: RequestContext,
) -> Steps[Any]:
    wanted = list(dict.fromkeys(request.transactional_ids))

    def outcomes() -> Iterator[tuple[Completion[Any], Callable[[ApiError], Any]]]:
        for transactional_id in wanted:
            if transactional_id:
                yield broker.transactions.describe(transactional_id), _code
            else:
                yield Completion.failed(ApiError(ErrorCode.INVALID_REQUEST)), _code

    def finish(found: list[Transaction | ErrorCode]) -> Steps[describing.DescribeTransactionsResponse]:
        response = describing.DescribeTransactionsResponse()
        for number, (name, each) in enumerate(zip(wanted, found, strict=True), 1):
            response.transaction_states.append(
                describing.TransactionState(transactional_id=name, error_code=each)
                if isinstance(each, ErrorCode)
                else _described(broker, each)
            )
            if not number % _DESCRIBED_AT_A_TIME:
                yield
        return response

    return collected(outcomes(), finish)


def _code(error: ApiError) -> ErrorCode:
    """Not the error itself: with its traceback it takes much memory, and there may be 100,000."""
    return error.code


def _described(broker: TransactionDescription, transaction: Transaction) -> describing.TransactionState:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(broker.transactions.unmarked(transaction)):
        topics.setdefault(topic, []).append(index)
    return describing.TransactionState(
        transactional_id=transaction.transactional_id,
        transaction_state=transaction.state.text,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.start_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[describing.TopicData(topic=name, partitions=indexes) for name, indexes in topics.items()],
    )


def list_transactions(
    broker: TransactionDescription, request: listing.ListTransactionsRequest, context: RequestContext
) -> Steps[Any]:
    unknown = [each for each in request.state_filters if each not in _STATES]
    states = {_STATES[each] for each in request.state_filters if each in _STATES}
    producers = frozenset(request.producer_id_filters)
    at_a_time = _MATCHED_AT_A_TIME if request.transactional_id_pattern else _AT_A_TIME
    newest_start = broker.clock.now_ms() - request.duration_filter
    try:
        matches = _matcher(request.transactional_id_pattern)
        shards = broker.transactions.all_shards()
    except ApiError as error:
        return listing.ListTransactionsResponse(error_code=error.code)

    def is_wanted(transaction: Transaction) -> bool:
        return (
            (not producers or transaction.producer_id in producers)
            and (not request.state_filters or transaction.state in states)
            and (request.duration_filter < 0 or transaction.start_ms < newest_start)
            and matches(transaction.transactional_id)
        )

    def listed(ids: Sequence[str]) -> Callable[[TransactionShard, Reply, TransactionEffects], None]:
        def command(state: TransactionShard, reply: Reply, effects: TransactionEffects) -> None:
            present = [found for each in ids if (found := state.get(each)) is not None]
            effects.answer(
                reply,
                [
                    listing.TransactionState(
                        transactional_id=each.transactional_id,
                        producer_id=each.producer_id,
                        transaction_state=each.state.text,
                    )
                    for each in present
                    if is_wanted(each)
                ],
            )

        return command

    def outcomes() -> Iterator[tuple[Completion[Any], Callable[[ApiError], Any]]]:
        for shard in shards:
            for some in in_portions(shard.state.ids(), at_a_time):
                yield shard.run(listed(some)), lambda error: error

    def finish(answers: list[list[listing.TransactionState] | ApiError]) -> listing.ListTransactionsResponse:
        response = listing.ListTransactionsResponse(unknown_state_filters=unknown)
        for answer in answers:
            if not isinstance(answer, ApiError):
                response.transaction_states += answer
            elif answer.code is not ErrorCode.NOT_COORDINATOR:  # those are listed by another broker now
                return listing.ListTransactionsResponse(error_code=answer.code)
        return response

    return (yield from collected(outcomes(), finish))


def _matcher(pattern: str | None) -> Callable[[str], bool]:
    if not pattern:
        return lambda _: True
    try:
        return compiled(pattern).matches
    except InvalidExpression as error:
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error
