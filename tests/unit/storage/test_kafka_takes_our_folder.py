"""A partition's folder moves from Kafka to Ottla and back, and neither has anything to repair."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.clock import SystemClock
from ottla.storage.checkpoints import decode_partition_metadata
from ottla.storage.files import RealDisk
from ottla.storage.log_config import LogConfig
from ottla.storage.log_directory import LogDirectory
from unit.storage.logs import batch, from_producer, read_all

sys.path.insert(0, str(Path(__file__).parents[3]))
from bench.peers.kafka import kafka_peer

confluent_kafka = pytest.importorskip("confluent_kafka")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COUNT = 1500
SEGMENT = 1 << 20
PATIENCE = 60


def value(number: int) -> bytes:
    return b"%06d" % number + b"." * 1000


@contextmanager
def our_turn(node: Path) -> Iterator[LogDirectory]:
    """Ottla in the folder of a node, without the log of Kafka's controller, which is not a topic."""
    metadata, elsewhere = node / "__cluster_metadata-0", node.parent / "metadata"
    metadata.rename(elsewhere)
    config = LogConfig(segment_bytes=SEGMENT)
    directory = LogDirectory(node, RealDisk(), SystemClock(), config_for=lambda _: config)
    reports = directory.open()
    assert directory.was_clean
    assert [str(report) for report in reports if report.is_remarkable] == []
    yield directory
    directory.close({key: log.end_offset for key, log in directory.logs.items()})
    elsewhere.rename(metadata)


def create_topic(bootstrap: str, name: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(name, 1, 1, config={"segment.bytes": str(SEGMENT)})
    for future in admin.create_topics([topic]).values():
        future.result(PATIENCE)


def produce(bootstrap: str, topic: str, first: int = 0) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(first, first + COUNT):
        producer.produce(topic, value(number), key=b"k")
        producer.poll(0)
    assert producer.flush(PATIENCE) == 0


def consume(bootstrap: str, topic: str) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "enable.partition.eof": True}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None and message.error():
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                return found
            if message is not None:
                found.append(message.value())
        raise AssertionError(f"no end after {len(found)} records")
    finally:
        consumer.close()


def test_a_data_folder_can_move_from_kafka_to_ottla_and_back(tmp_path: Path) -> None:
    kafka = tmp_path / "kafka"
    with kafka_peer(data=kafka) as peer:
        for topic in ("written-by-kafka", "written-by-us"):
            create_topic(peer.bootstrap, topic)
        produce(peer.bootstrap, "written-by-kafka")

    ours = tmp_path / "ours"
    shutil.copytree(kafka / "node-1", ours)
    shutil.rmtree(ours / "__cluster_metadata-0")
    directory = LogDirectory(ours, RealDisk(), SystemClock())
    reports = directory.open()
    assert [str(report) for report in reports if report.is_remarkable] == []
    log = directory.logs["written-by-kafka", 0]
    assert [record.value for record in read_all(log, max_bytes=1 << 20)] == [value(n) for n in range(COUNT)]
    assert [state.last_sequence for state in log.producers.active] == [COUNT - 1]

    topic_id = decode_partition_metadata((kafka / "node-1/written-by-us-0/partition.metadata").read_bytes())
    log = directory.create("written-by-us", 0, topic_id, LogConfig(segment_bytes=SEGMENT))
    for number in range(COUNT):
        log.append(from_producer(number, value=value(number), timestamp=int(time.time() * 1000)), 0)
    assert len(log.segments) > 1
    directory.close({("written-by-kafka", 0): COUNT, ("written-by-us", 0): COUNT})

    folder = kafka / "node-1/written-by-us-0"
    shutil.rmtree(folder)
    shutil.copytree(ours / "written-by-us-0", folder)
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        shutil.copy(ours / name, kafka / "node-1" / name)
    made = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    with kafka_peer(data=kafka) as peer:
        assert consume(peer.bootstrap, "written-by-us") == [value(number) for number in range(COUNT)]
        assert consume(peer.bootstrap, "written-by-kafka") == [value(number) for number in range(COUNT)]
        sealed = [name for name in made if name.startswith("0" * 20)]
        assert {name: (folder / name).stat().st_mtime_ns for name in sealed} == {n: made[n] for n in sealed}


def test_kafka_and_ottla_append_alternately_to_the_logs_of_one_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = "shared"
    node = tmp_path / "node-1"
    with kafka_peer(data=tmp_path) as peer:
        create_topic(peer.bootstrap, topic)
        produce(peer.bootstrap, topic)
    with our_turn(node) as directory:
        log = directory.logs[topic, 0]
        epoch = log.leader_epochs.latest
        segments = log.segment_count
        for number in range(COUNT, 2 * COUNT):
            log.append(batch(value=value(number), timestamp=int(time.time() * 1000)), epoch)
        assert log.segment_count > segments
        active = log.segments[-1].base_offset
    with kafka_peer(data=tmp_path) as peer:
        assert consume(peer.bootstrap, topic) == [value(number) for number in range(2 * COUNT)]
        produce(peer.bootstrap, topic, first=2 * COUNT)
    assert max(int(path.stem) for path in (node / f"{topic}-0").glob("*.log")) > active, "Kafka has sealed it"
    with our_turn(node) as directory:
        log = directory.logs[topic, 0]
        assert [record.value for record in read_all(log, max_bytes=1 << 20)] == [
            value(number) for number in range(3 * COUNT)
        ]
        assert log.leader_epochs.latest > epoch
    assert "segments-checkpoint is ignored" in caplog.text
    assert "damaged" not in caplog.text
