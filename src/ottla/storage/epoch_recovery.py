"""Leader epochs from the batches of a log, where the epochs' file is missing, damaged or of another log.

Every batch carries the epoch of the leader that wrote it, so the file can always be rebuilt. A file that is
there is compared with the batches where each of its epochs begins: that takes a few reads, not a scan.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.storage.leader_epochs import LeaderEpochs
from ottla.storage.loaded import offline_at
from ottla.storage.scan import Damaged, walk
from ottla.storage.segment import Segment


def slot_of(segments: Sequence[Segment], offset: int) -> int:
    """The number of the segment that would hold `offset`; -1 when it lies before all."""
    return sum(segment.base_offset <= offset for segment in segments) - 1


def epochs_fit(epochs: LeaderEpochs, segments: Sequence[Segment], log_start: int, end_offset: int) -> bool:
    """Whether the epochs are those of the batches before `end_offset`, judged where each epoch begins."""
    log_start = max(log_start, segments[0].base_offset)
    previous = -1
    for epoch, start in epochs.entries:
        if start >= log_start and _epoch_at(segments, start) not in (epoch, None):
            return False
        if start > log_start and _epoch_at(segments, start - 1) not in (previous, None):
            return False
        previous = epoch
    return end_offset <= log_start or _epoch_at(segments, end_offset - 1) in (previous, None)


def _epoch_at(segments: Sequence[Segment], offset: int) -> int | None:
    """The epoch of the record at an offset, None when it is compacted away."""
    segment = segments[max(slot_of(segments, offset), 0)]
    try:
        place = segment.find(offset)
        if place is None or place.gap:
            return None
        _, header = next(walk(segment.file, place.position, segment.size))
        return header.leader_epoch
    except Damaged as damage:
        raise offline_at(segment, damage) from damage


def epochs_from_batches(epochs: LeaderEpochs, segments: Sequence[Segment], last: int, position: int) -> None:
    """Make `epochs` those of all batches before `position` of the segment with the number `last`."""
    epochs.clear()
    for number, segment in enumerate(segments[: last + 1]):
        end = segment.size if number < last else position
        try:
            for _, header in walk(segment.file, 0, end):
                if header.leader_epoch > epochs.latest:
                    epochs.assign(header.leader_epoch, header.base_offset)
        except Damaged as damage:
            raise offline_at(segment, damage) from damage
