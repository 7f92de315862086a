"""The disk port: the real one and the one in memory do the same."""

import errno
from pathlib import Path
from random import Random

import pytest

from ottla.storage.files import Disk, LockHeld, RealDisk
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.memory_disk import MemoryDisk


@pytest.fixture(params=["real", "memory", "faulty"])
def disk(request: pytest.FixtureRequest) -> Disk:
    disks: dict[str, Disk] = {
        "real": RealDisk(),
        "memory": MemoryDisk(),
        "faulty": FaultyDisk(MemoryDisk()),
    }
    return disks[request.param]


@pytest.fixture
def folder(disk: Disk, tmp_path: Path) -> Path:
    disk.make_folder(tmp_path / "data")
    return tmp_path / "data"


def test_files_are_written_and_read_at_positions(disk: Disk, folder: Path) -> None:
    file = disk.open(folder / "f", create=True)
    file.write_at(3, b"abc")
    file.write_at(0, memoryview(b"xyz"))
    assert file.read_at(0, 100) == b"xyzabc"
    assert file.read_at(4, 1) == b"b"
    buffer = bytearray(4)
    assert file.read_into(4, buffer) == 2
    assert buffer == b"bc\0\0"
    file.truncate(2)
    file.sync()
    assert (file.size, disk.size(folder / "f"), disk.read(folder / "f")) == (2, 2, b"xy")


def test_a_missing_file_is_file_not_found(disk: Disk, folder: Path) -> None:
    for call in (disk.open, disk.size, disk.read):
        with pytest.raises(FileNotFoundError):
            call(folder / "nothing")
    with pytest.raises(FileNotFoundError):
        disk.rename(folder / "nothing", folder / "something")
    disk.remove(folder / "nothing")
    disk.remove_folder(folder / "nothing")


def test_names_are_listed_renamed_and_removed(disk: Disk, folder: Path) -> None:
    disk.replace(folder / "a", b"1", sync=True)
    disk.make_folder(folder / "sub")
    disk.replace(folder / "sub" / "b", b"2", sync=False)
    assert sorted(disk.list(folder)) == ["a", "sub"]
    disk.rename(folder / "sub", folder / "gone")
    assert disk.read(folder / "gone" / "b") == b"2"
    assert disk.is_folder(folder / "gone") and not disk.is_folder(folder / "a")
    disk.remove(folder / "a")
    disk.remove_folder(folder / "gone")
    disk.sync_folder(folder)
    assert disk.list(folder) == []


def test_an_open_file_survives_its_removal(disk: Disk, folder: Path) -> None:
    file = disk.open(folder / "f", create=True)
    file.write_at(0, b"still here")
    disk.remove(folder / "f")
    assert file.read_at(0, 10) == b"still here"


def test_a_lock_is_held_once(disk: Disk, folder: Path) -> None:
    lock = disk.lock(folder / ".lock", "pid 1")
    with pytest.raises(LockHeld, match="pid 1"):
        disk.lock(folder / ".lock", "pid 2")
    lock.release()
    disk.lock(folder / ".lock", "pid 2").release()


def test_space_reports_total_and_free_bytes(disk: Disk, folder: Path) -> None:
    total, free = disk.space(folder)
    assert 0 < free <= total


def test_power_loss_keeps_what_was_synced() -> None:
    for seed in range(50):
        disk = MemoryDisk()
        disk.make_folder(Path("/d"))
        file = disk.open(Path("/d/f"), create=True)
        file.write_at(0, b"synced")
        file.sync()
        disk.sync_folder(Path("/d"))
        file.write_at(6, b"not synced")
        disk.open(Path("/d/new"), create=True)
        disk.lose_power(Random(seed))
        assert disk.read(Path("/d/f"))[:6] == b"synced"


def test_a_full_disk_writes_what_fits() -> None:
    disk = FaultyDisk(MemoryDisk(), free_bytes=5)
    disk.make_folder(Path("/d"))
    file = disk.open(Path("/d/f"), create=True)
    with pytest.raises(OSError, match="No space left") as problem:
        file.write_at(0, b"1234567")
    assert problem.value.errno == errno.ENOSPC
    assert file.read_at(0, 10) == b"12345"
    file.truncate(0)
    file.write_at(0, b"12345")
