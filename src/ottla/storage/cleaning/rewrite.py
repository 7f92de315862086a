"""A batch as compaction leaves it: the same offsets, epoch, producer and codec, with fewer records.

Base offset and last offset delta never change, so neither does an offset, and the last sequence of the
producer can still be told. Records that stay are copied as they stand in the batch. Only when a batch with
tombstones gets its delete horizon are its records written again: the horizon takes the place of the base
timestamp (attribute bit 6 tells), and the records' own timestamps count from there.
"""

from __future__ import annotations

from crc32c import crc32c

from ottla.protocol.batches import (
    COMPRESSION_MASK,
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    BatchHeader,
)
from ottla.protocol.compression import compress, decompress
from ottla.storage.cleaning.record_loops import Survivors, move_timestamps
from ottla.storage.log_config import LogConfig


def open_body(header: BatchHeader, batch: memoryview, max_size: int) -> bytes:
    """The records of a batch, decompressed."""
    with batch[HEADER_SIZE:] as body:
        codec = header.attributes & COMPRESSION_MASK
        return decompress(codec, body, max_size) if codec else bytes(body)


def with_survivors(
    header: BatchHeader, body: bytes, survivors: Survivors, horizon: int | None, config: LogConfig
) -> bytes:
    """The batch with the records that stay. With `horizon` it also gets that delete horizon."""
    records: bytes | bytearray = b"".join([body[start:end] for start, end in survivors.pieces])
    attributes, base_timestamp = header.attributes, header.base_timestamp
    max_timestamp = header.max_timestamp
    if not header.is_log_append_time:
        max_timestamp = base_timestamp + survivors.latest_timestamp
    if horizon is not None:
        records = move_timestamps(bytes(records), survivors.count, base_timestamp - horizon)
        attributes |= DELETE_HORIZON
        base_timestamp = horizon
    codec = attributes & COMPRESSION_MASK
    if codec:
        records = compress(codec, bytes(records), config.level_for(codec))
    return _sealed(
        header._replace(
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            record_count=survivors.count,
        ),
        records,
    )


def with_horizon(header: BatchHeader, body: bytes, horizon: int, config: LogConfig) -> bytes:
    """The batch with all its records and that delete horizon."""
    everything = Survivors()
    everything.count = header.record_count
    everything.pieces = [(0, len(body))]
    everything.latest_timestamp = header.max_timestamp - header.base_timestamp
    return with_survivors(header, body, everything, horizon, config)


def without_records(header: BatchHeader) -> bytes:
    """Only the header, which says which offsets and which sequences were there, and has no time any more."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON)
    emptied = header._replace(attributes=attributes, base_timestamp=-1, max_timestamp=-1, record_count=0)
    return _sealed(emptied, b"")


def _sealed(header: BatchHeader, records: bytes | bytearray) -> bytes:
    batch = bytearray(HEADER_SIZE + len(records))
    batch[HEADER_SIZE:] = records
    header = header._replace(batch_length=len(batch) - LENGTH_OVERHEAD, crc=0)
    HEADER.pack_into(batch, 0, *header)
    with memoryview(batch)[CRC_START:] as covered:
        crc = crc32c(covered)
    HEADER.pack_into(batch, 0, *header._replace(crc=crc))
    return bytes(batch)
