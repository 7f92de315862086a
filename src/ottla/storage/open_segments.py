"""Keeps the number of open files, and the memory of loaded indexes, within limits.

A broker with 10,000 partitions has more segments than a process may have descriptors. Segments open their
files on use and tell this object; when there are too many, those that were not used for the longest time are
closed. "Used" is a flag that each use sets and each round of the search clears (the second-chance method), so
the hot path pays one attribute store and no bookkeeping.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.storage.segment import Segment


class OpenSegments:
    """The open segments of one data folder. Partitions are also made and deleted in another thread."""

    def __init__(self, max_files: int = 512, max_index_bytes: int = 32 << 20) -> None:
        self.max_files = max_files
        self.max_index_bytes = max_index_bytes
        self._open: dict[Segment, None] = {}  # oldest first
        self._index_bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, segment: Segment) -> None:
        """`segment` has just opened its file."""
        with self._lock:
            self._open[segment] = None
            if len(self._open) > self.max_files:
                self._close_some(segment)

    def index_loaded(self, segment: Segment) -> None:
        """`segment` holds an index in memory that it could read again from its file."""
        with self._lock:
            self._index_bytes += segment.index_bytes
            if self._index_bytes > self.max_index_bytes:
                self._close_some(segment)

    def _close_some(self, newest: Segment) -> None:
        """Close files until a tenth of the limit is free again, the one just opened excepted."""
        target_files = self.max_files - self.max_files // 10
        chances = 2 * len(self._open)
        while chances and (len(self._open) > target_files or self._index_bytes > self.max_index_bytes):
            chances -= 1
            segment = next(iter(self._open))
            del self._open[segment]
            if segment is newest or segment.in_use:
                segment.in_use = False
                self._open[segment] = None
            else:
                segment.close_file()
                self._index_bytes = sum(each.index_bytes for each in self._open)

    def forget(self, segment: Segment) -> None:
        """`segment` is gone: deleted or closed for good."""
        with self._lock:
            segment.close_file()
            if segment in self._open:
                del self._open[segment]
                self._index_bytes = sum(each.index_bytes for each in self._open)
