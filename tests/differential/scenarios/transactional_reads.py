"""Fetching what was written in transactions: committed, aborted and open ones, in both isolation levels."""

from __future__ import annotations

import time
from typing import Any

from differential.peer import Closed, Peer
from differential.scenario import Answers, scenario
from differential.scenarios.transaction_requests import (
    add_partitions,
    end_txn,
    end_wholly,
    new_producer,
    send_records,
    state_of,
)
from ottla.protocol.messages.fetch import FetchRequest

LEVELS = (0, 1)


def _begin(peer: Peer, topic: str, suffix: str) -> tuple[str, int, int]:
    """A producer with one record of an open transaction."""
    name, producer, epoch = new_producer(peer, suffix)
    add_partitions(peer, 3, name, producer, epoch, {topic: [0]})
    send_records(peer, 9, topic, name, producer, epoch)
    return name, producer, epoch


def _aborted_around_committed(peer: Peer, topic: str) -> None:
    """Offsets 0 and 1 without a transaction, 2 aborted with its marker at 5, 3 committed at 4."""
    peer.fill(topic, 2)
    outer, inner = _begin(peer, topic, "outer"), _begin(peer, topic, "inner")
    end_txn(peer, 3, *inner, True)
    peer.until(lambda: state_of(peer, inner[0]) == "CompleteCommit", "the marker")
    end_wholly(peer, topic, *outer, False)


@scenario(FetchRequest)
def reading_what_transactions_wrote(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    _aborted_around_committed(peer, topic)
    later = _begin(peer, topic, "later")
    peer.fill(topic, 1)
    for level in LEVELS:
        for offset in range(10):
            answer = peer.fetch(topic, offset, version, max_wait_ms=0, isolation_level=level)
            yield f"one open, level {level} from {offset}", answer
        yield (
            f"little, level {level}",
            peer.fetch(topic, 2, version, max_wait_ms=0, isolation_level=level, partition_max_bytes=1),
        )
    end_wholly(peer, topic, *later, False)
    for level in LEVELS:
        for offset in (0, 3, 6, 8):
            answer = peer.fetch(topic, offset, version, max_wait_ms=0, isolation_level=level)
            yield f"all ended, level {level} from {offset}", answer


@scenario(FetchRequest)
def a_marker_ends_the_wait(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    name, producer, epoch = _begin(peer, topic, "a")
    with peer.connection() as waiting:
        began = time.monotonic()
        waiting.send(peer.fetch_request({topic: {0: 0}}, max_wait_ms=20_000, isolation_level=1), version)
        end_wholly(peer, topic, name, producer, epoch, True)
        received = waiting.receive(FetchRequest.api_key, version)
        assert not isinstance(received, Closed)
        _, answer = received
        # The marker holds the time of the broker, so only the lengths are compared.
        yield (
            "answer",
            [len(partition.records) for topic in answer.responses for partition in topic.partitions],
        )
        yield "at once", time.monotonic() - began < 10


@scenario(FetchRequest, first=7)
def a_session_over_transactions(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    _aborted_around_committed(peer, topic)
    later = _begin(peer, topic, "later")
    created = peer.fetch(topic, 0, version, max_wait_ms=0, isolation_level=1, session_epoch=0)
    yield "created", created

    def again(epoch: int, offsets: dict[str, dict[int, int]]) -> Any:
        request = peer.fetch_request(
            offsets, max_wait_ms=0, isolation_level=1, session_id=created.session_id, session_epoch=epoch
        )
        return peer.call(request, version)

    yield "moved on", again(1, {topic: {0: 6}})
    yield "nothing is stable", again(2, {})
    end_wholly(peer, topic, *later, False)
    yield "the end", again(3, {})
    yield "behind it", again(4, {topic: {0: 8}})
    yield "back", again(5, {topic: {0: 1}})
