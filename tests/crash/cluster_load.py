"""Load on a cluster of processes, and the check that what clients were promised holds.

An idempotent producer writes with acks=all to a topic with three replicas, of which two must be in sync, and
groups read it and commit. Whatever happens to the brokers meanwhile, when all is mended: every record is
there once, in order and at the offset that was named; nothing that was read or committed is gone; all
replicas are in sync again within a bounded time, and their files are equal.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from crash.cluster_faults import SESSION_SECONDS
from crash.cluster_processes import ClusterProcesses
from crash.cluster_registries import NODES
from crash.group_load import GroupLoad
from crash.load import PATIENCE, IdempotentLoad
from ottla.protocol.batches import HEADER, LENGTH_OVERHEAD, BatchHeader
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.storage.checkpoints import HIGH_WATERMARKS, decode_offsets
from raw_client import RawClient

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
    "group.consumer.min.session.timeout.ms": 6000,
    "group.consumer.session.timeout.ms": 6000,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.heartbeat.interval.ms": 500,
    "transaction.state.log.num.partitions": 2,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "log.segment.bytes": 1 << 20,
}
CLIENT = {
    "socket.timeout.ms": 4000,
    "topic.metadata.refresh.interval.ms": 2000,
    # With more, librdkafka may begin a new producer epoch when the first of several requests was refused, and
    # send with it again what another partition holds already: confluentinc/librdkafka#4953.
    "max.in.flight": 1,
}


@contextlib.contextmanager
def under_load(
    cluster: ClusterProcesses, protocols: Sequence[str] = ("classic",)
) -> Iterator[IdempotentLoad]:
    """Clients are at work when the block begins. When it ends all is mended, and the promises are checked.

    All brokers have stopped then. `protocols` are those of the groups, one group for each.
    """
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(PATIENCE)
    load = IdempotentLoad(cluster.bootstrap_servers, TOPIC, PARTITIONS, queue=40, pause=0.03, settings=CLIENT)
    groups = [
        GroupLoad(cluster.bootstrap_servers, TOPIC, f"{protocol}-readers", 2, protocol=protocol)
        for protocol in protocols
    ]
    load.start()
    for group in groups:
        group.start()
    try:
        await_in_time(
            lambda: load.progress > 0 and all(group.commits > 0 for group in groups),
            "the first records and commits",
        )
        yield load
        mended = time.monotonic()
        await_in_time(lambda: in_sync(cluster), "all replicas to be in sync", mended + IN_SYNC_SECONDS)
        print(f"all replicas are in sync after {time.monotonic() - mended:.2f} s")
        takes_records(load)
        await_in_time(lambda: in_sync(cluster), "them to stay in sync", mended + IN_SYNC_SECONDS)
        load.finish()
        for group in groups:
            await_in_time(lambda group=group: group.has_read(load.sent), "a group to read everything")  # type: ignore[misc]
    finally:
        load.stop()
        for group in groups:
            group.finish()
        for what, counted in (("acknowledged", load.acknowledged), *((g.group, g.read) for g in groups)):
            print(f"{what}: {[len(counted[each]) for each in range(PARTITIONS)]} of {load.sent}")
    print(f"{load.progress} records, {[group.commits for group in groups]} commits")
    load.check(cluster.bootstrap_servers)
    for group in groups:
        group.check(cluster.bootstrap_servers, load.acknowledged)
    for node in NODES:
        cluster.terminate(node)
    for node in NODES:
        cluster.ended(node)
    check_files(cluster, load.sent)
    for node in NODES:
        text = cluster.output(node).read_text(errors="replace")
        assert "Traceback" not in text, f"broker {node}:\n{text}"


def takes_records(load: IdempotentLoad) -> None:
    """Returns when every partition has acknowledged records that were sent after the call."""
    sent = list(load.sent)

    def all_have() -> bool:
        assert load.errors == [], f"the producer gave up: {load.errors[:10]}"
        return all(len(load.acknowledged[each]) > sent[each] for each in range(PARTITIONS))

    await_in_time(all_have, f"every partition to take records after {sent}")


def await_in_time(true: Callable[[], bool], what: str, deadline: float | None = None) -> None:
    deadline = deadline or time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.05)


def in_sync(cluster: ClusterProcesses) -> bool:
    """True when every broker says so of every partition. One that could not start is started again."""
    cluster.start_again()
    return all(map(_is_in_sync_according_to, cluster.direct_servers.split(",")))


def _is_in_sync_according_to(address: str) -> bool:
    metadata = metadata_of(address)
    topics = metadata.topics if metadata is not None else []
    partitions = [partition for topic in topics for partition in topic.partitions]
    return {topic.name for topic in topics} >= {TOPIC, OFFSETS_TOPIC} and all(
        set(each.isr_nodes) == set(NODES) and each.leader_id in NODES for each in partitions
    )


def metadata_of(address: str) -> MetadataResponse | None:
    """What a broker says of the cluster; None while it does not answer."""
    try:
        with RawClient(address) as client:
            found = client.call(MetadataRequest(topics=None), METADATA_VERSION)
    except OSError:
        return None
    assert isinstance(found, MetadataResponse)
    return found


def check_files(cluster: ClusterProcesses, written: list[int]) -> None:
    """The logs of all replicas are equal below the high watermark, and nothing is behind it."""
    watermarks = [decode_offsets((cluster.data(node) / HIGH_WATERMARKS).read_bytes()) for node in NODES]
    assert watermarks[0].keys() == watermarks[1].keys() == watermarks[2].keys()
    for topic, partition in watermarks[0]:
        high_watermark = min(each[topic, partition] for each in watermarks)
        first, *others = (
            _batches(cluster.data(node) / f"{topic}-{partition}", high_watermark) for node in NODES
        )
        assert all(each == first for each in others), f"replicas of {topic}-{partition} differ"
        if topic == TOPIC:
            ends = [each[topic, partition] for each in watermarks]
            assert ends == [written[partition]] * 3, f"high watermarks of {partition}: {ends}"
            assert first == _batches(cluster.data(1) / f"{topic}-{partition}", 1 << 62), "more than was sent"
            headers = (BatchHeader._make(HEADER.unpack_from(batch)) for batch in first)
            assert all(header.producer_epoch == 0 for header in headers), "a broker forgot the producer"


def _batches(folder: Path, below: int) -> list[bytes]:
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
