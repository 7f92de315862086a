"""Disks for tests: one in memory that can lose its power, one that fails on command.

Both speak the port of `ottla.storage.files`, so a log, a directory of logs or a whole broker runs on them
unchanged.

`MemoryDisk` remembers what was synced and what was not. `lose_power` throws away what a machine without power
may throw away: bytes written since the last sync of their file, page by page in any combination, and names
that were made, renamed or removed since the last sync of their folder.

`FaultyDisk` stands before another disk and makes it run full at a given byte, or fail a chosen kind of
operation, until it is healed.
"""

from __future__ import annotations

import errno
import io
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from ottla.clock import Clock, SystemClock
from ottla.storage.files import Disk, File, Lock, LockHeld

if TYPE_CHECKING:
    from typing_extensions import Buffer

PAGE = 4096
_MEMORY_SPACE = 1 << 40


def _is_in(path: Path, folder: Path) -> bool:
    """`path.parent == folder`, quickly: a path keeps its text, and makes a new parent each time."""
    return str(path).rpartition(os.sep)[0] == str(folder)


class _Node:
    """The content of one file, which lives as long as a name or an open file refers to it."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.synced = bytes(data)
        self.modified_ms = 0

    def lose_power(self, rng: Random) -> None:
        """Of each page changed since the last sync, and of the size, either the old or the new stays."""
        kept = bytearray(self.data if rng.random() < 0.5 else self.data[: len(self.synced)])
        for start in range(0, len(kept), PAGE):
            if rng.random() < 0.5:
                old = self.synced[start : start + PAGE]
                size = min(PAGE, len(kept) - start)
                kept[start : start + size] = (old + bytes(size))[:size]
        self.data = kept
        self.synced = bytes(kept)


class MemoryFile:
    def __init__(self, path: Path, node: _Node, clock: Clock) -> None:
        self.path = path
        self._node = node
        self._clock = clock

    @property
    def size(self) -> int:
        return len(self._node.data)

    def write_at(self, position: int, data: Buffer) -> None:
        content, view = self._node.data, memoryview(data).cast("B")
        if position > len(content):
            content.extend(bytes(position - len(content)))
        content[position : position + len(view)] = view
        self._node.modified_ms = self._clock.now_ms()

    def read_at(self, position: int, size: int) -> bytes:
        return bytes(self._node.data[position : position + size])

    def read_into(self, position: int, buffer: bytearray | memoryview) -> int:
        part = self._node.data[position : position + len(buffer)]
        buffer[: len(part)] = part
        return len(part)

    def read_cached(self, position: int, buffer: bytearray | memoryview) -> int:
        return self.read_into(position, buffer)

    def reserve(self, position: int, size: int) -> None:
        """Memory needs no reserved space."""

    def truncate(self, size: int) -> None:
        content = self._node.data
        if size <= len(content):
            del content[size:]
        else:
            content.extend(bytes(size - len(content)))

    def sync(self) -> None:
        self._node.synced = bytes(self._node.data)

    def fileno(self) -> int:
        raise io.UnsupportedOperation("a file in memory has no descriptor")

    def close(self) -> None:
        """Nothing to let go of."""


class _MemoryLock:
    def __init__(self, held: dict[Path, str], path: Path) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:
        self._held.pop(self._path, None)


class MemoryDisk:
    """A file system in memory. `files` are its names now; what a loss of power leaves is kept beside."""

    has_latency = False

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._files: dict[Path, _Node] = {}
        self._folders: set[Path] = set()
        self._synced_files: dict[Path, _Node] = {}
        self._locks: dict[Path, str] = {}
        self._boots = 1
        self._syncing = threading.Lock()  # logs are flushed in several threads
        self._renames: list[tuple[Path, Path]] = []  # since the last sync of their folder

    def open(self, path: Path, *, create: bool = False) -> MemoryFile:
        node = self._files.get(path)
        if node is None:
            if not create or path.parent not in self._folders:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            node = self._files[path] = _Node()
            node.modified_ms = self._clock.now_ms()
        return MemoryFile(path, node, self._clock)

    def list(self, folder: Path) -> list[str]:
        if folder not in self._folders:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        start = f"{folder}{os.sep}"
        names = [str(path) for path in (*self._files, *sorted(self._folders))]
        inside = [name[len(start) :] for name in names if name.startswith(start)]
        return [name for name in inside if os.sep not in name]

    def sizes(self, folder: Path) -> dict[str, int]:
        return {
            name: len(self._files[folder / name].data) if folder / name in self._files else 0
            for name in self.list(folder)
        }

    def size(self, path: Path) -> int:
        return self.open(path).size

    def modified_ms(self, path: Path) -> int:
        self.open(path)
        return self._files[path].modified_ms

    def set_modified(self, path: Path, modified_ms: int) -> None:
        self.open(path)
        self._files[path].modified_ms = modified_ms

    def is_folder(self, path: Path) -> bool:
        return path in self._folders

    def make_folder(self, path: Path) -> None:
        self._folders.update([path, *path.parents])

    def rename(self, source: Path, target: Path) -> None:
        if source in self._folders:
            self._move_folder(source, target)
        elif source in self._files:
            self._files[target] = self._files.pop(source)
            self._renames.append((source, target))
        else:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))

    def _move_folder(self, source: Path, target: Path) -> None:
        def moved(path: Path) -> Path:
            return target / path.relative_to(source) if path.is_relative_to(source) else path

        self._folders = {moved(path) for path in self._folders}
        self._files = {moved(path): node for path, node in self._files.items()}
        self._synced_files = {moved(path): node for path, node in self._synced_files.items()}

    def remove(self, path: Path) -> None:
        self._files.pop(path, None)

    def remove_folder(self, path: Path) -> None:
        self._folders = {each for each in self._folders if not each.is_relative_to(path)}
        self._files = {each: node for each, node in self._files.items() if not each.is_relative_to(path)}

    def sync_folder(self, folder: Path) -> None:
        with self._syncing:
            synced = {path: node for path, node in self._synced_files.items() if not _is_in(path, folder)}
            synced.update({p: node for p, node in list(self._files.items()) if _is_in(p, folder)})
            self._synced_files = synced
            self._renames = [each for each in self._renames if not _is_in(each[0], folder)]

    def sync_all(self, folder: Path) -> None:
        with self._syncing:
            for node in list(self._files.values()):
                node.synced = bytes(node.data)
            self._synced_files = dict(self._files)
            self._renames.clear()

    def read(self, path: Path) -> bytes:
        file = self.open(path)
        return file.read_at(0, file.size)

    def replace(self, path: Path, data: bytes, *, sync: bool) -> None:
        if path.parent not in self._folders:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        node = self._files[path] = _Node()
        node.data[:] = data
        node.modified_ms = self._clock.now_ms()
        if sync:
            node.synced = bytes(data)
            self.sync_folder(path.parent)

    def lock(self, path: Path, holder: str) -> _MemoryLock:
        if path in self._locks:
            raise LockHeld(path, self._locks[path])
        self._locks[path] = holder
        return _MemoryLock(self._locks, path)

    def boot_id(self) -> str:
        return str(self._boots)

    def space(self, folder: Path) -> tuple[int, int]:
        used = sum(len(node.data) for node in self._files.values())
        return _MEMORY_SPACE, _MEMORY_SPACE - used

    # -- for tests -----------------------------------------------------------------------------------

    @property
    def files(self) -> dict[Path, bytes]:
        """All files with their content."""
        return {path: bytes(node.data) for path, node in self._files.items()}

    def _kept_renames(self, rng: Random) -> dict[Path, bool]:
        """Whether the renames that touched a path survive: one is lost or kept as a whole.

        Renames that share a name depend on each other, so one decision holds for all of them.
        """
        kept: dict[Path, bool] = {}
        groups: list[set[Path]] = []
        for pair in self._renames:
            touching = [each for each in groups if not each.isdisjoint(pair)]
            groups = [each for each in groups if each.isdisjoint(pair)]
            groups.append(set(pair).union(*touching))
        for names in groups:
            kept.update(dict.fromkeys(sorted(names), rng.random() < 0.5))
        return kept

    def copy(self) -> MemoryDisk:
        """A disk with the same files, all synced: what a process killed at this moment leaves behind."""
        twin = MemoryDisk(self._clock)
        twin._folders = set(self._folders)
        twin._files = {path: _Node(bytes(node.data)) for path, node in self._files.items()}
        twin._synced_files = dict(twin._files)
        for path, node in twin._files.items():
            node.modified_ms = self._files[path].modified_ms
        return twin

    def release_locks(self) -> None:
        """The process that held them is gone."""
        self._locks.clear()

    def lose_power(self, rng: Random) -> None:
        """Keep what was synced, and of the rest what chance keeps. Locks are gone."""
        names: dict[Path, _Node] = {}
        kept = self._kept_renames(rng)
        for path in {**self._files, **self._synced_files}:
            before, now = self._synced_files.get(path), self._files.get(path)
            is_kept = kept[path] if path in kept else rng.random() < 0.5
            node = now if before is now or is_kept else before
            if node is not None and path.parent in self._folders:
                names[path] = node
        for node in dict.fromkeys(names.values()):
            node.lose_power(rng)
        self._files = names
        self._synced_files = dict(names)
        self._renames.clear()
        self._locks.clear()
        self._boots += 1


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
