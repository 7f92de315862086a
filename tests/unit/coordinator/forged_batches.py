"""Batches of transactions as Kafka writes them: records of a producer, and the markers that end them."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack

from ottla.coordinator.records import Entry, encode_entry
from ottla.protocol.records import Record, encode_batch

_ABORT, _COMMIT = 0, 1


def marker(offset: int, producer_id: int, producer_epoch: int, *, committed: bool) -> bytes:
    """The control batch that ends the transaction of a producer."""
    key = pack(">hh", 0, _COMMIT if committed else _ABORT)
    value = pack(">hi", 0, 0)
    return bytes(
        encode_batch(
            [Record(offset, 0, key, value, [])],
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=True,
            control=True,
        )
    )


def entries(offset: int, written: Sequence[Entry], *, producer_id: int = -1) -> bytes:
    """Records of the group coordinator; with a producer id they belong to its transaction."""
    records = [Record(offset + n, 0, *encode_entry(entry), []) for n, entry in enumerate(written)]
    if producer_id < 0:
        return bytes(encode_batch(records, base_offset=offset))
    return bytes(
        encode_batch(
            records,
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    )
