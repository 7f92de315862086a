"""One of three brokers runs out of disk space under load: others lead, and it returns when space does.

The brokers are processes of their own, and one has its data on a small file system that is filled to the last
byte. An idempotent producer writes with acks=all meanwhile, and a group reads.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from crash.cluster_load import (
    CLIENT,
    METADATA_VERSION,
    PARTITIONS,
    SETTINGS,
    TOPIC,
    await_in_time,
    check_files,
    in_sync,
)
from crash.cluster_processes import ClusterProcesses
from crash.cluster_registries import NODES
from crash.group_load import GroupLoad
from crash.load import PATIENCE, IdempotentLoad
from limits.test_full_disk import use_up
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponsePartition
from raw_client import RawClient
from small_file_system import small_file_system

FULL = 2
MEGABYTES = 64
MORE = 100
"""Records that each partition takes while the disk is full."""


def partitions(cluster: ClusterProcesses) -> list[MetadataResponsePartition]:
    """Of all topics, as a broker with a sound disk describes them."""
    with RawClient(cluster.direct_servers.split(",")[0]) as client:
        topics = client.call(MetadataRequest(topics=None), METADATA_VERSION).topics
    return [partition for topic in topics for partition in topic.partitions]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mark", [-1, 0], ids=["with a mark", "to the last byte"])
def test_a_cluster_serves_on_while_one_disk_is_full(tmp_path: Path, mark: int) -> None:
    settings = {**SETTINGS, "log.dir.min.free.bytes": mark}
    with (
        small_file_system(tmp_path / f"broker-{FULL}", MEGABYTES) as small,
        ClusterProcesses(tmp_path, settings) as cluster,
    ):
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(PATIENCE)
        load = IdempotentLoad(
            cluster.bootstrap_servers, TOPIC, PARTITIONS, queue=40, pause=0.03, settings=CLIENT
        )
        group = GroupLoad(cluster.bootstrap_servers, TOPIC, "readers", members=2)
        load.start()
        group.start()
        try:
            await_in_time(lambda: load.progress > 0 and group.commits > 0, "the first records and commits")
            await_in_time(lambda: in_sync(cluster), "all replicas to be in sync")
            rest = use_up(small)
            began = time.monotonic()
            await_in_time(
                lambda: all(FULL not in (each.leader_id, *each.isr_nodes) for each in partitions(cluster)),
                "others to lead, without the full broker in sync",
            )
            print(f"others lead {time.monotonic() - began:.2f} s after the disk is full")
            before, commits = [len(load.acknowledged[each]) for each in range(PARTITIONS)], group.commits
            await_in_time(
                lambda: all(len(load.acknowledged[each]) > before[each] + MORE for each in range(PARTITIONS)),
                "every partition to take records",
            )
            await_in_time(lambda: group.commits > commits, "the group to commit")
            assert cluster.processes[FULL].poll() is None, "the broker with the full disk runs on"
            rest.unlink()
            mended = time.monotonic()
            await_in_time(lambda: in_sync(cluster), "all replicas to be in sync again")
            print(f"all replicas are in sync {time.monotonic() - mended:.2f} s after there is space")
            load.finish()
            await_in_time(lambda: group.has_read(load.sent), "the group to read everything")
        finally:
            load.stop()
            group.finish()
        print(f"{load.progress} records, {group.commits} commits, {group.refused} refused")
        load.check(cluster.bootstrap_servers)
        group.check(cluster.bootstrap_servers, load.acknowledged)
        for node in NODES:
            cluster.terminate(node)
        for node in NODES:
            cluster.ended(node)
        check_files(cluster, load.sent)
        for node in NODES:
            text = cluster.output(node).read_text(errors="replace")
            assert "Traceback" not in text, f"broker {node}:\n{text}"
