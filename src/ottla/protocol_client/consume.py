"""Reading a topic by assignment: no group, no commits, just offsets.

    consumer = Consumer(wire, "payments", start={0: 17})
    for partition, records in consumer.chunks():
        ...

A chunk is the records of one batch, so memory stays at one fetch response and one opened batch, however long
the topic is. Every leader has one fetch on its way at any time, and whichever answers first is read first.
The reader stops at `stop` when it is given and otherwise waits for more, for ever. Leaders that move and
brokers that go away for a while are waited for; what retention removes before it is read is
skipped and reported through `notice`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from struct import Struct

from ottla.protocol.batches import BatchHeader, crc_matches
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.messages.metadata import MetadataResponseTopic
from ottla.protocol.records import CompressionError, InvalidRecords, Record, decode_batch
from ottla.protocol.schema import ZERO_UUID
from ottla.protocol_client.fetched_batches import WrongOffsets, in_order
from ottla.protocol_client.offsets import leaders, spans
from ottla.protocol_client.wire import BrokerUnreachable, ConnectionLost, Patience, Pending, Wire, check

MAX_OPENED = 256 << 20
"""A batch that holds more than this when decompressed is refused."""

_LAST_VERSION_WITH_NAMES = 12
_CONTROL_KEY = Struct(">hh")
_ABORT = 0


class Consumer:
    """Reads partitions of one topic from given offsets on."""

    def __init__(
        self,
        wire: Wire,
        topic: str,
        start: Mapping[int, int],
        stop: Mapping[int, int] | None = None,
        *,
        read_committed: bool = False,
        max_bytes: int = 8 << 20,
        partition_max_bytes: int = 1 << 20,
        max_wait: float = 0.5,
        timeout: float = 30.0,
        notice: Callable[[str], None] = lambda text: None,
        between: Callable[[], None] = lambda: None,
        skip: Callable[[str], None] | None = None,
    ) -> None:
        """`between` is called before each round of fetches, when all records so far have been taken.

        A broker stores batches unopened, so one may come as it was written and hold records that cannot be
        read. That is an error (`UnreadableBatch`); with `skip` it is reported there, and reading goes on.
        """
        self.wire = wire
        self.topic = topic
        self.positions = dict(start)
        """The next offset to read, per partition."""
        self.stop = None if stop is None else dict(stop)
        self.read_committed = read_committed
        self.max_bytes = max_bytes
        self.partition_max_bytes = partition_max_bytes
        self.max_wait = max_wait
        self.timeout = timeout
        self.notice = notice
        self.between = between
        self.skip = skip
        self._metadata: MetadataResponseTopic | None = None
        self._in_flight: dict[int, Pending] = {}

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        """Each record with its partition."""
        for partition, records in self.chunks():
            for record in records:
                yield partition, record

    def chunks(self) -> Iterator[tuple[int, list[Record]]]:
        """The records batch by batch, in offset order within a partition. Ends when `stop` is reached."""
        patience = Patience(self.timeout)
        troubled = False
        while self._unfinished():
            self.between()
            try:
                self._send_fetches()
                for response in self._answers():
                    failed: ApiError | None = None
                    for data in (d for t in response.responses for d in t.partitions):
                        try:
                            check(data.error_code)
                        except ApiError as error:
                            failed = self._faced(error, data.partition_index) or failed
                            continue
                        yield from self._chunks_of(data)
                    if failed is not None:
                        raise failed
                    patience, troubled = Patience(self.timeout), False
            except (ApiError, BrokerUnreachable) as error:
                if not troubled and isinstance(error, BrokerUnreachable):
                    self.notice(f"{error}; trying again for {self.timeout:g} s")
                self._metadata, troubled = None, True
                patience.pause(error)

    def done(self, partition: int, next_offset: int) -> None:
        """Overridden where a group keeps the position: see GroupConsumer."""

    def _unfinished(self) -> list[int]:
        if self.stop is None:
            return list(self.positions)
        return [p for p, offset in self.positions.items() if offset < self.stop[p]]

    def _send_fetches(self) -> None:
        """One fetch to each leader that has none under way."""
        if self._metadata is None:
            self._metadata = self.wire.topic(self.topic, patience=self.timeout)
        topic_id = self._metadata.topic_id
        at_most = _LAST_VERSION_WITH_NAMES if topic_id == ZERO_UUID else None
        for leader, partitions in leaders(self._metadata, self._unfinished()).items():
            if leader in self._in_flight:
                continue
            asked = [
                FetchPartition(
                    partition=p, fetch_offset=self.positions[p], partition_max_bytes=self.partition_max_bytes
                )
                for p in partitions
            ]
            request = FetchRequest(
                max_wait_ms=int(self.max_wait * 1000),
                min_bytes=1,
                max_bytes=self.max_bytes,
                isolation_level=int(self.read_committed),
                topics=[FetchTopic(topic=self.topic, topic_id=topic_id, partitions=asked)],
            )
            version = self.wire.connection(leader).version_for(FetchRequest, at_most)
            self._in_flight[leader] = self.wire.send(request, version, leader)

    def _answers(self) -> Iterator[FetchResponse]:
        limit = self.max_wait + self.timeout
        if not self.wire.ready(self._in_flight.values(), limit):
            address = next(iter(self._in_flight.values())).connection.address
            self._drop()
            raise ConnectionLost(address, f"no answer to a fetch within {limit:g} s")
        for pending in self.wire.ready(self._in_flight.values(), 0):
            leader = next(node for node, p in self._in_flight.items() if p is pending)
            del self._in_flight[leader]
            response: FetchResponse = self.wire.receive(pending)
            check(response.error_code)
            yield response

    def _drop(self) -> None:
        for pending in self._in_flight.values():
            pending.connection.close()
        self._in_flight = {}

    def _chunks_of(self, data: PartitionData) -> Iterator[tuple[int, list[Record]]]:
        """The batches of one partition's answer that a reader shall see; moves the position past each."""
        partition = data.partition_index
        records = data.records
        if not records:
            return
        start = self.positions[partition]
        try:
            yield from self._readable(data, records)
        except WrongOffsets as problem:
            where = (
                f"partition {partition} of topic {self.topic!r}, behind offset {self.positions[partition]}"
            )
            raise Damaged(f"{where}: {problem}") from None
        if self.positions[partition] == start:
            raise Damaged(
                f"partition {partition} of topic {self.topic!r}: no whole batch came at offset "
                f"{start} ({len(records)} bytes)"
            )

    def _readable(
        self, data: PartitionData, records: bytes | memoryview
    ) -> Iterator[tuple[int, list[Record]]]:
        partition = data.partition_index
        aborted = sorted((t.first_offset, t.producer_id) for t in data.aborted_transactions or [])
        aborted_producers: set[int] = set()
        for position, header in in_order(records, data.high_watermark):
            while aborted and aborted[0][0] <= header.last_offset:
                aborted_producers.add(aborted.pop(0)[1])
            offset = self.positions[partition]
            if header.next_offset <= offset:
                continue
            self._check(partition, records, position, header)
            self.positions[partition] = header.next_offset
            if header.is_control:
                if self.read_committed and _is_abort(self._open(partition, records, position, header)):
                    aborted_producers.discard(header.producer_id)
                continue
            if header.is_transactional and self.read_committed and header.producer_id in aborted_producers:
                continue
            try:
                opened = self._open(partition, records, position, header)
            except UnreadableBatch as unreadable:
                if self.skip is None:
                    raise
                self.skip(str(unreadable))
                continue
            limit = header.next_offset if self.stop is None else self.stop[partition]
            if header.base_offset < offset or header.next_offset > limit:
                opened = [r for r in opened if offset <= r.offset < limit]
            if opened:
                yield partition, opened

    def _check(self, partition: int, records: memoryview | bytes, position: int, header: BatchHeader) -> None:
        if header.magic == 2 and not crc_matches(records, position, header):
            raise Damaged(f"{self._where(partition, header)}: the checksum is wrong")

    def _open(
        self, partition: int, records: memoryview | bytes, position: int, header: BatchHeader
    ) -> list[Record]:
        try:
            opened = decode_batch(records[position : position + header.size], max_size=MAX_OPENED)
        except (InvalidRecords, CompressionError) as error:
            raise UnreadableBatch(f"{self._where(partition, header)}: {error}") from None
        if opened and not header.base_offset <= opened[0].offset <= opened[-1].offset <= header.last_offset:
            raise UnreadableBatch(
                f"{self._where(partition, header)}: it holds offsets {opened[0].offset} to "
                f"{opened[-1].offset}, but ends with {header.last_offset}"
            )
        return opened

    def _where(self, partition: int, header: BatchHeader) -> str:
        return f"partition {partition} of topic {self.topic!r}, batch at offset {header.base_offset}"

    def _faced(self, error: ApiError, partition: int) -> ApiError | None:
        """Act on a partition's error. None when reading may go on, the error when it is to be tried again."""
        if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
            if not error.code.retriable:
                raise Unreadable(
                    error.code, f"partition {partition} of topic {self.topic!r}: {error.message}"
                )
            return error
        position = self.positions[partition]
        span = spans(self.wire, self.topic, [partition])[partition]
        if position > span.end:
            raise Unreadable(
                error.code,
                f"offset {position} is past the end of partition {partition} of topic {self.topic!r}, "
                f"which holds {span.start} to {span.end}; was the topic made anew?",
            )
        self.notice(
            f"partition {partition}: offsets {position} to {span.start - 1} are deleted, going on after them"
        )
        self.positions[partition] = max(span.start, position)
        return None


class Unreadable(ApiError):
    """A partition cannot be read on; trying again does not help."""


class Damaged(Exception):
    """A batch that cannot be right: its checksum or offset is wrong, or its records are not what it promises.

    The message names the partition and the offset."""


class UnreadableBatch(Damaged):
    """A batch that came whole, as its checksum shows, and holds no records as they should be: its producer
    made it so."""


def _is_abort(records: list[Record]) -> bool:
    key = records[0].key if records else None
    return key is not None and len(key) >= 4 and _CONTROL_KEY.unpack_from(key)[1] == _ABORT
