"""Writing to a topic: records collected into batches, one batch per partition and request.

    with Wire("127.0.0.1:9092") as wire, Producer(wire, "payments") as producer:
        producer.add(b"key", b"value")

Memory stays bounded: `add` sends by itself when a batch or the whole buffer is full, `flush` sends what is
left. At most one batch per partition is on its way, so a retry cannot put records out of order, and with
acks=all the batches carry a producer id and sequence numbers, so a retry cannot write them twice either.
A batch the broker finds too large is halved until it fits; a single record that is too large is `Rejected`,
like everything else the broker refuses for good.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from ottla.protocol.compression import Codec
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.metadata import MetadataResponseTopic
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records import Record, encode_batch
from ottla.protocol.schema import ZERO_UUID
from ottla.protocol_client.partitioner import Partitioner
from ottla.protocol_client.wire import BrokerUnreachable, Patience, Pending, UnsupportedByBroker, Wire, check

ALL = -1
"""acks: the record is on every in-sync replica."""

_LAST_VERSION_WITH_NAMES = 12
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_RECORD_OVERHEAD = 16  # an upper guess for lengths and deltas around a record

Headers = Sequence[tuple[str, bytes | None]]


class Rejected(ApiError):
    """The broker refused records for good. `number` is the first of them, counting from 1 as added."""

    def __init__(self, error: ApiError, partition: int, number: int, count: int) -> None:
        super().__init__(error.code, error.message)
        self.partition = partition
        self.number = number
        self.count = count


@dataclass(slots=True)
class _Batch:
    """Records of one partition, growing until it is sealed, then the same bytes until it is acknowledged."""

    partition: int
    records: list[Record] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    size: int = 0
    encoded: bytearray | None = None


class Producer:
    """Writes records to one topic. Use as a context manager: leaving it without an error flushes."""

    def __init__(
        self,
        wire: Wire,
        topic: str,
        *,
        acks: int = ALL,
        codec: Codec = Codec.NONE,
        level: int | None = None,
        create: bool = True,
        batch_bytes: int = 512 << 10,
        buffer_bytes: int = 4 << 20,
        timeout: float = 30.0,
    ) -> None:
        self.wire = wire
        self.topic = topic
        self.acks = acks
        self.codec = codec
        self.level = level
        self.batch_bytes = batch_bytes
        self.buffer_bytes = buffer_bytes
        self.timeout = timeout
        self.added = 0
        self.acknowledged = 0
        self.bytes_acknowledged = 0
        """Bytes of keys, values and headers that are safe."""
        self.offsets: dict[int, tuple[int, int]] = {}
        """First and last offset written, per partition; empty with acks=0."""
        self._learn(wire.topic(topic, create=create, patience=5.0 if create else 0.0))
        count = max(self._partitions) + 1
        usable = sorted(p for p, leader in self._partitions.items() if leader >= 0)
        self._partitioner = Partitioner(count, usable, start=time.time_ns() // 1000)
        self._producer_id, self._epoch = self._init_producer_id() if acks == ALL else (-1, -1)
        self._sequences: dict[int, int] = {}
        self._growing: dict[int, _Batch] = {}
        self._sealed: deque[_Batch] = deque()
        self._buffered = 0

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.flush()

    @property
    def partition_count(self) -> int:
        return self._partitioner.partition_count

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> None:
        """Take one record; sends when enough have come together. `timestamp` in ms, None is now."""
        size = _RECORD_OVERHEAD + (len(key) if key else 0) + (len(value) if value else 0)
        for name, header in headers:
            size += 2 + len(name) + (len(header) if header else 0)
        if partition is None:
            partition = self._partitioner.choose(key, size)
        elif not 0 <= partition < self.partition_count:
            last = self.partition_count - 1
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {self.topic!r} has no partition {partition}, only "
                + ("0" if last == 0 else f"0 to {last}"),
            )
        batch = self._growing.get(partition)
        if batch is not None and batch.size + size > self.batch_bytes:
            self._sealed.append(self._growing.pop(partition))
            batch = None
        if batch is None:
            batch = self._growing[partition] = _Batch(partition)
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        self.added += 1
        batch.records.append(Record(len(batch.records), timestamp, key, value, list(headers)))
        batch.numbers.append(self.added)
        batch.size += size
        self._buffered += size
        if self._buffered >= self.buffer_bytes:
            self.flush()
        elif self._sealed:
            self._send_sealed()

    def flush(self) -> None:
        """Send all that is buffered and wait for the acknowledgements."""
        self._sealed.extend(self._growing.values())
        self._growing.clear()
        self._send_sealed()

    def _send_sealed(self) -> None:
        patience = Patience(self.timeout)
        while self._sealed:
            before = self.acknowledged
            trouble = self._round()
            if trouble is not None:
                if self.acknowledged > before:
                    patience = Patience(self.timeout)
                patience.pause(trouble)
                self._refresh(patience)

    def _round(self) -> ApiError | BrokerUnreachable | None:
        """One batch per partition to the leaders, and their answers. Returns an error that may pass.

        Batches that were not acknowledged go back to the front of the queue in their old order.
        """
        chosen: dict[int, _Batch] = {}
        rest: deque[_Batch] = deque()
        for batch in self._sealed:
            if chosen.setdefault(batch.partition, batch) is not batch:
                rest.append(batch)
        self._sealed = rest
        unsent = dict(chosen)
        trouble: ApiError | BrokerUnreachable | None = None
        try:
            by_leader: dict[int, list[_Batch]] = {}
            for batch in chosen.values():
                by_leader.setdefault(self._partitions.get(batch.partition, -1), []).append(batch)
            sent: list[tuple[Pending, list[_Batch]]] = []
            for leader, batches in by_leader.items():
                if leader < 0:
                    trouble = ApiError(ErrorCode.LEADER_NOT_AVAILABLE, self._leaderless(batches))
                    continue
                try:
                    sent.append((self._send(leader, batches), batches))
                except BrokerUnreachable as error:
                    trouble = error
            for pending, batches in sent:
                try:
                    response: ProduceResponse | None = self.wire.receive(pending)
                except BrokerUnreachable as error:
                    trouble = error
                    continue
                if response is None:  # acks=0
                    for batch in batches:
                        self._done(unsent.pop(batch.partition), -1)
                    continue
                for answer in (a for t in response.responses for a in t.partition_responses):
                    trouble = self._settle(unsent.pop(answer.index), answer) or trouble
                if any(batch.partition in unsent for batch in batches):
                    trouble = ApiError(
                        ErrorCode.NETWORK_EXCEPTION, "the broker answered for some partitions only"
                    )
        finally:
            self._sealed.extendleft(reversed(unsent.values()))
        return trouble

    def _send(self, leader: int, batches: list[_Batch]) -> Pending:
        for batch in batches:
            if batch.encoded is None:
                batch.encoded = self._encode(batch)
        data = [PartitionProduceData(index=b.partition, records=b.encoded) for b in batches]
        request = ProduceRequest(
            acks=self.acks,
            timeout_ms=int(self.timeout * 1000),
            topic_data=[TopicProduceData(name=self.topic, topic_id=self._topic_id, partition_data=data)],
        )
        at_most = _LAST_VERSION_WITH_NAMES if self._topic_id == ZERO_UUID else None
        version = self.wire.connection(leader).version_for(ProduceRequest, at_most)
        return self.wire.send(request, version, leader)

    def _encode(self, batch: _Batch) -> bytearray:
        return encode_batch(
            batch.records,
            codec=self.codec,
            level=self.level,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=self._sequences.get(batch.partition, 0) if self._producer_id >= 0 else -1,
        )

    def _settle(self, batch: _Batch, answer: PartitionProduceResponse) -> ApiError | None:
        """Act on a leader's answer. Returns an error after which the batch, queued again, may succeed."""
        try:
            check(answer.error_code, _message(answer))
        except ApiError as error:
            if error.code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:  # an earlier try arrived after all
                self._done(batch, -1)
                return None
            if error.code in _TOO_LARGE and len(batch.records) > 1:
                self._sealed.extendleft(reversed(_halves(batch)))
                return None
            if error.code.retriable:
                self._sealed.appendleft(batch)
                return error
            raise Rejected(error, batch.partition, batch.numbers[0], len(batch.records)) from None
        self._done(batch, answer.base_offset)
        return None

    def _done(self, batch: _Batch, base_offset: int) -> None:
        count = len(batch.records)
        self.acknowledged += count
        self._buffered -= batch.size
        self.bytes_acknowledged += batch.size - count * _RECORD_OVERHEAD
        self._sequences[batch.partition] = (self._sequences.get(batch.partition, 0) + count) & 0x7FFFFFFF
        if base_offset >= 0:
            first = self.offsets.get(batch.partition, (base_offset, 0))[0]
            self.offsets[batch.partition] = (first, base_offset + count - 1)

    def _learn(self, topic: MetadataResponseTopic) -> None:
        self._topic_id = topic.topic_id
        self._partitions = {p.partition_index: p.leader_id for p in topic.partitions}

    def _refresh(self, patience: Patience) -> None:
        try:
            self._learn(self.wire.topic(self.topic, patience=max(patience.left, 0.0)))
        except BrokerUnreachable as error:
            patience.pause(error)

    def _leaderless(self, batches: list[_Batch]) -> str:
        names = ", ".join(str(b.partition) for b in batches)
        return f"no leader for partition {names} of topic {self.topic!r}; its brokers may be down"

    def _init_producer_id(self) -> tuple[int, int]:
        patience = Patience(self.timeout)
        while True:
            try:
                answer: InitProducerIdResponse = self.wire.call(InitProducerIdRequest(transactional_id=None))
                check(answer.error_code)
                return answer.producer_id, answer.producer_epoch
            except UnsupportedByBroker:  # an old or small broker: retries may then write a batch twice
                return -1, -1
            except (ApiError, BrokerUnreachable) as error:
                patience.pause(error)


def _message(answer: PartitionProduceResponse) -> str | None:
    for wrong in answer.record_errors:
        if wrong.batch_index_error_message:
            return wrong.batch_index_error_message
    return answer.error_message


def _halves(batch: _Batch) -> list[_Batch]:
    middle = len(batch.records) // 2
    parts = []
    for start, stop in ((0, middle), (middle, len(batch.records))):
        records = [r._replace(offset=i) for i, r in enumerate(batch.records[start:stop])]
        share = batch.size * len(records) // len(batch.records)
        parts.append(_Batch(batch.partition, records, batch.numbers[start:stop], share))
    parts[1].size = batch.size - parts[0].size
    return parts
