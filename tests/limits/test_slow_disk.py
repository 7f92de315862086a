"""A disk that takes its time: others are served while one client waits for it."""

from __future__ import annotations

import re
import threading
import time

import pytest

import ottla.testing
from ottla.storage.files import RealDisk
from ottla.storage.slow_writes import SlowWrites
from ottla.testing.disk import FaultyDisk
from raw_client import RawClient

READ_SECONDS = 0.5


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("size", [1_000, 900_000])
def test_a_consumer_of_records_that_are_not_in_memory_holds_up_nobody(size: int, restart: bool) -> None:
    """After a restart the broker has to look for the records in the file, too."""
    disk = FaultyDisk(RealDisk())
    with ottla.testing.broker(topics=["cold", "warm"], disk=disk) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            assert client.produce("cold", b"x" * size).error_code == 0
            client.produce("warm", b"y")
        if restart:
            broker.restart()
        disk.slow_down(read=READ_SECONDS, name="cold-0")
        fetched: list[float] = []

        def consume() -> None:
            began = time.monotonic()
            with RawClient(broker.bootstrap_servers) as consumer:
                answer = consumer.fetch("cold", 0)
                assert answer.error_code == 0 and len(answer.records) > size
            fetched.append(time.monotonic() - began)

        reader = threading.Thread(target=consume)
        reader.start()
        longest = 0.0
        with RawClient(broker.bootstrap_servers) as client:
            while reader.is_alive():
                began = time.monotonic()
                assert client.produce("warm", b"z").error_code == 0
                assert client.fetch("warm", 0).error_code == 0
                longest = max(longest, time.monotonic() - began)
        reader.join()
        assert fetched[0] >= READ_SECONDS, "the disk was waited for"
        assert longest < READ_SECONDS - 0.1


def test_a_slow_write_is_told_with_its_partition(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowWrites()  # so that no other test has used up the line
    monkeypatch.setattr("ottla.storage.log.SLOW_WRITES", slow)
    disk = FaultyDisk(RealDisk())
    with ottla.testing.broker(topics=["t"], disk=disk) as broker:
        disk.slow_down(write=0.15)
        with RawClient(broker.bootstrap_servers) as client:
            assert client.produce("t", b"x" * 1000).error_code == 0
    assert slow.count >= 1
    assert re.search(r"writing \d+ bytes to t-0 took \d+ ms", caplog.text)
