"""Partitioners as functions of the record, its key and the topic's layout."""

from __future__ import annotations

import pytest

from ottla.client import ConfigurationError, ProducerRecord
from ottla.client.partitioners import ByLocation, RoundRobin, Sticky, TopicLayout, keyed, partitioner_for

# From Kafka's own test of its murmur2 (UtilsTest), made positive as its partitioner does.
KAFKAS = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
RECORD = ProducerRecord("t", "value")


@pytest.mark.parametrize("partitions", [1, 7, 100])
def test_a_key_goes_where_java_sends_it(partitions: int) -> None:
    for key, murmur2 in KAFKAS.items():
        assert keyed(RECORD, key, TopicLayout("t", partitions)) == (murmur2 & 0x7FFFFFFF) % partitions


def test_records_without_a_key_are_spread() -> None:
    assert {keyed(RECORD, None, TopicLayout("t", 3)) for _ in range(200)} == {0, 1, 2}


def test_round_robin_keeps_a_turn_for_each_topic_and_follows_its_growth() -> None:
    turn = RoundRobin()
    small, other = TopicLayout("t", 2), TopicLayout("u", 2)
    assert [turn(RECORD, b"k", small) for _ in range(3)] == [0, 1, 0]
    assert turn(RECORD, b"k", other) == 0
    assert [turn(RECORD, b"k", TopicLayout("t", 4)) for _ in range(4)] == [3, 0, 1, 2]


def test_sticky_moves_on_when_a_batch_is_full_or_its_partition_is_gone() -> None:
    stick = Sticky(batch_bytes=10)
    layout = TopicLayout("t", 3)
    chosen = [stick(RECORD, None, layout) for _ in range(60)]
    assert all(chosen[n] == chosen[n + 1] for n in range(0, 60, 2)), "two values of five bytes fill a batch"
    assert all(chosen[n] != chosen[n + 1] for n in range(1, 59, 2))
    for _ in range(20):
        assert stick(RECORD, None, TopicLayout("t", 1)) == 0
    assert stick(ProducerRecord("t", {"not": "bytes"}), None, TopicLayout("t", 1)) == 0


def test_a_location_narrows_the_choice_and_a_key_decides_within_it() -> None:
    layout = TopicLayout("t", 4, ("a", "b", "a", None))
    near = ByLocation("rack")
    record = ProducerRecord("t", headers=(("rack", b"a"),))
    assert [near(record, None, layout) for _ in range(4)] == [0, 2, 0, 2]
    assert near(record, b"k", layout) == near(record, b"k", layout)
    assert near(record, b"k", layout) in (0, 2)
    for elsewhere in (ProducerRecord("t"), ProducerRecord("t", headers=(("rack", b"z"),))):
        assert near(elsewhere, b"k", layout) == keyed(elsewhere, b"k", layout)
    assert near.needs_racks
    assert not ByLocation("rack", {"a": [0]}).needs_racks


def test_names_are_librdkafkas_or_ours() -> None:
    assert partitioner_for("keyed") == ({"partitioner": "murmur2_random"}, None)
    assert partitioner_for("fnv1a") == ({"partitioner": "fnv1a"}, None)
    assert partitioner_for("random")[0]["sticky.partitioning.linger.ms"] == 0
    with pytest.raises(ConfigurationError, match="choose keyed, round_robin"):
        partitioner_for("roundrobin")
