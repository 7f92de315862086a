"""Opening and making record batches: for tools, tests, compaction and the topics that demand it.

The broker passes batches through unopened. Only code that must look inside comes here: a topic with its own
`compression.type` has its batches compressed anew, `ottla consume` and `ottla log inspect` show records,
the coordinators read and write their own. The header is `batches`, the loops over records are `varints`,
the compressions are `compression`; this file puts them together.

Three kinds of input trouble come out: `InvalidRecords` for records that are not what the header promises,
`CompressionError` for data that cannot be decompressed within the size allowed, and nothing else. The CRC is
not looked at here; the reader of bytes from the network or a disk checks it first with `batches.crc_matches`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from ottla.protocol.batches import (
    COMPRESSION_MASK,
    CONTROL,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    read_header,
)
from ottla.protocol.compression import Buffer, Codec, CompressionError, compress, decompress
from ottla.protocol.varints import InvalidRecords, Row, check_records, decode_records, encode_records

__all__ = [
    "CompressionError",
    "InvalidRecords",
    "Record",
    "TimestampRange",
    "decode_batch",
    "encode_batch",
    "recompress",
    "validate_records",
    "with_codec",
]


class Record(NamedTuple):
    """One record as a reader sees it. Null keys and values are None; header values too may be null."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class TimestampRange(NamedTuple):
    """The earliest and the latest timestamp that the records of a batch carry."""

    earliest: int
    latest: int


def decode_batch(view: Buffer, *, max_size: int) -> list[Record]:
    """The records of the batch that `view` starts with, opened to at most `max_size` bytes."""
    header, body = _open(view, max_size)
    append_timestamp = header.max_timestamp if header.is_log_append_time else -1
    rows = decode_records(
        body, header.record_count, header.base_offset, header.base_timestamp, append_timestamp
    )
    return list(map(Record._make, rows))


def encode_batch(
    records: Sequence[Record | Row],
    *,
    base_offset: int = 0,
    codec: int = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    log_append_time: bool = False,
    level: int | None = None,
    transactional: bool = False,
    control: bool = False,
) -> bytearray:
    """One batch of `records`, whose offsets rise and start at `base_offset` or later.

    A producer numbers its records 0, 1, 2, ... and leaves `base_offset` 0; gaps, as compaction leaves them,
    are kept. With `log_append_time` the batch is marked so, and all its records read as having the latest
    timestamp.
    """
    rows = list(records)
    if not rows:
        raise ValueError("a batch holds at least one record")
    last = base_offset - 1
    for row in rows:
        if row[0] <= last:
            raise ValueError(f"offset {row[0]} after {last}: offsets must rise from the base offset on")
        last = row[0]
    attributes = int(codec)
    if log_append_time:
        attributes |= LOG_APPEND_TIME
    if transactional:
        attributes |= TRANSACTIONAL
    if control:
        attributes |= CONTROL
    base_timestamp = rows[0][1]
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=last - base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=max(row[1] for row in rows),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(rows),
    )
    return _seal(header, compress(codec, encode_records(rows, base_offset, base_timestamp), level))


def recompress(
    view: Buffer,
    codec: int,
    level: int | None = None,
    *,
    max_size: int,
    log_append_time_ms: int | None = None,
    require_keys: bool = False,
) -> bytearray:
    """The batch that `view` starts with, holding the same records under another codec.

    All else in the header is kept, offsets, epoch and producer included. The records are checked on the way
    as in `validate_records`, since they are open anyway. With `log_append_time_ms` the batch is stamped with
    that time.
    """
    header, body = _open(view, max_size)
    _check(header, body, require_keys)
    if log_append_time_ms is not None:
        header = header._replace(
            attributes=header.attributes | LOG_APPEND_TIME, max_timestamp=log_append_time_ms
        )
    return with_codec(header, body, codec, level)


def with_codec(header: BatchHeader, body: bytes, codec: int, level: int | None = None) -> bytearray:
    """A batch with that header, of records that are open already, under another codec."""
    attributes = (header.attributes & ~COMPRESSION_MASK) | int(codec)
    return _seal(header._replace(attributes=attributes), compress(codec, body, level))


def validate_records(view: Buffer, max_size: int, *, require_keys: bool = False) -> TimestampRange:
    """Check that the batch that `view` starts with holds exactly what its header promises.

    Offset deltas must be 0, 1, 2, ... up to the header's last one, the count must be the header's, and the
    lengths must add up, as Kafka's leader demands of a producer. Returns the times found in the records.
    """
    header, body = _open(view, max_size)
    return _check(header, body, require_keys)


def _check(header: BatchHeader, body: bytes, require_keys: bool) -> TimestampRange:
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidRecords(
            f"the batch has {header.record_count} records but offsets 0 to {header.last_offset_delta}"
        )
    if header.record_count < 1:
        raise InvalidRecords("the batch holds no records")
    earliest, latest = check_records(body, header.record_count, require_keys)
    return TimestampRange(header.base_timestamp + earliest, header.base_timestamp + latest)


def _open(view: Buffer, max_size: int) -> tuple[BatchHeader, bytes]:
    """Header and decompressed records of the batch at the start of `view`."""
    if len(view) < HEADER_SIZE:
        raise InvalidRecords(f"{len(view)} bytes are less than the header of a batch")
    header = read_header(view)
    if header.magic != MAGIC:
        raise InvalidRecords(f"record format {header.magic} is not supported, only {MAGIC} is")
    if not HEADER_SIZE <= header.size <= len(view):
        raise InvalidRecords(f"the batch claims {header.size} bytes where {len(view)} are left")
    with memoryview(view)[HEADER_SIZE : header.size] as body:
        return header, decompress(header.compression, body, max_size)


def _seal(header: BatchHeader, body: bytes) -> bytearray:
    """The finished batch: header with its length and CRC in front of the compressed records."""
    batch = bytearray(HEADER_SIZE + len(body))
    batch[HEADER_SIZE:] = body
    sealed = header._replace(batch_length=len(batch) - LENGTH_OVERHEAD, crc=0)
    HEADER.pack_into(batch, 0, *sealed)
    with memoryview(batch)[CRC_START:] as covered:
        crc = crc32c(covered)
    HEADER.pack_into(batch, 0, *sealed._replace(crc=crc))
    return batch
