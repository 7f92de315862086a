"""Requests of a producer of transactions, for the scenarios about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from differential.peer import Peer
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

GROUP, TRANSACTION = 0, 1
CONCURRENT_TRANSACTIONS = 51
OFFSETS = "__consumer_offsets"
LATEST = -1


def find_coordinator(peer: Peer, key: str, kind: int = TRANSACTION) -> None:
    request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
    peer.until(lambda: not peer.call(request, 4).coordinators[0].error_code, "a coordinator")


def init_producer(peer: Peer, name: str, version: int = 4, timeout_ms: int = 60_000, **known: int) -> Any:
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms, **known)
    answer = peer.call(request, version)
    if answer.producer_id >= 0 and answer.producer_id not in peer.producer_ids:
        peer.producer_ids.append(answer.producer_id)
    return answer


def new_producer(peer: Peer, short: str = "tx") -> tuple[str, int, int]:
    """A transactional id with its producer, ready to begin a transaction."""
    name = peer.named(short)
    find_coordinator(peer, name)
    peer.until(lambda: not init_producer(peer, name).error_code, "a producer id")
    answer = init_producer(peer, name)
    return name, answer.producer_id, answer.producer_epoch


def txn_topics(partitions: Mapping[str, list[int]]) -> list[AddPartitionsToTxnTopic]:
    return [AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in partitions.items()]


def add_partitions(
    peer: Peer, version: int, name: str, producer: int, epoch: int, partitions: Mapping[str, list[int]]
) -> Any:
    """As clients add partitions, again while an earlier transaction is being ended."""
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=txn_topics(partitions),
    )

    def busy(answer: Any) -> bool:
        return any(
            each.partition_error_code == CONCURRENT_TRANSACTIONS
            for topic in answer.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        )

    answers = [peer.call(request, version)]

    def settled() -> bool:
        if busy(answers[-1]):
            answers.append(peer.call(request, version))
        return not busy(answers[-1])

    peer.until(settled, "the end of an earlier transaction")
    return answers[-1]


def ask_to_add(
    peer: Peer,
    version: int,
    *transactions: tuple[str, int, int, bool, Mapping[str, list[int]]],
) -> Any:
    """As brokers add or verify partitions."""
    return peer.call(
        AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=name,
                    producer_id=producer,
                    producer_epoch=epoch,
                    verify_only=verify,
                    topics=txn_topics(partitions),
                )
                for name, producer, epoch, verify, partitions in transactions
            ]
        ),
        version,
    )


def send_records(
    peer: Peer,
    version: int,
    topic: str,
    name: str | None,
    producer: int,
    epoch: int,
    sequence: int = 0,
    partition: int = 0,
    **batch: Any,
) -> Any:
    settings = {"transactional": True, "base_sequence": sequence} | batch
    records = peer.batch(1, producer_id=producer, producer_epoch=epoch, **settings)
    return peer.produce(topic, {partition: records}, version, transactional_id=name)


def end_txn(peer: Peer, version: int, name: str, producer: int, epoch: int, committed: bool) -> Any:
    request = EndTxnRequest(
        transactional_id=name, producer_id=producer, producer_epoch=epoch, committed=committed
    )
    return peer.call(request, version)


def end_wholly(peer: Peer, topic: str, name: str, producer: int, epoch: int, committed: bool) -> Any:
    """End a transaction of partition 0 of a topic, and wait for the marker."""

    def stable() -> int:
        answer = peer.list_offsets(topic, {0: LATEST}, 7, isolation_level=1)
        return int(answer.topics[0].partitions[0].offset)

    def end() -> int:
        return int(peer.list_offsets(topic, {0: LATEST}, 7).topics[0].partitions[0].offset)

    answer = end_txn(peer, 3, name, producer, epoch, committed)
    peer.until(lambda: stable() == end(), "the marker")
    peer.until(lambda: state_of(peer, name).startswith("Complete"), "the end of the transaction")
    return answer


def read_records(peer: Peer, topic: str, *, isolation_level: int = 1) -> Any:
    return peer.fetch(topic, 0, 12, max_wait_ms=0, isolation_level=isolation_level)


def commit_offsets(
    peer: Peer,
    version: int,
    name: str,
    group: str,
    producer: int,
    epoch: int,
    offsets: Mapping[str, Mapping[int, int]],
    metadata: str | None = "m",
    **member: Any,
) -> Any:
    return peer.call(
        TxnOffsetCommitRequest(
            transactional_id=name,
            group_id=group,
            producer_id=producer,
            producer_epoch=epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=index, committed_offset=offset, committed_metadata=metadata
                        )
                        for index, offset in partitions.items()
                    ],
                )
                for topic, partitions in offsets.items()
            ],
            **member,
        ),
        version,
    )


def fetch_offsets(peer: Peer, group: str, topic: str, *, stable: bool) -> Any:
    topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0, 1])]
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=stable
    )
    return peer.call(request, 9)


def state_of(peer: Peer, name: str) -> str:
    request = DescribeTransactionsRequest(transactional_ids=[name])
    (state,) = peer.call(request, 0).transaction_states
    return str(state.transaction_state)
