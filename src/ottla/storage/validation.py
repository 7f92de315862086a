"""What a leader checks before a producer's batches may enter the log, and what it changes in them.

Per batch, from the header alone: the format, the size, the CRC, that offsets and count agree and that so many
records can stand in so many bytes, that a producer with an id has a sequence, that no client writes control
batches, and that the times are plausible and near enough to now. Then the batch gets its offsets and the
leader's epoch, in place: they stand before the CRC, so the producer's bytes go to disk as they came.

A batch is opened (`inspection`) only where the header is not enough:

* the topic is compacted: every record needs a key, and compaction has to be able to read it;
* `message.timestamp.before.max.ms` is set: the oldest record may be any of them;
* `compression.type` names another codec: its records are compressed again;
* its times cannot be true: a largest timestamp that is missing or lies before the first record's, times
  before 1970, or times too far ahead. Its records tell the true ones, which the header then gets; or they are
  refused by name.

`message.timestamp.type=LogAppendTime` changes one bit, the maximum timestamp and the CRC, and opens nothing.
Bits that are the broker's (LogAppendTime, the delete horizon of compaction) are taken back when a client sets
them.

A follower changes nothing, and checks only that the batches came whole and in order (`check_replicated`).
"""

from __future__ import annotations

from typing import NamedTuple

from crc32c import crc32c

from ottla.protocol.batches import (
    COMPRESSION_MASK,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    BatchHeader,
    crc_matches,
    headers,
    read_header,
    stamp,
)
from ottla.protocol.compression import DENSITIES
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.records import CompressionError, InvalidRecords, recompress
from ottla.storage.inspection import InvalidRecordsError, OpenElsewhere, RecordError, prepare, set_times
from ottla.storage.log_config import LogConfig

__all__ = [
    "InvalidRecordsError",
    "OpenElsewhere",
    "RecordError",
    "StampedBatch",
    "Validated",
    "check_replicated",
    "validate_and_stamp",
]

_MAX_CODEC = 4
_SMALLEST_RECORD = 7  # bytes: seven fields of variable size, all of them zero
_NO_EPOCH = -1
_BROKERS_BITS = LOG_APPEND_TIME | DELETE_HORIZON

# Position in the bytes, base offset given to it, header as it came (LogAppendTime and codec updated).
StampedBatch = tuple[int, int, BatchHeader]


class Validated(NamedTuple):
    """The bytes to write (`data` is what the caller handed in unless a batch was compressed again)."""

    data: memoryview
    batches: list[StampedBatch]
    next_offset: int


def validate_and_stamp(
    records: memoryview,
    first_offset: int,
    leader_epoch: int,
    config: LogConfig,
    now: int,
    partition: str,
    *,
    from_client: bool = True,
    prepared_under: LogConfig | None = None,
    only_small: bool = False,
) -> Validated:
    """Check every batch of an append and stamp it with its offsets. ApiError when one may not enter.

    What was prepared under this very `config` (see `inspection`) is not opened again. With `only_small` a
    batch whose opening would take long raises OpenElsewhere, and nothing has been changed in it.
    Bytes behind the last whole batch are left out, as Kafka does; an append without a whole batch is refused.
    """
    batches: list[StampedBatch] = []
    position, end = 0, len(records)
    offset = first_offset
    target_codec = config.target_codec
    opens = config.opens_every_batch
    stamped_here = config.is_log_append_time
    latest = now + config.plausibly_ahead_ms
    replaced: dict[int, memoryview] | None = None  # under another codec, by their place in the append
    while end - position >= HEADER_SIZE:
        header = read_header(records, position)
        size = header.batch_length + LENGTH_OVERHEAD
        if header.magic != MAGIC:
            raise ApiError(
                ErrorCode.INVALID_RECORD,
                f"{partition}: record format {header.magic} is not supported, only {MAGIC} is",
            )
        if size < HEADER_SIZE:
            raise ApiError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{partition}: a batch claims {size} bytes, less than its own header",
            )
        if size > end - position:
            break
        if from_client and size > config.max_message_bytes:
            raise ApiError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{partition}: a batch of {size} bytes exceeds max.message.bytes={config.max_message_bytes}",
            )
        with records[position + CRC_START : position + size] as covered:
            crc = crc32c(covered)
        if crc != header.crc:
            raise ApiError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{partition}: CRC of a batch is {crc:08x} where its header says {header.crc:08x}",
            )
        if from_client:
            _check_header(header, size, config, partition)
        attributes = header.attributes
        if stamped_here and from_client and attributes & LOG_APPEND_TIME:
            raise ApiError(
                ErrorCode.INVALID_TIMESTAMP,
                f"{partition}: a producer may not set the timestamp type to LogAppendTime",
            )
        target, at = records, position
        has_plausible_times = stamped_here or 0 <= header.base_timestamp <= header.max_timestamp <= latest
        if (
            (from_client and (opens or not has_plausible_times))
            or (target_codec is not None and attributes & COMPRESSION_MASK != target_codec)
        ) and prepared_under is not config:
            batch = records[position : position + size]
            opened = _opened(batch, header, config, now, partition, from_client, only_small)
            if opened is not batch:
                replaced = replaced or {}
                replaced[len(batches)] = opened
                target, at = opened, 0
            header = read_header(target, at)
            attributes = header.attributes
        if stamped_here:
            wanted = (attributes | LOG_APPEND_TIME) & ~DELETE_HORIZON
            header = set_times(target, at, header, wanted, now)
        elif attributes & _BROKERS_BITS:
            header = set_times(target, at, header, attributes & ~_BROKERS_BITS, header.max_timestamp)
        stamp(target, at, offset, leader_epoch)
        batches.append((position, offset, header))
        offset += header.last_offset_delta + 1
        position += size
    if not batches:
        raise ApiError(ErrorCode.INVALID_RECORD, f"{partition}: the records hold no whole batch")
    if replaced is not None:
        return _joined(records, batches, replaced, offset)
    return Validated(records if position == end else records[:position], batches, offset)


def _opened(
    batch: memoryview,
    header: BatchHeader,
    config: LogConfig,
    now: int,
    partition: str,
    from_client: bool,
    only_small: bool,
) -> memoryview:
    """The batch after it was opened: itself, or a new one under another codec."""
    if from_client:
        return prepare(batch, config, now, partition, only_small=only_small)
    codec = config.target_codec
    if codec is None or header.compression == codec or header.is_control:
        return batch
    try:
        new = recompress(
            batch, codec, config.level_for(codec), max_size=config.max_decompressed_message_bytes
        )
    except (InvalidRecords, CompressionError) as problem:
        raise ApiError(ErrorCode.INVALID_RECORD, f"{partition}: {problem}") from problem
    return memoryview(new)


def _joined(
    records: memoryview, batches: list[StampedBatch], replaced: dict[int, memoryview], next_offset: int
) -> Validated:
    """The batches one after the other, some of them in the place of others."""
    if len(batches) == 1:
        return Validated(replaced[0], [(0, *batches[0][1:])], next_offset)
    data = bytearray()
    moved: list[StampedBatch] = []
    for index, (position, base_offset, header) in enumerate(batches):
        moved.append((len(data), base_offset, header))
        data += replaced.get(index) or records[position : position + header.size]
    return Validated(memoryview(data), moved, next_offset)


def check_replicated(
    records: memoryview, end_offset: int, partition: str
) -> tuple[list[StampedBatch], int, int]:
    """The whole batches of what a leader sent, the offset behind them, and how many bytes they are.

    `end_offset` is where the follower's log ends. ApiError when a batch is damaged or lies before it.
    """
    batches: list[StampedBatch] = []
    end = end_offset
    size = 0
    for position, header in headers(records):
        if header.magic != MAGIC or not crc_matches(records, position, header):
            raise ApiError(
                ErrorCode.CORRUPT_MESSAGE, f"{partition}: the leader sent a damaged batch at offset {end}"
            )
        if header.base_offset < end or header.last_offset_delta < 0:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{partition}: the leader sent offset {header.base_offset} where the log ends at {end}",
            )
        batches.append((position, header.base_offset, header))
        end = header.next_offset
        size = position + header.size
    return batches, end, size


def _check_header(header: BatchHeader, size: int, config: LogConfig, partition: str) -> None:
    """Rules that hold for clients; a coordinator or the log itself may do otherwise."""
    base_offset, attributes, last_delta = header.base_offset, header.attributes, header.last_offset_delta
    producer_id, count = header.producer_id, header.record_count
    if producer_id >= 0 and (epoch := header.producer_epoch) < _NO_EPOCH:
        raise ApiError(
            ErrorCode.INVALID_PRODUCER_EPOCH, f"{partition}: producer {producer_id} sent epoch {epoch}"
        )
    if base_offset != 0:
        problem = f"the base offset of a produced batch must be 0, not {base_offset}"
    elif last_delta < 0:
        problem = f"last offset delta {last_delta} is negative"
    elif count <= 0:
        problem = f"a batch cannot hold {count} records"
    elif count != last_delta + 1:
        problem = f"{count} records do not fit the offsets 0 to {last_delta}"
    elif attributes & COMPRESSION_MASK > _MAX_CODEC:
        problem = f"compression codec {attributes & COMPRESSION_MASK} does not exist"
    elif count > config.max_records_per_batch:
        problem = f"{count} records exceed max.records.per.batch={config.max_records_per_batch}"
    elif count * _SMALLEST_RECORD > (size - HEADER_SIZE) * DENSITIES[attributes & COMPRESSION_MASK]:
        # Records are not opened, but a batch that lies about them may not use up millions of offsets.
        problem = f"{count} records do not fit into {size} bytes"
    elif attributes & CONTROL:
        problem = "clients may not write control batches"
    elif producer_id >= 0 and (sequence := header.base_sequence) < 0:
        problem = f"producer {producer_id} sent sequence {sequence}"
    else:
        return
    raise ApiError(ErrorCode.INVALID_RECORD, f"{partition}: {problem}")
