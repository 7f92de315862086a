"""A broker of a real cluster has a full or failing disk: others lead, and take it back when it is mended."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.brokers import Cluster, until
from cluster.test_in_sync import SETTINGS, isr_of, led, produce_once, started
from cluster.test_replication import are_equal, leader_of, produce, records_of
from ottla.broker import disk_reports
from ottla.cluster.disk_states import HEALTHY
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.storage.files import RealDisk
from ottla.testing.faulty_disk import FaultyDisk

MARK = 1 << 20
ALL = {1, 2, 3}


class BadDisks(Cluster):
    """Three brokers on disks that fail when told so. `t` has three replicas, of which two must be in sync."""

    def __init__(self, folder: Path) -> None:
        self.disks = {broker: FaultyDisk(RealDisk()) for broker in ALL}
        settings = {
            **SETTINGS,
            "replica.lag.time.max.ms": 60_000,  # so that no in-sync set shrinks for another reason
            "min.insync.replicas": 2,
            "log.dir.min.free.bytes": MARK,
        }
        super().__init__(folder, settings=settings, disks=self.disks)

    def fill(self, *brokers: int) -> None:
        """Below the mark, which leaves space for what is not a record."""
        for broker in brokers:
            self.disks[broker].free_bytes = MARK // 2
            self.brokers[broker].space.look()

    def free(self, *brokers: int) -> None:
        for broker in brokers:
            self.disks[broker].heal()
            self.brokers[broker].space.look()

    def shown_impaired(self) -> set[int]:
        return {broker.id for broker in self.image.brokers.values() if broker.disk.impaired}


async def test_another_broker_leads_while_the_disk_of_the_leader_is_full(tmp_path: Path) -> None:
    async with BadDisks(tmp_path) as cluster:
        await started(cluster)
        await produce(cluster, "t", [b"x"] * 5)
        full = leader_of(cluster, "t")
        cluster.fill(full)
        await until(lambda: cluster.shown_impaired() == {full})
        await cluster.settled()
        assert leader_of(cluster, "t") != full
        assert isr_of(cluster) == ALL - {full} and cluster.shown_impaired() == {full}
        await produce(cluster, "t", [b"y"] * 5)
        assert led(cluster).high_watermark == 10
        described = await cluster.topic(led(cluster).state.leader, "t")
        assert described.partitions[0].offline_replicas == [], "it is complete, and can be read"
        cluster.free(full)
        await until(lambda: isr_of(cluster) == ALL)
        await until(lambda: are_equal(cluster, "t"))
        assert not cluster.shown_impaired()


async def test_a_follower_with_a_full_disk_holds_up_nobody_and_keeps_the_last_space_free(
    tmp_path: Path,
) -> None:
    async with BadDisks(tmp_path) as cluster:
        await started(cluster)
        leader = leader_of(cluster, "t")
        full = min(ALL - {leader})
        cluster.fill(full)
        await until(lambda: isr_of(cluster) == ALL - {full})
        end = cluster.brokers[full].replicas.get("t", 0).end_offset
        await produce(cluster, "t", [b"x" * 100_000] * 10)
        assert leader_of(cluster, "t") == leader
        free = cluster.disks[full].free_bytes
        assert free is not None and free > MARK // 4
        assert cluster.brokers[full].replicas.get("t", 0).end_offset == end
        cluster.free(full)
        await until(lambda: isr_of(cluster) == ALL)


async def test_the_leader_stays_and_is_read_while_all_disks_are_full(tmp_path: Path) -> None:
    async with BadDisks(tmp_path) as cluster:
        await started(cluster)
        await produce(cluster, "t", [b"x"] * 5)
        cluster.fill(*ALL)
        await until(lambda: cluster.shown_impaired() == ALL)
        await cluster.settled()
        leader, epoch = leader_of(cluster, "t"), led(cluster).leader_epoch
        assert await produce_once(cluster, acks=1) is ErrorCode.KAFKA_STORAGE_ERROR
        await until(lambda: led(cluster).high_watermark == 5)
        fetch = FetchRequest(
            max_bytes=1 << 20,
            topics=[
                FetchTopic(topic="t", partitions=[FetchPartition(partition=0, partition_max_bytes=1 << 20)])
            ],
        )
        answer = await cluster.call(leader, fetch, version=11)
        assert answer.responses[0].partitions[0].error_code == 0 and answer.responses[0].partitions[0].records
        cluster.free(leader)
        await until(lambda: cluster.shown_impaired() == ALL - {leader})
        cluster.free(*ALL)
        await until(lambda: isr_of(cluster) == ALL)
        await cluster.settled()
        assert (leader_of(cluster, "t"), led(cluster).leader_epoch) == (leader, epoch)
        await produce(cluster, "t", [b"y"] * 5)


async def test_a_leader_whose_log_fails_is_replaced_and_returns_after_a_restart(tmp_path: Path) -> None:
    async with BadDisks(tmp_path) as cluster:
        await started(cluster)
        await produce(cluster, "t", [b"x"] * 5)
        bad = leader_of(cluster, "t")
        partition = led(cluster)
        cluster.disks[bad].fail("sync", name="t-0")
        with pytest.raises(ApiError):
            partition.log.flush()
        await until(lambda: cluster.image.brokers[bad].disk != HEALTHY)
        await cluster.settled()
        assert leader_of(cluster, "t") != bad and isr_of(cluster) == ALL - {bad}
        for broker in ALL - {bad}:
            assert (await cluster.topic(broker, "t")).partitions[0].offline_replicas == [bad]
        await produce(cluster, "t", [b"y"] * 5)
        cluster.disks[bad].heal()
        await cluster.stop(bad)
        await cluster.start(bad)
        await until(lambda: isr_of(cluster) == ALL)
        await until(lambda: are_equal(cluster, "t"))
        await cluster.settled()
        assert [value for _, value in records_of(led(cluster))] == [b"x"] * 5 + [b"y"] * 5
        assert (await cluster.topic(bad, "t")).partitions[0].offline_replicas == []


@pytest.mark.parametrize("operation", ["write", "read"])
async def test_a_leader_whose_disk_refuses_work_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """It keeps its log, and is taken back on trial."""
    monkeypatch.setattr(disk_reports, "FIRST_HOLD", 1.0)
    async with BadDisks(tmp_path) as cluster:
        await started(cluster)
        bad = leader_of(cluster, "t")
        cluster.disks[bad].fail(operation, name=".log")
        await produce(cluster, "t", [b"x"] * 5)
        assert leader_of(cluster, "t") != bad
        cluster.disks[bad].heal()
        await until(lambda: isr_of(cluster) == ALL)
        await until(lambda: are_equal(cluster, "t"))


async def test_a_new_controller_learns_of_a_full_disk(tmp_path: Path) -> None:
    async with BadDisks(tmp_path) as cluster:
        await started(cluster)
        full = min(ALL - {cluster.controller})
        cluster.fill(full)
        await until(lambda: cluster.shown_impaired() == {full})
        await cluster.crash(cluster.controller)
        await until(lambda: any(broker.controller.active for broker in cluster.brokers.values()))
        await until(lambda: cluster.shown_impaired() == {full})
