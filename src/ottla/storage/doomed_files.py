"""Files and folders that are deleted in two steps: renamed at once, removed after a while.

The new name keeps a restart from taking them for part of the log. The while (`file.delete.delay.ms`) is for
people: whoever lowered a retention by mistake can still copy the files away.
"""

from __future__ import annotations

import logging
from pathlib import Path

from ottla.storage.files import Disk

logger = logging.getLogger(__name__)


class DoomedFiles:
    """What waits for its removal."""

    __slots__ = ("_disk", "_entries")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._entries: list[tuple[int, Path]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def rename(self, path: Path, new_path: Path, due_ms: int, *, must: bool = False) -> None:
        """Rename now, remove at `due_ms`. Nothing happens when there is no such file.

        A disk that refuses to rename gets another chance when it is time to remove. With `must` it does not
        (OSError), because something else will get the name.
        """
        try:
            self._disk.rename(path, new_path)
        except FileNotFoundError:
            return
        except OSError as problem:
            if must:
                raise
            logger.warning("cannot rename %s, which is to be deleted: %s", path, problem)
            new_path = path
        self._entries.append((due_ms, new_path))

    def take_over(self, path: Path) -> None:
        """Remove what an earlier life of the process renamed. What the disk refuses now is tried later."""
        try:
            self._disk.remove_folder(path)
        except OSError as problem:
            logger.warning("cannot remove %s, trying again later: %s", path, problem)
            self._entries.append((0, path))

    def add(self, path: Path) -> None:
        """Remove, when others are removed, what an earlier life of the process renamed."""
        self._entries.append((0, path))

    def remove_due(self, now_ms: int) -> int:
        """Remove what has waited long enough, as far as the disk lets us; how many there were."""
        removed = 0
        for entry in [entry for entry in self._entries if entry[0] <= now_ms]:
            try:
                if self._disk.is_folder(entry[1]):
                    self._disk.remove_folder(entry[1])
                else:
                    self._disk.remove(entry[1])
            except OSError as problem:
                logger.warning("cannot remove %s, trying again later: %s", entry[1], problem)
                continue
            self._entries.remove(entry)
            removed += 1
        return removed
