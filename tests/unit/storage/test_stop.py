"""A clean stop of many logs: one sync for all of them, and nothing counts as synced before it is."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ottla.clock import ManualClock
from ottla.storage import closing
from ottla.storage.checkpoints import CLEAN_SHUTDOWN
from ottla.storage.files import Disk
from ottla.storage.log_config import LogConfig
from ottla.storage.log_directory import LogDirectory
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.memory_disk import MemoryDisk
from property.crashing_disk import Crash, CrashingDisk
from unit.storage.logs import ROOT, T0, TOPIC_ID, batch, from_producer, values

CONFIG = LogConfig(index_interval_bytes=300)


class CountingDisk(FaultyDisk):
    """Counts syncs and files made."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.syncs: list[Path] = []
        self.syncs_of_all = 0
        self.made: list[Path] = []

    def check(self, operation: str, path: Path) -> None:
        if operation == "sync":
            self.syncs.append(path)
        super().check(operation, path)

    def sync_all(self, folder: Path) -> None:
        self.syncs_of_all += 1
        super().sync_all(folder)

    def replace(self, path: Path, data: bytes, *, sync: bool) -> None:
        self.made.append(path)
        super().replace(path, data, sync=sync)

    def open(self, path: Path, *, create: bool = False) -> Any:
        if create:
            self.made.append(path)
        return super().open(path, create=create)


def opened(disk: Any) -> LogDirectory:
    directory = LogDirectory(ROOT, disk, ManualClock(T0), config_for=lambda _: CONFIG)
    directory.open()
    return directory


def filled(disk: Any, count: int) -> LogDirectory:
    """Short logs, long ones, and some with producers."""
    directory = opened(disk)
    for number in range(count):
        log = directory.create("topic", number, TOPIC_ID, CONFIG)
        for sequence in range(10 if number % 3 == 0 else 1):
            value = b"%d %d" % (number, sequence) + b"x" * 100
            if number % 4 == 0:
                log.append(from_producer(sequence, value=value), 0)
            else:
                log.append(batch(value=value, timestamp=T0 + sequence), 0)
    return directory


def content(directory: LogDirectory) -> dict[int, list[bytes | None]]:
    return {number: values(log) for (_, number), log in sorted(directory.logs.items())}


def test_many_logs_are_synced_by_one_call() -> None:
    disk = CountingDisk(MemoryDisk())
    directory = filled(disk, 200)
    before = content(directory)
    disk.syncs.clear()
    disk.made.clear()
    directory.close()
    assert disk.syncs_of_all == 1
    assert len(disk.syncs) < 10, "the checkpoints and the marker of a clean stop"
    short = [path for path in disk.made if path.parent.name in ("topic-1", "topic-2")]
    assert short == [], "a short log without producers needs no file to be opened again"
    directory = opened(disk)
    assert directory.was_clean
    assert content(directory) == before
    for log in directory.logs.values():
        assert log.recovery_point == log.end_offset
        newest = log.max_timestamp()
        assert newest is not None


def test_a_short_log_needs_no_epochs_file() -> None:
    disk = CountingDisk(MemoryDisk())
    directory = opened(disk)
    for number in range(50):
        log = directory.create("topic", number, TOPIC_ID, CONFIG)
        log.begin_epoch(3)
        log.append(batch(value=b"%d" % number), 3)
    disk.made.clear()
    directory.close()
    assert [path for path in disk.made if path.parent != ROOT] == []
    for _ in range(2):
        disk.made.clear()
        directory = opened(disk)
        assert directory.was_clean
        for log in directory.logs.values():
            assert log.is_settled
            assert log.leader_epochs.entries == [(3, 0)]
        directory.close()
        assert [path for path in disk.made if path.parent != ROOT] == []
    directory = opened(disk)
    log = directory.logs["topic", 7]
    log.begin_epoch(4)
    log.append(batch(value=b"more"), 4)
    directory.abandon()
    directory = opened(disk)
    assert directory.logs["topic", 7].leader_epochs.entries == [(3, 0), (4, 1)]
    directory.close()
    directory = opened(disk)
    assert directory.logs["topic", 7].leader_epochs.entries == [(3, 0), (4, 1)]


def test_an_epoch_without_records_does_not_make_the_next_start_unclean() -> None:
    disk = CountingDisk(MemoryDisk())
    directory = opened(disk)
    for number in range(50):
        log = directory.create("topic", number, TOPIC_ID, CONFIG)
        log.append(batch(), 0)
        log.begin_epoch(1)
    directory.close()
    directory = LogDirectory(ROOT, disk, ManualClock(T0), config_for=lambda _: CONFIG)
    assert all(report.clean for report in directory.open())


def test_few_logs_are_synced_file_by_file() -> None:
    disk = CountingDisk(MemoryDisk())
    directory = filled(disk, 3)
    directory.close()
    assert disk.syncs_of_all == 0
    assert opened(disk).was_clean


def test_a_start_and_stop_without_a_write_makes_no_files_and_no_syncs() -> None:
    disk = CountingDisk(MemoryDisk())
    filled(disk, 50).close()
    disk.made.clear()
    directory = opened(disk)
    assert directory.was_clean
    disk.syncs.clear()
    disk.syncs_of_all = 0
    directory.close()
    assert disk.syncs_of_all == 0
    assert len(disk.syncs) < 10
    assert [path for path in disk.made if path.parent != ROOT] == []


@pytest.mark.parametrize("seed", range(20))
def test_a_power_loss_after_a_clean_stop_loses_nothing(seed: int) -> None:
    disk = MemoryDisk()
    directory = filled(disk, 40)
    before = content(directory)
    directory.close()
    disk.lose_power(Random(seed))
    directory = opened(disk)
    assert directory.was_clean
    assert [log.failure for log in directory.logs.values()] == [None] * 40
    assert content(directory) == before


def test_a_crash_at_any_moment_of_the_stop_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed there: all that was written is there. Without power: all that had been flushed is."""
    monkeypatch.setattr(closing, "_MANY", 1)
    at = 1
    while True:
        memory = MemoryDisk()
        disk = CrashingDisk(memory)
        directory = filled(disk, 4)
        flushed = {number: log.flush() for (_, number), log in directory.logs.items() if number < 2}
        directory.checkpoint()
        directory.logs["topic", 0].append(batch(value=b"late"), 0)
        before = content(directory)
        disk.at = disk.changes + at
        try:
            directory.close()
            done = True
        except Crash:
            done = False
        killed = memory.copy()
        killed._boots = memory._boots
        for state in (killed, memory):
            if state is memory:
                memory.lose_power(Random(at))
            again = opened(state)
            assert [log.failure for log in again.logs.values()] == [None] * len(again.logs)
            if state is killed:
                assert content(again) == before, at
            for number, offset in flushed.items():
                assert values(again.logs["topic", number])[:offset] == before[number][:offset], at
            again.abandon()
        if done:
            break
        at += 1
    assert at > 8


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EIO])
def test_files_are_synced_one_by_one_when_syncfs_fails(code: int) -> None:
    class Refusing(CountingDisk):
        def sync_all(self, folder: Path) -> None:
            raise OSError(code, "no")

    disk = Refusing(MemoryDisk())
    directory = filled(disk, 60)
    before = content(directory)
    disk.syncs.clear()
    directory.close()
    assert len(disk.syncs) > 60
    memory: Any = disk._disk
    memory.lose_power(Random(1))
    directory = opened(disk)
    assert directory.was_clean
    assert content(directory) == before


def test_a_log_that_cannot_be_closed_makes_the_stop_unclean_and_loses_nothing() -> None:
    disk = FaultyDisk(MemoryDisk())
    directory = filled(disk, 60)
    before = content(directory)
    disk.fail("write", errno.EIO, name="topic-3/")
    directory.close()
    assert CLEAN_SHUTDOWN not in disk.list(ROOT)
    disk.heal()
    directory = opened(disk)
    assert content(directory) == before
