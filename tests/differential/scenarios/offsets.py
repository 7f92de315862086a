"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: where a log begins and ends, and when."""

from __future__ import annotations

from differential.peer import EARLIEST, LATEST, Peer
from differential.scenario import Answers, scenario
from ottla.protocol.compression import Codec
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.records import Record, encode_batch

SPECIAL = (-1, -2, -3, -4, -5, -6, -7, -100)


@scenario(ListOffsetsRequest)
def special_times(peer: Peer, version: int) -> Answers:
    empty, topic = peer.topic("empty"), peer.topic("t")
    peer.fill(topic, 3, each=4)
    for name in (empty, topic):
        for timestamp in SPECIAL:
            yield (
                f"{'empty' if name == empty else 'filled'} {timestamp}",
                peer.list_offsets(name, {0: timestamp}, version),
            )


@scenario(ListOffsetsRequest)
def real_times(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    peer.fill(topic, 3, each=4)
    late = [Record(i, peer.now + t, None, b"v", []) for i, t in enumerate((500, 100, 900, 900, 200))]
    peer.produce(topic, encode_batch(late), 9)
    peer.produce(topic, encode_batch(late, codec=Codec.LZ4), 9)
    for delta in (-1000, -1, 0, 1, 3, 4, 5, 11, 12, 100, 101, 200, 499, 500, 501, 899, 900, 901, 5000):
        yield f"{delta:+d}", peer.list_offsets(topic, {0: peer.now + delta}, version)
    for timestamp in (0, 1, 0x7FFFFFFFFFFFFFFF):
        yield f"{timestamp}", peer.list_offsets(topic, {0: timestamp}, version)
    yield "max timestamp", peer.list_offsets(topic, {0: -3}, version)


@scenario(ListOffsetsRequest)
def times_stamped_by_the_broker(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", configs={"message.timestamp.type": "LogAppendTime"})
    for _ in range(3):
        peer.fill(topic, 1, each=4)
        peer.let_time_pass()
    for timestamp in (0, peer.now, -3, peer.now + 100 * 3_600_000):
        yield (
            f"{timestamp - peer.now if timestamp > 0 else timestamp}",
            peer.list_offsets(topic, {0: timestamp}, version),
        )


@scenario(ListOffsetsRequest)
def after_records_were_deleted(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    peer.fill(topic, 3, each=4)
    _delete(peer, topic, 6)
    for timestamp in (*SPECIAL, peer.now, peer.now + 4, peer.now + 6, peer.now + 8):
        yield (
            f"{timestamp - peer.now if timestamp > 0 else timestamp}",
            peer.list_offsets(topic, {0: timestamp}, version),
        )
    _delete(peer, topic, 12)
    for timestamp in (*SPECIAL, peer.now):
        yield (
            f"all deleted {timestamp - peer.now if timestamp > 0 else timestamp}",
            peer.list_offsets(topic, {0: timestamp}, version),
        )


@scenario(ListOffsetsRequest)
def isolation_levels_and_epochs(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    peer.fill(topic, 2)
    for level in (0, 1, 2):
        for timestamp in (LATEST, EARLIEST, -3, peer.now):
            yield (
                f"level {level} {min(timestamp, 0)}",
                peer.list_offsets(topic, {0: timestamp}, version, isolation_level=level),
            )
    for epoch in (-1, 0, 1, 7, -2):
        yield f"epoch {epoch}", peer.list_offsets(topic, {0: LATEST}, version, current_leader_epoch=epoch)


@scenario(ListOffsetsRequest)
def unknown_things(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    yield "partition", peer.list_offsets(topic, {0: LATEST, 1: LATEST, -1: LATEST}, version)
    yield "topic", peer.list_offsets(peer.named("nobody"), {0: LATEST, 1: EARLIEST}, version)
    yield "nothing", peer.call(ListOffsetsRequest(replica_id=-1, topics=[]), version)
    yield "no partitions", peer.list_offsets(topic, {}, version)
    yield "no name", peer.list_offsets("", {0: LATEST}, version)
    for replica in (-2, -3, 5):
        yield f"as replica {replica}", peer.list_offsets(topic, {0: LATEST}, version, replica_id=replica)


@scenario(ListOffsetsRequest)
def the_same_partition_twice(peer: Peer, version: int) -> Answers:
    topic, other = peer.topic("t", partitions=2), peer.topic("other")
    partitions = [
        ListOffsetsPartition(partition_index=i, timestamp=t) for i, t in ((0, -1), (1, -2), (0, -2))
    ]
    topics = [ListOffsetsTopic(name=topic, partitions=partitions)]
    yield "twice", peer.call(ListOffsetsRequest(replica_id=-1, topics=topics), version)
    once = ListOffsetsTopic(name=topic, partitions=partitions[:1])
    request = ListOffsetsRequest(
        replica_id=-1, topics=[once, ListOffsetsTopic(name=other, partitions=partitions[:1]), once]
    )
    yield "topic twice", peer.call(request, version)


def _delete(peer: Peer, topic: str, offset: int) -> None:
    partition = DeleteRecordsPartition(partition_index=0, offset=offset)
    topics = [DeleteRecordsTopic(name=topic, partitions=[partition])]
    peer.call(DeleteRecordsRequest(topics=topics, timeout_ms=10_000), 2)


@scenario(DeleteRecordsRequest)
def deleting_records(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", partitions=2)
    peer.fill(topic, 3, each=4)

    def delete(offsets: dict[int, int], name: str = topic, timeout: int = 10_000) -> object:
        partitions = [DeleteRecordsPartition(partition_index=i, offset=o) for i, o in offsets.items()]
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=name, partitions=partitions)], timeout_ms=timeout
        )
        return peer.call(request, version)

    yield "to 0", delete({0: 0})
    yield "to 5", delete({0: 5})
    yield "back to 2", delete({0: 2})
    yield "to 5 again", delete({0: 5})
    yield "beyond the end", delete({0: 13})
    yield "negative", delete({0: -2})
    yield "an empty partition", delete({1: 0})
    yield "an empty partition, to its end", delete({1: -1})
    yield "beyond the end of an empty partition", delete({1: 1})
    yield "unknown partition", delete({2: 0, -1: 0})
    yield "unknown topic", delete({0: 0}, peer.named("nobody"))
    yield "some good, some bad", delete({0: 6, 1: 9, 7: 0})
    yield "no time", delete({0: 7}, timeout=0)
    yield "to the end", delete({0: -1})
    yield "to the end again", delete({0: 12})
    yield "earliest", peer.list_offsets(topic, {0: EARLIEST, 1: EARLIEST}, 7)
    yield "latest", peer.list_offsets(topic, {0: LATEST, 1: LATEST}, 7)
    yield "nothing", peer.call(DeleteRecordsRequest(topics=[], timeout_ms=1000), version)
    yield "no partitions", delete({})


@scenario(DeleteRecordsRequest)
def deleting_records_of_a_compacted_topic(peer: Peer, version: int) -> Answers:
    for policy in ("compact", "compact,delete"):
        topic = peer.topic(policy.replace(",", "-"), configs={"cleanup.policy": policy})
        peer.fill(topic, 2)
        partitions = [DeleteRecordsPartition(partition_index=0, offset=1)]
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic, partitions=partitions)], timeout_ms=5000
        )
        yield policy, peer.call(request, version)


@scenario(OffsetForLeaderEpochRequest)
def the_end_of_an_epoch(peer: Peer, version: int) -> Answers:
    topic, empty = peer.topic("t"), peer.topic("empty")
    peer.fill(topic, 3, each=2)

    def ask(name: str, epoch: int, current: int = -1, partition: int = 0, replica: int = -1) -> object:
        wanted = OffsetForLeaderPartition(
            partition=partition, current_leader_epoch=current, leader_epoch=epoch
        )
        topics = [OffsetForLeaderTopic(topic=name, partitions=[wanted])]
        return peer.call(OffsetForLeaderEpochRequest(replica_id=replica, topics=topics), version)

    for epoch in (-2, -1, 0, 1, 5):
        yield f"epoch {epoch}", ask(topic, epoch)
        yield f"epoch {epoch} of an empty log", ask(empty, epoch)
    for current in (-1, 0, 1, 9):
        yield f"current {current}", ask(topic, 0, current)
    yield "unknown partition", ask(topic, 0, partition=3)
    yield "unknown topic", ask(peer.named("nobody"), 0)
    for replica in (-2, 0, 5):
        yield f"as replica {replica}", ask(topic, 0, replica=replica)
    yield "nothing", peer.call(OffsetForLeaderEpochRequest(replica_id=-1, topics=[]), version)
