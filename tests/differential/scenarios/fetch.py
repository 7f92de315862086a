"""Fetch: what a consumer gets, how much of it, when it has to wait, and what a session remembers."""

from __future__ import annotations

import time
from typing import Any

from differential.peer import Closed, Peer
from differential.scenario import Answers, scenario
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState

MADE_UP_ID = bytes(15) + b"\x07"


def _delete_before(peer: Peer, topic: str, offset: int) -> None:
    topics = [
        DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])
    ]
    peer.call(DeleteRecordsRequest(topics=topics, timeout_ms=10_000), 2)


@scenario(FetchRequest)
def from_every_offset(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    peer.fill(topic, 3, each=4)
    for offset in (0, 1, 3, 4, 7, 8, 11, 12, 13, 100, -1, -2, 0x7FFFFFFFFFFFFFFF):
        yield f"offset {offset}", peer.fetch(topic, offset, version, max_wait_ms=0)


@scenario(FetchRequest)
def an_empty_partition(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    for offset in (0, 1, -1):
        yield f"offset {offset}", peer.fetch(topic, offset, version, max_wait_ms=0)


@scenario(FetchRequest)
def below_the_log_start(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    peer.fill(topic, 3, each=4)
    _delete_before(peer, topic, 6)
    for offset in (0, 5, 6, 8, 12):
        yield f"offset {offset}", peer.fetch(topic, offset, version, max_wait_ms=0)


@scenario(FetchRequest)
def unknown_topics_and_partitions(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    peer.fill(topic, 1)
    yield "partition", peer.fetch(topic, {0: 0, 1: 0, -1: 0}, version, max_wait_ms=0)
    yield "topic", peer.fetch(peer.named("nobody"), 0, version, max_wait_ms=0)
    ids = [
        FetchTopic(
            topic=name, topic_id=MADE_UP_ID, partitions=[FetchPartition(partition=0, partition_max_bytes=100)]
        )
        for name in (topic, peer.named("nobody"))
    ]
    for wrong in ids:
        yield (
            f"a made-up id with {wrong.topic}",
            peer.call(FetchRequest(max_wait_ms=0, topics=[wrong]), version),
        )


@scenario(FetchRequest)
def an_error_answers_at_once(peer: Peer, version: int) -> Answers:
    """A wrong offset is refused at once, not after the longest wait."""
    topic = peer.topic("t", partitions=2)
    began = time.monotonic()
    yield "answer", peer.fetch(topic, {0: 0, 1: 99}, version, max_wait_ms=20_000, min_bytes=1)
    yield "at once", time.monotonic() - began < 10


@scenario(FetchRequest)
def the_wait_ends(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    began = time.monotonic()
    yield "nothing there", peer.fetch(topic, 0, version, max_wait_ms=150, min_bytes=1)
    yield "waited", time.monotonic() - began >= 0.14
    peer.fill(topic, 1)
    began = time.monotonic()
    yield "not enough there", peer.fetch(topic, 0, version, max_wait_ms=150, min_bytes=10_000)
    yield "waited for more", time.monotonic() - began >= 0.14
    began = time.monotonic()
    yield "min bytes 0", peer.fetch(topic, 1, version, max_wait_ms=20_000, min_bytes=0)
    yield "did not wait", time.monotonic() - began < 10
    yield "negative wait", peer.fetch(topic, 1, version, max_wait_ms=-1, min_bytes=1)


@scenario(FetchRequest)
def a_record_ends_the_wait(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    with peer.connection() as waiting:
        began = time.monotonic()
        waiting.send(peer.fetch_request({topic: {0: 0}}, max_wait_ms=20_000), version)
        peer.fill(topic, 1)
        received = waiting.receive(FetchRequest.api_key, version)
        assert not isinstance(received, Closed)
        _, answer = received
        # Kafka may answer before it has moved the high watermark, so only the records are compared.
        yield "answer", [partition.records for topic in answer.responses for partition in topic.partitions]
        yield "at once", time.monotonic() - began < 10


@scenario(FetchRequest)
def how_much_is_sent(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", partitions=2)
    for partition in (0, 1):
        peer.fill(topic, 4, partition=partition, size=1000)
    one = len(peer.batch(1, size=1000))
    for limit in (0, 1, one - 1, one, one + 1, 2 * one, 3 * one - 1, 100_000):
        yield (
            f"partition limit {limit}",
            peer.fetch(topic, {0: 0, 1: 0}, version, max_wait_ms=0, partition_max_bytes=limit),
        )
        yield f"limit {limit}", peer.fetch(topic, {0: 0, 1: 0}, version, max_wait_ms=0, max_bytes=limit)
    yield (
        "both",
        peer.fetch(topic, {1: 1, 0: 3}, version, max_wait_ms=0, max_bytes=one, partition_max_bytes=1),
    )
    yield "negative limit", peer.fetch(topic, {0: 0, 1: 0}, version, max_wait_ms=0, max_bytes=-1)
    yield (
        "negative partition limit",
        peer.fetch(topic, {0: 0, 1: 0}, version, max_wait_ms=0, partition_max_bytes=-1),
    )


@scenario(FetchRequest)
def a_large_batch_is_sent_whole(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", partitions=2)
    peer.fill(topic, 1, size=300_000)
    peer.fill(topic, 1, size=300_000, partition=1)
    for limit in (1, 1000, 299_999, 1_000_000):
        yield (
            f"{limit}",
            peer.fetch(
                topic, {0: 0, 1: 0}, version, max_wait_ms=0, max_bytes=limit, partition_max_bytes=limit
            ),
        )


@scenario(FetchRequest)
def both_isolation_levels(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    peer.fill(topic, 2)
    for level in (0, 1, 2, -1):
        yield f"level {level}", peer.fetch(topic, 0, version, max_wait_ms=0, isolation_level=level)
        yield f"level {level} at the end", peer.fetch(topic, 2, version, max_wait_ms=0, isolation_level=level)
        yield f"level {level} beyond", peer.fetch(topic, 3, version, max_wait_ms=0, isolation_level=level)


@scenario(FetchRequest)
def leader_epochs(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    peer.fill(topic, 2)
    for epoch in (-1, 0, 1, 99, -2):
        yield f"current {epoch}", peer.fetch(topic, 0, version, max_wait_ms=0, current_leader_epoch=epoch)
        yield f"last fetched {epoch}", peer.fetch(topic, 1, version, max_wait_ms=0, last_fetched_epoch=epoch)
        yield (
            f"last fetched {epoch}, beyond",
            peer.fetch(topic, 3, version, max_wait_ms=0, last_fetched_epoch=epoch),
        )


@scenario(FetchRequest)
def other_fields(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    peer.fill(topic, 1)
    yield "log start offset of a client", peer.fetch(topic, 0, version, max_wait_ms=0, log_start_offset=5)
    yield "a rack", peer.fetch(topic, 0, version, max_wait_ms=0, rack_id="rack-1")
    yield "no topics", peer.call(FetchRequest(max_wait_ms=0, topics=[]), version)
    yield "no topics, waiting", peer.call(FetchRequest(max_wait_ms=100, min_bytes=1, topics=[]), version)
    yield "no partitions", peer.fetch(topic, {}, version, max_wait_ms=0)


@scenario(FetchRequest)
def many_topics_keep_their_order(peer: Peer, version: int) -> Answers:
    topics = [peer.topic(name, partitions=3) for name in ("c", "a", "b")]
    for topic in topics:
        peer.fill(topic, 1, partition=2)
    asked = {topic: {2: 0, 0: 0, 1: 0} for topic in topics}
    yield "all", peer.call(peer.fetch_request(asked, max_wait_ms=0), version)


@scenario(FetchRequest)
def the_same_partition_twice(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    peer.fill(topic, 2)
    request = peer.fetch_request({topic: {0: 0}}, max_wait_ms=0)
    request.topics = [*request.topics, *peer.fetch_request({topic: {0: 1}}).topics]
    yield "two topics", peer.call(request, version)


@scenario(FetchRequest)
def as_a_replica(peer: Peer, version: int) -> Answers:
    """A fetch under a broker's id that is not a replica of the partition."""
    topic = peer.topic("t")
    peer.fill(topic, 1)
    for replica in (-2, -3, 5):
        request = peer.fetch_request({topic: {0: 0}}, max_wait_ms=0)
        request.replica_id = replica
        request.replica_state = ReplicaState(replica_id=replica, replica_epoch=-1)
        yield f"replica {replica}", peer.call(request, version)


@scenario(FetchRequest, first=7)
def a_session_from_birth_to_end(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", partitions=2)
    created = peer.fetch(topic, {0: 0, 1: 0}, version, max_wait_ms=0, session_epoch=0)
    session = created.session_id
    yield "created", created

    def again(epoch: int, offsets: dict[str, dict[int, int]], **settings: Any) -> Any:
        request = peer.fetch_request(
            offsets, max_wait_ms=0, session_id=session, session_epoch=epoch, **settings
        )
        return peer.call(request, version)

    yield "nothing new", again(1, {})
    peer.fill(topic, 1)
    yield "one new record", again(2, {})
    yield "the same record again", again(3, {})
    yield "moved on", again(4, {topic: {0: 1}})
    yield "still nothing", again(5, {})
    yield "out of range", again(6, {topic: {1: 50}})
    yield "still out of range", again(7, {})
    yield "put right", again(8, {topic: {1: 0}})
    yield "forgotten", again(9, {}, forgotten={topic: [0]})
    peer.fill(topic, 1)
    yield "silent about the forgotten", again(10, {})
    yield "added again", again(11, {topic: {0: 0}})
    yield "an old epoch", again(11, {})
    yield "an epoch too far", again(14, {})
    yield "the right epoch", again(12, {})
    yield "closed", again(-1, {topic: {0: 0}})
    yield "after the end", again(13, {})


@scenario(FetchRequest, first=7)
def sessions_that_do_not_exist(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    peer.fill(topic, 1)
    for session, epoch in (
        (12345, 1),
        (12345, 0),
        (12345, -1),
        (0, 1),
        (0, 5),
        (-1, 0),
        (-1, 1),
        (0, -2),
        (12345, -2),
    ):
        yield (
            f"session {session} epoch {epoch}",
            peer.fetch(topic, 0, version, max_wait_ms=0, session_id=session, session_epoch=epoch),
        )


@scenario(FetchRequest, first=7)
def a_session_is_made_anew(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    peer.fill(topic, 1)
    first = peer.fetch(topic, 0, version, max_wait_ms=0, session_epoch=0)
    second = peer.fetch(topic, 0, version, max_wait_ms=0, session_id=first.session_id, session_epoch=0)
    yield "second", second
    yield "another id", first.session_id != second.session_id
    yield (
        "the old one",
        peer.fetch(topic, 0, version, max_wait_ms=0, session_id=first.session_id, session_epoch=1),
    )
    yield (
        "the new one",
        peer.fetch(topic, 0, version, max_wait_ms=0, session_id=second.session_id, session_epoch=1),
    )


@scenario(FetchRequest, first=7)
def a_session_waits(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", partitions=3)
    session = peer.fetch(topic, {0: 0, 1: 0, 2: 0}, version, max_wait_ms=0, session_epoch=0).session_id
    with peer.connection() as waiting:
        request = peer.fetch_request({}, max_wait_ms=20_000, session_id=session, session_epoch=1)
        waiting.send(request, version)
        peer.fill(topic, 1, partition=1)
        yield "answer", waiting.receive(FetchRequest.api_key, version)


@scenario(FetchRequest, first=7)
def a_session_of_unknown_partitions(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    created = peer.fetch(topic, {0: 0, 5: 0}, version, max_wait_ms=0, session_epoch=0)
    yield "created", created
    yield (
        "again",
        peer.call(
            peer.fetch_request({}, max_wait_ms=0, session_id=created.session_id, session_epoch=1), version
        ),
    )
    unknown = peer.fetch(peer.named("nobody"), 0, version, max_wait_ms=0, session_epoch=0)
    yield "unknown topic", unknown
    if unknown.session_id:
        yield (
            "unknown topic again",
            peer.call(
                peer.fetch_request({}, max_wait_ms=0, session_id=unknown.session_id, session_epoch=1), version
            ),
        )
    empty = peer.call(peer.fetch_request({}, max_wait_ms=0, session_epoch=0), version)
    yield "of nothing", empty
