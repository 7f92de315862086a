"""A rolling upgrade: brokers of an earlier release and of this one in one cluster, under load.

The brokers of a cluster are upgraded one after the other, so for a while two releases talk to each other: for
the image, in-sync sets, producer ids, forwarded requests and replicas. Each of them must be able to be the
controller of the other, and the new one must go on with the files of the old one.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from crash.cluster_evidence import metadata_of
from crash.cluster_load import SETTINGS, await_in_time, in_sync, takes_records, under_load
from crash.cluster_processes import ClusterProcesses
from crash.cluster_registries import NODES
from crash.load import PATIENCE, IdempotentLoad

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EARLIER = "172b5a2a444c401bc122288f3ce47c8efdc43220"
"""The release before: the last commit in which the requests between brokers had their first versions."""
REPOSITORY = Path(__file__).parents[2]


def source_of(commit: str, folder: Path) -> Path:
    """Where the package of an earlier commit can be imported from."""
    archived = subprocess.run(
        ["git", "-C", REPOSITORY, "archive", commit, "src"], capture_output=True, check=False
    )
    assert archived.returncode == 0, (
        f"commit {commit} is not in this clone ({archived.stderr.decode().strip()}); "
        "a shallow clone gets it with: git fetch --unshallow"
    )
    with tarfile.open(fileobj=BytesIO(archived.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def package_of(cluster: ClusterProcesses, node: int) -> Path:
    """Which package a broker runs when it is started."""
    program = "import ottla; print(ottla.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", program], env=cluster.environment(node), capture_output=True, check=True
    )
    return Path(found.stdout.decode().strip()).parents[1]


def controller(cluster: ClusterProcesses) -> int:
    """The broker that all name as the controller; -1 while they do not agree."""
    named = set()
    for address in cluster.direct_servers.split(","):
        metadata = metadata_of(address)
        named.add(-1 if metadata is None else metadata.controller_id)
    return named.pop() if len(named) == 1 else -1


def restart(cluster: ClusterProcesses, *nodes: int) -> None:
    for node in nodes:
        cluster.terminate(node)
    for node in nodes:
        cluster.ended(node)
    for node in nodes:
        cluster.start(node)
    cluster.wait_for_answers()
    await_in_time(lambda: in_sync(cluster), "all replicas to be in sync")


def make_controller(cluster: ClusterProcesses, node: int) -> None:
    """The others are restarted together: then it is the only one that can be elected."""
    others = [each for each in NODES if each != node]
    if controller(cluster) != node:
        restart(cluster, *others)
    await_in_time(lambda: controller(cluster) == node, f"broker {node} to be the controller")


def use_everything(cluster: ClusterProcesses, load: IdempotentLoad, under: int) -> None:
    """With the controller `under`: brokers of both releases ask it for all that they ask it for."""
    make_controller(cluster, under)
    for node in NODES:
        name = f"under-{under}-by-{node}"
        admin = AdminClient({"bootstrap.servers": cluster.clients[node].address, "log_level": 0})
        admin.create_topics([NewTopic(name, 2, 3)])[name].result(PATIENCE)
        # A producer of its own at each broker: its id comes from the controller's blocks.
        settings = {"bootstrap.servers": cluster.clients[node].address, "enable.idempotence": True}
        producer = Producer(settings)
        producer.produce(name, b"value", partition=0)
        assert producer.flush(PATIENCE) == 0
    for node in set(NODES) - {under}:  # the in-sync sets shrink and grow again
        cluster.kill(node)
        takes_records(load)
        cluster.start(node)
        cluster.wait_for_answers()
        await_in_time(lambda: in_sync(cluster), "all replicas to be in sync")
    assert controller(cluster) == under


def test_brokers_are_upgraded_one_after_the_other(tmp_path: Path) -> None:
    earlier = source_of(EARLIER, tmp_path / "earlier")
    cluster = ClusterProcesses(tmp_path, SETTINGS)
    cluster.sources = dict.fromkeys(NODES, earlier)
    assert package_of(cluster, 1) == earlier
    with cluster, under_load(cluster, ("classic", "consumer")) as load:
        del cluster.sources[1]
        assert package_of(cluster, 1) != earlier
        restart(cluster, 1)
        use_everything(cluster, load, under=3)
        use_everything(cluster, load, under=1)
        for node in (2, 3):
            del cluster.sources[node]
            restart(cluster, node)
            takes_records(load)
