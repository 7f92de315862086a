"""Which partitions a fetch of a follower looks at: those that are not at rest, and now and then all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ottla.broker.fetch_session import Wanted
from ottla.broker.follower_session import LOOK_AT_ALL_MS, FollowerSession

TOPIC = b"t" * 16
LAG = 30_000


def wanted(index: int, offset: int = 0) -> Wanted:
    return Wanted(TOPIC, index, offset, 1000, 1, -1, 0)


def partition(index: int, *, high_watermark: int = 5, end: int = 5) -> Any:
    log = SimpleNamespace(end_offset=end)
    return SimpleNamespace(
        topic="t", topic_id=TOPIC, index=index, log=log, high_watermark=high_watermark, watching={}
    )


def session(count: int = 3) -> FollowerSession:
    return FollowerSession(1, True, [wanted(index) for index in range(count)], 0, broker_id=2)


def due(of: FollowerSession, now_ms: int = 0, max_lag_ms: int = LAG) -> list[int]:
    return [want.partition for want in of.due(now_ms, max_lag_ms)]


def put_to_rest(of: FollowerSession, *indexes: int) -> list[Any]:
    found = [partition(index) for index in indexes]
    for each in found:
        of.watch((TOPIC, each.index), each, idle=True)
    return found


def test_all_partitions_are_looked_at_until_they_are_idle() -> None:
    follower = session()
    assert due(follower) == [0, 1, 2]
    put_to_rest(follower, 0, 2)
    assert due(follower) == [1]


def test_a_partition_with_uncommitted_records_is_not_at_rest() -> None:
    follower = session()
    follower.watch((TOPIC, 0), partition(0, high_watermark=4), idle=True)
    assert 0 in due(follower)


def test_a_partition_wakes_the_session_of_each_broker() -> None:
    follower, other = session(), FollowerSession(2, True, [wanted(1)], 0, broker_id=3)
    (resting,) = put_to_rest(follower, 1)
    other.watch((TOPIC, 1), resting, idle=True)
    for each in resting.watching.values():
        each.woke(resting)
    assert [want.partition for want in follower.take_woken()] == [1]
    assert [want.partition for want in other.take_woken()] == [1]
    assert follower.take_woken() == [], "it is told once"
    assert 1 in due(follower) and due(other) == [1]


def test_a_partition_that_is_named_anew_is_looked_at() -> None:
    follower = session()
    put_to_rest(follower, 0, 1, 2)
    follower.update([wanted(1, 7)], [])
    assert [(want.partition, want.fetch_offset) for want in follower.due(0, LAG)] == [(1, 7)]


def test_a_forgotten_partition_wakes_nobody() -> None:
    follower = session()
    (resting,) = put_to_rest(follower, 1)
    follower.update([], [(TOPIC, 1), (TOPIC, 2)])
    follower.woke(resting)
    assert follower.take_woken() == []
    assert due(follower) == [0]


def test_all_partitions_are_looked_at_now_and_then() -> None:
    follower = session()
    put_to_rest(follower, 0, 1, 2)
    assert due(follower, LOOK_AT_ALL_MS - 1) == []
    assert due(follower, LOOK_AT_ALL_MS) == [0, 1, 2]
    assert due(follower, LOOK_AT_ALL_MS + 1) == [], "what was at rest still is"
    assert due(follower, LOOK_AT_ALL_MS + 100, max_lag_ms=400) == [0, 1, 2]


def test_partitions_that_gave_records_come_last() -> None:
    follower = session()
    follower.worth_telling((TOPIC, 0), 0, 100, 5, 0, False)
    assert due(follower) == [1, 2, 0]
