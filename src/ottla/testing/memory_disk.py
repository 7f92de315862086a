"""A disk in memory that can lose its power, for tests.

It speaks the port of `ottla.storage.files`, so a log, a directory of logs or a whole broker runs on it
unchanged. It remembers what was synced and what was not. `lose_power` throws away what a machine without
power may throw away: bytes written since the last sync of their file, page by page in any combination, and
names that were made, renamed or removed since the last sync of their folder.
"""

from __future__ import annotations

import errno
import io
import os
import threading
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from ottla.clock import Clock, SystemClock
from ottla.storage.files import LockHeld

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
