"""Partitions as a broker opens them, with what a crash has left in their logs."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import pytest

from ottla.clock import SystemClock
from ottla.config.values import BrokerConfig, topic_config
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.records import Record, encode_batch
from ottla.replication import replicas as replicas_module
from ottla.replication.partition import Partition
from ottla.replication.purgatory import Purgatory
from ottla.replication.replicas import Replicas
from ottla.storage.log_config import LogConfig
from ottla.storage.log_directory import LogDirectory
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.memory_disk import MemoryDisk

DATA = Path("/data")
TOPIC_ID = bytes(range(16))


@dataclass(frozen=True)
class _Assigned:
    leader: int = 1
    leader_epoch: int = 0
    replicas: tuple[int, ...] = (1,)
    isr: tuple[int, ...] = (1,)
    partition_epoch: int = 0


@dataclass(frozen=True)
class _Topic:
    name: str = "t"
    id: bytes = TOPIC_ID
    partitions: tuple[_Assigned, ...] = field(default=(_Assigned(),))


def batch(producer_id: int = 7) -> memoryview:
    records = [Record(0, 1_700_000_000_000, None, b"x", [])]
    return memoryview(
        bytearray(encode_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=0))
    )


def leave_unflushed_records(disk: MemoryDisk) -> None:
    """What kill -9 leaves after a write and before its flush."""
    directory = LogDirectory(DATA, disk, SystemClock())
    directory.open()
    log = directory.create("t", 0, TOPIC_ID, LogConfig())
    log.append(batch(), 0)
    assert (log.end_offset, log.recovery_point) == (1, 0)
    directory.abandon()


def on_a_loop(test: Callable[[Replicas], None], disk: MemoryDisk | FaultyDisk) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        directory = LogDirectory(DATA, disk, SystemClock())
        directory.open()
        with ThreadPoolExecutor(1) as threads:
            in_thread = partial(loop.run_in_executor, threads)
            test(Replicas(1, directory, Purgatory(loop), in_thread))
        directory.abandon()

    asyncio.run(run())


def opened(replicas: Replicas, flush_messages: int) -> Partition:
    values = topic_config(BrokerConfig.load(), {"flush.messages": str(flush_messages)})
    replicas.prepare([_Topic()], lambda _: values)
    replicas.adopt([_Topic()], lambda _: values)
    return replicas.leader("t", 0)


@pytest.mark.parametrize("seed", range(8))
def test_recovered_records_are_flushed_before_clients_see_them(
    seed: int,
) -> None:
    disk = MemoryDisk()
    leave_unflushed_records(disk)

    def test(replicas: Replicas) -> None:
        partition = opened(replicas, flush_messages=1)
        again = partition.append(batch())
        assert again.duplicate and partition.acknowledged(1, all_replicas=True, leader_epoch=0)

    on_a_loop(test, disk)
    disk.lose_power(Random(seed))
    directory = LogDirectory(DATA, disk, SystemClock())
    directory.open()
    assert directory.logs["t", 0].end_offset == 1


def test_records_that_a_crash_left_do_not_count_while_they_cannot_be_flushed() -> None:
    memory = MemoryDisk()
    leave_unflushed_records(memory)
    disk = FaultyDisk(memory)

    def test(replicas: Replicas) -> None:
        disk.fail("open", errno.EMFILE)
        partition = opened(replicas, flush_messages=1)
        assert partition.log.failure is None and partition.log.end_offset == 1
        assert not partition.acknowledged(1, all_replicas=False, leader_epoch=0)
        assert partition.high_watermark == 0

    on_a_loop(test, disk)


def test_records_that_a_crash_left_count_at_once_in_a_topic_without_flushes() -> None:
    disk = MemoryDisk()
    leave_unflushed_records(disk)

    def test(replicas: Replicas) -> None:
        partition = opened(replicas, flush_messages=2**63 - 1)
        assert partition.high_watermark == 1
        assert partition.log.recovery_point == 0

    on_a_loop(test, disk)


def on_a_loop_with_writers(test: Callable[[Replicas, LogDirectory, HangingWrites], Awaitable[None]]) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        directory = LogDirectory(DATA, MemoryDisk(), SystemClock())
        directory.open()
        writes = HangingWrites()
        with ThreadPoolExecutor(1) as threads:
            in_thread = partial(loop.run_in_executor, threads)
            await test(Replicas(1, directory, Purgatory(loop), in_thread, writes), directory, writes)
        directory.abandon()

    asyncio.run(run())


class HangingWrites:
    """Writes that hang until they are let go."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, write: Callable[[], None]) -> None:
        self.began.set()
        await self.go_on.wait()
        write()


def test_a_write_that_hangs_does_not_keep_its_topic_from_being_deleted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replicas_module, "_HANGING_WRITE_SECONDS", 0.05)

    async def test(replicas: Replicas, directory: LogDirectory, writes: HangingWrites) -> None:
        partition = opened(replicas, flush_messages=2**63 - 1)
        write = asyncio.ensure_future(partition.append_in_thread(batch(), lambda: None))
        await writes.began.wait()
        await asyncio.wait_for(replicas.drop(["t"]), 10)
        assert "a write to it hangs" in caplog.text
        assert replicas.held("t", 0) is None

        again = _Topic(id=bytes(16)[:-1] + b"\x01")
        values = topic_config(BrokerConfig.load(), {})
        replicas.prepare([again], lambda _: values)
        replicas.adopt([again], lambda _: values)
        writes.go_on.set()
        with pytest.raises(ApiError):
            await write
        assert replicas.leader("t", 0).append(batch()).first_offset == 0
        log = directory.logs["t", 0]
        found = log.read(0, 1000, 1)
        assert found is not None and log.end_offset == 1

    on_a_loop_with_writers(test)


def test_a_write_that_hangs_does_not_keep_the_broker_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas_module, "_HANGING_WRITE_SECONDS", 0.05)

    async def test(replicas: Replicas, directory: LogDirectory, writes: HangingWrites) -> None:
        partition = opened(replicas, flush_messages=2**63 - 1)
        write = asyncio.ensure_future(partition.append_in_thread(batch(), lambda: None))
        await writes.began.wait()
        assert await asyncio.wait_for(replicas.end_writes(), 10) == [("t", 0)]
        directory.abandon([("t", 0)])
        writes.go_on.set()
        await asyncio.wait([write])
        assert await replicas.end_writes() == []

    on_a_loop_with_writers(test)


def test_a_replica_that_moved_to_another_broker_goes() -> None:
    async def test(replicas: Replicas, directory: LogDirectory, writes: HangingWrites) -> None:
        opened(replicas, flush_messages=2**63 - 1)
        moved = _Topic(partitions=(_Assigned(leader=2, replicas=(2, 3), isr=(2, 3), partition_epoch=1),))
        assert replicas.moved_away([_Topic()]) == []
        assert replicas.moved_away([moved]) == [("t", 0)]
        await replicas.drop_moved([("t", 0)])
        replicas.adopt([moved], lambda _: topic_config(BrokerConfig.load(), {}))
        assert directory.logs == {} and replicas.moved_away([moved]) == []
        assert replicas.missing() == set()
        with pytest.raises(ApiError) as refused:
            replicas.get("t", 0)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    on_a_loop_with_writers(test)


def test_a_log_whose_replica_moved_while_the_broker_was_down_is_set_aside() -> None:
    async def test(replicas: Replicas, directory: LogDirectory, writes: HangingWrites) -> None:
        directory.create("t", 0, TOPIC_ID, LogConfig())
        moved = _Topic(partitions=(_Assigned(leader=2, replicas=(2, 3), isr=(2, 3)),))
        assert replicas.set_strays_aside({"t": _Topic()}) == []
        assert replicas.set_strays_aside({"t": moved}) == ["t-0"]
        assert directory.logs == {}

    on_a_loop_with_writers(test)
