"""Three brokers are killed, stopped, paused and cut off under load; what clients were promised holds.

The brokers are processes of their own with a network between them. An idempotent producer writes with
acks=all to a topic with three replicas, of which two must be in sync, and a group reads it and commits. When
all is mended: every record is there once, in order and at the offset that was named; nothing that was read or
committed is gone; all replicas are in sync again within a bounded time, and their files are equal.

OTTLA_CRASH_SEED repeats the faults of a run.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from crash.cluster_faults import KINDS, SESSION_SECONDS, cause
from crash.cluster_processes import NODES, ClusterProcesses
from crash.group_load import GroupLoad
from crash.load import PATIENCE, IdempotentLoad
from ottla.protocol.batches import HEADER, LENGTH_OVERHEAD, BatchHeader
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.storage.checkpoints import HIGH_WATERMARKS, decode_offsets
from raw_client import RawClient
from zookeeper_server import shared_server

TOPIC = "t"
OFFSETS_TOPIC = "__consumer_offsets"
METADATA_VERSION = 9
PARTITIONS = 4
IN_SYNC_SECONDS = 60.0
"""All replicas are in sync so soon after the last fault; a busy machine included."""
SETTINGS = {
    "broker.session.timeout.ms": int(SESSION_SECONDS * 1000),
    "broker.heartbeat.interval.ms": 300,
    "replica.lag.time.max.ms": 1500,
    "replica.fetch.wait.max.ms": 200,
    "replica.fetch.backoff.ms": 100,
    "offsets.topic.num.partitions": 2,
    "group.initial.rebalance.delay.ms": 100,
    "log.segment.bytes": 1 << 20,
}
CLIENT = {
    "socket.timeout.ms": 4000,
    "topic.metadata.refresh.interval.ms": 2000,
    # With more, librdkafka may begin a new producer epoch when the first of several requests was refused, and
    # send with it again what another partition holds already: confluentinc/librdkafka#4953.
    "max.in.flight": 1,
}


def run_faults(
    folder: Path,
    seed: int,
    kinds: Callable[[random.Random], Iterator[str]],
    *,
    at_once: int = 1,
    gap: float = 0.5,
    registry: str | None = None,
) -> None:
    seed = int(os.environ.get("OTTLA_CRASH_SEED") or seed)
    print(f"replay with OTTLA_CRASH_SEED={seed}")
    rng = random.Random(seed)
    with ClusterProcesses(folder, SETTINGS, registry) as cluster:
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
            cause(cluster, rng, kinds(rng), at_once=at_once, gap=gap)
            mended = time.monotonic()
            before = [len(load.acknowledged[partition]) for partition in range(PARTITIONS)]
            await_in_time(
                lambda: all(len(load.acknowledged[each]) > before[each] for each in range(PARTITIONS)),
                "every partition to take records again",
            )
            print(f"all partitions take records after {time.monotonic() - mended:.2f} s")
            await_in_time(lambda: in_sync(cluster), "all replicas to be in sync", mended + IN_SYNC_SECONDS)
            print(f"all replicas are in sync after {time.monotonic() - mended:.2f} s")
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
        assert not processes_of(folder)
        check_files(cluster, load.sent)
        for node in NODES:
            text = cluster.output(node).read_text(errors="replace")
            assert "Traceback" not in text, f"broker {node}:\n{text}"


def await_in_time(true: Callable[[], bool], what: str, deadline: float | None = None) -> None:
    deadline = deadline or time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.05)


def in_sync(cluster: ClusterProcesses) -> bool:
    """True when every broker says so of every partition."""
    return all(is_in_sync_according_to(address) for address in cluster.direct_servers.split(","))


def is_in_sync_according_to(address: str) -> bool:
    try:
        with RawClient(address) as client:
            topics = client.call(MetadataRequest(topics=None), METADATA_VERSION).topics
    except OSError:
        return False
    partitions = [partition for topic in topics for partition in topic.partitions]
    return {topic.name for topic in topics} == {TOPIC, OFFSETS_TOPIC} and all(
        set(each.isr_nodes) == set(NODES) and each.leader_id in NODES for each in partitions
    )


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that work on this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if str(folder).encode() in line:
            found.append(line.replace(b"\0", b" ").decode(errors="replace"))
    return found


def check_files(cluster: ClusterProcesses, written: list[int]) -> None:
    """The logs of all replicas are equal below the high watermark, and nothing is behind it."""
    watermarks = [decode_offsets((cluster.data(node) / HIGH_WATERMARKS).read_bytes()) for node in NODES]
    assert watermarks[0].keys() == watermarks[1].keys() == watermarks[2].keys()
    for topic, partition in watermarks[0]:
        high_watermark = min(each[topic, partition] for each in watermarks)
        first, *others = (
            batches(cluster.data(node) / f"{topic}-{partition}", high_watermark) for node in NODES
        )
        assert all(each == first for each in others), f"replicas of {topic}-{partition} differ"
        if topic == TOPIC:
            ends = [each[topic, partition] for each in watermarks]
            assert ends == [written[partition]] * 3, f"high watermarks of {partition}: {ends}"
            assert first == batches(cluster.data(1) / f"{topic}-{partition}", 1 << 62), "more than was sent"
            headers = (BatchHeader._make(HEADER.unpack_from(batch)) for batch in first)
            assert all(header.producer_epoch == 0 for header in headers), "a broker forgot the producer"


def batches(folder: Path, below: int) -> list[bytes]:
    """The batches of a log up to an offset, as they are in its files."""
    found = []
    for segment in sorted(folder.glob("*.log")):
        data, position = segment.read_bytes(), 0
        while position < len(data):
            header = BatchHeader._make(HEADER.unpack_from(data, position))
            end = position + LENGTH_OVERHEAD + header.batch_length
            if header.base_offset < below:
                found.append(data[position:end])
            position = end
    return found


def each_kind_once(rng: random.Random) -> Iterator[str]:
    return iter(rng.sample(KINDS, len(KINDS)))


def many(count: int) -> Callable[[random.Random], Iterator[str]]:
    def kinds(rng: random.Random) -> Iterator[str]:
        return itertools.islice(iter(lambda: rng.choice((*KINDS, "long pause")), ""), count)

    return kinds


def test_acknowledged_records_and_commits_survive_every_kind_of_fault(tmp_path: Path) -> None:
    run_faults(tmp_path, 1, each_kind_once)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2, 6))
def test_acknowledged_records_and_commits_survive_many_faults(tmp_path: Path, seed: int) -> None:
    run_faults(tmp_path, seed, many(30))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(6, 10))
def test_acknowledged_records_and_commits_survive_faults_at_the_same_time(tmp_path: Path, seed: int) -> None:
    run_faults(tmp_path, seed, many(40), at_once=3)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(10, 12))
def test_acknowledged_records_and_commits_survive_faults_with_zookeeper(tmp_path: Path, seed: int) -> None:
    registry = f"zookeeper://{shared_server().address}/faults-{seed}"
    run_faults(tmp_path, seed, many(25), at_once=2, registry=registry)
