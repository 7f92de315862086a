"""What a leader checks before a producer's batches may enter the log, and what it changes in them.

Per batch, from the header alone: the format, the size, the CRC, that offsets and count agree, that a producer
with an id has a sequence, that no client writes control batches, and that the times are near enough to now.
Then the batch gets its offsets and the leader's epoch, in place: they stand before the CRC, so the producer's
bytes go to disk as they came.

A batch is opened only where the topic demands it:

* `compression.type` names another codec: its records are compressed anew;
* the topic is compacted: every record needs a key;
* times are out of range: to tell the producer which records were refused.

`message.timestamp.type=LogAppendTime` changes one bit, the maximum timestamp and the CRC, and opens nothing.

A follower changes nothing, and checks only that the batches came whole and in order (`check_replicated`).
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from ottla.protocol.batches import (
    COMPRESSION_MASK,
    CONTROL,
    CRC_START,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
    crc_matches,
    headers,
    read_header,
    stamp,
)
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.records import CompressionError, InvalidRecords, decode_batch, recompress
from ottla.storage.log_config import LogConfig

_MAX_CODEC = 4
_SMALLEST_RECORD = 7  # bytes: seven fields of variable size, all of them zero
_NO_EPOCH = -1
_CRC_AND_ATTRIBUTES = Struct(">Ih")  # at byte 17
_CRC_POSITION = 17
_MAX_TIMESTAMP = Struct(">q")  # at byte 35
_MAX_TIMESTAMP_POSITION = 35


class RecordError(NamedTuple):
    """One record that was refused: its place in the batch and the reason."""

    batch_index: int
    message: str


class InvalidRecordsError(ApiError):
    """Single records were refused; a produce response of version 8 or later names them."""

    def __init__(self, code: ErrorCode, message: str, record_errors: list[RecordError]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


# Position in the bytes, base offset given to it, header as it came (LogAppendTime and codec updated).
StampedBatch = tuple[int, int, BatchHeader]


class Validated(NamedTuple):
    """The bytes to write (`data` is what the caller handed in unless a batch was compressed anew)."""

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
) -> Validated:
    """Check every batch of an append and stamp it with its offsets. ApiError when one may not enter.

    Bytes behind the last whole batch are left out, as Kafka does; an append without a whole batch is refused.
    """
    batches: list[StampedBatch] = []
    position, end = 0, len(records)
    offset = first_offset
    target_codec = config.target_codec
    rebuild = False
    while end - position >= HEADER_SIZE:
        header = read_header(records, position)
        size = header[1] + LENGTH_OVERHEAD
        if header[3] != MAGIC:
            raise ApiError(
                ErrorCode.INVALID_RECORD,
                f"{partition}: record format {header[3]} is not supported, only {MAGIC} is",
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
        if crc != header[4]:
            raise ApiError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{partition}: CRC of a batch is {crc:08x} where its header says {header[4]:08x}",
            )
        if from_client:
            _check_header(header, size, config, partition)
        attributes, max_timestamp = header[5], header[8]
        if config.is_compacted and from_client:
            _require_keys(records[position : position + size], config, partition)
        if config.is_log_append_time:
            if from_client and attributes & LOG_APPEND_TIME:
                raise ApiError(
                    ErrorCode.INVALID_TIMESTAMP,
                    f"{partition}: a producer may not set the timestamp type to LogAppendTime",
                )
            header = _set_time(records, position, header, attributes | LOG_APPEND_TIME, now)
        elif max_timestamp != NO_TIMESTAMP:
            if (
                max_timestamp - now > config.message_timestamp_after_max_ms
                or now - header[7] > config.message_timestamp_before_max_ms
            ) and from_client:
                _refuse_times(records[position : position + size], config, now, partition)
            if attributes & LOG_APPEND_TIME:
                header = _set_time(records, position, header, attributes & ~LOG_APPEND_TIME, max_timestamp)
        if target_codec is not None and attributes & COMPRESSION_MASK != target_codec:
            rebuild = rebuild or not attributes & CONTROL
        stamp(records, position, offset, leader_epoch)
        batches.append((position, offset, header))
        offset += header[6] + 1
        position += size
    if not batches:
        raise ApiError(ErrorCode.INVALID_RECORD, f"{partition}: the records hold no whole batch")
    if rebuild:
        return _recompressed(records, batches, offset, config, partition)
    return Validated(records if position == end else records[:position], batches, offset)


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
    base_offset, attributes, last_delta = header[0], header[5], header[6]
    producer_id, epoch, sequence, count = header[9], header[10], header[11], header[12]
    if producer_id >= 0 and epoch < _NO_EPOCH:
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
    elif count * _SMALLEST_RECORD > (
        config.max_decompressed_message_bytes if attributes & COMPRESSION_MASK else size - HEADER_SIZE
    ):
        # Records are not opened, but a batch that lies about them may not use up two billion offsets.
        problem = f"{count} records do not fit into {size} bytes"
    elif attributes & CONTROL:
        problem = "clients may not write control batches"
    elif producer_id >= 0 and sequence < 0:
        problem = f"producer {producer_id} sent sequence {sequence}"
    elif attributes & COMPRESSION_MASK > _MAX_CODEC:
        problem = f"compression codec {attributes & COMPRESSION_MASK} does not exist"
    else:
        return
    raise ApiError(ErrorCode.INVALID_RECORD, f"{partition}: {problem}")


def _set_time(
    records: memoryview, position: int, header: BatchHeader, attributes: int, max_timestamp: int
) -> BatchHeader:
    """Write time type and maximum timestamp into the batch and give it the CRC that goes with them."""
    _CRC_AND_ATTRIBUTES.pack_into(records, position + _CRC_POSITION, 0, attributes)
    _MAX_TIMESTAMP.pack_into(records, position + _MAX_TIMESTAMP_POSITION, max_timestamp)
    with records[position + CRC_START : position + header[1] + LENGTH_OVERHEAD] as covered:
        crc = crc32c(covered)
    _CRC_AND_ATTRIBUTES.pack_into(records, position + _CRC_POSITION, crc, attributes)
    return header._replace(crc=crc, attributes=attributes, max_timestamp=max_timestamp)


def _open(batch: memoryview, config: LogConfig, partition: str) -> list[tuple[int, bytes | None]]:
    """Timestamp and key of each record."""
    try:
        records = decode_batch(batch, max_size=config.max_decompressed_message_bytes)
    except (InvalidRecords, CompressionError) as problem:
        raise ApiError(ErrorCode.INVALID_RECORD, f"{partition}: {problem}") from problem
    return [(record.timestamp, record.key) for record in records]


def _require_keys(batch: memoryview, config: LogConfig, partition: str) -> None:
    errors = [
        RecordError(index, f"{partition}: a compacted topic takes no record without a key")
        for index, (_, key) in enumerate(_open(batch, config, partition))
        if key is None
    ]
    if errors:
        raise InvalidRecordsError(
            ErrorCode.INVALID_RECORD,
            f"{partition}: {len(errors)} records have no key, which a compacted topic needs",
            errors,
        )


def _refuse_times(batch: memoryview, config: LogConfig, now: int, partition: str) -> None:
    """The header says that times are out of range: name the records, if it is true."""
    earliest = now - config.message_timestamp_before_max_ms
    latest = now + config.message_timestamp_after_max_ms
    errors = [
        RecordError(index, f"{partition}: timestamp {timestamp} is not between {earliest} and {latest}")
        for index, (timestamp, _) in enumerate(_open(batch, config, partition))
        if timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest
    ]
    if errors:
        raise InvalidRecordsError(
            ErrorCode.INVALID_TIMESTAMP,
            f"{partition}: {len(errors)} records have a timestamp out of range",
            errors,
        )


def _recompressed(
    records: memoryview, batches: list[StampedBatch], next_offset: int, config: LogConfig, partition: str
) -> Validated:
    """The same batches, each under the codec of the topic."""
    codec = config.target_codec
    assert codec is not None
    data = bytearray()
    rebuilt: list[StampedBatch] = []
    for position, base_offset, header in batches:
        batch = records[position : position + header.size]
        if header.compression != codec and not header.is_control:
            try:
                new = recompress(
                    batch, codec, config.level_for(codec), max_size=config.max_decompressed_message_bytes
                )
            except (InvalidRecords, CompressionError) as problem:
                raise ApiError(ErrorCode.INVALID_RECORD, f"{partition}: {problem}") from problem
            batch = memoryview(new)
            if len(batch) > config.max_message_bytes:
                raise ApiError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"{partition}: a batch of {len(batch)} bytes after compression with "
                    f"{config.compression_type} is larger than max.message.bytes={config.max_message_bytes}",
                )
        rebuilt.append((len(data), base_offset, read_header(batch)))
        data += batch
    return Validated(memoryview(data), rebuilt, next_offset)
