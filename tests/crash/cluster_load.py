"""Load on a cluster of processes, and the check that what clients were promised holds.

An idempotent producer writes with acks=all to a topic with three replicas, of which two must be in sync, and
groups read it and commit. Whatever happens to the brokers meanwhile, when all is mended: every record is
there once, in order and at the offset that was named; nothing that was read or committed is gone; all
replicas are in sync again within a bounded time, and their files are equal.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from confluent_kafka.admin import AdminClient, NewTopic

from crash.cluster_evidence import batches, checking, client_log, metadata_of
from crash.cluster_faults import SESSION_SECONDS
from crash.cluster_processes import ClusterProcesses
from crash.cluster_registries import NODES
from crash.group_load import GroupLoad
from crash.load import PATIENCE, IdempotentLoad
from ottla.protocol.batches import HEADER, BatchHeader
from ottla.storage.checkpoints import HIGH_WATERMARKS, decode_offsets

TOPIC = "t"
OFFSETS_TOPIC = "__consumer_offsets"
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
    cluster: ClusterProcesses,
    protocols: Sequence[str] = ("classic",),
    *,
    queue: int = 40,
    pause: float = 0.03,
) -> Iterator[IdempotentLoad]:
    """Clients are at work when the block begins. When it ends all is mended, and the promises are checked.

    All brokers have stopped then. `protocols` are those of the groups, one group for each; `queue` and
    `pause` say how much is written, see `IdempotentLoad`.
    """
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(PATIENCE)
    load = IdempotentLoad(
        cluster.bootstrap_servers,
        TOPIC,
        PARTITIONS,
        queue=queue,
        pause=pause,
        settings={**CLIENT, **client_log(cluster.folder, "producer")},
    )
    groups = [
        GroupLoad(
            cluster.bootstrap_servers,
            TOPIC,
            f"{protocol}-readers",
            2,
            protocol=protocol,
            settings=partial(client_log, cluster.folder),
        )
        for protocol in protocols
    ]

    def progress() -> str:
        counts = [("acknowledged", load.acknowledged), *((group.group, group.read) for group in groups)]
        lines = [f"{what}: {[len(of[each]) for each in range(PARTITIONS)]}" for what, of in counts]
        return f"sent: {load.sent}; {'; '.join(lines)}; commits: {[group.commits for group in groups]}"

    load.start()
    for group in groups:
        group.start()
    try:
        with checking("the cluster takes the first records and commits", cluster, progress):
            await_in_time(
                lambda: load.progress > 0 and all(group.commits > 0 for group in groups),
                "the first records and commits",
            )
        yield load
        mended = time.monotonic()
        with checking("all replicas are in sync", cluster):
            await_in_time(lambda: in_sync(cluster), "all replicas to be in sync", mended + IN_SYNC_SECONDS)
        with checking("every partition takes records", cluster, progress):
            takes_records(load)
        with checking("all replicas stay in sync", cluster):
            await_in_time(lambda: in_sync(cluster), "them to stay in sync", mended + IN_SYNC_SECONDS)
        with checking("all records are acknowledged", cluster, progress):
            load.finish()
        for group in groups:
            with checking(f"{group.group} read everything", cluster, progress, group.describe):
                await_in_time(partial(group.has_read, load.sent), "a group to read everything")
    finally:
        load.stop()
        for group in groups:
            with checking(f"{group.group} ends", cluster, progress, group.describe):
                group.finish()
        print(progress())
    with checking("the log holds what was acknowledged", cluster, progress):
        load.check(cluster.bootstrap_servers)
    for group in groups:
        with checking(f"{group.group} read the log and kept its commits", cluster, progress, group.describe):
            group.check(cluster.bootstrap_servers, load.acknowledged)
    with checking("all brokers stop", cluster):
        for node in NODES:
            cluster.terminate(node)
        for node in NODES:
            cluster.ended(node)
    with checking("the files of all replicas are equal", cluster, progress):
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


def in_sync(cluster: ClusterProcesses, expected: Collection[str] = (TOPIC, OFFSETS_TOPIC)) -> bool:
    """True when every broker knows these topics, and says so of every partition of all topics.

    A broker that could not start is started again.
    """
    cluster.start_again()
    return all(_is_in_sync_according_to(each, expected) for each in cluster.direct_servers.split(","))


def _is_in_sync_according_to(address: str, expected: Collection[str]) -> bool:
    metadata = metadata_of(address)
    topics = metadata.topics if metadata is not None else []
    partitions = [partition for topic in topics for partition in topic.partitions]
    return {topic.name for topic in topics} >= set(expected) and all(
        set(each.isr_nodes) == set(NODES) and each.leader_id in NODES for each in partitions
    )


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
            assert first == batches(cluster.data(1) / f"{topic}-{partition}"), "more than was sent"
            headers = (BatchHeader._make(HEADER.unpack_from(batch)) for batch in first)
            assert all(header.producer_epoch == 0 for header in headers), "a broker forgot the producer"
