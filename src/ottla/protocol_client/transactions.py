"""Questions and orders about transactions, as plain functions over `Wire`.

A transaction is known in two places: to its coordinator, by its transactional id, and to the leaders of its
partitions, by the id of its producer. One that a leader has open and no coordinator knows is hanging: nobody
will end it, and readers of committed records do not get past it. Old clients could leave such ones behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol_client.groups import TRANSACTION, Place, ask, ask_every_broker, coordinator
from ottla.protocol_client.wire import Patience, Wire, check

_PARTITIONS_AT_A_TIME = 500
_WITHOUT_TRANSACTION = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")
_FIRST_PROTOCOL = 1
"""The version of WriteTxnMarkers in which a marker may have the epoch of the transaction that it ends."""


class ListedTransaction(NamedTuple):
    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


class TransactionDescription(NamedTuple):
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    began_ms: int
    """-1 if none is open."""
    partitions: tuple[Place, ...]
    """Those that still need a marker."""
    coordinator: int


class OpenTransaction(NamedTuple):
    """As the leader of a partition knows it."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_ms: int
    """When its producer wrote last."""


def list_transactions(
    wire: Wire, states: Iterable[str] = (), longer_than_ms: int = -1, producer_ids: Iterable[int] = ()
) -> list[ListedTransaction]:
    """The transactional ids of all brokers, by name. `longer_than_ms` leaves those that run for longer."""
    request = ListTransactionsRequest(
        state_filters=list(states), producer_id_filters=list(producer_ids), duration_filter=longer_than_ms
    )
    found: dict[str, ListedTransaction] = {}
    response: ListTransactionsResponse
    for node, response in ask_every_broker(wire, request):
        if response.unknown_state_filters:
            raise ValueError(f"there is no state {', '.join(response.unknown_state_filters)}")
        for each in response.transaction_states:
            if longer_than_ms >= 0 and each.transaction_state in _WITHOUT_TRANSACTION:
                continue  # brokers count from the beginning of time
            found[each.transactional_id] = ListedTransaction(
                each.transactional_id, each.transaction_state, each.producer_id, node
            )
    return sorted(found.values())


def describe_transaction(wire: Wire, transactional_id: str) -> TransactionDescription:
    """ApiError(TRANSACTIONAL_ID_NOT_FOUND) when there is no such id."""

    def answer(response: Any) -> Any:
        (state,) = response.transaction_states
        check(state.error_code)
        return state

    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    found = ask(wire, transactional_id, request, answer, kind=TRANSACTION)
    return TransactionDescription(
        transactional_id,
        found.transaction_state,
        found.producer_id,
        found.producer_epoch,
        found.transaction_timeout_ms,
        found.transaction_start_time_ms,
        tuple(sorted((topic.topic, index) for topic in found.topics for index in topic.partitions)),
        coordinator(wire, transactional_id, TRANSACTION),
    )


def abort_transaction(wire: Wire, transactional_id: str, timeout_ms: int) -> None:
    """Take over the transactional id: its open transaction is aborted and its producer fenced."""

    def answer(response: Any) -> None:
        check(response.error_code)

    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    ask(wire, transactional_id, request, answer, kind=TRANSACTION)


# -- as the leaders of partitions know them ---------------------------------------------------------------


def open_transactions(wire: Wire, topics: Iterable[str] | None = None) -> list[OpenTransaction]:
    """All that leaders have open, of these topics or of all."""
    by_leader: dict[int, list[Place]] = {}
    for topic in wire.metadata(topics).topics:
        check(topic.error_code)
        for partition in topic.partitions:
            if partition.leader_id >= 0:
                place = topic.name or "", partition.partition_index
                by_leader.setdefault(partition.leader_id, []).append(place)
    found: list[OpenTransaction] = []
    for leader, places in by_leader.items():
        for start in range(0, len(places), _PARTITIONS_AT_A_TIME):
            found += _open_at(wire, leader, places[start : start + _PARTITIONS_AT_A_TIME])
    return sorted(found)


def _open_at(wire: Wire, leader: int, places: Iterable[Place]) -> list[OpenTransaction]:
    by_topic: dict[str, list[int]] = {}
    for topic, index in places:
        by_topic.setdefault(topic, []).append(index)
    request = DescribeProducersRequest(
        topics=[TopicRequest(name=name, partition_indexes=indexes) for name, indexes in by_topic.items()]
    )
    response: DescribeProducersResponse = wire.call(request, node=leader)
    return [
        OpenTransaction(
            answer.name,
            partition.partition_index,
            each.producer_id,
            each.producer_epoch,
            each.coordinator_epoch,
            each.current_txn_start_offset,
            each.last_timestamp,
        )
        for answer in response.topics
        for partition in answer.partitions
        for each in partition.active_producers
        if each.current_txn_start_offset >= 0
    ]


def hanging_transactions(
    wire: Wire, topics: Iterable[str] | None = None, *, silent_since_ms: int
) -> list[OpenTransaction]:
    """Those that no coordinator will end, among the ones whose producers wrote nothing after that time."""
    silent = [each for each in open_transactions(wire, topics) if each.last_ms <= silent_since_ms]
    if not silent:
        return []
    producers = {each.producer_id for each in silent}
    known = {
        each.producer_id: each.transactional_id
        for each in list_transactions(wire, producer_ids=sorted(producers))
    }
    awaited: dict[int, tuple[Place, ...]] = {}
    for producer_id, transactional_id in known.items():
        try:
            awaited[producer_id] = describe_transaction(wire, transactional_id).partitions
        except ApiError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
    return [each for each in silent if (each.topic, each.partition) not in awaited.get(each.producer_id, ())]


def abort_open(wire: Wire, transaction: OpenTransaction) -> None:
    """Have the leader of its partition end a transaction, in place of a coordinator."""
    topic = WritableTxnMarkerTopic(name=transaction.topic, partition_indexes=[transaction.partition])
    marker = WritableTxnMarker(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_result=False,
        topics=[topic],
        coordinator_epoch=max(transaction.coordinator_epoch, 0),
    )
    request = WriteTxnMarkersRequest(markers=[marker])
    patience = Patience(wire.request_timeout)
    while True:
        found = wire.topic(transaction.topic).partitions
        leader = next(each.leader_id for each in found if each.partition_index == transaction.partition)
        try:
            check(ErrorCode.LEADER_NOT_AVAILABLE if leader < 0 else ErrorCode.NONE)
            response: WriteTxnMarkersResponse = wire.call(request, _FIRST_PROTOCOL, leader)
            check(response.markers[0].topics[0].partitions[0].error_code)
            return
        except ApiError as error:
            patience.pause(error)
