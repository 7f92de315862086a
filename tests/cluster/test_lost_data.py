"""A broker of a real cluster comes back without its records: the others keep theirs, and give them back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cluster.brokers import Cluster, until
from cluster.test_in_sync import SETTINGS, isr_of, produce_once, started
from cluster.test_replication import are_equal, leader_of, replicas_of
from ottla.cluster.image import NO_LEADER, PartitionState
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, ElectTopic
from ottla.storage.directory_checkpoints import BOOT_ID_FILE


def state_of(cluster: Cluster) -> PartitionState:
    state = cluster.image.partition("t", 0)
    assert state is not None
    return state


async def crash_with(cluster: Cluster, broker_id: int, folder: Path, loss: str) -> None:
    """Ends a broker and takes records from it, as a replaced disk or a loss of power does."""
    await cluster.crash(broker_id)
    if loss == "disk":
        shutil.rmtree(folder)
        return
    (folder / BOOT_ID_FILE).write_text("an earlier boot")
    for log in folder.glob("t-0/*.log"):
        log.write_bytes(b"")


@pytest.mark.parametrize("loss", ["disk", "power"])
async def test_a_leader_that_lost_its_records_gets_them_back_from_the_others(
    tmp_path: Path, loss: str
) -> None:
    async with Cluster(tmp_path, settings=SETTINGS) as cluster:
        await started(cluster)
        for _ in range(5):
            assert await produce_once(cluster) is ErrorCode.NONE
        lost = leader_of(cluster, "t")
        await crash_with(cluster, lost, tmp_path / f"broker-{lost}", loss)
        await cluster.start(lost)
        await cluster.settled()
        assert state_of(cluster).leader != lost
        await until(lambda: isr_of(cluster) == {1, 2, 3})
        await until(lambda: are_equal(cluster, "t"))
        assert {partition.end_offset for partition in replicas_of(cluster, "t")} == {5}


async def test_an_empty_disk_of_the_last_one_in_sync_waits_for_an_operator(tmp_path: Path) -> None:
    async with Cluster(tmp_path, settings=SETTINGS) as cluster:
        await started(cluster)
        assert await produce_once(cluster) is ErrorCode.NONE
        last = leader_of(cluster, "t")
        others = {1, 2, 3} - {last}
        for broker_id in others:
            await cluster.stop(broker_id)
        await until(lambda: isr_of(cluster) == {last})
        assert await produce_once(cluster) is ErrorCode.NONE
        await crash_with(cluster, last, tmp_path / f"broker-{last}", "disk")
        await cluster.start(last)
        await cluster.start(*others)
        await cluster.settled()
        assert state_of(cluster).leader == NO_LEADER
        request = ElectLeadersRequest(
            election_type=1, topic_partitions=[ElectTopic(topic="t", partitions=[0])]
        )
        response = await cluster.call(cluster.others[0], request)
        assert response.error_code == 0
        await until(lambda: state_of(cluster).leader in others)
        await until(lambda: isr_of(cluster) == {1, 2, 3})
        assert {partition.end_offset for partition in replicas_of(cluster, "t")} == {1}
