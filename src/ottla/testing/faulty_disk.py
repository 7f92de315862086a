"""A disk that fails on command, for tests.

It stands before another disk, by the port of `ottla.storage.files`, and makes it run full at a given byte, be
slow, or fail a chosen kind of operation, until it is healed.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.storage.files import Disk, File, Lock

if TYPE_CHECKING:
    from typing_extensions import Buffer


PAGE = 4096


class FaultyDisk:
    """Another disk, with faults.

    `free_bytes` is how many bytes may still be added before it is full (None: it never is); a write that does
    not fit is done as far as it fits. `fail` makes one kind of operation fail, `heal` takes all faults back.
    `slow_down` makes it take its time: for writes, and for reads of files that are not in memory.
    """

    def __init__(self, disk: Disk, free_bytes: int | None = None) -> None:
        self._disk = disk
        self.free_bytes = free_bytes
        self.writes = 0  # how many times bytes were written
        self._faults: dict[str, tuple[int, str]] = {}
        self.before_write: Callable[[Path], None] | None = None
        self.read_seconds = 0.0
        self.write_seconds = 0.0
        self._cold = ""
        self._warm: dict[Path, set[int]] = {}

    def slow_down(self, *, read: float = 0.0, write: float = 0.0, name: str = "") -> None:
        """Let each write take so many seconds, and the first read of a page of files with `name`."""
        self.read_seconds, self.write_seconds, self._cold = read, write, name
        self._warm = {}

    def warm_pages(self, path: Path) -> set[int]:
        """The pages of a file that were waited for since it became slow."""
        return self._warm.setdefault(path, set())

    def is_cold(self, path: Path) -> bool:
        return self.read_seconds > 0 and self._cold in str(path)

    @property
    def has_latency(self) -> bool:
        return self._disk.has_latency

    def fail(self, operation: str, code: int = errno.EIO, *, name: str = "") -> None:
        """Let an operation fail on paths that contain `name`.

        Operations: `write`, `reserve`, `truncate`, `sync`, `open`, `rename`, `read`.
        """
        self._faults[operation] = (code, name)

    def heal(self) -> None:
        self._faults.clear()
        self.free_bytes = None
        self.slow_down()

    def check(self, operation: str, path: Path) -> None:
        code, name = self._faults.get(operation, (0, ""))
        if code and name in str(path):
            raise OSError(code, os.strerror(code), str(path))

    def grow(self, path: Path, size: int, wanted: int) -> int:
        """How much of a growth from `size` to `wanted` fits; a full disk takes only the part that does."""
        self.writes += 1
        if self.before_write is not None:
            self.before_write(path)
        self.check("write", path)
        growth = wanted - size
        if self.free_bytes is None or growth <= 0:
            return wanted
        fits = min(growth, self.free_bytes)
        self.free_bytes -= fits
        return size + fits

    def shrink(self, size: int) -> None:
        if self.free_bytes is not None and size > 0:
            self.free_bytes += size

    def full(self, path: Path) -> OSError:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def open(self, path: Path, *, create: bool = False) -> _FaultyFile:
        self.check("open", path)
        return _FaultyFile(self, self._disk.open(path, create=create))

    def list(self, folder: Path) -> list[str]:
        return self._disk.list(folder)

    def sizes(self, folder: Path) -> dict[str, int]:
        return self._disk.sizes(folder)

    def size(self, path: Path) -> int:
        return self._disk.size(path)

    def modified_ms(self, path: Path) -> int:
        return self._disk.modified_ms(path)

    def set_modified(self, path: Path, modified_ms: int) -> None:
        self._disk.set_modified(path, modified_ms)

    def is_folder(self, path: Path) -> bool:
        return self._disk.is_folder(path)

    def make_folder(self, path: Path) -> None:
        self.check("write", path)
        self._disk.make_folder(path)

    def rename(self, source: Path, target: Path) -> None:
        self.check("rename", source)
        self._disk.rename(source, target)

    def remove(self, path: Path) -> None:
        try:
            self.shrink(self._disk.size(path))
        except OSError:
            return
        self._disk.remove(path)

    def remove_folder(self, path: Path) -> None:
        if self._disk.is_folder(path):
            for name in self._disk.list(path):
                self.remove(path / name)
        self._disk.remove_folder(path)

    def sync_folder(self, folder: Path) -> None:
        self.check("sync", folder)
        self._disk.sync_folder(folder)

    def sync_all(self, folder: Path) -> None:
        self.check("sync", folder)
        self._disk.sync_all(folder)

    def read(self, path: Path) -> bytes:
        self.check("read", path)
        return self._disk.read(path)

    def replace(self, path: Path, data: bytes, *, sync: bool) -> None:
        if self.grow(path, 0, len(data)) < len(data):
            raise self.full(path)
        if sync:
            self.check("sync", path)
        self._disk.replace(path, data, sync=sync)

    def lock(self, path: Path, holder: str) -> Lock:
        return self._disk.lock(path, holder)

    def boot_id(self) -> str:
        return self._disk.boot_id()

    def space(self, folder: Path) -> tuple[int, int]:
        total, free = self._disk.space(folder)
        return total, free if self.free_bytes is None else self.free_bytes


class _FaultyFile:
    def __init__(self, faults: FaultyDisk, file: File) -> None:
        self._faults = faults
        self._file = file
        self.path = file.path

    @property
    def size(self) -> int:
        return self._file.size

    def write_at(self, position: int, data: Buffer) -> None:
        if self._faults.write_seconds:
            time.sleep(self._faults.write_seconds)
        view = memoryview(data).cast("B")
        end = self._faults.grow(self.path, self._file.size, position + len(view))
        fits = min(max(end - position, 0), len(view))
        self._file.write_at(position, view[:fits])
        if fits < len(view):
            raise self._faults.full(self.path)

    def read_at(self, position: int, size: int) -> bytes:
        self._faults.check("read", self.path)
        self._wait_for_the_disk(position, size)
        return self._file.read_at(position, size)

    def read_into(self, position: int, buffer: bytearray | memoryview) -> int:
        self._faults.check("read", self.path)
        self._wait_for_the_disk(position, len(buffer))
        return self._file.read_into(position, buffer)

    def read_cached(self, position: int, buffer: bytearray | memoryview) -> int:
        self._faults.check("read", self.path)
        if not self._faults.is_cold(self.path):
            return self._file.read_cached(position, buffer)
        warm = position // PAGE in self._faults.warm_pages(self.path)
        return self._file.read_cached(position, buffer) if warm else 0

    def _wait_for_the_disk(self, position: int, size: int) -> None:
        """What is cold has to be waited for, once."""
        if self._faults.is_cold(self.path) and size > 0:
            pages = range(position // PAGE, (position + size - 1) // PAGE + 1)
            if not self._faults.warm_pages(self.path).issuperset(pages):
                time.sleep(self._faults.read_seconds)
                self._faults.warm_pages(self.path).update(pages)

    def reserve(self, position: int, size: int) -> None:
        self._faults.check("reserve", self.path)
        if (
            self._faults.free_bytes is not None
            and self._faults.free_bytes < position + size - self._file.size
        ):
            raise self._faults.full(self.path)
        self._file.reserve(position, size)

    def truncate(self, size: int) -> None:
        self._faults.check("truncate", self.path)
        before = self._file.size
        self._file.truncate(size)
        self._faults.shrink(before - size)

    def sync(self) -> None:
        self._faults.check("sync", self.path)
        self._file.sync()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()
