"""What the controller does when brokers report their disks, on virtual time."""

from __future__ import annotations

import pytest

from ottla.cluster.disk_states import HEALTHY, DiskReport, DiskStates
from ottla.cluster.image import NO_LEADER, PartitionState
from ottla.cluster.registry import Unavailable
from ottla.cluster.topic_rules import TopicDefaults
from ottla.protocol.errors import ApiError, ErrorCode
from unit.cluster.members import failing
from unit.cluster.simulated_members import SimulatedCluster, in_cluster
from unit.cluster.test_elections import isr_request, stored

IMPAIRED = DiskReport(impaired=True)
A, B = b"a" * 16, b"b" * 16


def test_states_name_who_is_impaired_and_which_replicas_failed() -> None:
    disks = DiskStates()
    assert not disks and not disks.report(1, HEALTHY)
    assert disks.report(1, DiskReport(True, frozenset({(A, 0)})))
    assert disks.report(2, DiskReport(False, frozenset({(A, 0), (B, 1)})))
    assert not disks.report(2, DiskReport(False, frozenset({(A, 0), (B, 1)})))
    assert sorted(disks.impaired) == [1]
    assert sorted(disks.failed_at(A, 0)) == [1, 2] and not disks.failed_at(A, 1)
    assert disks.forget(1) and not disks.forget(1)
    assert not disks.impaired and sorted(disks.failed_at(A, 0)) == [2] and disks.of(1) == HEALTHY


async def report(cluster: SimulatedCluster, broker: int, disk: DiskReport) -> None:
    await cluster.controller.take_disk_report(broker, cluster.members[broker].epoch, disk)


def failed(cluster: SimulatedCluster, topic: str = "t", index: int = 0) -> DiskReport:
    return DiskReport(False, frozenset({(cluster.image.topics[topic].id, index)}))


def test_leaders_move_from_a_full_disk_and_the_image_shows_it() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (2, 3, 1), (3, 2, 1))
        await report(cluster, 2, IMPAIRED)
        assert cluster.partition() == PartitionState((2, 3, 1), (3, 1), 3, 1, 1)
        assert cluster.partition("t", 1) == PartitionState((3, 2, 1), (3, 1), 3, 0, 1)
        assert cluster.image.brokers[2].disk == IMPAIRED
        await stored(cluster)

    in_cluster(scenario)


def test_a_mended_broker_returns_to_the_isr_by_its_leader_and_to_the_lead_by_preference() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (2, 3, 1))
        await report(cluster, 2, IMPAIRED)
        asked = isr_request(cluster, (3, 1, 2), sender=3)
        refused = await cluster.controller.alter_partitions(asked)
        assert refused.topics[0].partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA
        await report(cluster, 2, HEALTHY)
        assert cluster.image.brokers[2].disk == HEALTHY
        taken = await cluster.controller.alter_partitions(asked)
        assert taken.topics[0].partitions[0].error_code == 0
        await cluster.until(lambda: cluster.partition().leader == 2)

    in_cluster(scenario, balance_interval=20.0)


def test_the_last_broker_stays_leader_when_all_disks_are_full() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (1, 2, 3))
        for broker in (1, 2, 3):
            await report(cluster, broker, IMPAIRED)
        assert (cluster.partition().leader, cluster.partition().isr) == (3, (2, 3))
        epoch = cluster.partition().leader_epoch
        for broker in (1, 3, 2):
            await report(cluster, broker, HEALTHY)
        assert (cluster.partition().leader, cluster.partition().leader_epoch) == (3, epoch)

    in_cluster(scenario, defaults=TopicDefaults(min_insync_replicas=2))


def test_a_full_leader_hands_over_when_a_mended_broker_is_in_sync_again() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (1, 2, 3))
        for broker in (1, 2, 3):
            await report(cluster, broker, IMPAIRED)
        await report(cluster, 1, HEALTHY)
        assert cluster.partition().leader == 3
        assert cluster.partition().isr == (3,)
        await cluster.controller.alter_partitions(isr_request(cluster, (1, 3), sender=3))
        await cluster.until(lambda: cluster.partition().leader == 1, seconds=1)
        assert cluster.partition().isr == (1,)
        await stored(cluster)

    in_cluster(scenario)


def test_new_partitions_are_not_led_from_a_full_disk() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await report(cluster, 2, IMPAIRED)
        await cluster.create("t", (2, 3, 1))
        await cluster.until(lambda: cluster.partition().leader == 3, seconds=1)
        assert cluster.partition().isr == (3, 1)

    in_cluster(scenario)


def test_only_the_partition_whose_log_failed_moves() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (2, 3, 1), (2, 3, 1))
        await report(cluster, 2, failed(cluster))
        assert cluster.partition() == PartitionState((2, 3, 1), (3, 1), 3, 1, 1)
        assert cluster.partition("t", 1) == PartitionState((2, 3, 1), (2, 3, 1), 2)
        refused = await cluster.controller.alter_partitions(isr_request(cluster, (3, 1, 2), sender=3))
        assert refused.topics[0].partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA

    in_cluster(scenario)


def test_an_unclean_election_passes_over_failed_replicas() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (2, 3, 1))
        await cluster.controller.alter_partitions(isr_request(cluster, (2,), sender=2))
        await report(cluster, 2, failed(cluster))
        await report(cluster, 3, failed(cluster))
        assert cluster.partition().leader == NO_LEADER
        _, results = await cluster.controller.elect_leaders([("t", 0)], unclean=True)
        assert results["t", 0] is None and cluster.partition().leader == 1

    in_cluster(scenario)


def test_a_broker_that_registers_anew_counts_as_healthy_until_it_reports() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (2, 3, 1))
        await report(cluster, 2, IMPAIRED)
        old = cluster.members[2].epoch
        cluster.kill(2)
        await cluster.start(2)
        assert cluster.image.brokers[2].disk == HEALTHY
        with pytest.raises(ApiError) as refused:
            await cluster.controller.take_disk_report(2, old, IMPAIRED)
        assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH
        taken = await cluster.controller.alter_partitions(isr_request(cluster, (3, 1, 2), sender=3))
        assert taken.topics[0].partitions[0].error_code == 0

    in_cluster(scenario)


def test_what_the_registry_did_not_take_of_a_report_is_decided_again() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (2, 3, 1))
        cluster.members[1].registry.faults = [failing(Unavailable("disk full"))] * 2
        with pytest.raises(ApiError):
            await report(cluster, 2, IMPAIRED)
        await cluster.until(lambda: cluster.partition().leader == 3, seconds=5)
        assert cluster.image.brokers[2].disk == IMPAIRED
        await stored(cluster)

    in_cluster(scenario)


def test_a_new_controller_has_to_be_told() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.create("t", (2, 3, 1))
        heard = await cluster.controller.take_disk_report(2, cluster.members[2].epoch, IMPAIRED)
        assert heard == cluster.image.controller_epoch
        cluster.kill(1)
        await cluster.until(lambda: cluster.active is not None)
        assert cluster.image.brokers[2].disk == HEALTHY
        assert cluster.image.controller_epoch > heard

    in_cluster(scenario)
