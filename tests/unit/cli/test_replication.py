"""Where new replicas go when a topic is to have more of them."""

from __future__ import annotations

from collections import Counter

import pytest

from ottla.cli.replication import TooFewBrokers, raised

BROKERS = {1: None, 2: None, 3: None}
GROWN = {("t", index): [1] for index in range(6)}


def test_old_replicas_stay_and_new_ones_are_different_brokers() -> None:
    for replicas in raised(GROWN, list(GROWN), BROKERS, 2).values():
        assert len(set(replicas)) == 2
        assert 1 in replicas


def test_replicas_and_preferred_leaders_are_spread() -> None:
    found = raised(GROWN, list(GROWN), BROKERS, 2)
    assert Counter(broker for each in found.values() for broker in each) == {1: 6, 2: 3, 3: 3}
    assert Counter(each[0] for each in raised(GROWN, list(GROWN), BROKERS, 3).values()) == {1: 2, 2: 2, 3: 2}


def test_brokers_that_hold_less_get_more() -> None:
    replicas = {("a", 0): [2, 3], ("a", 1): [2, 3], ("b", 0): [3]}
    assert set(raised(replicas, [("b", 0)], BROKERS, 2)["b", 0]) == {1, 3}


def test_racks_without_a_replica_come_first() -> None:
    racks = {1: "a", 2: "a", 3: "b"}
    replicas = {("t", 0): [1], ("u", 0): [3], ("u", 1): [3]}
    assert set(raised(replicas, [("t", 0)], racks, 2)["t", 0]) == {1, 3}


def test_partitions_with_as_many_replicas_are_left_alone() -> None:
    replicas = {("t", 0): [3, 1], ("t", 1): [1, 2, 3], ("t", 2): [2]}
    assert list(raised(replicas, list(replicas), BROKERS, 2)) == [("t", 2)]


def test_a_replica_on_a_broker_that_is_away_counts() -> None:
    assert set(raised({("t", 0): [9]}, [("t", 0)], BROKERS, 2)["t", 0]) == {9, 1}


def test_more_replicas_than_brokers_are_refused() -> None:
    with pytest.raises(TooFewBrokers, match="4 replicas need as many brokers, and there are 3"):
        raised(GROWN, list(GROWN), BROKERS, 4)
