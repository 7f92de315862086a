"""Files that were renamed for their removal: each is removed once, whichever thread removes it."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

from ottla.storage.pending_deletions import PendingDeletions
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.memory_disk import MemoryDisk

ROOT = Path("/data")


def rename(disk: MemoryDisk, files: PendingDeletions, *names: str, due_ms: int = 10) -> None:
    disk.make_folder(ROOT)
    for name in names:
        disk.open(ROOT / name, create=True)
        files.rename(ROOT / name, ROOT / f"{name}.deleted", due_ms)


class SlowDisk(MemoryDisk):
    """The first removal waits until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.removing = threading.Event()
        self.proceed = threading.Event()

    def remove(self, path: Path) -> None:
        if not self.removing.is_set():
            self.removing.set()
            assert self.proceed.wait(30)
        super().remove(path)


def test_concurrent_removals_remove_each_file_once() -> None:
    disk = SlowDisk()
    files = PendingDeletions(disk)
    rename(disk, files, "a", "b", "c")
    outcome: list[int | Exception] = []

    def remove() -> None:
        try:
            outcome.append(files.remove_due(10))
        except Exception as error:  # noqa: BLE001 - the test reports it
            outcome.append(error)

    first = threading.Thread(target=remove)
    first.start()
    try:
        assert disk.removing.wait(30)
        assert files.remove_due(10) == 0, "the other thread has taken all of them"
        rename(disk, files, "d", due_ms=20)
    finally:
        disk.proceed.set()
        first.join(30)
    assert outcome == [3]
    assert [path.name for path in disk.files] == ["d.deleted"]
    assert len(files) == 1


def test_a_refused_removal_is_tried_again() -> None:
    class Refusing(MemoryDisk):
        def remove(self, path: Path) -> None:
            faults.check("write", path)
            super().remove(path)

    disk = Refusing()
    faults = FaultyDisk(disk)
    files = PendingDeletions(disk)
    rename(disk, files, "a", "b")
    faults.fail("write", errno.EIO, name="a.deleted")
    assert files.remove_due(10) == 1
    assert len(files) == 1
    faults.heal()
    assert files.remove_due(10) == 1
    assert not disk.files
