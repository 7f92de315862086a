"""Producer state from what is on disk: the newest snapshot that is whole, and the batches behind it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from ottla.clock import Clock
from ottla.protocol.batches import CONTROL, BatchHeader
from ottla.storage.files import Disk, File
from ottla.storage.producer_state import ControlRecord, CorruptSnapshot, ProducerStates
from ottla.storage.scan import walk
from ottla.storage.segment import SNAPSHOT_SUFFIX, Segment, file_name
from ottla.storage.transaction_markers import read_control_record

logger = logging.getLogger(__name__)


def load_snapshot(
    producers: ProducerStates, disk: Disk, folder: Path, snapshots: list[int], limit: int, now_ms: int
) -> int | None:
    """Load the newest whole snapshot at or below `limit` and return its offset, None when there is none.

    `snapshots` are the offsets of those there are; damaged ones are removed from disk and list.
    """
    producers.clear()
    for offset in sorted((each for each in snapshots if each <= limit), reverse=True):
        path = folder / file_name(offset, SNAPSHOT_SUFFIX)
        try:
            producers.load(disk.read(path), now_ms)
        except CorruptSnapshot as damage:
            logger.warning("%s is damaged (%s) and is removed; producers are read from the log", path, damage)
            disk.remove(path)
            snapshots.remove(offset)
        except FileNotFoundError:
            snapshots.remove(offset)
        else:
            return offset
    return None


def control_record_at(file: File, position: int, header: BatchHeader) -> ControlRecord | None:
    """The record of a control batch in a file, None for other batches."""
    if not header[5] & CONTROL:
        return None
    return read_control_record(file.read_at(position, header.size))


def replay(
    producers: ProducerStates, segments: Sequence[Segment], start_offset: int, end_offset: int, now_ms: int
) -> int:
    """Note the batches from `start_offset` to `end_offset`; how many there were. Damaged on nonsense."""
    count = 0
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        if segment.base_offset >= end_offset:
            break
        if segment.size == 0 or (following is not None and following.base_offset <= start_offset):
            continue
        position = segment.index.floor(start_offset - segment.base_offset)
        for at, header in walk(segment.file, position, segment.size):
            if header[0] < start_offset:
                continue
            if header[0] >= end_offset:
                break
            count += 1
            if header[9] >= 0:
                control = control_record_at(segment.file, at, header)
                producers.update(header, header[0], now_ms, control)
    return count


def replay_producers(
    producers: ProducerStates,
    disk: Disk,
    folder: Path,
    segments: Sequence[Segment],
    snapshots: list[int],
    end_offset: int,
    clock: Clock,
) -> int:
    """Make `producers` what they were when the log ended at `end_offset`; the number of batches replayed."""
    now_ms = clock.now_ms()
    start = load_snapshot(producers, disk, folder, snapshots, end_offset, now_ms)
    if start is None:
        start = segments[0].base_offset if segments else 0
    return replay(producers, segments, start, end_offset, now_ms) if start < end_offset else 0
