"""Room on the disk that is kept back for the registry, so that a topic can be deleted on a full disk.

Deleting a topic is what frees space, but it begins with a write to the registry. On a disk without a free
byte that write would fail, so a small file lies beside the registry and holds its place. When the disk is
full it is removed, and what it held is there for the write. It is made again when there is room.
"""

from __future__ import annotations

import os
from pathlib import Path

SIZE = 512 * 1024
"""Enough for the write-ahead log of a commit of 1,000 operations."""
_ROOM = 4 * SIZE
"""It is made only where more than this is free, so that it is not what fills the disk."""


class Reserve:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = False

    def hold(self) -> None:
        """Make the file, if it is not there and the disk has room for it."""
        if self._held:
            return
        try:
            if self._path.exists() and self._path.stat().st_size == SIZE:
                self._held = True
                return
            if self.free > _ROOM:
                # Of random bytes: a file system that compresses would keep no place for zeros.
                self._path.write_bytes(os.urandom(SIZE))
                self._held = True
        except OSError:
            self.release()

    def release(self) -> bool:
        """Give up the place; True if there was one."""
        self._held = False
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    @property
    def free(self) -> int:
        """Bytes that are free where the file lies."""
        disk = os.statvfs(self._path.parent)
        return disk.f_bavail * disk.f_frsize
