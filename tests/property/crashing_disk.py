"""A disk on which the process dies at a chosen change: nothing after it reaches the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ottla.testing.memory_disk import MemoryDisk

_CHANGES = frozenset(
    {"rename", "remove", "remove_folder", "sync_folder", "sync_all", "replace", "make_folder"}
)
_FILE_CHANGES = frozenset({"write_at", "truncate", "sync"})


class Crash(BaseException):
    """The process is dead. Not an Exception: no handler may take it for a failing disk."""


class CrashingDisk:
    """`disk` as it is, until change number `at` (from 1). A write is done by halves then."""

    def __init__(self, disk: MemoryDisk, at: int | None = None) -> None:
        self.disk = disk
        self.at = at
        self.changes = 0

    def count(self) -> bool:
        """True when this is the change at which the process dies."""
        self.changes += 1
        if self.at is not None and self.changes > self.at:
            raise Crash
        return self.changes == self.at

    def open(self, path: Path, *, create: bool = False) -> _CrashingFile:
        if create and path not in self.disk.files and self.count():
            raise Crash
        return _CrashingFile(self, self.disk.open(path, create=create))

    def __getattr__(self, name: str) -> Any:
        work = getattr(self.disk, name)
        if name not in _CHANGES:
            return work

        def change(*arguments: Any, **options: Any) -> Any:
            if self.count():
                raise Crash
            return work(*arguments, **options)

        return change


class _CrashingFile:
    def __init__(self, disk: CrashingDisk, file: Any) -> None:
        self._disk = disk
        self._file = file

    def __getattr__(self, name: str) -> Any:
        work = getattr(self._file, name)
        if name not in _FILE_CHANGES:
            return work

        def change(*arguments: Any) -> Any:
            if self._disk.count():
                if name == "write_at":
                    position, data = arguments
                    self._file.write_at(position, bytes(data)[: len(data) // 2])
                raise Crash
            return work(*arguments)

        return change
