"""Which partitions are in trouble, and what a person is told to do about it."""

from __future__ import annotations

import pytest

from ottla.cli.cluster_health import (
    BELOW_MIN_ISR,
    OFFLINE,
    UNDER_REPLICATED,
    BrokerView,
    ClusterHealth,
    PartitionView,
)


def partition(leader: int, isr: tuple[int, ...], *, index: int = 0, min_isr: int = 2) -> PartitionView:
    return PartitionView("t", index, leader, (1, 2, 3), isr, min_isr)


def brokers(*ids: int, fenced: tuple[int, ...] = ()) -> list[BrokerView]:
    return [BrokerView(node, f"h:{node}", None, node in fenced) for node in ids]


@pytest.mark.parametrize(
    ("leader", "isr", "trouble"),
    [
        (1, (1, 2, 3), None),
        (1, (1, 3), UNDER_REPLICATED),
        (1, (1,), BELOW_MIN_ISR),
        (-1, (1, 2, 3), OFFLINE),
        (-1, (), OFFLINE),
    ],
)
def test_a_partition_has_the_worst_of_its_troubles(
    leader: int, isr: tuple[int, ...], trouble: str | None
) -> None:
    assert partition(leader, isr).trouble == trouble


def test_min_isr_above_the_number_of_replicas_counts_as_that_number() -> None:
    assert PartitionView("t", 0, 1, (1,), (1,), 2).trouble is None


def test_a_cluster_with_all_brokers_and_replicas_is_healthy() -> None:
    health = ClusterHealth(brokers(1, 2, 3), [partition(1, (1, 2, 3)), partition(2, (1, 2, 3), index=1)])
    assert health.healthy
    assert health.advice() == []
    assert (health.leads(1), health.replicas(3)) == (1, 2)


def test_brokers_with_replicas_that_are_not_registered_are_missing() -> None:
    health = ClusterHealth(brokers(1, 2), [partition(1, (1, 2))])
    assert (health.missing, health.healthy) == ([3], False)
    assert health.advice() == [
        "Broker 3 has 1 replica and is not registered: `ottla serve --brokers` starts it again; on its own, "
        "start it."
    ]


def test_the_most_urgent_trouble_comes_first() -> None:
    health = ClusterHealth(
        brokers(1, 2, 3, fenced=(3,)),
        [partition(1, (1, 2)), partition(1, (1,), index=1), partition(-1, (), index=2)],
    )
    assert [each.trouble for each in health.troubled] == [OFFLINE, BELOW_MIN_ISR, UNDER_REPLICATED]
    offline, refused, fenced = health.advice()
    assert offline.startswith("Nothing can be read from or written to 1 partition")
    assert refused.startswith("acks=all is refused by 1 partition")
    assert fenced.startswith("Broker 3 is registered, but the controller does not hear from it")


def test_replicas_that_lag_while_all_brokers_are_there_are_named() -> None:
    (advice,) = ClusterHealth(brokers(1, 2, 3), [partition(1, (1, 2))]).advice()
    assert "replicas on broker 3 are not in sync" in advice


def test_full_disks_and_failed_logs_are_named_with_what_to_do() -> None:
    full = [BrokerView(node, f"h:{node}", None, False, full=node == 2) for node in (1, 2, 3)]
    (advice,) = ClusterHealth(full, [partition(1, (1, 3))]).advice()
    assert advice.startswith("Broker 2 takes no records, as its disk is full")
    failed = [PartitionView("t", 0, 1, (1, 2, 3), (1, 2), 2, offline=(3,))]
    health = ClusterHealth(brokers(1, 2, 3), failed)
    assert health.failed == {3: 1}
    (advice,) = health.advice()
    assert advice.startswith("Broker 3 has 1 replica without a sound log")
    assert ClusterHealth(brokers(1, 2, 3, fenced=(3,)), failed).failed == {}


def test_a_cluster_in_which_all_disks_are_full_is_not_healthy() -> None:
    full = [BrokerView(node, f"h:{node}", None, False, full=True) for node in (1, 2, 3)]
    health = ClusterHealth(full, [partition(1, (1, 2, 3))])
    assert not health.healthy and len(health.advice()) == 3
