"""Producer state from what is on disk: the newest snapshot that is whole, and the batches behind it.

The same replay tells which transactions the markers of a segment aborted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from ottla.protocol.batches import CONTROL, BatchHeader
from ottla.storage.files import File
from ottla.storage.producer_state import ControlRecord, ProducerStates
from ottla.storage.scan import walk
from ottla.storage.segment import Segment
from ottla.storage.snapshots import Snapshots
from ottla.storage.transaction_index import TransactionIndex
from ottla.storage.transaction_markers import read_control_record


def control_record_at(file: File, position: int, header: BatchHeader) -> ControlRecord | None:
    """The record of a control batch in a file, None for other batches."""
    if not header.attributes & CONTROL:
        return None
    return read_control_record(file.read_at(position, header.size))


def replay(
    producers: ProducerStates, segments: Sequence[Segment], start_offset: int, end_offset: int, now_ms: int
) -> int:
    """Note the batches from `start_offset` to `end_offset`; how many there were. Damaged on nonsense."""
    count = 0
    for segment, following in zip_longest(segments, segments[1:]):
        if segment.base_offset >= end_offset:
            break
        if segment.size == 0 or (following is not None and following.base_offset <= start_offset):
            continue
        position = segment.position_before(start_offset)
        for at, header in walk(segment.file, position, segment.size, segment.base_offset):
            if header.base_offset < start_offset:
                continue
            if header.base_offset >= end_offset:
                break
            count += 1
            if header.producer_id >= 0:
                control = control_record_at(segment.file, at, header)
                producers.update(header, header.base_offset, now_ms, control)
    return count


def restore_producers(
    producers: ProducerStates,
    snapshots: Snapshots,
    segments: Sequence[Segment],
    end_offset: int,
    now_ms: int,
) -> int:
    """Make `producers` what they were when the log ended at `end_offset`; the number of batches replayed."""
    start = snapshots.load(producers, end_offset, now_ms)
    if start is None:
        start = segments[0].base_offset
    return replay(producers, segments, start, end_offset, now_ms) if start < end_offset else 0


def transactions_of(
    segments: Sequence[Segment], slot: int, snapshots: Snapshots, name: str, now_ms: int
) -> TransactionIndex:
    """The transaction index of one of the segments, from the batches. Damaged on nonsense."""
    segment = segments[slot]
    producers = ProducerStates(name)
    restore_producers(producers, snapshots, segments[: slot + 1], segment.base_offset, now_ms)
    index = TransactionIndex()
    for at, header in walk(segment.file, 0, segment.size, segment.base_offset):
        if header.producer_id >= 0:
            control = control_record_at(segment.file, at, header)
            ended = producers.update(header, header.base_offset, now_ms, control)
            if ended is not None and ended.is_aborted:
                index.add(ended.as_aborted)
    return index
