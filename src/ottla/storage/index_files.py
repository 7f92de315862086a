"""The files of a segment's two indexes, and the indexes that belong to a file of batches.

Functions without state: which index is in memory, and when it is written, is the segment's business.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ottla.protocol.batches import LENGTH_OVERHEAD
from ottla.storage.files import Disk, File
from ottla.storage.offset_index import CorruptIndex, OffsetIndex
from ottla.storage.scan import MAX_RELATIVE_OFFSET, walk
from ottla.storage.time_index import TimeIndex
from ottla.storage.transaction_index import TransactionIndex


class BuiltIndexes(NamedTuple):
    """Both indexes of a file of batches, and what else its headers say."""

    offset_index: OffsetIndex
    time_index: TimeIndex
    max_timestamp: int
    max_timestamp_offset: int
    since_index: int  # bytes behind the last batch that has an entry


def build_indexes(file: File, size: int, base_offset: int, interval: int) -> BuiltIndexes:
    """The indexes of the batches in the first `size` bytes of a file. Damaged when the file is."""
    index, time_index = OffsetIndex(), TimeIndex()
    newest, newest_offset, since_index = -1, base_offset, 0
    highest = base_offset + MAX_RELATIVE_OFFSET
    for position, header in walk(file, 0, size, base_offset, highest):
        last_offset = header.base_offset + header.last_offset_delta
        if header.max_timestamp > newest:
            newest, newest_offset = header.max_timestamp, last_offset
        if since_index > interval:
            index.add(last_offset - base_offset, position)
            time_index.add(newest, newest_offset - base_offset)
            since_index = 0
        since_index += header.batch_length + LENGTH_OVERHEAD
    return BuiltIndexes(index, time_index, newest, newest_offset, since_index)


def write_entries(
    disk: Disk, path: Path, index: OffsetIndex | TimeIndex | TransactionIndex, entry_size: int
) -> File:
    """Write the entries that are not in the file yet; returns the file, for syncing.

    Entries are written at the place where they belong, so writing them twice does no harm.
    """
    file = disk.open(path, create=True)
    file.write_at(index.written * entry_size, index.encode(index.written))
    index.written = len(index)
    file.truncate(index.written * entry_size)
    return file


def last_entry(disk: Disk, path: Path, entry_size: int) -> bytes:
    """The last entry of an index file, nothing when it is empty. CorruptIndex when there is no such file."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        raise CorruptIndex(f"{path} is missing") from None
    size = file.size
    if size % entry_size:
        raise CorruptIndex(f"{size} bytes are no whole number of {entry_size}-byte entries")
    return file.read_at(size - entry_size, entry_size) if size else b""


def size_if_there(disk: Disk, path: Path) -> int | None:
    """Bytes of a file, None when there is no such file."""
    try:
        return disk.size(path)
    except FileNotFoundError:
        return None
