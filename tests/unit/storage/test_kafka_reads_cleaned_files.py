"""Kafka's own tool reads segments that we compacted, and Kafka's own cleaner leaves what ours leaves."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import ottla.testing
from ottla.protocol.compression import Codec
from ottla.storage.files import RealDisk
from unit.storage.compacted import Compacted
from unit.storage.test_kafka_reads_our_files import KAFKA

sys.path.insert(0, str(Path(__file__).parents[3]))
from bench.peers.kafka import kafka_peer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WAIT = 90.0


def dump(*arguments: str) -> str:
    """What DumpLogSegments prints. It remarks on offsets that are missing, as they are after compaction."""
    command = [sys.executable, str(KAFKA), "tool", "org.apache.kafka.tools.DumpLogSegments", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    gap = r"Non-consecutive offsets in \S+\n(  -?\d+ is followed by \d+\n)+"
    assert re.sub(gap, "", done.stderr) == ""
    assert "isvalid: false" not in done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Compacted:
    """A compacted log with every codec, tombstones, emptied batches and several segments."""
    store = Compacted(
        RealDisk(), tmp_path_factory.mktemp("cleaned"), segment_bytes=20_000, index_interval_bytes=500
    )
    for number in range(300):
        value = None if number % 20 == 3 else b"v%d" % number * 10
        pairs = [(b"k%d" % ((number + n) % 90), value) for n in range(3)]
        producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": number // 4 * 3}
        store.write(*pairs, codec=Codec(number % 5), **(producer if number % 4 == 0 else {}))
    assert store.clean()
    # Everything is replaced, so that the producer's last batch has no records left.
    for number in range(90):
        store.write((b"k%d" % number, b"new" * 50))
    assert store.clean()
    store.write((b"last", b"one"))
    assert any(header.record_count == 0 for header in store.batches())
    store.directory.close()
    return store


def paths(store: Compacted, suffix: str) -> str:
    return ",".join(str(store.folder / name) for name in store.files(suffix) if store.files()[name])


def test_kafka_reads_every_remaining_record(store: Compacted) -> None:
    out = dump("--files", paths(store, ".log"), "--print-data-log")
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+)", out, re.MULTILINE)]
    keys = re.findall(r"^\| .* key: (\S+)", out, re.MULTILINE)
    assert len(keys) == len(set(keys)) == 91
    assert offsets == sorted(offsets)


def test_kafka_finds_the_indexes_sound(store: Compacted) -> None:
    out = dump("--files", paths(store, ".index") + "," + paths(store, ".timeindex"), "--verify-index-only")
    assert "mismatch" not in out.lower()


def test_kafka_shows_the_delete_horizon(tmp_path: Path) -> None:
    store = Compacted(RealDisk(), tmp_path, delete_retention_ms=5000)
    store.write((b"a", None), (b"b", b"1"))
    store.clean()
    store.directory.close()
    out = dump("--files", str(store.folder / "00000000000000000000.log"), "--print-data-log")
    assert f"deleteHorizonMs: OptionalLong[{store.clock.now_ms() + 5000}]" in out
    assert f"CreateTime: {store.clock.now_ms()}" in out


def _load(bootstrap: str, topic: str) -> None:
    """The same batches to both: one producer, one request at a time."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 0, "batch.num.messages": 7, "compression.type": "lz4"}
    )
    for number in range(3000):
        value = None if number % 11 == 5 else Random(number).randbytes(2000)
        producer.produce(topic, value, b"k%d" % (number % 97), timestamp=1_790_000_000_000 + number)
        if number % 7 == 6:
            assert producer.flush(30) == 0
    assert producer.flush(30) == 0


def _survivors(folder: Path) -> list[tuple[int, str]]:
    """(offset, key) of all records in the closed segments."""
    closed = sorted(folder.glob("*.log"))[:-1]
    out = dump("--files", ",".join(str(path) for path in closed if path.stat().st_size), "--print-data-log")
    found = re.findall(r"^\| offset: (\d+).* key: (\S+)", out, re.MULTILINE)
    return [(int(offset), key) for offset, key in found]


def _cleaned_to(logs: Path) -> int:
    file = logs / "cleaner-offset-checkpoint"
    lines = file.read_text().splitlines()[2:] if file.exists() else []
    return max((int(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("t 0 ")), default=0)


def _compact(bootstrap: str, logs: Path, create: Any) -> None:
    """Fill a topic, wait for its cleaner, and see that of each key the latest record is left and no other."""
    create({"cleanup.policy": "compact", "segment.bytes": str(1 << 20), "min.cleanable.dirty.ratio": "0.01"})
    _load(bootstrap, "t")
    deadline = time.monotonic() + WAIT
    while _cleaned_to(logs) < int(max(logs.glob("t-0/*.log")).stem) or _cleaned_to(logs) == 0:
        assert time.monotonic() < deadline, "the cleaner did not come"
        time.sleep(0.2)
    end = _cleaned_to(logs)
    latest = {f"k{number % 97}": number for number in range(end)}
    assert _survivors(logs / "t-0") == sorted((offset, key) for key, offset in latest.items())


def test_ottla_and_kafka_compact_the_same_data_to_the_same_records(tmp_path: Path) -> None:
    settings = {"log.cleaner.backoff.ms": "200"}

    def with_admin(bootstrap: str) -> Any:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        return lambda config: admin.create_topics([NewTopic("t", 1, 1, config=config)])["t"].result(30)

    with ottla.testing.broker(data=tmp_path / "ottla", settings=settings) as broker:
        _compact(broker.bootstrap_servers, tmp_path / "ottla", with_admin(broker.bootstrap_servers))
    with kafka_peer(settings, data=tmp_path / "kafka") as peer:
        _compact(peer.bootstrap, tmp_path / "kafka" / "node-1", with_admin(peer.bootstrap))
