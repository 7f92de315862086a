"""Kafka's own tool reads our files and finds nothing to complain about."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.protocol.compression import Codec
from ottla.storage.files import RealDisk
from unit.storage.logs import T0, Store, batch, from_producer

KAFKA = Path(__file__).parents[3] / "bench" / "peers" / "kafka.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def dump(*arguments: str) -> str:
    """What DumpLogSegments prints. It reports mismatches on its error output and goes on."""
    command = [sys.executable, str(KAFKA), "tool", "org.apache.kafka.tools.DumpLogSegments", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    # The tool of 4.3.1 says this of any segment that does not begin at offset 0, those of Kafka itself too.
    quirk = r"Non-consecutive offsets in \S*/0*([1-9]\d*)\.log\n  -1 is followed by \1\n"
    assert re.sub(quirk, "", done.stderr) == ""
    assert "isvalid: false" not in done.stdout
    return done.stdout


@pytest.fixture(scope="module", params=["closed", "crashed"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A log with every codec, an idempotent and a transactional producer, in several segments."""
    store = Store(
        RealDisk(), tmp_path_factory.mktemp("data"), segment_bytes=30_000, index_interval_bytes=1000
    )
    for number in range(200):
        codec = Codec(number % 5)
        store.log.append(batch(3, value=b"v" * 100, timestamp=T0 + number * 10, codec=codec), number // 50)
        store.log.append(from_producer(number * 2, 2, timestamp=T0 + number * 10 - 500), number // 50)
    store.log.append(from_producer(0, producer=8, transactional=True), 4)
    if request.param == "crashed":
        store.crash()
    store.directory.close()
    return store


def paths(store: Store, suffix: str) -> str:
    found = [str(store.folder / name) for name in store.files(suffix)]
    assert found
    return ",".join(found)


def test_kafka_reads_every_record_of_every_segment(store: Store) -> None:
    out = dump("--files", paths(store, ".log"), "--print-data-log")
    assert len([line for line in out.splitlines() if line.startswith("| offset:")]) == 1001
    assert out.count("baseOffset:") == 401
    assert "compresscodec: zstd" in out and "isTransactional: true" in out


def test_every_offset_index_points_to_the_batch_it_names(store: Store) -> None:
    out = dump("--files", paths(store, ".index"))
    assert out.count("position:") > 20


def test_every_time_index_names_the_batch_with_its_timestamp(store: Store) -> None:
    out = dump("--files", paths(store, ".timeindex"))
    assert out.count("timestamp:") > 20


def test_the_indexes_pass_the_check_that_decides_whether_kafka_would_rebuild_them(store: Store) -> None:
    files = f"{paths(store, '.index')},{paths(store, '.timeindex')}"
    out = dump("--files", files, "--index-sanity-check")
    assert out.count("passed sanity check") == len(files.split(","))


def test_kafka_reads_the_producers_from_our_snapshots(store: Store) -> None:
    out = dump("--files", paths(store, ".snapshot"))
    last = out.splitlines()[-2:]
    assert any("producerId: 7 producerEpoch: 0" in line and "lastSequence: 399" in line for line in last)
    assert any(
        "producerId: 8" in line and "currentTxnFirstOffset: OptionalLong[1000]" in line for line in last
    )
