"""Finding records by time, for ListOffsets. The one place of the log where batches are opened for reading."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.protocol.batches import BatchHeader, read_header
from ottla.protocol.records import CompressionError, InvalidRecords, Record, decode_batch
from ottla.storage.results import OffsetAndTime
from ottla.storage.scan import walk
from ottla.storage.segment import Segment


def first_since(segment: Segment, timestamp: int, log_start: int, max_size: int) -> OffsetAndTime | None:
    """The first record at or behind `log_start` with at least that timestamp. Damaged on nonsense.

    The time index names an offset before which all records are older; from there batches are judged by the
    largest timestamp in their header, and only one that can hold the record is opened.
    """
    if segment.size == 0 or segment.load_max_timestamp() < timestamp:
        return None
    start = max(segment.base_offset + segment.time_index.floor(timestamp), log_start)
    first = segment.position_before(start)
    for position, header in walk(segment.file, first, segment.size, segment.base_offset):
        if header.max_timestamp < timestamp or header.last_offset < log_start:
            continue
        batch = segment.file.read_at(position, header.size)
        for record in _records(batch, header, max_size):
            if record.timestamp >= timestamp and record.offset >= log_start:
                return OffsetAndTime(record.offset, record.timestamp, header.leader_epoch)
    return None


def newest(segments: list[Segment], max_size: int) -> OffsetAndTime | None:
    """The first record that carries the largest timestamp of all. Damaged on nonsense."""
    dated = [segment for segment in segments if segment.size and segment.load_max_timestamp() >= 0]
    if not dated:
        return None
    segment = max(dated, key=Segment.load_max_timestamp)
    timestamp = segment.load_max_timestamp()
    place = segment.find(segment.max_timestamp_offset)
    if place is None:
        return None
    batch = segment.file.read_at(place.position, place.size)
    header = read_header(batch)
    if header.is_log_append_time:
        return OffsetAndTime(header.base_offset, timestamp, header.leader_epoch)
    for record in _records(batch, header, max_size):
        if record.timestamp == timestamp:
            return OffsetAndTime(record.offset, timestamp, header.leader_epoch)
    return None


def _records(batch: bytes, header: BatchHeader, max_size: int) -> Iterator[Record]:
    """The records of a batch. One that cannot be opened counts as one record with the header's timestamp.

    A producer's bytes are stored unopened, so they may hold anything; a single bad batch may not keep
    everybody from finding the records around it.
    """
    if not header.record_count:
        return
    try:
        records = decode_batch(batch, max_size=max_size)
    except (InvalidRecords, CompressionError):
        records = [Record(header.base_offset, header.max_timestamp, None, None, [])]
    yield from records
