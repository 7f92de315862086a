"""What is written in transactions: records, markers, and offsets of groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from differential.peer import Peer
from differential.scenario import Answers, scenario
from differential.scenarios.transaction_requests import (
    GROUP,
    LATEST,
    add_partitions,
    commit_offsets,
    end_txn,
    end_wholly,
    fetch_offsets,
    find_coordinator,
    new_producer,
    read_records,
    send_records,
    state_of,
)
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
)
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)


@scenario(ProduceRequest, first=3)
def writing_in_a_transaction(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    name, producer, epoch = new_producer(peer)
    sequence = 0
    yield "no id", send_records(peer, version, topic, None, producer, epoch)
    yield "unknown id", send_records(peer, version, topic, peer.named("nobody"), producer, epoch)
    yield "another producer", send_records(peer, version, topic, name, 777_000_020, epoch)
    yield "an older epoch", send_records(peer, version, topic, name, producer, epoch - 1)
    yield "a later epoch", send_records(peer, version, topic, name, producer, epoch + 1)
    if version < 12:
        yield "not added", send_records(peer, version, topic, name, producer, epoch)
        add_partitions(peer, 3, name, producer, epoch, {topic: [0]})
    yield "first", send_records(peer, version, topic, name, producer, epoch, 0)
    yield "second", send_records(peer, version, topic, name, producer, epoch, 1)
    yield "second again", send_records(peer, version, topic, name, producer, epoch, 1)
    yield "a gap", send_records(peer, version, topic, name, producer, epoch, 5)
    yield "outside of it", send_records(peer, version, topic, name, producer, epoch, 2, transactional=False)
    yield "open, committed only", read_records(peer, topic)
    yield "open, all", read_records(peer, topic, isolation_level=0)
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[0])])
    yield "producers", peer.call(request, 0)
    yield "aborted", end_wholly(peer, topic, name, producer, epoch, False)
    yield "aborted, committed only", read_records(peer, topic)
    yield "behind the marker", send_records(peer, version, topic, name, producer, epoch, sequence + 2)
    yield "producers after it", peer.call(request, 0)


@scenario(ProduceRequest, first=3)
def two_producers_in_one_request(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", partitions=3)
    name, producer, epoch = new_producer(peer)
    other, second, second_epoch = new_producer(peer, "other")
    for each, number, its_epoch in ((name, producer, epoch), (other, second, second_epoch)):
        add_partitions(peer, 3, each, number, its_epoch, {topic: [0, 1, 2]})

    def send(*batches: tuple[int, int, bool], at: tuple[int, ...] = (0, 1, 2), **more: Any) -> Any:
        records = {
            index: peer.batch(
                1, producer_id=number, producer_epoch=its_epoch, base_sequence=0, transactional=inside
            )
            for index, (number, its_epoch, inside) in zip(at, batches, strict=False)
        }
        return peer.produce(topic, records, version, transactional_id=name, **more)

    ours, theirs = (producer, epoch, True), (second, second_epoch, True)
    yield "two in transactions", send(ours, theirs)
    yield "a third outside", send(ours, theirs, (777_000_031, 0, False))
    yield "two epochs", send(ours, (producer, epoch + 1, True))
    yield "a partition that is not there", send(ours, theirs, ours, at=(0, 1, 9))
    yield "the other where nothing is", send(ours, theirs, at=(2, 9))
    yield "no such acks", send(ours, theirs, acks=7)
    yield "one outside of its transaction", send((producer, epoch, True), (second, second_epoch, False))
    yield "both outside", send((producer, epoch, False), (second, second_epoch, False))
    yield "the log", peer.fetch(topic, {0: 0, 1: 0}, 12, max_wait_ms=0)


@scenario(ProduceRequest, first=3)
def a_committed_transaction_among_others(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    name, producer, epoch = new_producer(peer)
    other, second, second_epoch = new_producer(peer, "other")
    peer.fill(topic, 2)
    if version < 12:
        add_partitions(peer, 3, name, producer, epoch, {topic: [0]})
        add_partitions(peer, 3, other, second, second_epoch, {topic: [0]})
    yield "one", send_records(peer, version, topic, name, producer, epoch, 0)
    yield "two", send_records(peer, version, topic, other, second, second_epoch, 0)
    peer.fill(topic, 1)
    yield "committed", end_txn(peer, 3, other, second, second_epoch, True)
    peer.until(lambda: state_of(peer, other) == "CompleteCommit", "the marker")
    yield "one open", read_records(peer, topic)
    yield "aborted", end_wholly(peer, topic, name, producer, epoch, False)
    yield "none open", read_records(peer, topic)
    yield "from the middle", peer.fetch(topic, 4, 12, max_wait_ms=0, isolation_level=1)
    for level in (0, 1):
        yield f"the end, level {level}", peer.list_offsets(topic, {0: LATEST}, 7, isolation_level=level)


def _marker(
    producer: int, epoch: int, topics: Mapping[str, list[int]], *, committed: bool = True, **more: int
) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=producer,
        producer_epoch=epoch,
        transaction_result=committed,
        topics=[WritableTxnMarkerTopic(name=n, partition_indexes=i) for n, i in topics.items()],
        **{"coordinator_epoch": 0} | more,
    )


@scenario(WriteTxnMarkersRequest)
def writing_markers(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", partitions=2)

    def write(*markers: WritableTxnMarker) -> Any:
        return peer.call(WriteTxnMarkersRequest(markers=list(markers)), version)

    yield "nothing", write()
    yield "no partitions", write(_marker(777_000_030, 0, {}))
    yield "not there", write(_marker(777_000_030, 0, {topic: [5], peer.named("nobody"): [0]}))
    yield "no transaction", write(_marker(777_000_030, 3, {topic: [0]}, coordinator_epoch=5))
    yield "an older epoch", write(_marker(777_000_030, 2, {topic: [0]}, coordinator_epoch=5))
    yield "an older coordinator", write(_marker(777_000_030, 3, {topic: [0]}, coordinator_epoch=4))
    yield "a later coordinator", write(_marker(777_000_030, 3, {topic: [0]}, coordinator_epoch=6))
    yield "a later epoch", write(_marker(777_000_030, 4, {topic: [0]}, coordinator_epoch=6))
    yield (
        "two producers",
        write(
            _marker(777_000_031, 0, {topic: [1, 0]}), _marker(777_000_032, 0, {topic: [1]}, committed=False)
        ),
    )
    yield "one twice", write(_marker(777_000_033, 0, {topic: [1]}), _marker(777_000_033, 0, {topic: [0]}))
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[0, 1])])
    yield "producers", peer.call(request, 0)
    yield "the log", read_records(peer, topic, isolation_level=0)


@scenario(WriteTxnMarkersRequest)
def markers_against_an_open_transaction(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    name, producer, epoch = new_producer(peer)
    add_partitions(peer, 3, name, producer, epoch, {topic: [0]})
    send_records(peer, 9, topic, name, producer, epoch)
    newer = {"transaction_version": 2} if version >= 2 else {}

    def write(marker: WritableTxnMarker) -> Any:
        return peer.call(WriteTxnMarkersRequest(markers=[marker]), version)

    yield "an older epoch", write(_marker(producer, epoch - 1, {topic: [0]}, coordinator_epoch=9))
    if newer:
        same = _marker(producer, epoch, {topic: [0]}, coordinator_epoch=9, committed=False, **newer)
        yield "the same epoch, version 2", write(same)
        later = _marker(producer, epoch + 1, {topic: [0]}, coordinator_epoch=9, committed=False, **newer)
        yield "the next epoch, version 2", write(later)
    else:
        yield "aborts it", write(_marker(producer, epoch, {topic: [0]}, coordinator_epoch=9, committed=False))
    yield "what is left", read_records(peer, topic)
    yield "the log", read_records(peer, topic, isolation_level=0)


@scenario(TxnOffsetCommitRequest)
def committing_offsets(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", partitions=2)
    name, producer, epoch = new_producer(peer)
    group = peer.named("g")
    find_coordinator(peer, group, GROUP)
    # Kafka names a coordinator before it is one.
    peer.until(lambda: not fetch_offsets(peer, group, topic, stable=False).groups[0].error_code, "the group")
    offsets = {topic: {0: 5, 1: 6}}

    def commit(transactional_id: str, producer_id: int, producer_epoch: int, **more: Any) -> Any:
        return commit_offsets(
            peer,
            version,
            transactional_id,
            more.pop("group", group),
            producer_id,
            producer_epoch,
            more.pop("offsets", offsets),
            **more,
        )

    yield "unknown id", commit(peer.named("nobody"), producer, epoch)
    yield "an empty id", commit("", producer, epoch)
    yield "another producer", commit(name, 777_000_020, epoch)
    yield "an older epoch", commit(name, producer, epoch - 1)
    yield "a later epoch", commit(name, producer, epoch + 1)
    if version < 5:
        yield "not added", commit(name, producer, epoch)
        request = AddOffsetsToTxnRequest(
            transactional_id=name, producer_id=producer, producer_epoch=epoch, group_id=group
        )
        yield "added", peer.call(request, 3)
    yield "nothing", commit(name, producer, epoch, offsets={})
    yield "not there", commit(name, producer, epoch, offsets={peer.named("no"): {0: 1}, topic: {0: 4, 9: 1}})
    yield "an empty group", commit(name, producer, epoch, group="")
    yield "committed", commit(name, producer, epoch)
    yield "no metadata", commit(name, producer, epoch, metadata=None)
    yield "too much metadata", commit(name, producer, epoch, metadata="m" * 5000)
    if version >= 3:
        yield "a generation", commit(name, producer, epoch, generation_id=1)
        yield "a member", commit(name, producer, epoch, member_id="nobody")
        yield "a static member", commit(name, producer, epoch, group_instance_id="nobody")
        other = peer.named("g")
        yield "no such group", commit(name, producer, epoch, group=other, generation_id=3, member_id="x")
    for stable in (False, True):
        yield f"pending, stable {stable}", fetch_offsets(peer, group, topic, stable=stable)
    yield "ended", end_txn(peer, 3, name, producer, epoch, True)
    peer.until(lambda: state_of(peer, name) == "CompleteCommit", "the marker")
    for stable in (False, True):
        yield f"ended, stable {stable}", fetch_offsets(peer, group, topic, stable=stable)
    yield "after the end", commit(name, producer, epoch)
