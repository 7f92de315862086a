"""A full disk: writing fails with an error that says so, reading goes on, and all is well when space returns.

On a small file system of its own where the test may mount one, and with a disk that refuses to write.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

import ottla.testing
from ottla.cluster.reserve import SIZE
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.records import decode_batch
from ottla.storage.files import Disk, RealDisk
from ottla.testing.faulty_disk import FaultyDisk
from raw_client import RawClient
from small_file_system import small_file_system

MB = 1 << 20
HEALED_WITHIN = 20.0
PAUSE = 0.02
"""Seconds between two looks at what a broker in this process does meanwhile."""
TO_THE_END = {"log.dir.min.free.bytes": 0}  # what happens before the end is in test_free_space

SMALL_SEGMENTS = {"log.segment.bytes": 1 * MB, "log.segment.delete.delay.ms": 100}


@dataclass
class SmallDisk:
    """Where a broker keeps its log, how to run it there, and how to free space."""

    data: Path
    disk: Disk | None
    make_room: Callable[[], None]


@pytest.fixture(params=["a small file system", "a disk that says so"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    if request.param == "a disk that says so":
        disk = FaultyDisk(RealDisk())
        disk.free_bytes = 12 * MB
        yield SmallDisk(tmp_path, disk, disk.heal)
        return
    with small_file_system(tmp_path / "small", 16) as folder:
        ballast = folder / "ballast"
        ballast.write_bytes(b"\0" * 4 * MB)
        yield SmallDisk(folder / "data", None, ballast.unlink)


def values(records: bytes) -> list[bytes]:
    """The values of all whole batches in fetched bytes; the last one may be cut off, as in Kafka."""
    found, view = [], memoryview(records)
    while len(view) > 12 and len(view) >= (size := 12 + int.from_bytes(view[8:12], "big")):
        found += [bytes(r.value or b"") for r in decode_batch(view[:size], max_size=MB)]
        view = view[size:]
    return found


def fill(client: RawClient, topic: str, count: int = 0) -> tuple[int, Any]:
    """Writes from number `count` on until the broker refuses; returns the first it refused, and why."""
    while not (answer := client.produce(topic, b"%06d" % count + b"x" * 50_000)).error_code:
        assert answer.base_offset == count
        count += 1
    return count, answer


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
def test_a_full_disk_refuses_writes_serves_reads_and_recovers(
    small_disk: SmallDisk, segment_bytes: int
) -> None:
    settings = {"log.segment.bytes": segment_bytes, "log.index.size.max.bytes": 64 * 1024, **TO_THE_END}
    with ottla.testing.broker(
        topics=["t", "other"], data=small_disk.data, disk=small_disk.disk, settings=settings
    ) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            taken, refusal = fill(client, "t")
            assert refusal.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "space" in refusal.error_message.lower()
            assert read(client, "t", taken) == list(range(taken))

            small_disk.make_room()
            deadline = time.monotonic() + HEALED_WITHIN
            while (answer := client.produce("t", b"%06d" % taken)).error_code:
                assert time.monotonic() < deadline, f"it did not heal: {answer.error_message}"
            assert answer.base_offset == taken
            assert client.produce("other", b"v").base_offset == 0
            assert read(client, "t", taken + 1) == list(range(taken + 1))
        broker.restart()
        with RawClient(broker.bootstrap_servers) as client:
            assert read(client, "t", taken + 1) == list(range(taken + 1))
            assert client.produce("t", b"%06d" % (taken + 1)).base_offset == taken + 1


def test_an_idempotent_producer_continues_by_itself_when_space_returns(small_disk: SmallDisk) -> None:
    with ottla.testing.broker(
        topics=["t", "ballast"], data=small_disk.data, disk=small_disk.disk, settings=TO_THE_END
    ) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            fill(client, "ballast")
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "linger.ms": 0}
        )
        outcomes: list[KafkaError | None] = []
        for n in range(100):
            producer.produce(
                "t", b"%06d" % n + b"x" * 5000, on_delivery=lambda error, _: outcomes.append(error)
            )
        producer.flush(0.5)
        assert len(outcomes) < 100, "the disk is full, so most of it must wait"
        small_disk.make_room()
        assert producer.flush(30) == 0
        assert outcomes == [None] * 100
        with RawClient(broker.bootstrap_servers) as client:
            assert read(client, "t", 100) == list(range(100))


def test_a_topic_created_on_a_full_disk_works_when_space_returns(small_disk: SmallDisk) -> None:
    """Creating it may fail with an error or give a topic whose partitions wait; both end well."""
    with ottla.testing.broker(
        topics=["ballast"], data=small_disk.data, disk=small_disk.disk, settings=TO_THE_END
    ) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            taken, _ = fill(client, "ballast")
            try:
                broker.create_topic("new")
            except ApiError as refusal:
                assert refusal.message
            assert read(client, "ballast", taken) == list(range(taken))
            small_disk.make_room()
            deadline = time.monotonic() + HEALED_WITHIN
            while True:
                try:
                    broker.create_topic("new")
                except ApiError as refusal:
                    if refusal.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                        break
                    assert time.monotonic() < deadline, f"it did not heal: {refusal}"
            while (answer := client.produce("new", b"v")).error_code:
                assert time.monotonic() < deadline, f"it did not heal: {answer.error_message}"
            assert answer.base_offset == 0


def use_up(folder: Path) -> Path:
    """A file that takes all that is left, to the last byte."""
    rest = folder / "rest"
    with rest.open("wb", buffering=0) as file:
        for size in (65536, 4096, 512, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError as full:
                assert full.errno == errno.ENOSPC
    assert os.statvfs(folder).f_bavail == 0
    return rest


def delete(client: RawClient, topic: str) -> None:
    answer = client.call(DeleteTopicsRequest(topic_names=[topic], timeout_ms=30_000), 5)
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message


@pytest.mark.parametrize("mark", [0, -1], ids=["to the end", "with the default mark"])
def test_a_topic_can_be_deleted_when_no_byte_is_free(tmp_path: Path, mark: int) -> None:
    """As the message advises; afterwards there is space."""
    settings = {
        "log.dir.min.free.bytes": mark,
        "log.segment.bytes": 1 * MB,
        "log.segment.delete.delay.ms": 100,
    }
    with small_file_system(tmp_path / "small", 16) as folder:
        with (
            ottla.testing.broker(
                topics={"big": 1, "kept": 1}, data=folder / "data", settings=settings
            ) as broker,
            RawClient(broker.bootstrap_servers) as client,
        ):
            assert client.produce("kept", b"before").error_code == 0
            fill(client, "big")
            use_up(folder)
            with pytest.raises(ApiError):  # what would need more space does not get what is kept back
                broker.create_topic("new", 100)
            delete(client, "big")
            deadline = time.monotonic() + HEALED_WITHIN
            while (produced := client.produce("kept", b"after")).error_code:
                assert time.monotonic() < deadline, f"it did not heal: {produced.error_message}"
            assert values(client.fetch("kept", 0).records) == [b"before", b"after"]
            broker.restart()
            with RawClient(broker.bootstrap_servers) as again:
                assert again.produce("kept", b"restarted").error_code == 0


def test_a_retention_can_be_lowered_when_no_byte_is_free(tmp_path: Path) -> None:
    settings = {**SMALL_SEGMENTS, **TO_THE_END}
    with small_file_system(tmp_path / "small", 16) as folder:
        with (
            ottla.testing.broker(topics=["big"], data=folder / "data", settings=settings) as broker,
            RawClient(broker.bootstrap_servers) as client,
        ):
            fill(client, "big")
            use_up(folder)
            lower = AlterableConfig(name="retention.bytes", config_operation=0, value="1000000")
            topic = AlterConfigsResource(resource_type=2, resource_name="big", configs=[lower])
            (answer,) = client.call(IncrementalAlterConfigsRequest(resources=[topic]), 1).responses
            assert answer.error_code == 0, answer.error_message


def test_without_its_reserve_a_broker_starts_on_a_full_disk_and_deletes_a_topic(tmp_path: Path) -> None:
    """What docs/operations.md advises where the disk filled up while the broker was down."""
    settings = SMALL_SEGMENTS
    with small_file_system(tmp_path / "small", 16) as folder:
        with ottla.testing.broker(topics=["big", "kept"], data=folder / "data", settings=settings) as broker:
            with RawClient(broker.bootstrap_servers) as client:
                fill(client, "big")
            broker.kill()
            use_up(folder)
            reserve = folder / "data" / "registry.sqlite.reserve"
            reserve.unlink()
            broker.start()
            with RawClient(broker.bootstrap_servers) as client:
                delete(client, "big")
                deadline = time.monotonic() + HEALED_WITHIN
                while (produced := client.produce("kept", b"after")).error_code:
                    assert time.monotonic() < deadline, f"it did not heal: {produced.error_message}"
                    time.sleep(PAUSE)
                while os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize < 4 * MB:
                    assert time.monotonic() < deadline, "the topic is still on the disk"
                    time.sleep(PAUSE)
                while not reserve.exists():  # it is made again with one of the next writes to the registry
                    assert time.monotonic() < deadline, "what is kept back was not restored"
                    broker.create_topic("another")
                    delete(client, "another")
                    time.sleep(PAUSE)
                assert reserve.stat().st_size == SIZE
