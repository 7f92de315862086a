"""A full disk: writing fails with an error that says so, reading goes on, and all is well when space returns.

On a small file system of its own where the test may mount one, and with a disk that refuses to write.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ottla.testing
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records import decode_batch
from raw_client import RawClient

MB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"this machine does not let root mount: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def values(records: bytes) -> list[bytes]:
    """The values of all whole batches in fetched bytes."""
    found, view = [], memoryview(records)
    while view:
        size = 12 + int.from_bytes(view[8:12], "big")
        found += [bytes(r.value or b"") for r in decode_batch(view[:size], max_size=MB)]
        view = view[size:]
    return found


def fill(client: RawClient, topic: str) -> tuple[int, Any]:
    """Writes until the broker refuses; returns how many records it took and the refusal."""
    for count in range(100_000):
        answer = client.produce(topic, b"%06d" % count + b"x" * 50_000)
        if answer.error_code:
            return count, answer
        assert answer.base_offset == count
    raise AssertionError("the disk was never full")


def read(client: RawClient, topic: str, count: int) -> list[int]:
    numbers: list[int] = []
    while len(numbers) < count:
        fetched = client.fetch(topic, len(numbers), max_bytes=4 * MB)
        assert fetched.error_code == 0
        got = values(fetched.records)
        assert got, f"{len(numbers)} of {count} could be read"
        numbers += [int(value[:6]) for value in got]
    return numbers


@pytest.mark.parametrize("segment_bytes", [1 * MB, 100 * MB])
def test_a_full_disk_refuses_writes_keeps_reads_and_heals(small_disk: Path, segment_bytes: int) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * 4 * MB)
    settings = {"log.segment.bytes": segment_bytes, "log.index.size.max.bytes": 64 * 1024}
    with ottla.testing.broker(topics=["t"], data=small_disk / "data", settings=settings) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            taken, refusal = fill(client, "t")
            assert refusal.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "space" in refusal.error_message.lower()
            assert read(client, "t", taken) == list(range(taken))

            ballast.unlink()
            deadline = time.monotonic() + 20
            while (answer := client.produce("t", b"%06d" % taken)).error_code:
                assert time.monotonic() < deadline, "it did not heal"
            assert answer.base_offset == taken
            assert read(client, "t", taken + 1) == list(range(taken + 1))

            fill(client, "t")
        # The next start, on a disk that is still full, serves what is there.
        broker.restart()
        with RawClient(broker.bootstrap_servers) as client:
            assert read(client, "t", taken + 1)[: taken + 1] == list(range(taken + 1))
