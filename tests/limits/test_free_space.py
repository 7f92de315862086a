"""The free-space mark: producers are refused before the disk is full, the rest works, and it lifts itself.

On a small file system of its own where the test may mount one, and with a disk that says how full it is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient

import ottla.testing
from limits.test_full_disk import HEALED_WITHIN, MB, SmallDisk, fill, read, small_disk, values
from ottla.protocol.errors import ErrorCode
from ottla.storage.files import RealDisk
from raw_client import RawClient

__all__ = ["small_disk"]  # a fixture

MARK = 3 * MB
SETTINGS = {
    "log.dir.min.free.bytes": MARK,
    "log.segment.bytes": MB,
    "log.index.size.max.bytes": 64 * 1024,
}


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + HEALED_WITHIN
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def free_bytes(small: SmallDisk) -> int:
    return (small.disk or RealDisk()).space(small.data)[1]


def test_producing_stops_at_the_free_space_mark_and_everything_else_works(
    small_disk: SmallDisk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "ottla.space")
    with ottla.testing.broker(
        topics=["t", "other"], data=small_disk.data, disk=small_disk.disk, settings=SETTINGS
    ) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            taken, refusal = fill(client, "t")
            assert taken > 50
            assert refusal.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "log.dir.min.free.bytes" in refusal.error_message
            assert "delete topics" in refusal.error_message
            left = free_bytes(small_disk)
            assert MARK - MB < left <= MARK, "it stops at the mark, not at the end"
            assert client.produce("other", b"v").error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert read(client, "t", taken) == list(range(taken))
            assert [r.levelname for r in caplog.records if "producers are refused" in r.message] == [
                "WARNING"
            ]

            small_disk.make_room()
            wait_for(lambda: not client.produce("other", b"v").error_code, "it must lift itself")
            assert any("producers go on" in r.message for r in caplog.records)
            assert client.produce("t", b"%06d" % taken).base_offset == taken
        broker.restart()
        with RawClient(broker.bootstrap_servers) as client:
            assert read(client, "t", taken + 1) == list(range(taken + 1))


def test_a_topic_can_be_deleted_and_its_space_comes_back_at_once(small_disk: SmallDisk) -> None:
    """Not only after file.delete.delay.ms, which is a minute: producers are refused until then."""
    with ottla.testing.broker(
        topics=["t", "old"], data=small_disk.data, disk=small_disk.disk, settings=SETTINGS
    ) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            fill(client, "old")
            assert client.produce("t", b"v").error_code
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
            outcomes: list[KafkaError | None] = []
            producer.produce("t", b"waits", on_delivery=lambda error, _: outcomes.append(error))
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
            admin.delete_topics(["old"])["old"].result(20)
            assert producer.flush(HEALED_WITHIN) == 0
            assert outcomes == [None]


def _written(client: RawClient, value: bytes) -> bool:
    return not client.produce("t", value).error_code


def test_retention_runs_first_when_space_is_short(small_disk: SmallDisk) -> None:
    """Retention does not wait for its check interval of five minutes, so refusals are brief."""
    with ottla.testing.broker(data=small_disk.data, disk=small_disk.disk, settings=SETTINGS) as broker:
        broker.create_topic("t", config={"retention.bytes": 2 * MB, "segment.bytes": MB})
        with RawClient(broker.bootstrap_servers) as client:
            for count in range(400):  # 20 MB, on a disk of 12
                wait_for(
                    partial(_written, client, b"%06d" % count + b"x" * 50_000),
                    "retention must have freed space",
                )


def test_under_load_nothing_that_was_acknowledged_is_lost(small_disk: SmallDisk) -> None:
    """Filled by several producers at once, freed, and filled on: every delivered record is there, once."""
    with ottla.testing.broker(
        topics=["t"], data=small_disk.data, disk=small_disk.disk, settings=SETTINGS
    ) as broker:
        delivered: list[bytes] = []
        failed: list[KafkaError] = []
        ready = threading.Barrier(4)

        def load(name: int) -> None:
            producer = Producer(
                {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "linger.ms": 1}
            )

            def note(error: KafkaError | None, message: Any) -> None:
                if error is None:
                    delivered.append(message.value()[:6])
                else:
                    failed.append(error)

            ready.wait()
            for n in range(100):
                producer.produce("t", b"%06d" % (name * 1000 + n) + b"x" * 40_000, on_delivery=note)
                producer.poll(0)
            producer.flush(60)

        threads = [threading.Thread(target=load, args=(name,)) for name in range(3)]
        for thread in threads:
            thread.start()
        ready.wait()
        with RawClient(broker.bootstrap_servers) as client:
            wait_for(lambda: bool(client.produce("t", b"probe!").error_code), "the mark must be reached")
            assert len(delivered) < 300
            small_disk.make_room()
        for thread in threads:
            thread.join()
        assert not failed
        assert len(delivered) == len(set(delivered)) == 300
        broker.restart()
        with RawClient(broker.bootstrap_servers) as client:
            found: list[bytes] = []
            offset = 0
            while got := values((fetched := client.fetch("t", offset, max_bytes=4 * MB)).records):
                found += [value[:6] for value in got]
                offset += len(got)
            assert offset == fetched.high_watermark
        assert sorted(value for value in found if value != b"probe!") == sorted(delivered)
