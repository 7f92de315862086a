"""Folders of partitions that are no longer part of the broker: renamed at once, removed later.

The log of a deleted topic gets a name that ends in `-delete`, as with Kafka, and goes after
file.delete.delay.ms. The log of a topic that the cluster does not know gets one that ends in `-stray`, with
the time in it, and is kept for a week, over restarts. Files of deleted segments wait here, too, when a start
found them.
"""

from __future__ import annotations

import logging
import re
import uuid
from pathlib import Path

from ottla.clock import Clock
from ottla.storage.files import Disk
from ottla.storage.log import Log
from ottla.storage.log_config import DAY_MS
from ottla.storage.pending_deletions import PendingDeletions

logger = logging.getLogger(__name__)

STRAY_DELAY_MS = 7 * DAY_MS
"""How long the log of a topic that the cluster does not know is kept."""
_DELETE_SUFFIX = "-delete"
_DELETED_FOLDER = re.compile(r".+-\d+\.[0-9a-f]{32}" + _DELETE_SUFFIX)
_STRAY_SUFFIX = "-stray"
_STRAY_FOLDER = re.compile(r".+-\d+\.(?P<since>[0-9a-f]{16})[0-9a-f]{16}" + _STRAY_SUFFIX)


class RemovedFolders:
    """Those of one data folder. All methods block on the disk."""

    def __init__(self, path: Path, disk: Disk, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._pending_deletions = PendingDeletions(disk)
        self._strays = PendingDeletions(disk)

    def found(self, name: str) -> bool:
        """Whether an earlier run renamed a folder to this name; if so, it is removed in its time."""
        folder = self._path / name
        if _DELETED_FOLDER.fullmatch(name):
            self._pending_deletions.take_over(folder)
            return True
        if stray := _STRAY_FOLDER.fullmatch(name):
            self._strays.add(folder, int(stray["since"], 16) + STRAY_DELAY_MS)
            return True
        return False

    def found_file(self, path: Path) -> None:
        """A file of a deleted segment, renamed by an earlier run."""
        self._pending_deletions.add(path)

    def delete(self, log: Log) -> None:
        """Rename the folder of a closed log, to be removed after file.delete.delay.ms."""
        due_ms = self._clock.now_ms() + log.config.file_delete_delay_ms
        self._rename(log, f".{uuid.uuid4().hex}{_DELETE_SUFFIX}", self._pending_deletions, due_ms)

    def set_aside(self, log: Log) -> None:
        """Rename the folder of a closed log, to be removed after `STRAY_DELAY_MS`."""
        now_ms = self._clock.now_ms()
        suffix = f".{now_ms:016x}{uuid.uuid4().hex[:16]}{_STRAY_SUFFIX}"
        self._rename(log, suffix, self._strays, now_ms + STRAY_DELAY_MS)

    def _rename(self, log: Log, suffix: str, deletions: PendingDeletions, due_ms: int) -> None:
        # A name too long for the file system would fail; Kafka cuts the topic as well.
        target = self._path / (f"{log.topic[: 255 - len(suffix) - 12]}-{log.partition}{suffix}")
        try:
            deletions.rename(log.folder, target, due_ms, must=True)
        except OSError as problem:
            # Not to be removed later under this name, which a new topic may have by then.
            logger.error("the log of %s stays until the next start: %s", log.name, problem)

    def remove_due(self, due_ms: int) -> int:
        """Remove what is due then, and strays only when their own time has come; how many there were."""
        return self._pending_deletions.remove_due(due_ms) + self._strays.remove_due(self._clock.now_ms())
