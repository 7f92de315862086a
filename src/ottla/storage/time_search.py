"""Finding records by time, for ListOffsets. The one place of the log where batches are opened for reading.

A search has two parts. `search_since` and `search_newest` look into the indexes of a segment, which takes a
few reads, and return a `TimeSearch`: where in which file to look. `TimeSearch.run` looks at batch after batch
there. It touches nothing but the open file, so it may run in a thread beside appends and retention; and since
a batch can hold a million records, and headers may lie about their times, that is where long ones belong. It
builds no records, and makes its way in short stretches between which others may have the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from mmap import mmap
from pathlib import Path
from typing import NamedTuple

from ottla.protocol.batches import HEADER_SIZE, BatchHeader
from ottla.protocol.compression import CompressionError, open_body
from ottla.protocol.varints import LONG, InvalidRecords, TimeWalk
from ottla.storage.files import File
from ottla.storage.inspection import SMALL_OPENED, SMALL_PLAIN, is_small
from ottla.storage.log_config import LogConfig
from ottla.storage.results import OffsetAndTime
from ottla.storage.scan import walk
from ottla.storage.segment import Segment

_STRETCH = 250  # headers or records between two pauses
_FEW = 100  # batches that are looked at where it may not take long


class TooLong(Exception):
    """The search is too long for the event loop."""


class TimeSearch(NamedTuple):
    """The batches from `position` to `end` of a segment's file, in which a record is looked for."""

    path: Path
    file: File
    position: int
    end: int
    base_offset: int
    timestamp: int
    log_start: int
    max_size: int
    max_records: int
    truncations: int = 0  # of the log, when the place was found

    def run(
        self,
        *,
        pause: Callable[[], object] | None = None,
        only_small: bool = False,
        is_late: Callable[[], bool] | None = None,
    ) -> OffsetAndTime | None:
        """The first record at or behind `log_start` with at least that timestamp. Damaged on nonsense.

        Batches are judged by the largest timestamp in their header, and only one that can hold the record is
        opened. With `only_small` TooLong is raised when there are many batches, or a large one has to be
        opened. It is also raised when `is_late`, which is asked after each batch that was opened, says so:
        several batches that are small each take long together.
        """
        batches = walk(self.file, self.position, self.end, self.base_offset)
        for count, (position, header) in enumerate(batches, 1):
            if only_small and count > _FEW:
                raise TooLong
            if pause is not None and count % _STRETCH == 0:
                pause()
            if header.max_timestamp < self.timestamp or header.last_offset < self.log_start:
                continue
            if header.record_count <= 0:
                continue
            found = self._first_in(position, header, pause, only_small)
            if found is not None:
                return found
            if pause is not None:
                pause()
            if is_late is not None and is_late():
                raise TooLong
        return None

    def _first_in(
        self, position: int, header: BatchHeader, pause: Callable[[], object] | None, only_small: bool
    ) -> OffsetAndTime | None:
        """The first such record of one batch.

        A batch that cannot be opened, or has more records than a producer may send, counts as one record with
        the header's timestamp: what is stored may have been written under other rules, and a single bad batch
        may not keep everybody from finding the records around it. For the same reason the answer always lies
        within the batch, and its timestamp fits into 64 bits, whatever the deltas of its records say.
        """
        whole = OffsetAndTime(
            max(header.base_offset, self.log_start), header.max_timestamp, header.leader_epoch
        )
        if header.is_log_append_time or header.record_count > self.max_records:
            return whole
        if only_small and not is_small(header):
            raise TooLong
        most = min(self.max_size, SMALL_OPENED if header.compression else SMALL_PLAIN)
        batch = memoryview(self.file.read_at(position, header.size))
        try:
            body, size = open_body(
                header.compression, batch[HEADER_SIZE:], most if only_small else self.max_size
            )
        except CompressionError:
            if only_small and most < self.max_size:
                raise TooLong from None
            return whole
        try:
            records = TimeWalk(
                body,
                size,
                header.record_count,
                self.timestamp - header.base_timestamp,
                self.log_start - header.base_offset,
                LONG - 1 - header.base_timestamp,
                header.last_offset_delta,
            )
            while not records.advance(_STRETCH):
                if pause is not None:
                    pause()
        except InvalidRecords:
            return whole
        finally:
            if isinstance(body, mmap):
                body.close()
        if records.found is None:
            return None
        timestamp, offset = records.found
        return OffsetAndTime(
            header.base_offset + offset, header.base_timestamp + timestamp, header.leader_epoch
        )


def search_since(segment: Segment, timestamp: int, log_start: int, config: LogConfig) -> TimeSearch | None:
    """Where in a segment to look for the first record at or behind `log_start` with at least that timestamp;
    None when there is none. Damaged on nonsense.

    The time index names an offset before which all records are older.
    """
    if segment.size == 0 or segment.load_max_timestamp() < timestamp:
        return None
    position = segment.position_before(max(segment.time_floor(timestamp), log_start))
    return _search(segment, position, segment.size, timestamp, log_start, config)


def search_newest(segments: Iterable[Segment], config: LogConfig) -> TimeSearch | None:
    """Where to look for the first record that carries the largest timestamp of all. Damaged on nonsense."""
    dated = [segment for segment in segments if segment.size and segment.load_max_timestamp() >= 0]
    if not dated:
        return None
    segment = max(dated, key=Segment.load_max_timestamp)
    place = segment.find(segment.max_timestamp_offset)
    if place is None:
        return None
    end = place.position + place.size
    return _search(segment, place.position, end, segment.load_max_timestamp(), 0, config)


def _search(
    segment: Segment, position: int, end: int, timestamp: int, log_start: int, config: LogConfig
) -> TimeSearch:
    return TimeSearch(
        segment.path,
        segment.file,
        position,
        end,
        segment.base_offset,
        timestamp,
        log_start,
        config.max_decompressed_message_bytes,
        config.max_records_per_batch,
    )
