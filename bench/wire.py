"""A Kafka client of a few frames, for latency: one blocking socket, requests made once and sent as they are.

The measured time should be the broker's, so nothing is decoded beyond the fields that are checked, and the
frames are laid out here by hand instead of by the code under test. Produce v9 and Fetch v12 are used:
flexible versions as today's clients send them, which still name a topic by its name. Fetches have no session,
as librdkafka's have none.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import crc32c

_CLIENT_ID = b"bench"
_PRODUCE, _PRODUCE_VERSION = 0, 9
_FETCH, _FETCH_VERSION = 1, 12


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint(value: int) -> bytes:
    return _uvarint((value << 1) ^ (value >> 63))


def _compact(data: bytes) -> bytes:
    return _uvarint(len(data) + 1) + data


def _frame(api_key: int, version: int, body: bytes) -> bytes:
    header = struct.pack(">hhih", api_key, version, 1, len(_CLIENT_ID)) + _CLIENT_ID + b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


def single_record_batch(value: bytes, timestamp: int) -> bytes:
    """A magic-2 batch, uncompressed, of one record without key and headers."""
    # attributes, timestamp delta, offset delta, key (null), value, header count
    record = b"\0" + _varint(0) + _varint(0) + _varint(-1) + _varint(len(value)) + value + _varint(0)
    records = _varint(len(record)) + record
    after_crc = struct.pack(">hiqqqhii", 0, 0, timestamp, timestamp, -1, -1, -1, 1) + records
    crc = crc32c.crc32c(after_crc)
    return struct.pack(">qiibI", 0, 4 + 1 + 4 + len(after_crc), -1, 2, crc) + after_crc


def produce_frame(topic: str, batch: bytes, acks: int = -1) -> bytes:
    """A whole Produce request for partition 0 of the topic."""
    partition = struct.pack(">i", 0) + _compact(batch) + b"\0"
    data = b"\x02" + _compact(topic.encode()) + b"\x02" + partition + b"\0"
    return _frame(_PRODUCE, _PRODUCE_VERSION, b"\0" + struct.pack(">hi", acks, 30_000) + data + b"\0")


def fetch_frame(topic: str, offset: int, max_wait_ms: int = 500) -> bytes:
    """A whole Fetch request for partition 0 of the topic that waits for at least one byte."""
    head = struct.pack(">iiiibii", -1, max_wait_ms, 1, 50 << 20, 0, 0, -1)
    partition = struct.pack(">iiqiqi", 0, -1, offset, -1, -1, 1 << 20) + b"\0"
    topics = b"\x02" + _compact(topic.encode()) + b"\x02" + partition + b"\0"
    return _frame(_FETCH, _FETCH_VERSION, head + topics + b"\x01" + b"\x01" + b"\0")


class Connection:
    """One connection; `send` a frame, `receive` the next answer without its size."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.socket.settimeout(30)
        # A deadline makes Python poll before each call, which costs a system call; SO_RCVTIMEO does not.
        self.socket.setblocking(True)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 30, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send = self.socket.sendall
        self._pending = b""

    def receive(self) -> bytes:
        data = self._pending or self.socket.recv(65536)
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            more = self.socket.recv(1 << 20)
            if not more:
                raise ConnectionError("the broker closed the connection")
            data += more
        end = 4 + int.from_bytes(data[:4], "big")
        self._pending = data[end:]
        return data[4:end]

    def close(self) -> None:
        self.socket.close()


def produced_offset(answer: bytes, topic: str) -> int:
    """The base offset in a Produce answer; an error code in it is an exception."""
    # correlation id, tags, array count, topic name, array count, partition index
    at = 4 + 1 + 1 + 1 + len(topic) + 1 + 4
    error, offset = struct.unpack_from(">hq", answer, at)
    if error:
        raise RuntimeError(f"produce was answered with error {error}")
    return int(offset)


def fetched_batches(answer: bytes, topic: str) -> Iterator[tuple[int, int]]:
    """First and last offset of each batch in a Fetch answer; an error code in it is an exception."""
    top_error = struct.unpack_from(">h", answer, 4 + 1 + 4)[0]
    at = 4 + 1 + 4 + 2 + 4 + 1 + 1 + len(topic) + 1 + 4
    error = struct.unpack_from(">h", answer, at)[0]
    if top_error or error:
        raise RuntimeError(f"fetch was answered with error {top_error or error}")
    at += 2 + 8 + 8 + 8 + 1 + 4  # error, three offsets, no aborted transactions, preferred replica
    while answer[at] & 0x80:  # the length of the records
        at += 1
    at += 1
    while at + 61 <= len(answer):
        base, length = struct.unpack_from(">qi", answer, at)
        if at + 12 + length > len(answer):
            return
        yield base, base + struct.unpack_from(">i", answer, at + 23)[0]
        at += 12 + length
