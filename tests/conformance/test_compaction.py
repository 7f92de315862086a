"""Clients read a compacted topic from every offset, and `ottla topic` shows and orders compaction."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ottla.testing
from conformance.clients import CLIENTS, ConfluentClient
from conformance.clients.model import DEADLINE, EARLIEST, Message, Start
from conformance.command import Command

MB = 1 << 20
KEYS = 20
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": MB}


@pytest.fixture(scope="module")
def broker() -> Iterator[Any]:
    with ottla.testing.broker(settings={"log.cleaner.backoff.ms": 100}) as broker:
        yield broker


@pytest.fixture(scope="module")
def compacted(broker: Any) -> tuple[str, dict[int, tuple[bytes, bytes | None]]]:
    """A topic that was compacted, and the records that must be left, by offset."""
    broker.create_topic("compacted", config=COMPACTED)
    client = ConfluentClient(broker.bootstrap_servers)
    messages = [
        Message(None if n % KEYS == 7 else b"%d" % n, key=b"k%d" % (n % KEYS)) for n in range(10 * KEYS)
    ]
    for start in range(0, len(messages), 7):
        client.produce("compacted", messages[start : start + 7])
    Command(broker.bootstrap_servers).ok("topic", "compact", "compacted", "--now")
    last = len(messages) - KEYS
    left = {n: (message.key or b"", message.value) for n, message in enumerate(messages) if n >= last}
    return "compacted", left


@pytest.mark.parametrize("cls", CLIENTS, ids=lambda cls: cls.name)
def test_every_client_reads_a_compacted_topic_from_every_offset(
    cls: Any, broker: Any, compacted: tuple[str, dict[int, tuple[bytes, bytes | None]]]
) -> None:
    topic, left = compacted
    client = cls(broker.bootstrap_servers)
    with client.reading(topic, 0, EARLIEST) as reader:
        records = reader.take(KEYS)
    assert {r.offset: (r.key, r.value) for r in records} == left
    every = range(10 * KEYS) if cls is ConfluentClient else (1, 95, 181, 10 * KEYS - 1)
    for start in every:
        with client.reading(topic, 0, Start.offset(start)) as reader:
            (first,) = reader.take(1)[:1]
        assert first.offset == max(start, 9 * KEYS)


def test_the_broker_compacts_above_the_dirty_ratio(broker: Any) -> None:
    broker.create_topic("by-itself", config=COMPACTED)
    client = ConfluentClient(broker.bootstrap_servers)
    payload = os.urandom(50_000)
    for n in range(60):
        client.produce("by-itself", [Message(payload, key=b"k%d" % (n % 3))])
    ottla = Command(broker.bootstrap_servers)
    deadline = time.monotonic() + DEADLINE
    while True:
        (partition,) = ottla.ok("topic", "describe", "by-itself", "--json").document["partitions"]
        if partition["compaction"]["first_dirty_offset"] >= 40 and partition["size_bytes"] < 3 * MB // 2:
            break
        assert time.monotonic() < deadline, partition
    last = partition["compaction"]["last"]
    # The last cleaning may be a later one that found little to do.
    assert 0 < last["bytes_after"] <= last["bytes_before"]
    assert last["bytes_after"] < 500_000


def test_describe_shows_size_segments_and_compaction(broker: Any, compacted: tuple[str, Any]) -> None:
    ottla = Command(broker.bootstrap_servers)
    lines = ottla.ok("topic", "describe", compacted[0]).lines
    titles = next(line for line in lines if line.startswith("PARTITION") and "RATIO" in line)
    row = dict(zip(titles.split(), lines[lines.index(titles) + 1].split(), strict=False))
    assert row["PARTITION"] == "0"
    assert lines[-1].endswith("idle")
    (partition,) = ottla.ok("topic", "describe", compacted[0], "--json").document["partitions"]
    assert partition["segments"] == 2
    assert partition["compaction"]["dirty_ratio"] == 0
    assert partition["compaction"]["first_dirty_offset"] == 10 * KEYS
    assert partition["compaction"]["uncleanable"] is None


def test_a_request_to_compact_a_topic_with_another_policy_is_refused(broker: Any) -> None:
    broker.create_topic("plain")
    ottla = Command(broker.bootstrap_servers)
    failed = ottla("topic", "compact", "plain", "--now")
    assert failed.code != 0
    assert "cleanup.policy=delete" in failed.err
    assert ottla("topic", "compact", "plain").code != 0, "without --now nothing is done"


def test_a_damaged_partition_is_reported_and_the_others_are_compacted(broker: Any) -> None:
    broker.create_topic("damaged", partitions=2, config=COMPACTED)
    client = ConfluentClient(broker.bootstrap_servers)
    for partition in (0, 1):
        client.produce("damaged", [Message(b"v" * 100, key=b"k")] * 3, partition=partition)
    file = Path(broker.data) / "damaged-0" / "00000000000000000000.log"
    content = bytearray(file.read_bytes())
    content[80] ^= 0xFF
    with file.open("r+b") as damaged:
        damaged.write(content)
    ottla = Command(broker.bootstrap_servers)
    failed = ottla("topic", "compact", "damaged", "--now")
    assert failed.code != 0
    assert "wrong CRC" in failed.err
    first, second = ottla.ok("topic", "describe", "damaged", "--json").document["partitions"]
    assert "wrong CRC at byte 0" in first["compaction"]["uncleanable"]
    assert second["compaction"]["uncleanable"] is None
    assert second["compaction"]["last"]["bytes_after"] < second["compaction"]["last"]["bytes_before"]
    shown = ottla.ok("topic", "describe", "damaged").out
    assert "uncleanable: a batch has a wrong CRC" in shown


def test_compacting_a_clean_topic_says_that_there_is_nothing_to_do(broker: Any) -> None:
    broker.create_topic("clean", config=COMPACTED)
    ottla = Command(broker.bootstrap_servers)
    for _ in range(2):
        assert ottla.ok("topic", "compact", "clean", "--now").lines == ["clean-0: nothing to compact"]
