"""Files and folders that are deleted in two steps: renamed at once, removed after a while.

The new name keeps a restart from taking them for part of the log. The delay (`file.delete.delay.ms`) is for
people: after a retention was lowered by mistake the files can still be copied.

Segments are renamed on the event loop, and removals run in threads, at times two at once: one when it is due,
one because space is short. Each entry is taken by one of them.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from ottla.storage.files import Disk

logger = logging.getLogger(__name__)


class PendingDeletions:
    """What is to be removed, and when."""

    __slots__ = ("_disk", "_entries", "_lock")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._entries: list[tuple[int, Path]] = []
        self._lock = threading.Lock()

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
        self._add([(due_ms, new_path)])

    def _add(self, entries: list[tuple[int, Path]]) -> None:
        with self._lock:
            self._entries += entries

    def _take_due(self, now_ms: int) -> list[tuple[int, Path]]:
        with self._lock:
            due = [entry for entry in self._entries if entry[0] <= now_ms]
            if due:
                self._entries = [entry for entry in self._entries if entry[0] > now_ms]
            return due

    def take_over(self, path: Path) -> None:
        """Remove what an earlier life of the process renamed. What the disk refuses now is tried later."""
        try:
            self._disk.remove_folder(path)
        except OSError as problem:
            logger.warning("cannot remove %s, trying again later: %s", path, problem)
            self._add([(0, path)])

    def add(self, path: Path, due_ms: int = 0) -> None:
        """Remove at `due_ms` what an earlier run of the process renamed."""
        self._add([(due_ms, path)])

    def remove_due(self, now_ms: int) -> int:
        """Remove what has waited long enough, as far as the disk lets us; how many there were."""
        due = self._take_due(now_ms)
        refused = []
        for entry in due:
            try:
                if self._disk.is_folder(entry[1]):
                    self._disk.remove_folder(entry[1])
                else:
                    self._disk.remove(entry[1])
            except OSError as problem:
                logger.warning("cannot remove %s, trying again later: %s", entry[1], problem)
                refused.append(entry)
        if refused:
            self._add(refused)
        return len(due) - len(refused)
