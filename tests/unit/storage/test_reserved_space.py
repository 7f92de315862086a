"""A segment that grows large has space reserved on the disk, and gives back what it did not use."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.storage import segment
from ottla.storage.files import RealDisk
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.memory_disk import MemoryDisk, MemoryFile
from unit.storage.logs import Store, batch, offsets

KB = 1024
FROM, AHEAD = 64 * KB, 256 * KB

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="space is reserved on Linux only")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "_RESERVES_FROM", FROM)
    monkeypatch.setattr(segment, "_RESERVED_AHEAD", AHEAD)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(RealDisk(), tmp_path, segment_bytes=1 << 20)
    yield opened
    opened.directory.close()


def fill(store: Store, until: int) -> None:
    while store.log.size < until:
        store.log.append(batch(1, value=bytes(10_000)), 0)


def on_disk(store: Store, number: int = 0) -> tuple[int, int]:
    """Size of a segment's file, and the bytes it takes up."""
    status = sorted(store.folder.glob("*.log"))[number].stat()
    return status.st_size, status.st_blocks * 512


def test_a_small_segment_takes_no_more_space_than_its_records(store: Store) -> None:
    fill(store, FROM // 2)
    size, taken = on_disk(store)
    assert size == store.log.size
    assert taken < FROM


def test_space_reserved_for_a_large_segment_does_not_show_in_its_size(store: Store) -> None:
    fill(store, FROM + 1)
    fill(store, store.log.size + 1)
    size, taken = on_disk(store)
    assert size == store.log.size
    assert size + AHEAD // 2 < taken < size + 2 * AHEAD


def test_a_sealed_segment_gives_reserved_space_back(store: Store) -> None:
    fill(store, 3 * FROM)
    before = store.log.size
    store.log.roll()
    size, taken = on_disk(store)
    assert size == before
    assert taken < size + 8 * KB


def test_a_clean_stop_gives_reserved_space_back(store: Store) -> None:
    fill(store, 3 * FROM)
    before = store.log.size
    store.reopen()
    size, taken = on_disk(store)
    assert size == before == store.log.size
    assert taken < size + 8 * KB


def test_after_a_kill_reserved_space_is_used_or_given_back(store: Store) -> None:
    fill(store, 3 * FROM)
    store.crash()
    assert store.report.truncated_bytes == 0, "reserved space is not taken for an unfinished write"
    fill(store, 5 * FROM)
    count = store.log.end_offset
    store.log.roll()
    size, taken = on_disk(store)
    assert taken < size + 8 * KB
    assert offsets(store.log) == list(range(count))


def test_a_truncated_log_gives_reserved_space_back_and_reserves_again(store: Store) -> None:
    fill(store, 5 * FROM)
    store.log.truncate_to(store.log.end_offset - 5)
    size, taken = on_disk(store)
    assert taken < size + 8 * KB
    fill(store, 6 * FROM)
    size, taken = on_disk(store)
    assert taken > size + AHEAD // 4


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EOPNOTSUPP, errno.EIO])
def test_a_disk_that_cannot_reserve_space_is_written_to(code: int) -> None:
    disk = FaultyDisk(MemoryDisk())
    store = Store(disk)
    fill(store, FROM)
    disk.fail("reserve", code)
    fill(store, 4 * FROM)
    store.log.roll()
    assert offsets(store.log) == list(range(store.log.end_offset))


def test_a_partial_reservation_is_given_back_when_the_whole_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store()
    fill(store, FROM)
    cuts: list[int] = []
    monkeypatch.setattr(MemoryFile, "reserve", refuse)
    monkeypatch.setattr(MemoryFile, "truncate", lambda file, size: cuts.append(size))
    before = store.log.size
    fill(store, FROM + AHEAD // 2)
    assert cuts == [before], "once for each step, not for each record"


def refuse(file: MemoryFile, position: int, size: int) -> None:
    raise OSError(errno.ENOSPC, "full")


def test_records_are_written_when_only_the_reservation_does_not_fit() -> None:
    disk = FaultyDisk(MemoryDisk())
    store = Store(disk)
    fill(store, FROM)
    disk.free_bytes = AHEAD // 2
    fill(store, FROM + AHEAD // 4)
    assert offsets(store.log) == list(range(store.log.end_offset))


def test_a_reservation_without_system_support_fails_with_enosys(tmp_path: Path) -> None:
    program = f"""
import ctypes, errno
from pathlib import Path
from ottla.storage.files import RealDisk
ctypes.CDLL = lambda *_, **__: object()
file = RealDisk().open(Path({str(tmp_path / "f")!r}), create=True)
try:
    file.reserve(0, 10)
except OSError as problem:
    print(errno.errorcode[problem.errno])
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "ENOSYS"
