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

A follower changes nothing, and checks that the batches came whole, and that offsets and epochs are in order
(`check_replicated`).
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
from ottla.storage.scan import LARGEST_OFFSET, MAX_RELATIVE_OFFSET

__all__ = [
    "LARGEST_EPOCH",
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
LARGEST_EPOCH = 0x7FFFFFFF
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
    records: memoryview,
    end_offset: int,
    partition: str,
    *,
    epochs: tuple[int, int] = (_NO_EPOCH, LARGEST_EPOCH),
    portion_bytes: int = LARGEST_OFFSET,
    gaps: bool = True,
) -> list[Validated]:
    """The whole batches of what a leader sent, in portions of at most `portion_bytes`, each for one segment.

    `end_offset` is where the follower's log ends; `epochs` are the epoch of its last record and the one in
    which the leader leads, between which those of the batches lie; `gaps` allows offsets to be missing. What
    comes before the first batch that is damaged or out of order is taken; ApiError when that is the very
    first one, or when there is none.
    """
    portions: list[Validated] = []
    batches: list[StampedBatch] = []
    start, size, end = 0, 0, end_offset
    latest_epoch, leader_epoch = epochs
    for position, header in headers(records):
        problem = _problem_of_replicated(records, position, header, end, latest_epoch, leader_epoch)
        if problem is None and header.base_offset > end and not gaps:
            problem = (
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"the leader sent offset {header.base_offset} where the log ends at {end}, and offsets may "
                "not be missing",
            )
        if problem is not None:
            if not batches:
                raise ApiError(problem[0], f"{partition}: {problem[1]}")
            break
        too_far = batches and header.last_offset - batches[0][1] > MAX_RELATIVE_OFFSET
        if batches and (position + header.size - start > portion_bytes or too_far):
            portions.append(Validated(records[start:position], batches, end))
            start, batches = position, []
        batches.append((position - start, header.base_offset, header))
        end, latest_epoch = header.next_offset, header.leader_epoch
        size = position + header.size
    if not batches:
        raise ApiError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{partition}: the leader sent {len(records)} bytes without a whole batch for offset {end}",
        )
    portions.append(Validated(records[start:size], batches, end))
    return portions


def _problem_of_replicated(
    records: memoryview, position: int, header: BatchHeader, end: int, latest_epoch: int, leader_epoch: int
) -> tuple[ErrorCode, str] | None:
    if header.magic != MAGIC or not crc_matches(records, position, header):
        return ErrorCode.CORRUPT_MESSAGE, f"the leader sent a damaged batch at offset {end}"
    base, delta, epoch = header.base_offset, header.last_offset_delta, header.leader_epoch
    if base < end or delta < 0 or base + delta >= LARGEST_OFFSET:
        return (
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"the leader sent offset {base} and {delta} more where the log ends at {end}",
        )
    if not latest_epoch <= epoch <= leader_epoch:
        return (
            ErrorCode.CORRUPT_MESSAGE,
            f"the leader of epoch {leader_epoch} sent a batch of epoch {epoch} behind one of {latest_epoch}",
        )
    return None


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
