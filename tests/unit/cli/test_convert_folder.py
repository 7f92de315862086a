"""The folder of a single broker becomes that of a cluster, whatever interrupts it."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

import ottla.testing
from ottla.cli.convert_folder import convert
from ottla.cli.failure import Failure
from ottla.cli.local_cluster import REGISTRY_FILE, check_folder, refuse_half_converted
from ottla.protocol_client.consume import Consumer
from ottla.protocol_client.produce import Producer
from ottla.protocol_client.wire import Wire
from ottla.storage.files import RealDisk

# Partition 1 of the second topic has a folder of the name that broker 1 gets.
TOPICS = {"t": 2, "broker": 3}
VALUES = [b"%d" % number for number in range(10)]


class Interruption(Exception):
    pass


class InterruptedDisk(RealDisk):
    """Fails at the change of a folder with this number."""

    def __init__(self, at: int) -> None:
        self._left = at

    def _count(self) -> None:
        if not self._left:
            raise Interruption
        self._left -= 1

    def rename(self, source: Path, target: Path) -> None:
        self._count()
        super().rename(source, target)

    def make_folder(self, path: Path) -> None:
        self._count()
        super().make_folder(path)

    def sync_folder(self, folder: Path) -> None:
        self._count()
        super().sync_folder(folder)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a broker that was stopped, and the id of its cluster."""
    data = tmp_path_factory.mktemp("single") / "data"
    with ottla.testing.broker(topics=TOPICS, data=data) as broker:
        assert broker.broker is not None
        with Wire(broker.bootstrap_servers) as wire:
            for topic, partitions in TOPICS.items():
                with Producer(wire, topic) as producer:
                    for value in VALUES:
                        producer.add(None, value, partition=partitions - 1)
        return data, broker.broker.image.cluster_id


@pytest.fixture
def folder(stopped: tuple[Path, str], tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped[0], tmp_path / "data"))


def check_cluster(folder: Path, cluster_id: str) -> None:
    """Three brokers start in the folder, and the first has all that the single one had."""
    assert check_folder(folder, 3) == []
    with ottla.testing.cluster(3, data=folder) as cluster, Wire(cluster.bootstrap_servers) as wire:
        metadata = wire.metadata()
        assert metadata.cluster_id == cluster_id
        found = {topic.name: [each.leader_id for each in topic.partitions] for topic in metadata.topics}
        assert found == {name: [1] * count for name, count in TOPICS.items()}
        for topic, partitions in TOPICS.items():
            last = partitions - 1
            read = list(Consumer(wire, topic, {last: 0}, {last: len(VALUES)}))
            assert [record.value for _, record in read] == VALUES
            assert [record.offset for _, record in read] == list(range(len(VALUES)))


def test_a_cluster_starts_with_the_logs_and_ids_of_the_single_broker(
    stopped: tuple[Path, str], folder: Path
) -> None:
    assert convert(folder) == (1, "broker-1")
    names = {path.name for path in folder.iterdir()}
    assert names == {".lock", REGISTRY_FILE, "broker-1"}
    assert (folder / "broker-1" / "broker-1" / "partition.metadata").exists()
    check_cluster(folder, stopped[1])


def test_it_is_finished_after_an_interruption_at_any_point(stopped: tuple[Path, str], tmp_path: Path) -> None:
    at = 0
    while True:
        folder = Path(shutil.copytree(stopped[0], tmp_path / f"data-{at}"))
        try:
            convert(folder, InterruptedDisk(at))
            break
        except Interruption:
            pass
        if (folder / REGISTRY_FILE).exists() and not (folder / "broker-1" / "meta.properties").exists():
            for refused in (refuse_half_converted, lambda path: check_folder(path, 3)):
                with pytest.raises(Failure, match="half converted"):
                    refused(folder)
        before = {path.name for path in folder.iterdir()}
        if (folder / "broker-1" / "meta.properties").exists():  # it was all done but the last sync
            assert before == {".lock", REGISTRY_FILE, "broker-1"}
        else:
            assert convert(folder) == (1, "broker-1")
            assert {path.name for path in folder.iterdir()} == {".lock", REGISTRY_FILE, "broker-1"}
        if at % 5 == 0:
            check_cluster(folder, stopped[1])
        at += 1
    assert at > 15


def test_it_survives_interruptions_one_after_the_other(stopped: tuple[Path, str], folder: Path) -> None:
    at = 3
    while not (folder / "broker-1" / "meta.properties").exists():
        with suppress(Interruption):
            convert(folder, InterruptedDisk(at))
        at += 1
    assert at > 6
    check_cluster(folder, stopped[1])


def test_a_killed_broker_leaves_a_folder_that_can_be_converted(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with ottla.testing.broker(topics=TOPICS, data=folder) as broker:
        assert broker.broker is not None
        cluster_id = broker.broker.image.cluster_id
        with Wire(broker.bootstrap_servers) as wire:
            for topic, partitions in TOPICS.items():
                with Producer(wire, topic) as producer:
                    for value in VALUES:
                        producer.add(None, value, partition=partitions - 1)
        broker.kill()
        convert(folder)
    check_cluster(folder, cluster_id)


def test_the_folder_of_a_running_broker_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with ottla.testing.broker(data=folder), pytest.raises(Failure, match="is used by a broker"):
        convert(folder)
    assert not (folder / REGISTRY_FILE).exists()


def test_a_broker_keeps_its_id(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with ottla.testing.broker(data=folder, node_id=2):
        pass
    assert convert(folder) == (2, "broker-2")


def test_an_id_that_no_broker_of_a_cluster_has_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with ottla.testing.broker(data=folder, node_id=0):
        pass
    with pytest.raises(Failure, match="has the id 0"):
        convert(folder)


def test_other_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Failure, match="there is no folder"):
        convert(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(Failure, match="not the data folder of a broker"):
        convert(tmp_path / "empty")
    convert(folder)
    with pytest.raises(Failure, match="belongs to a cluster already"):
        convert(folder)


def test_a_broker_whose_registry_is_elsewhere_is_refused(folder: Path) -> None:
    (folder / "registry.sqlite").unlink()
    with pytest.raises(Failure, match="is not in"):
        convert(folder)


def test_the_registry_of_another_cluster_is_refused(folder: Path, tmp_path: Path) -> None:
    with ottla.testing.broker(data=tmp_path / "other"):
        pass
    shutil.copy(tmp_path / "other" / "registry.sqlite", folder / "registry.sqlite")
    with pytest.raises(Failure, match="belongs to cluster"):
        convert(folder)
    assert not (folder / REGISTRY_FILE).exists()
