"""Replicas spread over brokers and racks."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cluster.image import BrokerNode
from ottla.cluster.placement import place_replicas


def brokers(count: int, racks: int = 0) -> list[BrokerNode]:
    return [BrokerNode(n, "host", 9092, f"r{n % racks}" if racks else None) for n in range(1, count + 1)]


@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(0, 4),
    st.integers(1, 40),
    st.randoms(use_true_random=False),
)
def test_replicas_are_distinct_brokers_and_evenly_spread(
    count: int, factor: int, racks: int, partitions: int, rng: random.Random
) -> None:
    factor = min(factor, count)
    placed = place_replicas(brokers(count, racks), partitions=partitions, replication_factor=factor, rng=rng)
    assert len(placed) == partitions
    for replicas in placed:
        assert len(set(replicas)) == factor
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - (min(leaders.values()) if len(leaders) == count else 0) <= 1


@given(st.integers(2, 9), st.integers(2, 4), st.integers(1, 5), st.randoms(use_true_random=False))
def test_no_rack_has_two_replicas_while_another_has_none(
    count: int, racks: int, factor: int, rng: random.Random
) -> None:
    nodes = brokers(count, racks)
    rack_of = {node.id: node.rack for node in nodes}
    factor = min(factor, count)
    for replicas in place_replicas(nodes, partitions=20, replication_factor=factor, rng=rng):
        used = {rack_of[replica] for replica in replicas}
        assert len(used) == min(factor, len(set(rack_of.values())))


def test_partitions_of_one_leader_are_followed_by_different_brokers() -> None:
    placed = place_replicas(brokers(4), partitions=12, replication_factor=2, rng=random.Random(0))
    followers = {replicas[1] for replicas in placed if replicas[0] == 1}
    assert followers == {2, 3, 4}


def test_many_small_topics_do_not_all_start_at_the_same_broker() -> None:
    rng = random.Random(0)
    leaders = Counter(
        place_replicas(brokers(3), partitions=1, replication_factor=1, rng=rng)[0][0] for _ in range(300)
    )
    assert min(leaders.values()) > 60


@pytest.mark.parametrize("factor", [0, 4])
def test_more_replicas_than_brokers_cannot_be_placed(factor: int) -> None:
    with pytest.raises(ValueError, match="cannot place"):
        place_replicas(brokers(3), partitions=1, replication_factor=factor, rng=random.Random(0))
