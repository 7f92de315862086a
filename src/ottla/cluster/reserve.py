"""Disk space that is kept back for the registry, so that a topic can be deleted on a full disk.

Deleting a topic is what frees space, but it begins with a write to the registry. On a disk without a free
byte that write would fail, so a small file beside the registry reserves space. When the disk is full the file
is removed, and the write uses its space. It is made again when there is enough free space.
"""

from __future__ import annotations

import os
from pathlib import Path

SIZE = 512 * 1024
"""Enough for the write-ahead log of a commit of 1,000 operations."""
_NEEDED_FREE = 4 * SIZE
"""It is made only where more than this is free, so that it is not what fills the disk."""


class Reserve:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = False

    def hold(self) -> None:
        """Make the file, if it is missing and the disk has space for it."""
        if self._held:
            return
        try:
            if self._path.exists() and self._path.stat().st_size == SIZE:
                self._held = True
                return
            if self.free > _NEEDED_FREE:
                # Of random bytes: a file system that compresses would reserve no space for zeros.
                self._path.write_bytes(os.urandom(SIZE))
                self._held = True
        except OSError:
            self.release()

    def release(self) -> bool:
        """Free the space; True if there was any."""
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
