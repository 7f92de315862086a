"""Kafka's own command-line tools on a cluster of three brokers with three replicas."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from bench.peers.maven import PeerMissing, require
from confluent_kafka import Consumer, Producer, TopicPartition

import ottla.testing
from ottla.testing.in_process_cluster import InProcessCluster

KAFKA = Path(__file__).parents[2] / "bench" / "peers" / "kafka.py"
TOOLS = "org.apache.kafka.tools"
TOPIC, PARTITIONS = "t", 3
PATIENCE = 60.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("clients")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    try:
        require("java")
    except PeerMissing as missing:
        pytest.skip(str(missing))
    settings = {"offsets.topic.num.partitions": 3, "auto.leader.rebalance.enable": "false"}
    with ottla.testing.cluster(3, topics={TOPIC: PARTITIONS}, settings=settings) as brokers:
        yield brokers


def run(command: str, *arguments: str) -> str:
    """What a tool prints; it has to succeed."""
    full = [sys.executable, str(KAFKA), "tool", command, *arguments]
    done = subprocess.run(full, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def ask(cluster: InProcessCluster, command: str, *arguments: str) -> str:
    return run(command, "--bootstrap-server", cluster.bootstrap_servers, *arguments)


def produce(cluster: InProcessCluster, topic: str, count: int, codec: str = "none") -> None:
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "compression.type": codec,
            "enable.idempotence": True,
        }
    )
    rng = Random(1)
    for number in range(count):
        value = f"{codec} {number} {rng.randbytes(700).hex()}"
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(PATIENCE) == 0


def partitions_of(described: str) -> list[tuple[int, int]]:
    """(partition, leader) of each line of `kafka-topics --describe`."""
    return [(int(p), int(leader)) for p, leader in re.findall(r"Partition: (\d+)\s+Leader: (\d+)", described)]


def test_preferred_leaders_lead_again_after_kafka_leader_election(cluster: InProcessCluster) -> None:
    preferred = cluster.leader(TOPIC)
    cluster.kill(preferred)
    cluster.wait_for_leader(TOPIC, other_than=preferred)
    cluster[preferred].start()
    cluster.wait_until_in_sync(TOPIC)
    asked = ("--election-type", "preferred", "--topic", TOPIC, "--partition", "0")
    out = ask(cluster, f"{TOOLS}.LeaderElectionCommand", *asked)
    assert f"Successfully completed leader election (PREFERRED) for partitions {TOPIC}-0" in out
    assert cluster.wait_for_leader(TOPIC) == preferred
    again = ask(cluster, f"{TOOLS}.LeaderElectionCommand", *asked)
    assert f"Valid replica already elected for partitions {TOPIC}-0" in again
    every = ask(
        cluster, f"{TOOLS}.LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions"
    )
    assert "Error" not in every


def test_kafka_topics_lists_what_a_dead_broker_leaves_behind(cluster: InProcessCluster) -> None:
    describe = (f"{TOOLS}.TopicCommand", "--describe", "--topic", TOPIC)
    assert len(partitions_of(ask(cluster, *describe))) == PARTITIONS
    cluster.wait_until_in_sync(TOPIC)
    assert not ask(cluster, *describe, "--under-replicated-partitions").strip()
    dead = cluster.leader(TOPIC)
    cluster.kill(dead)
    cluster.wait_for_leader(TOPIC, other_than=dead)
    listed = partitions_of(ask(cluster, *describe, "--under-replicated-partitions"))
    assert [index for index, _ in listed] == list(range(PARTITIONS))
    assert dead not in {leader for _, leader in listed}
    assert len(partitions_of(ask(cluster, *describe, "--at-min-isr-partitions"))) == PARTITIONS
    assert not ask(cluster, *describe, "--under-min-isr-partitions").strip()
    assert not ask(cluster, *describe, "--unavailable-partitions").strip()
    cluster[dead].start()
    cluster.wait_until_in_sync(TOPIC)
    assert not ask(cluster, *describe, "--under-replicated-partitions").strip()


def test_kafka_metadata_quorum_shows_the_controller_and_all_brokers(cluster: InProcessCluster) -> None:
    status = ask(cluster, f"{TOOLS}.MetadataQuorumCommand", "describe", "--status")
    assert re.search(rf"LeaderId:\s+{cluster.controller()}\n", status), status
    replication = ask(cluster, f"{TOOLS}.MetadataQuorumCommand", "describe", "--replication")
    rows = [line.split() for line in replication.splitlines()[1:] if line.strip()]
    assert sorted(int(row[0]) for row in rows) == [1, 2, 3]
    assert [row[-1] for row in rows].count("Leader") == 1


def test_kafka_configs_changes_topics_brokers_and_the_whole_cluster(cluster: InProcessCluster) -> None:
    def described(*entity: str) -> str:
        return ask(cluster, "kafka.admin.ConfigCommand", "--describe", *entity)

    topic = ("--entity-type", "topics", "--entity-name", TOPIC)
    changed = "min.insync.replicas=1"
    out = ask(cluster, "kafka.admin.ConfigCommand", "--alter", "--add-config", changed, *topic)
    assert "Completed updating config" in out
    assert changed in described(*topic)
    ask(cluster, "kafka.admin.ConfigCommand", "--alter", "--delete-config", "min.insync.replicas", *topic)
    assert changed not in described(*topic)
    every = ("--entity-type", "brokers", "--entity-default")
    shown = "group.registry.projection=true"
    ask(cluster, "kafka.admin.ConfigCommand", "--alter", "--add-config", shown, *every)
    assert shown in described(*every)
    ask(
        cluster,
        "kafka.admin.ConfigCommand",
        "--alter",
        "--delete-config",
        "group.registry.projection",
        *every,
    )
    for node in (1, 2, 3):
        assert "log.dirs" in described("--entity-type", "brokers", "--entity-name", str(node), "--all")


def test_kafka_reassign_partitions_adds_replicas_and_cannot_take_any_away(
    cluster: InProcessCluster, tmp_path: Path
) -> None:
    one = ("--create", "--topic", "one", "--partitions", "2", "--replication-factor", "1")
    assert "Created topic one" in ask(cluster, f"{TOOLS}.TopicCommand", *one)
    plan = tmp_path / "plan.json"

    def reassign(replicas: list[dict[str, object]], *arguments: str) -> str:
        plan.write_text(json.dumps({"version": 1, "partitions": replicas}))
        file = ("--reassignment-json-file", str(plan))
        return ask(cluster, f"{TOOLS}.reassign.ReassignPartitionsCommand", *file, *arguments)

    leaders = [cluster.leader("one", index) for index in (0, 1)]
    wanted: list[dict[str, object]] = [
        {"topic": "one", "partition": index, "replicas": [leader, *({1, 2, 3} - {leader})]}
        for index, leader in enumerate(leaders)
    ]
    assert "Successfully started partition reassignments for one-0,one-1" in reassign(wanted, "--execute")
    cluster.wait_until_in_sync("one")
    verified = reassign(wanted, "--verify")
    assert verified.count("is completed") == 2, verified
    listed = ask(cluster, f"{TOOLS}.reassign.ReassignPartitionsCommand", "--list")
    assert "No partition reassignments found" in listed
    fewer = [{**wanted[0], "replicas": [leaders[0]]}]
    with pytest.raises(AssertionError, match="Replicas can only be added"):
        reassign(fewer, "--execute")


def test_other_tools_find_all_brokers_and_groups(cluster: InProcessCluster) -> None:
    versions = ask(cluster, f"{TOOLS}.BrokerApiVersionsCommand")
    assert versions.count("(id: ") == 3 and "UNSUPPORTED" not in versions.partition("Produce")[0]
    dirs = json.loads(ask(cluster, f"{TOOLS}.LogDirsCommand", "--describe").splitlines()[-1])
    assert sorted(broker["broker"] for broker in dirs["brokers"]) == [1, 2, 3]
    groups = [f"g{number}" for number in range(6)]
    for group in groups:
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group})
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, 1)], asynchronous=False)
        consumer.close()
    listed = ask(cluster, f"{TOOLS}.consumer.group.ConsumerGroupCommand", "--list")
    assert set(groups) <= set(listed.split())
    described = ask(cluster, f"{TOOLS}.consumer.group.ConsumerGroupCommand", "--describe", "--all-groups")
    assert all(re.search(rf"{group}\s+{TOPIC}\s+0\s+1\s", described) for group in groups)


def test_dump_log_segments_reads_the_same_from_every_replica(tmp_path: Path) -> None:
    """Elections and a broker that was away lie between the records; the logs are equal, batch for batch."""
    settings = {"log.segment.bytes": 1 << 20, "log.index.interval.bytes": 1_000}
    with ottla.testing.cluster(3, data=tmp_path, topics={TOPIC: PARTITIONS}, settings=settings) as brokers:
        for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
            produce(brokers, TOPIC, 1500, codec)
            if number < 3:
                node = number + 1
                brokers.kill(node)
                brokers.wait_for_leader(TOPIC, other_than=node)
                produce(brokers, TOPIC, 300, codec)
                brokers[node].start()
                brokers.wait_until_in_sync(TOPIC)
    dumps = [dump_of(tmp_path / f"broker-{node}") for node in (1, 2, 3)]
    assert len(dumps[0]) > 8_400 and any("compresscodec: zstd" in line for line in dumps[0])
    assert dumps[0] == dumps[1] == dumps[2]


def dump_of(data: Path) -> list[str]:
    """Batches and records of all partitions of a broker, in their order. The indexes are checked as well."""
    logs = sorted(data.glob(f"{TOPIC}-*/*.log"))
    assert len(logs) > PARTITIONS
    indexes = [*data.glob(f"{TOPIC}-*/*.index"), *data.glob(f"{TOPIC}-*/*.timeindex")]
    command = f"{TOOLS}.DumpLogSegments"
    files = ",".join(map(str, [*logs, *indexes]))
    out = run(command, "--files", files, "--deep-iteration", "--print-data-log")
    assert "isvalid: false" not in out and "corrupt" not in out.lower() and "Found" not in out
    lines = [line for line in out.splitlines() if line.startswith(("baseOffset:", "| offset:"))]
    # Where a batch lies in its file depends on when the segment was rolled.
    return [re.sub(r"position: \d+ ", "", line) for line in lines]
