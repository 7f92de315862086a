"""Transactions: their coordinator, the leaders of their partitions, and offsets committed in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from differential.peer import Peer
from differential.scenario import Answers, scenario
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_transactions import ListTransactionsRequest
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

GROUP, TRANSACTION = 0, 1
CONCURRENT_TRANSACTIONS = 51
OFFSETS = "__consumer_offsets"
LATEST = -1


# -- requests ---------------------------------------------------------------------------------------------


def _find(peer: Peer, key: str, kind: int = TRANSACTION) -> None:
    request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
    peer.until(lambda: not peer.call(request, 4).coordinators[0].error_code, "a coordinator")


def _init(peer: Peer, name: str, version: int = 4, timeout_ms: int = 60_000, **known: int) -> Any:
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms, **known)
    answer = peer.call(request, version)
    if answer.producer_id >= 0 and answer.producer_id not in peer.producer_ids:
        peer.producer_ids.append(answer.producer_id)
    return answer


def _producer(peer: Peer, short: str = "tx") -> tuple[str, int, int]:
    """A transactional id with its producer, ready to begin a transaction."""
    name = peer.named(short)
    _find(peer, name)
    peer.until(lambda: not _init(peer, name).error_code, "a producer id")
    answer = _init(peer, name)
    return name, answer.producer_id, answer.producer_epoch


def _topics(partitions: Mapping[str, list[int]]) -> list[AddPartitionsToTxnTopic]:
    return [AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in partitions.items()]


def _add(
    peer: Peer, version: int, name: str, producer: int, epoch: int, partitions: Mapping[str, list[int]]
) -> Any:
    """As clients add partitions, again while an earlier transaction is being ended."""
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=_topics(partitions),
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


def _ask(
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
                    topics=_topics(partitions),
                )
                for name, producer, epoch, verify, partitions in transactions
            ]
        ),
        version,
    )


def _send(
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


def _end(peer: Peer, version: int, name: str, producer: int, epoch: int, committed: bool) -> Any:
    request = EndTxnRequest(
        transactional_id=name, producer_id=producer, producer_epoch=epoch, committed=committed
    )
    return peer.call(request, version)


def _end_wholly(peer: Peer, topic: str, name: str, producer: int, epoch: int, committed: bool) -> Any:
    """End a transaction of partition 0 of a topic, and wait for the marker."""

    def stable() -> int:
        answer = peer.list_offsets(topic, {0: LATEST}, 7, isolation_level=1)
        return int(answer.topics[0].partitions[0].offset)

    def end() -> int:
        return int(peer.list_offsets(topic, {0: LATEST}, 7).topics[0].partitions[0].offset)

    answer = _end(peer, 3, name, producer, epoch, committed)
    peer.until(lambda: stable() == end(), "the marker")
    peer.until(lambda: _state(peer, name).startswith("Complete"), "the end of the transaction")
    return answer


def _read(peer: Peer, topic: str, *, isolation_level: int = 1) -> Any:
    return peer.fetch(topic, 0, 12, max_wait_ms=0, isolation_level=isolation_level)


def _commit(
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


def _fetch(peer: Peer, group: str, topic: str, *, stable: bool) -> Any:
    topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0, 1])]
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=stable
    )
    return peer.call(request, 9)


# -- scenarios --------------------------------------------------------------------------------------------


@scenario(FindCoordinatorRequest)
def finding_the_coordinator_of_a_transaction(peer: Peer, version: int) -> Answers:
    name = peer.named("tx")
    _find(peer, name)
    request = FindCoordinatorRequest(key=name, key_type=TRANSACTION, coordinator_keys=[name, ""])
    if version > 0:
        yield "one", peer.call(request, version)


@scenario(InitProducerIdRequest)
def asking_for_a_transactional_producer(peer: Peer, version: int) -> Answers:
    name = peer.named("tx")
    _find(peer, name)
    peer.producer_id()
    for timeout in (0, -1, 900_001, 0x7FFFFFFF):
        yield f"timeout {timeout}", _init(peer, name, version, timeout)
    peer.until(lambda: not _init(peer, peer.named("warm")).error_code, "a producer id")
    first = _init(peer, name, version)
    yield "first", first
    yield "second", _init(peer, name, version)
    if version >= 3:
        known = {"producer_id": first.producer_id, "producer_epoch": first.producer_epoch + 1}
        yield "with the last epoch", _init(peer, name, version, **known)
        yield "with an older epoch", _init(peer, name, version, **known)
        known["producer_epoch"] += 50
        yield "with a later epoch", _init(peer, name, version, **known)
        known["producer_id"] = 777_000_020
        yield "with another id", _init(peer, name, version, **known)
        yield "half known", _init(peer, name, version, producer_id=first.producer_id)


@scenario(AddPartitionsToTxnRequest)
def adding_partitions(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", partitions=2)
    name, producer, epoch = _producer(peer)
    both = {topic: [0, 1]}
    if version <= 3:
        yield "unknown id", _add(peer, version, peer.named("nobody"), producer, epoch, both)
        yield "an empty id", _add(peer, version, "", producer, epoch, both)
        yield "another producer", _add(peer, version, name, 777_000_020, epoch, both)
        yield "an older epoch", _add(peer, version, name, producer, epoch - 1, both)
        yield "a later epoch", _add(peer, version, name, producer, epoch + 1, both)
        yield "a partition that is not there", _add(peer, version, name, producer, epoch, {topic: [0, 7]})
        yield "a topic that is not there", _add(peer, version, name, producer, epoch, {peer.named("no"): [0]})
        yield "both", _add(peer, version, name, producer, epoch, both)
        yield "both again", _add(peer, version, name, producer, epoch, both)
        yield "nothing", _add(peer, version, name, producer, epoch, {})
        return
    yield "unknown id", _ask(peer, version, (peer.named("nobody"), producer, epoch, True, both))
    yield "verify before", _ask(peer, version, (name, producer, epoch, True, both))
    yield "another producer", _ask(peer, version, (name, 777_000_020, epoch, True, both))
    yield "an older epoch", _ask(peer, version, (name, producer, epoch - 1, True, both))
    yield "a later epoch", _ask(peer, version, (name, producer, epoch + 1, True, both))
    yield "add one", _ask(peer, version, (name, producer, epoch, False, {topic: [0]}))
    yield "verify both", _ask(peer, version, (name, producer, epoch, True, both))
    yield "add not there", _ask(peer, version, (name, producer, epoch, False, {peer.named("no"): [0]}))
    yield "add to an unknown id", _ask(peer, version, (peer.named("no"), producer, epoch, False, both))


@scenario(AddOffsetsToTxnRequest)
def adding_offsets(peer: Peer, version: int) -> Answers:
    name, producer, epoch = _producer(peer)
    group = peer.named("g")
    _find(peer, group, GROUP)

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
    name, producer, epoch = _producer(peer)
    yield "unknown id", _end(peer, version, peer.named("nobody"), producer, epoch, True)
    yield "an empty id", _end(peer, version, "", producer, epoch, True)
    yield "another producer", _end(peer, version, name, 777_000_020, epoch, True)
    yield "an older epoch", _end(peer, version, name, producer, epoch - 1, True)
    yield "a later epoch", _end(peer, version, name, producer, epoch + 1, True)
    yield "nothing to commit", _end(peer, version, name, producer, epoch, True)
    if version < 5:
        yield "nothing to abort", _end(peer, version, name, producer, epoch, False)
        for committed in (True, False):
            _add(peer, 3, name, producer, epoch, {topic: [0]})
            yield "ended", _end_wholly(peer, topic, name, producer, epoch, committed)
            yield "again", _end(peer, version, name, producer, epoch, committed)
            yield "the other way", _end(peer, version, name, producer, epoch, not committed)
    else:
        answer = _end(peer, version, name, producer, epoch, False)
        yield "nothing to abort", answer
        epoch = max(answer.producer_epoch, epoch)
        for committed in (True, False):
            added = _add(peer, 3, name, producer, epoch, {topic: [0]})
            yield "added", added
            answer = _end(peer, version, name, producer, epoch, committed)
            yield "ended", answer
            epoch = max(answer.producer_epoch, epoch)
            peer.until(lambda: _state(peer, name).startswith("Complete"), "the end of the transaction")
    yield "the log", _read(peer, topic, isolation_level=0)


def _state(peer: Peer, name: str) -> str:
    request = DescribeTransactionsRequest(transactional_ids=[name])
    (state,) = peer.call(request, 0).transaction_states
    return str(state.transaction_state)


@scenario(ProduceRequest, first=3)
def writing_in_a_transaction(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    name, producer, epoch = _producer(peer)
    sequence = 0
    yield "no id", _send(peer, version, topic, None, producer, epoch)
    yield "unknown id", _send(peer, version, topic, peer.named("nobody"), producer, epoch)
    yield "another producer", _send(peer, version, topic, name, 777_000_020, epoch)
    yield "an older epoch", _send(peer, version, topic, name, producer, epoch - 1)
    yield "a later epoch", _send(peer, version, topic, name, producer, epoch + 1)
    if version < 12:
        yield "not added", _send(peer, version, topic, name, producer, epoch)
        _add(peer, 3, name, producer, epoch, {topic: [0]})
    yield "first", _send(peer, version, topic, name, producer, epoch, 0)
    yield "second", _send(peer, version, topic, name, producer, epoch, 1)
    yield "second again", _send(peer, version, topic, name, producer, epoch, 1)
    yield "a gap", _send(peer, version, topic, name, producer, epoch, 5)
    yield "outside of it", _send(peer, version, topic, name, producer, epoch, 2, transactional=False)
    yield "open, committed only", _read(peer, topic)
    yield "open, all", _read(peer, topic, isolation_level=0)
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[0])])
    yield "producers", peer.call(request, 0)
    yield "aborted", _end_wholly(peer, topic, name, producer, epoch, False)
    yield "aborted, committed only", _read(peer, topic)
    yield "behind the marker", _send(peer, version, topic, name, producer, epoch, sequence + 2)
    yield "producers after it", peer.call(request, 0)


@scenario(ProduceRequest, first=3)
def a_committed_transaction_among_others(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    name, producer, epoch = _producer(peer)
    other, second, second_epoch = _producer(peer, "other")
    peer.fill(topic, 2)
    if version < 12:
        _add(peer, 3, name, producer, epoch, {topic: [0]})
        _add(peer, 3, other, second, second_epoch, {topic: [0]})
    yield "one", _send(peer, version, topic, name, producer, epoch, 0)
    yield "two", _send(peer, version, topic, other, second, second_epoch, 0)
    peer.fill(topic, 1)
    yield "committed", _end(peer, 3, other, second, second_epoch, True)
    peer.until(lambda: _state(peer, other) == "CompleteCommit", "the marker")
    yield "one open", _read(peer, topic)
    yield "aborted", _end_wholly(peer, topic, name, producer, epoch, False)
    yield "none open", _read(peer, topic)
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
    yield "the log", _read(peer, topic, isolation_level=0)


@scenario(WriteTxnMarkersRequest)
def markers_against_an_open_transaction(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    name, producer, epoch = _producer(peer)
    _add(peer, 3, name, producer, epoch, {topic: [0]})
    _send(peer, 9, topic, name, producer, epoch)
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
    yield "what is left", _read(peer, topic)
    yield "the log", _read(peer, topic, isolation_level=0)


@scenario(TxnOffsetCommitRequest)
def committing_offsets(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", partitions=2)
    name, producer, epoch = _producer(peer)
    group = peer.named("g")
    _find(peer, group, GROUP)
    offsets = {topic: {0: 5, 1: 6}}

    def commit(transactional_id: str, producer_id: int, producer_epoch: int, **more: Any) -> Any:
        return _commit(
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
        yield f"pending, stable {stable}", _fetch(peer, group, topic, stable=stable)
    yield "ended", _end(peer, 3, name, producer, epoch, True)
    peer.until(lambda: _state(peer, name) == "CompleteCommit", "the marker")
    for stable in (False, True):
        yield f"ended, stable {stable}", _fetch(peer, group, topic, stable=stable)
    yield "after the end", commit(name, producer, epoch)


@scenario(DescribeTransactionsRequest)
def describing_transactions(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", partitions=2)
    name, producer, epoch = _producer(peer)

    def describe(*names: str) -> Any:
        answer = peer.call(DescribeTransactionsRequest(transactional_ids=list(names)), version)
        for state in answer.transaction_states:
            state.transaction_start_time_ms = min(state.transaction_start_time_ms, 1)
        return answer

    yield "unknown", describe(peer.named("nobody"), "")
    yield "empty", describe(name)
    _add(peer, 3, name, producer, epoch, {topic: [0]})
    yield "open", describe(name)
    _end(peer, 3, name, producer, epoch, True)
    peer.until(lambda: _state(peer, name) == "CompleteCommit", "the marker")
    yield "complete", describe(name)


@scenario(ListTransactionsRequest)
def listing_transactions(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    name, producer, epoch = _producer(peer)
    _add(peer, 3, name, producer, epoch, {topic: [0]})

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
