"""Reading a range of one partition inside a Spark task: offsets in, Arrow batches out.

    for batch in read_range("broker:9092", "clicks", 3, 1000, 2000, options=ReadOptions()):
        ...

This runs in Spark's Python workers, once per task, over the project's own wire client. The next fetch is on
its way while the last answer is decoded, so the broker, the network and the decoder work at the same time,
and memory stays at two answers and one Arrow batch. What a task may meet and how it ends:

    a leader that moves, a broker that restarts   tried again, up to `timeout` seconds without progress
    gaps of compaction, control batches           skipped: offsets may be missing, records never
    records of aborted transactions               left out under read_committed
    offsets that retention has removed            `DataLost`, or a warning and on with what is left
    a wrong checksum, records cut off, the record
    format of before 2017                         `UnreadablePartition` at once: trying again cannot help

Connections and the places of leaders are kept from task to task (`links`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any

import pyarrow as pa

from ottla.pipeline.topics.arrow_records import BatchBody, InvalidRecords, RecordDecoder
from ottla.pipeline.topics.links import Link, borrowed
from ottla.pipeline.topics.offsets import DataLost
from ottla.protocol.batches import HEADER_SIZE, MAGIC, BatchHeader, crc_matches
from ottla.protocol.compression import Codec, CompressionError, decompress
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.records import decode_batch
from ottla.protocol.schema import ZERO_UUID
from ottla.protocol_client.fetched_batches import WrongOffsets, in_order
from ottla.protocol_client.offsets import Span, spans
from ottla.protocol_client.wire import BrokerUnreachable, ConnectionLost, Patience, Pending, check

__all__ = ["DataLost", "ReadOptions", "UnreadablePartition", "read_range"]

log = logging.getLogger("ottla.pipeline")

MAX_OPENED = 256 << 20
"""A batch that holds more than this when decompressed is refused."""

CHUNK_BYTES = 4 << 20
"""Decompressed bytes that are decoded together: enough that the work per chunk does not count."""

_LAST_VERSION_WITH_NAMES = 12
_MAGIC_POSITION = 16
_CONTROL_KEY = Struct(">hh")
_ABORT = 0


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read; the defaults are those of the source."""

    include_headers: bool = False
    fail_on_data_loss: bool = True
    read_committed: bool = True
    max_partition_fetch_bytes: int = 2 << 20
    fetch_max_wait_ms: int = 500
    check_crcs: bool = True
    timeout: float = 120.0
    """Seconds without progress after which a task gives up; Spark then tries it again elsewhere."""
    client_id: str = "ottla-spark"
    connect_timeout: float = 10.0
    request_timeout: float = 30.0


class UnreadablePartition(Exception):
    """The bytes of a partition cannot be read by anybody; trying again does not help."""


def read_range(
    bootstrap: str, topic: str, partition: int, start: int, end: int, *, options: ReadOptions
) -> Iterator[Any]:
    """The records of a partition from offset `start` up to but not including `end`, as RecordBatches.

    The schema is `arrow_records.kafka_schema`. Batches come in offset order and are never empty.
    """
    if start >= end:
        return
    with borrowed(bootstrap, options.client_id, options.connect_timeout, options.request_timeout) as link:
        yield from _RangeReader(link, topic, partition, start, end, options).batches()


class _RangeReader:
    """One pass over one range. `position` is the next offset to ask for."""

    def __init__(
        self, link: Link, topic: str, partition: int, start: int, end: int, options: ReadOptions
    ) -> None:
        self.link = link
        self.wire = link.wire
        self.topic = topic
        self.partition = partition
        self.position = start
        self.end = end
        self.options = options
        self._decoder = RecordDecoder(topic, partition, options.include_headers)
        self._where = f"partition {partition} of topic {topic!r}"

    def batches(self) -> Iterator[Any]:
        patience = Patience(self.options.timeout)
        pending: Pending | None = None
        while self.position < self.end:
            try:
                if pending is None:
                    pending = self._send()
                asked, pending = pending, None
                data = self._receive(asked)
                check(data.error_code)
            except (ApiError, BrokerUnreachable) as error:
                self.link.forget(self.topic)
                self._face(error, patience)
                continue
            bodies = self._wanted(data)
            if bodies is None:
                # Nothing yet. The end was seen when the range was planned, so it comes back when a new
                # leader has caught up, or never.
                self._face(self._short(data), patience)
                continue
            patience = Patience(self.options.timeout)
            if self.position < self.end:
                try:
                    pending = self._send()
                except (ApiError, BrokerUnreachable):
                    pending = None  # met again, with patience, in the next round
            start, end = bodies.start, min(self.end, self.position)
            for buffer, chunk in bodies.chunks():
                try:
                    batch = self._decoder.decode(buffer, chunk, start, end)
                except InvalidRecords as error:
                    at = f"batches at offsets {chunk[0].header.base_offset} to {chunk[-1].header.last_offset}"
                    raise UnreadablePartition(f"{self._where}, {at}: {error}") from None
                if batch.num_rows:
                    yield batch

    def _send(self) -> Pending:
        place = self.link.topic(self.topic)
        leader, topic_id = place.leader(self.partition), place.topic_id
        at_most = _LAST_VERSION_WITH_NAMES if topic_id == ZERO_UUID else None
        size = self.options.max_partition_fetch_bytes
        asked = FetchPartition(partition=self.partition, fetch_offset=self.position, partition_max_bytes=size)
        request = FetchRequest(
            max_wait_ms=self.options.fetch_max_wait_ms,
            min_bytes=1,
            max_bytes=size,
            isolation_level=int(self.options.read_committed),
            topics=[FetchTopic(topic=self.topic, topic_id=topic_id, partitions=[asked])],
        )
        version = self.wire.connection(leader).version_for(FetchRequest, at_most)
        return self.wire.send(request, version, leader)

    def _receive(self, pending: Pending) -> PartitionData:
        limit = self.options.fetch_max_wait_ms / 1000 + min(self.options.timeout, self.wire.request_timeout)
        response: FetchResponse = self.wire.receive(pending, limit)
        check(response.error_code)
        for data in (d for t in response.responses for d in t.partitions):
            if data.partition_index == self.partition:
                return data
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the broker did not answer for {self._where}")

    def _in_order(
        self, records: bytes | memoryview, high_watermark: int
    ) -> Iterator[tuple[int, BatchHeader]]:
        try:
            yield from in_order(records, high_watermark)
        except WrongOffsets as problem:
            raise UnreadablePartition(f"{self._where}, behind offset {self.position}: {problem}") from None

    def _wanted(self, data: PartitionData) -> _Bodies | None:
        """The batches of an answer that belong to the range; moves the position past them. None: no bytes."""
        records = data.records
        if not records:
            return None
        start = self.position
        aborted = sorted((t.first_offset, t.producer_id) for t in data.aborted_transactions or [])
        aborting: set[int] = set()
        bodies = _Bodies(self._where, records, start)
        whole = False
        if len(records) > _MAGIC_POSITION:
            self._refuse_old(records[_MAGIC_POSITION], start)
        for place, header in self._in_order(records, data.high_watermark):
            whole = True
            self._refuse_old(header.magic, header.base_offset)
            while aborted and aborted[0][0] <= header.last_offset:
                aborting.add(aborted.pop(0)[1])
            if header.next_offset <= start:
                continue
            if header.base_offset >= self.end:
                self.position = self.end
                break
            self.position = max(self.position, header.next_offset)
            if self.options.check_crcs and not crc_matches(records, place, header):
                raise UnreadablePartition(
                    f"{self._where}, batch at offset {header.base_offset}: the checksum is wrong; "
                    "the bytes were damaged on a disk or on the way"
                )
            if header.is_control:
                if self.options.read_committed and _is_abort(records[place : place + header.size]):
                    aborting.discard(header.producer_id)
                continue
            if header.is_transactional and self.options.read_committed and header.producer_id in aborting:
                continue
            if header.record_count:  # compaction may leave a batch with nothing in it
                bodies.add(place, header)
        if not whole:
            raise UnreadablePartition(
                f"{self._where}: no whole batch came at offset {start} ({len(records)} bytes)"
            )
        return bodies if self.position > start else None

    def _refuse_old(self, magic: int, offset: int) -> None:
        if magic != MAGIC:
            raise UnreadablePartition(
                f"{self._where}, offset {offset}: the record format there is {magic}, from before Kafka 0.11 "
                f"(2017). Only format {MAGIC} is read; copying the topic with a current client rewrites it."
            )

    def _face(self, error: ApiError | BrokerUnreachable, patience: Patience) -> None:
        """Act on what came instead of records: move on, wait and return, or raise."""
        if isinstance(error, ApiError):
            if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._out_of_range(error, patience)
                return
            gone = error.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
            if (gone or isinstance(error, _Short)) and patience.left <= 0:
                text = (
                    error.message if isinstance(error, _Short) else f"{self._where} does not exist any more"
                )
                self._lost(f"{text}, so offsets {self.position} to {self.end - 1} cannot be read")
                self.position = self.end
                return
        try:
            patience.pause(error)
        except ApiError as final:
            raise ApiError(final.code, f"{self._where}, offset {self.position}: {final.message}") from None
        except BrokerUnreachable as final:
            raise ConnectionLost(
                final.address,
                f"{final.reason} (reading {self._where} at offset {self.position}, "
                f"tried for {self.options.timeout:g} s)",
                final.advice,
            ) from None

    def _out_of_range(self, error: ApiError, patience: Patience) -> None:
        span = self._span(patience)
        if self.position < span.start:
            last = min(span.start, self.end) - 1
            self._lost(
                f"{self._where}: offsets {self.position} to {last} were deleted before they were read "
                f"(the partition now starts at {span.start})"
            )
            self.position = last + 1
        elif self.position > span.end:
            # A new leader may for a moment know less than the old one; only patience tells that from a
            # topic that was made anew.
            if patience.left > 0:
                patience.pause(_Short(f"{self._where} ends at offset {span.end}"))
                return
            self._lost(
                f"{self._where} ends at offset {span.end}, before offset {self.position} to be read: "
                "the topic was made anew, or a broker lost its data"
            )
            self.position = self.end
        else:
            patience.pause(
                _Short(error.message)
            )  # the broker and its answer about the span disagree: ask again

    def _span(self, patience: Patience) -> Span:
        while True:
            try:
                return spans(self.wire, self.topic, [self.partition])[self.partition]
            except (ApiError, BrokerUnreachable) as error:
                patience.pause(error)

    def _short(self, data: PartitionData) -> _Short:
        known = data.last_stable_offset if self.options.read_committed else data.high_watermark
        return _Short(f"{self._where} ends at offset {known} and no more came in {self.options.timeout:g} s")

    def _lost(self, text: str) -> None:
        if self.options.fail_on_data_loss:
            raise DataLost(
                f"{text}. To go on with what is left, set failOnDataLoss to false; "
                "to lose nothing next time, keep records longer (retention.ms, retention.bytes)."
            )
        log.warning("%s; going on, since failOnDataLoss is false", text)


class _Short(ApiError):
    """The log ends before the range does; may pass when a new leader has caught up."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.OFFSET_NOT_AVAILABLE, message)


class _Bodies:
    """The batches of one answer that are wanted, opened chunk by chunk."""

    def __init__(self, where: str, records: Any, start: int) -> None:
        self._where = where
        self._data, self._first = _without_view(records)
        self._batches: list[tuple[int, BatchHeader]] = []
        self.start = start
        """The first offset that is wanted."""

    def add(self, place: int, header: BatchHeader) -> None:
        self._batches.append((self._first + place, header))

    def chunks(self) -> Iterator[tuple[bytes | bytearray, list[BatchBody]]]:
        """Some batches at a time and the bytes their records stand in, up to CHUNK_BYTES if possible.

        Without compression these are the bytes of the answer itself.
        """
        if not any(header.compression for _, header in self._batches):
            if self._batches:
                yield (
                    self._data,
                    [BatchBody(h, place + HEADER_SIZE, place + h.size) for place, h in self._batches],
                )
            return
        opened: list[bytes] = []
        bodies: list[BatchBody] = []
        size = 0
        for place, header in self._batches:
            body = self._open(place, header)
            if bodies and size + len(body) > CHUNK_BYTES:
                yield b"".join(opened), bodies
                opened, bodies, size = [], [], 0
            bodies.append(BatchBody(header, size, size + len(body)))
            opened.append(body)
            size += len(body)
        if bodies:
            yield b"".join(opened), bodies

    def _open(self, place: int, header: BatchHeader) -> bytes:
        with memoryview(self._data)[place + HEADER_SIZE : place + header.size] as body:
            try:
                return decompress(header.compression, body, MAX_OPENED)
            except CompressionError as error:
                codec = header.compression
                name = Codec(codec).label if codec in set(Codec) else f"codec {codec}"
                raise UnreadablePartition(
                    f"{self._where}, batch at offset {header.base_offset} ({name}): {error}"
                ) from None


def _without_view(records: Any) -> tuple[bytes | bytearray, int]:
    """The bytes that a view looks at, and where in them it begins: reading them singly is then faster."""
    whole = getattr(records, "obj", None)
    if not isinstance(whole, bytes | bytearray):
        return bytes(records), 0
    return whole, pa.py_buffer(records).address - pa.py_buffer(whole).address


def _is_abort(batch: Any) -> bool:
    """Whether a control batch ends its transaction by aborting it."""
    try:
        records = decode_batch(batch, max_size=MAX_OPENED)
    except (InvalidRecords, CompressionError):
        return False
    key = records[0].key if records else None
    return key is not None and len(key) >= 4 and bool(_CONTROL_KEY.unpack_from(key)[1] == _ABORT)
