"""Keeps the number of open files, and the memory of loaded indexes, within limits.

A broker with 10,000 partitions has more segments than a process may have descriptors. Segments open their
files on use and tell this object; when there are too many, those that were not used for the longest time are
closed. "Used" is a flag that each use sets and each round of the search clears (the second-chance method), so
the hot path pays one attribute store and no bookkeeping.

Rounds run on the event loop, so they are short: totals are kept, never summed up again, and a round looks at
a bounded number of segments and closes a small share of them. When all that it looked at were in use, what it
looked at first goes: where everything is in use, one choice is as good as another.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.storage.stored_segment import StoredSegment

_MOST_AT_ONCE = 128
"""Files that one round closes."""
_MOST_LOOKS = 2048
"""Segments that one round looks at."""


class OpenSegments:
    """The open segments of one data folder. Partitions are also made and deleted in another thread."""

    def __init__(self, max_files: int = 512, max_index_bytes: int = 32 << 20) -> None:
        self.max_files = max_files
        self.max_index_bytes = max_index_bytes
        # Oldest first, with the bytes of their index.
        self._open: OrderedDict[StoredSegment, int] = OrderedDict()
        self._index_bytes = 0  # the sum of those
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def index_bytes(self) -> int:
        """Memory that indexes take which can be read again from their files."""
        return self._index_bytes

    def opened(self, segment: StoredSegment) -> None:
        """`segment` has just opened its file."""
        with self._lock:
            self._count(segment)
            if len(self._open) > self.max_files:
                self._close_some(segment)

    def index_loaded(self, segment: StoredSegment) -> None:
        """`segment` holds an index in memory that it could read again from its file, or a longer one."""
        with self._lock:
            self._count(segment)
            if self._index_bytes > self.max_index_bytes:
                self._close_some(segment)

    def _count(self, segment: StoredSegment) -> None:
        size = segment.index_bytes
        self._index_bytes += size - self._open.get(segment, 0)
        self._open[segment] = size

    def _close_some(self, newest: StoredSegment) -> None:
        """Close files until a share of the limit is free again, the one just opened excepted."""
        target_files = self.max_files - min(self.max_files // 10, _MOST_AT_ONCE)
        looks = min(2 * len(self._open), _MOST_LOOKS)
        while looks and (len(self._open) > target_files or self._index_bytes > self.max_index_bytes):
            looks -= 1
            segment = next(iter(self._open))
            if segment is newest or segment.in_use:
                segment.in_use = False
                self._open.move_to_end(segment)
            else:
                self._close(segment)
        while len(self._open) > self.max_files:
            segment = next(iter(self._open))
            self._close(segment)

    def _close(self, segment: StoredSegment) -> None:
        self._index_bytes -= self._open.pop(segment, 0)
        segment.close_file()

    def forget(self, segment: StoredSegment) -> None:
        """`segment` is gone: deleted or closed for good."""
        with self._lock:
            self._close(segment)
