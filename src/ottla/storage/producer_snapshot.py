"""One producer as a partition remembers it, and how all of them are written to a snapshot file.

Snapshots are Kafka's `.snapshot` files, version 1. Kafka writes only the last batch of each producer into
them, so that a producer with five requests in flight can be refused after a restart; we add the older four
behind the part that Kafka reads (its reader checks the CRC over all and stops early).
"""

from __future__ import annotations

from collections.abc import Collection
from struct import Struct, error
from typing import NamedTuple

from crc32c import crc32c

from ottla.protocol.batches import NO_SEQUENCE

LAST_SEQUENCE = 0x7FFFFFFF
_NO_EPOCH = -1

_SNAPSHOT_HEAD = Struct(">hI")  # version, CRC-32C of all that follows
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")
_OLDER_BATCH = Struct(">qiqiq")  # producer id, last sequence, last offset, offset delta, timestamp
_SNAPSHOT_VERSION = 1


class CorruptSnapshot(Exception):
    """A snapshot file that does not hold what it should."""


class BatchRange(NamedTuple):
    """One remembered batch."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class ProducerState:
    """One producer, as DescribeProducers shows it."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_seen_ms",
        "last_timestamp",
        "producer_id",
        "transaction_start",
    )

    def __init__(self, producer_id: int, epoch: int = _NO_EPOCH) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.last_seen_ms = 0  # our own clock: records may carry times of long ago
        self.transaction_start = -1
        self.batches: list[BatchRange] = []

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else -1


def encode_snapshot(states: Collection[ProducerState]) -> bytes:
    """The producers as a snapshot file."""
    parts = [_COUNT.pack(len(states))]
    older: list[bytes] = []
    for state in states:
        last = state.batches[-1] if state.batches else None
        parts.append(
            _ENTRY.pack(
                state.producer_id,
                state.epoch,
                last.last_sequence if last else NO_SEQUENCE,
                last.last_offset if last else -1,
                last.last_offset - last.first_offset if last else 0,
                state.last_timestamp,
                state.coordinator_epoch,
                state.transaction_start,
            )
        )
        for _, sequence, first_offset, last_offset, timestamp in state.batches[:-1]:
            delta = last_offset - first_offset
            older.append(_OLDER_BATCH.pack(state.producer_id, sequence, last_offset, delta, timestamp))
    body = b"".join(parts + older)
    return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> list[ProducerState]:
    """The producers in a snapshot file."""
    try:
        version, crc = _SNAPSHOT_HEAD.unpack_from(data)
        (count,) = _COUNT.unpack_from(data, _SNAPSHOT_HEAD.size)
    except error as problem:
        raise CorruptSnapshot(f"{len(data)} bytes are too few") from problem
    if version != _SNAPSHOT_VERSION:
        raise CorruptSnapshot(f"version {version} is not {_SNAPSHOT_VERSION}")
    if crc32c(data[_SNAPSHOT_HEAD.size :]) != crc:
        raise CorruptSnapshot("wrong CRC")
    start = _SNAPSHOT_HEAD.size + _COUNT.size
    end = start + count * _ENTRY.size
    if count < 0 or end > len(data) or (len(data) - end) % _OLDER_BATCH.size:
        raise CorruptSnapshot(f"{count} entries announced in {len(data)} bytes")
    states: dict[int, ProducerState] = {}
    for (
        producer_id,
        epoch,
        sequence,
        offset,
        delta,
        timestamp,
        coordinator_epoch,
        transaction_start,
    ) in _ENTRY.iter_unpack(data[start:end]):
        state = states[producer_id] = ProducerState(producer_id, epoch)
        state.last_timestamp = timestamp
        state.coordinator_epoch = coordinator_epoch
        state.transaction_start = transaction_start
        if offset >= 0:
            state.batches.append(_range(sequence, offset, delta, timestamp))
    for producer_id, sequence, offset, delta, timestamp in _OLDER_BATCH.iter_unpack(data[end:]):
        if producer_id in states:
            batches = states[producer_id].batches
            batches.insert(len(batches) - 1, _range(sequence, offset, delta, timestamp))
    return list(states.values())


def _range(last_sequence: int, last_offset: int, delta: int, timestamp: int) -> BatchRange:
    first_sequence = (last_sequence - delta) & LAST_SEQUENCE if last_sequence >= 0 else NO_SEQUENCE
    return BatchRange(first_sequence, last_sequence, last_offset - delta, last_offset, timestamp)
