"""Ottla and Kafka compact the same transactions to the same records and markers."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import ottla.testing
from unit.storage.test_kafka_reads_cleaned_files import _cleaned_to, dump

sys.path.insert(0, str(Path(__file__).parents[3]))
from bench.peers.kafka import kafka_peer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WAIT = 120.0
RECORDS = 9  # of a transaction, and then its marker: ten offsets
KEYS = 31
SETTINGS = {
    "log.cleaner.backoff.ms": "200",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
}
CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20), "min.cleanable.dirty.ratio": "0.01"}


def is_aborted(transaction: int) -> bool:
    return transaction % 3 == 1


def load(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "p", "compression.type": "none"})
    producer.init_transactions(WAIT)
    for transaction in range(60):
        producer.begin_transaction()
        for number in range(RECORDS):
            value = Random(transaction * RECORDS + number).randbytes(8000)
            producer.produce("t", value, b"k%d" % ((transaction * 5 + number) % KEYS))
        assert producer.flush(WAIT) == 0
        if is_aborted(transaction):
            producer.abort_transaction(WAIT)
        else:
            producer.commit_transaction(WAIT)


def closed_segments(folder: Path) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Offset and key of all records, offset and kind of all markers."""
    closed = [path for path in sorted(folder.glob("*.log"))[:-1] if path.stat().st_size]
    out = dump("--files", ",".join(map(str, closed)), "--print-data-log")
    records = re.findall(r"^\| offset: (\d+).* key: (k\d+)", out, re.MULTILINE)
    markers = re.findall(r"^\| offset: (\d+).* endTxnMarker: (\w+)", out, re.MULTILINE)
    return [(int(offset), key) for offset, key in records], [(int(o), kind) for o, kind in markers]


def compacted(bootstrap: str, logs: Path) -> tuple[int, Any]:
    """Where the dirty part begins, and what is left in closed segments."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("t", 1, 1, config=CONFIG)])["t"].result(30)
    load(bootstrap)
    deadline = time.monotonic() + WAIT
    while _cleaned_to(logs) == 0 or _cleaned_to(logs) < int(max(logs.glob("t-0/*.log")).stem):
        assert time.monotonic() < deadline, "the cleaner did not come"
        time.sleep(0.2)
    return _cleaned_to(logs), closed_segments(logs / "t-0")


def test_ottla_and_kafka_leave_the_same_records_and_markers(tmp_path: Path) -> None:
    with ottla.testing.broker(data=tmp_path / "ottla", settings=SETTINGS) as broker:
        ours = compacted(broker.bootstrap_servers, tmp_path / "ottla")
    with kafka_peer(SETTINGS, data=tmp_path / "kafka") as peer:
        theirs = compacted(peer.bootstrap, tmp_path / "kafka" / "node-1")
    assert ours == theirs
    end, (records, markers) = ours
    latest: dict[str, int] = {}
    for offset in range(end):
        transaction, number = divmod(offset, RECORDS + 1)
        if number < RECORDS and not is_aborted(transaction):
            latest[f"k{(transaction * 5 + number) % KEYS}"] = offset
    assert records == sorted((offset, key) for key, offset in latest.items())
    assert {kind for _, kind in markers} == {"COMMIT", "ABORT"}
