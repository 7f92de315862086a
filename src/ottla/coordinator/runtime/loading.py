"""Reads the log of a shard from its start to its end and replays it on a state.

The log is read in pieces, each in a thread, on a state that no request sees yet. Every batch is checked: a
checksum that is wrong, offsets out of order or records that cannot be decoded or replayed make the log
unloadable, and the error names the offset. A single record whose key or value is malformed is passed over,
as Kafka does.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from ottla.coordinator.runtime.state import RecordCodec, ShardState
from ottla.protocol.batches import MAGIC, BatchHeader, crc_matches, headers
from ottla.protocol.codec import Malformed
from ottla.protocol.records import CompressionError, InvalidRecords, Record, decode_batch
from ottla.storage.log import FileSlice, Log
from ottla.storage.transaction_markers import read_control_record

logger = logging.getLogger("ottla.coordinator")

LOAD_BYTES = 1 << 20
"""Read from the log at a time."""
MAX_BATCH_BYTES = 128 << 20
"""Decompressed size of the largest batch that is accepted."""

R = TypeVar("R")
InThread = Callable[[Callable[[], int]], Awaitable[int]]


class Unloadable(Exception):
    """The log of a shard holds what cannot be replayed; the message says where."""


async def replay_log(
    log: Log,
    codec: RecordCodec[R],
    state: ShardState[R, Any],
    in_thread: InThread,
    is_cancelled: Callable[[], bool],
) -> int:
    """Replay all of `log`, unless it is cancelled; the offset behind the last record."""
    offset, end = log.log_start_offset, log.end_offset
    while offset < end and not is_cancelled():
        piece = log.read(offset, LOAD_BYTES, end)
        if piece is None:
            break  # the last records have been compacted away
        following = await in_thread(partial(_replay_piece, log, codec, state, piece, offset))
        if following <= offset:
            raise _unloadable(log, offset, "no whole batch is there")
        offset = following
    return end


def _replay_piece(
    log: Log, codec: RecordCodec[R], state: ShardState[R, Any], piece: FileSlice, start: int
) -> int:
    """Replay the batches of a piece of the log; the offset to go on from. Runs in a thread."""
    data = piece.read()
    following = 0
    for position, header in headers(data):
        offset = header.base_offset
        if offset < following or header.next_offset <= offset:
            raise _unloadable(log, offset, f"it follows offset {following - 1}")
        if header.magic == MAGIC and not crc_matches(data, position, header):
            raise _unloadable(log, offset, "its checksum is wrong")
        following = header.next_offset
        if following > start:
            _replay_batch(log, codec, state, header, memoryview(data)[position : position + header.size])
    return following


def _replay_batch(
    log: Log, codec: RecordCodec[R], state: ShardState[R, Any], header: BatchHeader, batch: memoryview
) -> None:
    producer_id, producer_epoch = header.producer_id, header.producer_epoch
    if header.is_control:
        marker = read_control_record(batch)
        if marker is not None:
            state.replay_end_transaction_marker(producer_id, producer_epoch, committed=marker.is_commit)
        return
    try:
        records = decode_batch(batch, max_size=MAX_BATCH_BYTES)
    except (InvalidRecords, CompressionError) as problem:
        raise _unloadable(log, header.base_offset, str(problem)) from problem
    for record in records:
        decoded = _decoded(log, codec, record)
        if decoded is not None:
            try:
                state.replay(record.offset, producer_id, producer_epoch, decoded)
            except Exception as defect:
                raise _unloadable(log, record.offset, f"replaying it failed with {defect!r}") from defect


def _decoded(log: Log, codec: RecordCodec[R], record: Record) -> R | None:
    try:
        return codec.decode(record.key, record.value)
    except Malformed as malformed:
        logger.error("%s: passing over the record at offset %d: %s", log.folder, record.offset, malformed)
        return None


def _unloadable(log: Log, offset: int, reason: str) -> Unloadable:
    return Unloadable(
        f"the batch at offset {offset} in {log.folder} cannot be loaded: {reason}. "
        f"`ottla log inspect {log.folder}` shows what is there; restore the files from a replica or a backup"
    )
