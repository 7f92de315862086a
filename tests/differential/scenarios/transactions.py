"""Transactions: their coordinator, and what it answers to their producers and to tools."""

from __future__ import annotations

from typing import Any

from differential.peer import Peer
from differential.scenario import Answers, scenario
from differential.scenarios.transaction_requests import (
    GROUP,
    TRANSACTION,
    add_partitions,
    ask_to_add,
    end_txn,
    end_wholly,
    find_coordinator,
    init_producer,
    new_producer,
    read_records,
    state_of,
)
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
)
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_transactions import ListTransactionsRequest


@scenario(FindCoordinatorRequest)
def finding_the_coordinator_of_a_transaction(peer: Peer, version: int) -> Answers:
    name = peer.named("tx")
    find_coordinator(peer, name)
    request = FindCoordinatorRequest(key=name, key_type=TRANSACTION, coordinator_keys=[name, ""])
    if version > 0:
        yield "one", peer.call(request, version)


@scenario(InitProducerIdRequest)
def asking_for_a_transactional_producer(peer: Peer, version: int) -> Answers:
    name = peer.named("tx")
    find_coordinator(peer, name)
    peer.producer_id()
    for timeout in (0, -1, 900_001, 0x7FFFFFFF):
        yield f"timeout {timeout}", init_producer(peer, name, version, timeout)
    peer.until(lambda: not init_producer(peer, peer.named("warm")).error_code, "a producer id")
    first = init_producer(peer, name, version)
    yield "first", first
    yield "second", init_producer(peer, name, version)
    if version >= 3:
        known = {"producer_id": first.producer_id, "producer_epoch": first.producer_epoch + 1}
        yield "with the last epoch", init_producer(peer, name, version, **known)
        yield "with an older epoch", init_producer(peer, name, version, **known)
        known["producer_epoch"] += 50
        yield "with a later epoch", init_producer(peer, name, version, **known)
        known["producer_id"] = 777_000_020
        yield "with another id", init_producer(peer, name, version, **known)
        yield "half known", init_producer(peer, name, version, producer_id=first.producer_id)


@scenario(AddPartitionsToTxnRequest)
def adding_partitions(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", partitions=2)
    name, producer, epoch = new_producer(peer)
    both = {topic: [0, 1]}
    if version <= 3:
        yield "unknown id", add_partitions(peer, version, peer.named("nobody"), producer, epoch, both)
        yield "an empty id", add_partitions(peer, version, "", producer, epoch, both)
        yield "another producer", add_partitions(peer, version, name, 777_000_020, epoch, both)
        yield "an older epoch", add_partitions(peer, version, name, producer, epoch - 1, both)
        yield "a later epoch", add_partitions(peer, version, name, producer, epoch + 1, both)
        yield (
            "a partition that is not there",
            add_partitions(peer, version, name, producer, epoch, {topic: [0, 7]}),
        )
        yield (
            "a topic that is not there",
            add_partitions(peer, version, name, producer, epoch, {peer.named("no"): [0]}),
        )
        yield "both", add_partitions(peer, version, name, producer, epoch, both)
        yield "both again", add_partitions(peer, version, name, producer, epoch, both)
        yield "nothing", add_partitions(peer, version, name, producer, epoch, {})
        return
    yield "unknown id", ask_to_add(peer, version, (peer.named("nobody"), producer, epoch, True, both))
    yield "verify before", ask_to_add(peer, version, (name, producer, epoch, True, both))
    yield "another producer", ask_to_add(peer, version, (name, 777_000_020, epoch, True, both))
    yield "an older epoch", ask_to_add(peer, version, (name, producer, epoch - 1, True, both))
    yield "a later epoch", ask_to_add(peer, version, (name, producer, epoch + 1, True, both))
    yield "add one", ask_to_add(peer, version, (name, producer, epoch, False, {topic: [0]}))
    yield "verify both", ask_to_add(peer, version, (name, producer, epoch, True, both))
    yield "add not there", ask_to_add(peer, version, (name, producer, epoch, False, {peer.named("no"): [0]}))
    yield "add to an unknown id", ask_to_add(peer, version, (peer.named("no"), producer, epoch, False, both))


@scenario(AddOffsetsToTxnRequest)
def adding_offsets(peer: Peer, version: int) -> Answers:
    name, producer, epoch = new_producer(peer)
    group = peer.named("g")
    find_coordinator(peer, group, GROUP)

    def add(transactional_id: str, producer_id: int, producer_epoch: int, group_id: str = group) -> Any:
        return peer.call(
            AddOffsetsToTxnRequest(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                group_id=group_id,
            ),
            version,
        )

    yield "unknown id", add(peer.named("nobody"), producer, epoch)
    yield "an empty id", add("", producer, epoch)
    yield "another producer", add(name, 777_000_020, epoch)
    yield "an older epoch", add(name, producer, epoch - 1)
    yield "a later epoch", add(name, producer, epoch + 1)
    yield "right", add(name, producer, epoch)
    yield "again", add(name, producer, epoch)
    yield "an empty group", add(name, producer, epoch, "")


@scenario(EndTxnRequest)
def ending(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    name, producer, epoch = new_producer(peer)
    yield "unknown id", end_txn(peer, version, peer.named("nobody"), producer, epoch, True)
    yield "an empty id", end_txn(peer, version, "", producer, epoch, True)
    yield "another producer", end_txn(peer, version, name, 777_000_020, epoch, True)
    yield "an older epoch", end_txn(peer, version, name, producer, epoch - 1, True)
    yield "a later epoch", end_txn(peer, version, name, producer, epoch + 1, True)
    yield "nothing to commit", end_txn(peer, version, name, producer, epoch, True)
    if version < 5:
        yield "nothing to abort", end_txn(peer, version, name, producer, epoch, False)
        for committed in (True, False):
            add_partitions(peer, 3, name, producer, epoch, {topic: [0]})
            yield "ended", end_wholly(peer, topic, name, producer, epoch, committed)
            yield "again", end_txn(peer, version, name, producer, epoch, committed)
            yield "the other way", end_txn(peer, version, name, producer, epoch, not committed)
    else:
        answer = end_txn(peer, version, name, producer, epoch, False)
        yield "nothing to abort", answer
        epoch = max(answer.producer_epoch, epoch)
        for committed in (True, False):
            added = add_partitions(peer, 3, name, producer, epoch, {topic: [0]})
            yield "added", added
            answer = end_txn(peer, version, name, producer, epoch, committed)
            yield "ended", answer
            epoch = max(answer.producer_epoch, epoch)
            peer.until(lambda: state_of(peer, name).startswith("Complete"), "the end of the transaction")
    yield "the log", read_records(peer, topic, isolation_level=0)


@scenario(DescribeTransactionsRequest)
def describing_transactions(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", partitions=2)
    name, producer, epoch = new_producer(peer)

    def describe(*names: str) -> Any:
        answer = peer.call(DescribeTransactionsRequest(transactional_ids=list(names)), version)
        for state in answer.transaction_states:
            state.transaction_start_time_ms = min(state.transaction_start_time_ms, 1)
        return answer

    yield "unknown", describe(peer.named("nobody"), "")
    yield "empty", describe(name)
    add_partitions(peer, 3, name, producer, epoch, {topic: [0]})
    yield "open", describe(name)
    end_txn(peer, 3, name, producer, epoch, True)
    peer.until(lambda: state_of(peer, name) == "CompleteCommit", "the marker")
    yield "complete", describe(name)


@scenario(ListTransactionsRequest)
def listing_transactions(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    name, producer, epoch = new_producer(peer)
    add_partitions(peer, 3, name, producer, epoch, {topic: [0]})

    def list_(**filters: Any) -> Any:
        answer = peer.call(ListTransactionsRequest(**filters), version)
        mine = [each for each in answer.transaction_states if each.transactional_id.startswith(peer.prefix)]
        return answer.error_code, sorted(answer.unknown_state_filters), mine

    yield "all", list_()
    yield "of a state", list_(state_filters=["Ongoing"])
    yield "of another state", list_(state_filters=["Empty", "no such state"])
    yield "of a producer", list_(producer_id_filters=[producer])
    yield "of another producer", list_(producer_id_filters=[777_000_020])
    if version >= 1:
        yield "running long", list_(duration_filter=3_600_000)
        yield "running at all", list_(duration_filter=0)
    if version >= 2:
        yield "by pattern", list_(transactional_id_pattern=f"{peer.prefix}.*")
        yield "by another pattern", list_(transactional_id_pattern="nobody.*")
        yield "by a bad pattern", list_(transactional_id_pattern="(")
