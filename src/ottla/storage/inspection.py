"""What a leader does with a producer's batch that has to be opened: walk its records, compress them again.

Most batches go to disk unopened. `validation` says which do not; this file is what opening them means:

* their records are what the header promises: consecutive offset deltas, fields that add up (`RecordWalk`);
* in a compacted topic every record has a key;
* every timestamp lies within what the topic allows, and the header gets the largest of them, whatever it
  said before: retention and lookups by time go by the header;
* a topic with a codec of its own gets the records under that codec.

No object is made for a record. Even so a walk costs a microsecond or two for each of them, and a few hundred
bytes can hold a million. So `prepare` is made to run in a thread: it is pure, it makes its way in short
stretches and lets others have the interpreter between them (`pause`), and large bodies lie in memory maps.
Small batches are opened where they are (`is_small`), which costs less than to hand them over.

What is refused is named record by record up to `MOST_NAMED` of them; the rest is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from mmap import mmap
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from ottla.protocol.batches import (
    COMPRESSION_MASK,
    CRC_START,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    NO_TIMESTAMP,
    BatchHeader,
    read_header,
)
from ottla.protocol.compression import DEFAULT_LEVELS, Codec, DecompressedTooLarge, open_body
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.records import CompressionError, InvalidRecords, with_codec
from ottla.protocol.varints import RecordWalk, TooManyHeaders
from ottla.storage.log_config import LogConfig

MOST_NAMED = 100
"""Records that one answer names as refused."""

SMALL_COUNT = 300
"""Records, and as many headers, that are walked on the event loop: about half a millisecond."""
SMALL_STORED = 64 * 1024
SMALL_OPENED = 256 * 1024
SMALL_PLAIN = 1024 * 1024
SMALL_RECOMPRESSED = 16 * 1024
"""Bytes: of a compressed batch, of its records, of one without compression, of one to be compressed again."""

_HIGHEST_SMALL_LEVEL = {Codec.GZIP: 6, Codec.LZ4: 6, Codec.ZSTD: 6}
"""Up to these levels compressing SMALL_RECOMPRESSED bytes takes at most a millisecond or two, whatever they
are. Above them it takes up to 40 ms (zstd 22), 30 ms (gzip 9), 20 ms (lz4 12): these always go to the thread.
The default levels are all below."""

_STRETCH = 250  # records between two pauses
_LONGEST_TIME = 2**63 - 1
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


class OpenElsewhere(Exception):
    """The batch has to be opened and is too large for the event loop: `prepare` it in a thread."""


def prepare(
    batch: memoryview,
    config: LogConfig,
    now: int,
    partition: str,
    *,
    pause: Callable[[], object] | None = None,
    only_small: bool = False,
) -> memoryview:
    """The batch as it may be appended under `config`; ApiError when it may not.

    It is `batch` itself, with the largest timestamp in its header corrected, or a new one under the codec of
    the topic. With `only_small` OpenElsewhere is raised as soon as the work turns out not to be small.
    """
    header = read_header(batch)
    codec = config.target_codec
    recompress = codec is not None and header.compression != codec
    if only_small and not (is_small(header) and (not recompress or _is_cheap(config, codec))):
        raise OpenElsewhere
    limit = config.max_decompressed_message_bytes
    most_headers = config.max_records_per_batch
    if only_small:
        limit, most_headers = min(limit, _most_opened(header, recompress)), min(most_headers, SMALL_COUNT)
    try:
        with batch[HEADER_SIZE : header.size] as records:
            body, size = open_body(header.compression, records, limit)
        try:
            latest = _walk(body, size, header, config, now, partition, most_headers, pause)
            if not config.is_log_append_time and latest != header.max_timestamp:
                header = set_times(batch, 0, header, header.attributes, latest)
            if recompress:
                assert codec is not None
                batch = memoryview(with_codec(header, body[:size], codec, config.level_for(codec)))
        finally:
            if isinstance(body, mmap):
                body.close()
    except (DecompressedTooLarge, TooManyHeaders) as problem:
        if only_small and (limit, most_headers) != (
            config.max_decompressed_message_bytes,
            config.max_records_per_batch,
        ):
            raise OpenElsewhere from None
        raise ApiError(ErrorCode.INVALID_RECORD, f"{partition}: {problem}") from problem
    except (InvalidRecords, CompressionError) as problem:
        raise ApiError(ErrorCode.INVALID_RECORD, f"{partition}: {problem}") from problem
    if recompress and len(batch) > config.max_message_bytes:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{partition}: a batch of {len(batch)} bytes after compression with "
            f"{config.compression_type} is larger than max.message.bytes={config.max_message_bytes}",
        )
    return batch


def is_small(header: BatchHeader) -> bool:
    """Whether the header leaves it open that the batch is opened in a moment."""
    stored = SMALL_STORED if header.attributes & COMPRESSION_MASK else SMALL_PLAIN
    return header.record_count <= SMALL_COUNT and header.size <= stored


def _is_cheap(config: LogConfig, codec: int | None) -> bool:
    """Whether few bytes are compressed in a moment at the level of the topic."""
    level = None if codec is None else config.level_for(codec)
    if codec is None or level is None:
        return True
    return level == DEFAULT_LEVELS[Codec(codec)] or level <= _HIGHEST_SMALL_LEVEL[Codec(codec)]


def _most_opened(header: BatchHeader, recompress: bool) -> int:
    if recompress:
        return SMALL_RECOMPRESSED
    return SMALL_OPENED if header.attributes & COMPRESSION_MASK else SMALL_PLAIN


def set_times(
    records: memoryview, position: int, header: BatchHeader, attributes: int, max_timestamp: int
) -> BatchHeader:
    """Write attributes and largest timestamp into the batch and give it the CRC that goes with them."""
    _CRC_AND_ATTRIBUTES.pack_into(records, position + _CRC_POSITION, 0, attributes)
    _MAX_TIMESTAMP.pack_into(records, position + _MAX_TIMESTAMP_POSITION, max_timestamp)
    with records[position + CRC_START : position + header.batch_length + LENGTH_OVERHEAD] as covered:
        crc = crc32c(covered)
    _CRC_AND_ATTRIBUTES.pack_into(records, position + _CRC_POSITION, crc, attributes)
    return header._replace(crc=crc, attributes=attributes, max_timestamp=max_timestamp)


def _walk(
    body: bytes | mmap,
    size: int,
    header: BatchHeader,
    config: LogConfig,
    now: int,
    partition: str,
    most_headers: int,
    pause: Callable[[], object] | None,
) -> int:
    """The largest timestamp of the records, when all of them may enter."""
    base = header.base_timestamp
    earliest = max(now - config.message_timestamp_before_max_ms, -_LONGEST_TIME - 1)
    latest = min(now + config.message_timestamp_after_max_ms, _LONGEST_TIME)
    if config.is_log_append_time:
        walk = RecordWalk(body, size, header.record_count, most_named=MOST_NAMED, most_headers=most_headers)
    else:
        walk = RecordWalk(
            body,
            size,
            header.record_count,
            earliest - base,
            latest - base,
            NO_TIMESTAMP - base,
            MOST_NAMED,
            most_headers,
        )
    while not walk.advance(_STRETCH):
        if pause is not None:
            pause()
    if config.is_compacted and walk.keyless:
        raise InvalidRecordsError(
            ErrorCode.INVALID_RECORD,
            f"{partition}: {walk.keyless_count} records have no key, which a compacted topic needs"
            f"{_named(walk.keyless_count)}",
            [
                RecordError(index, f"{partition}: a compacted topic takes no record without a key")
                for index in walk.keyless
            ],
        )
    if walk.untimely:
        raise InvalidRecordsError(
            ErrorCode.INVALID_TIMESTAMP,
            f"{partition}: {walk.untimely_count} records have a timestamp out of range"
            f"{_named(walk.untimely_count)}",
            [
                RecordError(
                    index, f"{partition}: timestamp {base + delta} is not between {earliest} and {latest}"
                )
                for index, delta in walk.untimely
            ],
        )
    return max(base + walk.largest, NO_TIMESTAMP)


def _named(count: int) -> str:
    return f", of which {MOST_NAMED} are named" if count > MOST_NAMED else ""
