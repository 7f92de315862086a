"""Batches that no client library would send: any header field, any body, and a CRC that is right."""

from __future__ import annotations

import struct
import time

import cramjam
from crc32c import crc32c

from differential.forge import varint
from ottla.protocol.batches import CRC_START, HEADER, HEADER_SIZE, LENGTH_OVERHEAD, BatchHeader
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

ZSTD = 4


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def record(
    offset_delta: int = 0,
    timestamp_delta: int = 0,
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    headers: int = 0,
) -> bytes:
    """One record; its headers are empty ones."""
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + _sized(key) + _sized(value)
    body += varint(headers) + b"\0\x01" * headers
    return varint(len(body)) + body


def _sized(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


def smallest_records(count: int, key: bytes | None = None) -> bytes:
    """`count` records of a few bytes each, made quickly."""
    return b"".join(record(n, 0, key, None) for n in range(count))


def zstd(body: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(body, level=1))


def batch(body: bytes, *, count: int = 1, now: int | None = None, **fields: int) -> bytearray:
    """A batch around `body`; length and CRC are right whatever the other fields say."""
    time_of_it = now_ms() if now is None else now
    header = BatchHeader(
        base_offset=0,
        batch_length=HEADER_SIZE - LENGTH_OVERHEAD + len(body),
        leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=0,
        last_offset_delta=count - 1,
        base_timestamp=time_of_it,
        max_timestamp=time_of_it,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=count,
    )._replace(**fields)
    data = bytearray(HEADER.pack(*header)) + body
    struct.pack_into(">I", data, CRC_START - 4, crc32c(bytes(data[CRC_START:])))
    return data


def produce_request(topic: str, records: bytes | bytearray, *, acks: int = -1) -> ProduceRequest:
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[data])
