"""A cluster that was made before there were features: its level is raised when all brokers are upgraded.

The tool is Kafka's own (`kafka-features.sh`), and the brokers are processes with the files of the release
before.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bench.peers.maven import PeerMissing, require

from conformance.clients.transactions import ConfluentTransactions
from crash.cluster_load import SETTINGS, TOPIC, await_in_time
from crash.cluster_processes import ClusterProcesses
from crash.cluster_registries import NODES
from crash.load import PATIENCE
from crash.test_cluster_upgrade import EARLIER, REPOSITORY, make_controller, restart, source_of
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from raw_client import RawClient

KAFKA = REPOSITORY / "bench" / "peers" / "kafka.py"
FEATURE = "transaction.version"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def kafka_features(bootstrap: str, *arguments: str) -> tuple[int, str]:
    """Exit code and output of the tool."""
    command = [sys.executable, str(KAFKA), "tool", "org.apache.kafka.tools.FeatureCommand"]
    done = subprocess.run(
        [*command, "--bootstrap-server", bootstrap, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def levels(cluster: ClusterProcesses) -> set[int]:
    """As each broker tells its clients; 0: it is not switched on."""
    found = set()
    for address in cluster.direct_servers.split(","):
        with RawClient(address) as client:
            told = client.call(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 4)
        found.add(next((each.max_version_level for each in told.finalized_features), 0))
    return found


def transact(cluster: ClusterProcesses, name: str) -> None:
    producer = ConfluentTransactions(cluster.bootstrap_servers, name)
    for _ in range(2):
        producer.begin()
        producer.send(TOPIC, b"a", 0)
        producer.commit()


def test_the_level_is_raised_when_all_brokers_run_the_new_release(tmp_path: Path) -> None:
    try:
        require("java")
    except PeerMissing as missing:
        pytest.skip(str(missing))
    cluster = ClusterProcesses(tmp_path, SETTINGS)
    cluster.sources = dict.fromkeys(NODES, source_of(EARLIER, tmp_path / "earlier"))
    with cluster:
        with RawClient(cluster.direct_servers.split(",")[0], timeout=PATIENCE) as client:
            topic = CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=3)
            created = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)
            assert created.topics[0].error_code == 0
            find = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])  # makes `__consumer_offsets`
            await_in_time(
                lambda: client.call(find, 4).coordinators[0].error_code == 0, "a coordinator of groups"
            )
        del cluster.sources[1]
        restart(cluster, 1)
        make_controller(cluster, 1)
        one = cluster.clients[1].address
        code, said = kafka_features(one, "upgrade", "--feature", f"{FEATURE}=2")
        assert code != 0 and "Brokers that do not support it: 2, 3." in said, said
        for node in (2, 3):
            del cluster.sources[node]
            restart(cluster, node)
        assert levels(cluster) == {0}
        transact(cluster, "before")
        code, said = kafka_features(one, "upgrade", "--feature", f"{FEATURE}=2")
        assert code == 0, said
        await_in_time(lambda: levels(cluster) == {2}, "all brokers to know the level")
        code, said = kafka_features(one, "describe")
        assert code == 0 and FEATURE in said and "FinalizedVersionLevel: 2" in said, said
        transact(cluster, "before")
        transact(cluster, "after")
        code, said = kafka_features(one, "downgrade", "--feature", f"{FEATURE}=0")
        assert code == 0, said
        await_in_time(lambda: levels(cluster) == {0}, "all brokers to know the level")
        transact(cluster, "after")
