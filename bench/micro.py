#!/usr/bin/env python3
"""The hot path in pieces, without a broker: `python -m bench.micro [WORD]...`, in microseconds per call.

Each piece of the walk of a record is called in a loop until a tenth of a second is over; the least of seven
such loops counts, because everything that disturbs a loop makes it longer. With words, only the pieces
whose name has one of them are run. For tuning one function; what a broker costs is bench.run's business.
"""

from __future__ import annotations

import os
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path

if not __package__:  # run as a script: `python bench/micro.py`
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.wire import fetch_frame, produce_frame
from ottla.clock import SystemClock
from ottla.protocol.apis import APIS
from ottla.protocol.batches import crc_matches, headers, read_header
from ottla.protocol.codec import decode, encode
from ottla.protocol.frames import parse_request_header, response_frame
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.protocol.records import Record, decode_batch, encode_batch
from ottla.storage.files import RealDisk
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_directory import LogDirectory

_LOOP_SECONDS = 0.1
_LOOPS = 7
_PRODUCE, _FETCH = APIS[0], APIS[1]
_LOG_LIMIT = 512 << 20  # bytes appended before a fresh log is taken, so that the disk stays out of it

_BASE_OFFSET_OF_A_PRODUCER = bytes(8)

Piece = Callable[[], object]


def _microseconds(call: Piece) -> float:
    timer = timeit.Timer(call)
    loops = 1
    while (seconds := timer.timeit(loops)) < _LOOP_SECONDS / 10:
        loops *= 4
    loops = max(1, int(loops * _LOOP_SECONDS / seconds))
    return min(timer.repeat(_LOOPS, loops)) / loops * 1e6


def _batch(records: int, size: int) -> bytearray:
    value = os.urandom(size)
    return encode_batch([Record(i, 1_700_000_000_000 + i, None, value, []) for i in range(records)])


SMALL = _batch(1, 130)  # 200 bytes with the headers
LARGE = _batch(970, 1000)  # just below the 1 MB that a topic takes by default


def protocol_pieces() -> dict[str, Piece]:
    """Frames and messages, and what is looked at in a batch."""
    produce = memoryview(produce_frame("orders", bytes(SMALL)))[4:]
    produce_large = memoryview(produce_frame("orders", bytes(LARGE)))[4:]
    fetch = memoryview(fetch_frame("orders", 12345))[4:]
    body = parse_request_header(produce).body_start
    produced = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name="orders", partition_responses=[PartitionProduceResponse(index=0, base_offset=12345)]
            )
        ]
    )
    fetched = FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic="orders", partitions=[PartitionData(partition_index=0, records=memoryview(LARGE))]
            )
        ]
    )
    small_header, large_header = read_header(SMALL), read_header(LARGE)
    return {
        "parse a request header": lambda: parse_request_header(produce),
        "decode Produce v9, 200 B": lambda: decode(ProduceRequest, 9, produce, body),
        "decode Produce v9, 1 MB": lambda: decode(ProduceRequest, 9, produce_large, body),
        "encode Produce v9 answer": lambda: response_frame(_PRODUCE, 9, 1, encode(produced, 9)),
        "decode Fetch v12": lambda: decode(FetchRequest, 12, fetch, parse_request_header(fetch).body_start),
        "encode Fetch v12 answer, 1 MB": lambda: response_frame(_FETCH, 12, 1, encode(fetched, 12)),
        "read a batch header": lambda: read_header(SMALL),
        "walk the headers of 1 batch": lambda: list(headers(SMALL)),
        "CRC of 200 B": lambda: crc_matches(SMALL, 0, small_header),
        "CRC of 1 MB": lambda: crc_matches(LARGE, 0, large_header),
    }


def record_pieces() -> dict[str, Piece]:
    """Where work is per record: never on the way of a record through the broker."""
    records = decode_batch(memoryview(LARGE), max_size=1 << 30)
    return {
        "decode 970 records of 1 KB": lambda: decode_batch(memoryview(LARGE), max_size=1 << 30),
        "encode 970 records of 1 KB": lambda: encode_batch(records),
    }


class _Appends:
    """Appends of one batch to a log that is exchanged for a fresh one before it grows too large."""

    def __init__(self, directory: LogDirectory, name: str, batch: bytearray) -> None:
        self._directory, self._name, self._batch = directory, name, memoryview(batch)
        self._generation = 0
        self.log = self._fresh()

    def _fresh(self) -> Log:
        self._generation += 1
        return self._directory.create(f"{self._name}-{self._generation}", 0, os.urandom(16), LogConfig())

    def __call__(self) -> object:
        if self.log.size > _LOG_LIMIT:
            self._directory.delete(f"{self._name}-{self._generation}", 0)
            self.log = self._fresh()
        self._batch[:8] = _BASE_OFFSET_OF_A_PRODUCER  # the last append stamped its own into it
        return self.log.append(self._batch, 0)


def storage_pieces(folder: Path) -> dict[str, Piece]:
    """One partition's log on the real disk: append, and find where a fetch starts."""
    directory = LogDirectory(folder, RealDisk(), SystemClock())
    directory.open()
    many = _Appends(directory, "read", SMALL)
    for _ in range(50_000):
        many()
    log = many.log
    end = log.end_offset
    return {
        "append 200 B": _Appends(directory, "small", SMALL),
        "append 1 MB": _Appends(directory, "large", LARGE),
        "find the last batch": lambda: log.read(end - 1, 1 << 20, end),
        "find a batch in the middle": lambda: log.read(end // 2 + 7, 1 << 20, end),
        "find nothing new at the end": lambda: log.read(end, 1 << 20, end),
    }


def main() -> None:
    words = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="ottla-micro-", ignore_cleanup_errors=True) as folder:
        pieces = protocol_pieces() | record_pieces() | storage_pieces(Path(folder))
        for name, call in pieces.items():
            if not words or any(word in name for word in words):
                print(f"{name:32} {_microseconds(call):10.2f} us", flush=True)


if __name__ == "__main__":
    main()
