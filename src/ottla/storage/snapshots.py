"""The snapshot files of one partition: which there are, and which of them to keep.

A snapshot named 00000000000000004711.snapshot holds the producers as they were when the log ended at offset
4711. One is written when a segment begins, one when the log is closed, and a flush writes one now and then.
Those at the base of a segment stay as long as the segment; of the others only the newest is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from ottla.storage.file_names import SNAPSHOT_SUFFIX, file_name
from ottla.storage.files import Disk, File
from ottla.storage.producer_snapshot import CorruptSnapshot
from ottla.storage.producer_state import ProducerStates

logger = logging.getLogger(__name__)


class Snapshots:
    """`offsets` are those of the files that are there."""

    __slots__ = ("_disk", "_folder", "offsets")

    def __init__(self, disk: Disk, folder: Path, offsets: Collection[int] = ()) -> None:
        self._disk = disk
        self._folder = folder
        self.offsets = set(offsets)

    def _path(self, offset: int) -> Path:
        return self._folder / file_name(offset, SNAPSHOT_SUFFIX)

    def write(self, offset: int, data: bytes) -> File:
        """Write the file, which the caller may sync."""
        self._disk.replace(self._path(offset), data, sync=False)
        return self._disk.open(self._path(offset))

    def note(self, offset: int, segment_bases: Collection[int]) -> None:
        """The file for `offset` is there; others may be superfluous now."""
        for stale in [each for each in self.offsets if each < offset and each not in segment_bases]:
            self.remove(stale)
        self.offsets.add(offset)

    def remove(self, offset: int) -> None:
        self._disk.remove(self._path(offset))
        self.offsets.discard(offset)

    def remove_after(self, offset: int) -> None:
        for stale in [each for each in self.offsets if each > offset]:
            self.remove(stale)

    def load(self, producers: ProducerStates, limit: int, now_ms: int) -> int | None:
        """Make `producers` what the newest whole snapshot at or below `limit` says; its offset, or None.

        Without one the producers are empty. Damaged files are removed on the way.
        """
        producers.clear()
        for offset in sorted((each for each in self.offsets if each <= limit), reverse=True):
            try:
                producers.load(self._disk.read(self._path(offset)), now_ms)
            except CorruptSnapshot as damage:
                logger.warning("%s is damaged (%s): read from the log instead", self._path(offset), damage)
                self.remove(offset)
            except FileNotFoundError:
                self.offsets.discard(offset)
            else:
                return offset
        return None
