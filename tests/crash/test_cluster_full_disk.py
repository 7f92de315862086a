"""One of three brokers runs out of disk space under load: others lead, and it returns when space does.

The brokers are processes of their own, and one has its data on a small file system that is filled to the last
byte. What clients were promised is checked as after any other fault (`cluster_load`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.cluster_evidence import metadata_of
from crash.cluster_load import SETTINGS, await_in_time, in_sync, takes_records, under_load
from crash.cluster_processes import ClusterProcesses
from crash.cluster_registries import ZooKeepers
from limits.test_full_disk import use_up
from small_file_system import small_file_system
from zookeeper_server import ZooKeeperServer

FULL = 2
MEGABYTES = 64


def serves_without_full_broker(cluster: ClusterProcesses) -> bool:
    """Whether it neither leads nor is in sync, as a broker with a sound disk describes the cluster."""
    metadata = metadata_of(cluster.direct_servers.split(",")[0])
    return metadata is not None and all(
        FULL not in (partition.leader_id, *partition.isr_nodes)
        for topic in metadata.topics
        for partition in topic.partitions
    )


@contextlib.contextmanager
def zookeeper(folder: Path) -> Iterator[ZooKeepers]:
    (folder / "zookeeper").mkdir()
    server = ZooKeeperServer(folder / "zookeeper")
    server.start()
    try:
        yield ZooKeepers([server], "ottla")
    finally:
        server.stop()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mark", [-1, 0], ids=["with a mark", "to the last byte"])
@pytest.mark.parametrize("registry", ["sqlite", "zookeeper"])
def test_a_cluster_serves_on_while_one_disk_is_full(tmp_path: Path, mark: int, registry: str) -> None:
    settings = {**SETTINGS, "log.dir.min.free.bytes": mark}
    with (
        zookeeper(tmp_path) if registry == "zookeeper" else contextlib.nullcontext() as shared,
        small_file_system(tmp_path / f"broker-{FULL}", MEGABYTES) as small,
        ClusterProcesses(tmp_path, settings, shared) as cluster,
        under_load(cluster) as load,
    ):
        await_in_time(lambda: in_sync(cluster), "all replicas to be in sync")
        rest = use_up(small)
        began = time.monotonic()
        await_in_time(lambda: serves_without_full_broker(cluster), "others to lead and to be in sync")
        print(f"others lead {time.monotonic() - began:.2f} s after the disk is full")
        takes_records(load)
        takes_records(load)
        assert cluster.processes[FULL].poll() is None, "the broker with the full disk runs on"
        rest.unlink()
