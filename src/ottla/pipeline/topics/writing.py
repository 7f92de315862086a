"""Writing rows to topics inside a Spark task: Arrow batches in, acknowledged records behind.

`write_rows` is what a task of the sink runs. Each Arrow batch is cut into record batches by `row_batches`
(which partition, in which order, how large) and goes out in waves of at most one batch per partition.
While a wave is on its way the next is encoded; it is sent when the wave before is acknowledged whole, so a
retry cannot put records of a partition out of order. Nothing is reported as written before the
brokers have acknowledged it: with acks=all (the default) that is at least once, and a broker that is asked
twice for the same batch writes it once, since batches carry a producer id and sequence numbers. What is left
are the repeats that Spark itself makes when it runs a task or a micro-batch again. A `Writer` that is given
an identity writes to the transaction of that producer (`exact_writing`), where such repeats are aborted.

Leaders that move and brokers that restart are waited for, `delivery_timeout` seconds without progress at the
most. A batch that a broker finds too large is halved; a single record that is too large is cut if the option
`oversized` says so (`cutting.py`). Otherwise it ends the task, like whatever else a broker refuses for good,
with a `WriteRefused` that names topic, partition and reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ottla.pipeline.topics.arrow_encoding import EncodedRecords, encode_rows, seal
from ottla.pipeline.topics.cutting import Letter, columns_of, letter_of, smaller
from ottla.pipeline.topics.destinations import NoSuchTopic, WriteRefused, find_topic
from ottla.pipeline.topics.links import Link, Producership, TopicPlace, borrowed
from ottla.pipeline.topics.options import SinkOptions
from ottla.pipeline.topics.row_batches import RowBatch, RowBatcher, reopened
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.schema import ZERO_UUID
from ottla.protocol_client.transaction_steps import TransactionalProducer, add_partitions
from ottla.protocol_client.wire import (
    BrokerUnreachable,
    ConnectionLost,
    Patience,
    Pending,
    UnsupportedByBroker,
    check,
)

__all__ = ["NoSuchTopic", "TransactionLost", "WriteRefused", "WriteSummary", "Writer", "write_rows"]

ALL = -1
_LAST_VERSION_WITH_NAMES = 12
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_FORGOTTEN = (ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
_TRANSACTION_LOST = (
    *_FORGOTTEN,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
)
_NOT_PERMITTED = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)

Trouble = ApiError | BrokerUnreachable


class TransactionLost(Exception):
    """The transaction that was written to has ended, or has another producer now; its batch is run again."""


@dataclass(slots=True)
class WriteSummary:
    """What a task has written, all of it acknowledged (with acks=0: sent)."""

    records: int = 0
    bytes: int = 0
    """Size of the record batches, as sent."""
    offsets: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """First and last offset by topic and partition; others may have written in between."""


def write_rows(batches: Iterable[Any], options: SinkOptions) -> WriteSummary:
    """Write the rows of Arrow batches and wait until the brokers have acknowledged them all.

    Columns: value, and if wanted key, headers, topic, partition; others are ignored.
    """
    with borrowed(
        options.bootstrap, options.client_id, options.connect_timeout, options.request_timeout
    ) as link:
        writer = Writer(link, options)
        for batch in batches:
            writer.write(batch)
        return writer.finish()


@dataclass(slots=True)
class _Outgoing:
    """A batch from being encoded to being acknowledged."""

    rows: RowBatch
    records: EncodedRecords
    sequence: int = -1
    sealed: bytes | None = None
    letter: Letter | None = None
    """The record, once it had to be cut."""


class Writer:
    """Writes for one task. Give `producership` to write under an identity that is decided elsewhere."""

    def __init__(self, link: Link, options: SinkOptions, producership: Producership | None = None) -> None:
        self.options = options
        self.summary = WriteSummary()
        self._link = link
        self._codec = Codec[options.compression.upper()]
        self._given = producership is not None
        self._producership = producership
        self._batcher = RowBatcher(
            options.topic,
            self._place,
            min(options.batch_bytes, options.max_request_bytes),
            options.include_timestamp,
        )
        self._wave: list[_Outgoing] = []
        """Batches that are not acknowledged yet, in order."""
        self._in_flight: list[tuple[Pending, list[tuple[TopicPlace, _Outgoing]]]] = []
        self._trouble: Trouble | None = None
        """What went wrong with sending the wave, for `_settle`."""
        self._forgotten = False
        """A broker does not know our producer id any more."""
        self.joined: set[tuple[str, int]] = set()
        """Partitions that are part of the transaction, if there is one."""

    def write(self, batch: Any) -> None:
        """Send the rows of an Arrow batch; returns with the last of them still on their way."""
        for rows, encoded, wave_starts in self._batcher.batches(batch, self._codec):
            self.write_encoded(rows, encoded, wave_starts)

    def write_encoded(
        self, rows: Sequence[RowBatch], encoded: Sequence[EncodedRecords], wave_starts: Sequence[int]
    ) -> None:
        """The same for rows that are encoded already; of each partition at most one batch in a wave."""
        outgoing = [_Outgoing(r, e) for r, e in zip(rows, encoded, strict=True)]
        for start, end in zip(wave_starts, [*wave_starts[1:], len(outgoing)], strict=True):
            self._settle()
            self._wave = outgoing[start:end]
            self._send_first()

    def finish(self) -> WriteSummary:
        """Wait for what is still on its way."""
        self._settle()
        return self.summary

    # Sending

    def _send_first(self) -> None:
        """Put a new wave on the wire; trouble is met when it is settled."""
        if self._producership is None:
            self._producership = self._identity()
        for outgoing in self._wave:
            self._seal(outgoing)
        if self._producership.transactional_id is not None:
            self._join_transaction(self._producership)
        self._trouble = self._transmit()

    def _join_transaction(self, producership: Producership) -> None:
        """Make the partitions of the wave part of the transaction; leaders take no others."""
        new = {(o.rows.topic, o.rows.partition) for o in self._wave} - self.joined
        if not new:
            return
        assert producership.transactional_id is not None
        producer = TransactionalProducer(
            producership.transactional_id, producership.producer_id, producership.epoch
        )
        try:
            add_partitions(self._link.wire, producer, new, self.options.delivery_timeout)
        except ApiError as error:
            if error.code in _TRANSACTION_LOST:
                raise TransactionLost(f"{producer.transactional_id}: {error.message}") from None
            where = ", ".join(sorted({o.rows.where for o in self._wave})[:3])
            if error.code in _NOT_PERMITTED:
                raise WriteRefused(f"{where}: {error.message}") from None
            raise ApiError(error.code, f"{where}: {error.message}") from None
        self.joined |= new

    def _settle(self) -> None:
        """Wait until the wave is acknowledged, sending again what has to be sent again."""
        patience = Patience(self.options.delivery_timeout)
        while self._wave:
            before = self.summary.records
            trouble = self._collect() or self._trouble
            self._trouble = None
            if not self._wave:
                return
            if trouble is not None:
                if self.summary.records > before:
                    patience = Patience(self.options.delivery_timeout)
                self._wait(trouble, patience)
            self._trouble = self._transmit()

    def _transmit(self) -> Trouble | None:
        """Send the first unacknowledged batch of each partition to its leader."""
        assert self._producership is not None
        first: dict[tuple[str, int], _Outgoing] = {}
        for outgoing in self._wave:
            first.setdefault((outgoing.rows.topic, outgoing.rows.partition), outgoing)
        trouble: Trouble | None = None
        by_leader: dict[int, list[tuple[TopicPlace, _Outgoing]]] = {}
        for (topic, partition), outgoing in first.items():
            try:
                place = self._link.topic(topic)
                by_leader.setdefault(place.leader(partition), []).append((place, outgoing))
            except (ApiError, BrokerUnreachable) as error:
                self._link.forget(topic)
                trouble = error
        for leader, chosen in by_leader.items():
            try:
                self._in_flight.append((self._send(leader, chosen), chosen))
            except (ApiError, BrokerUnreachable) as error:
                for place, _ in chosen:
                    self._link.forget(place.name)
                trouble = error
        return trouble

    def _send(self, leader: int, chosen: Sequence[tuple[TopicPlace, _Outgoing]]) -> Pending:
        assert self._producership is not None
        topics: dict[str, TopicProduceData] = {}
        for place, outgoing in chosen:
            topic = topics.setdefault(
                place.name, TopicProduceData(name=place.name, topic_id=place.topic_id, partition_data=[])
            )
            topic.partition_data.append(
                PartitionProduceData(index=outgoing.rows.partition, records=outgoing.sealed)
            )
        request = ProduceRequest(
            transactional_id=self._producership.transactional_id,
            acks=self.options.acks,
            timeout_ms=int(self.options.request_timeout * 1000),
            topic_data=list(topics.values()),
        )
        by_name = any(place.topic_id == ZERO_UUID for place, _ in chosen)
        wire = self._link.wire
        at_most = _LAST_VERSION_WITH_NAMES if by_name else None
        version = wire.connection(leader).version_for(ProduceRequest, at_most)
        return wire.send(request, version, leader)

    def _seal(self, outgoing: _Outgoing) -> None:
        assert self._producership is not None
        identity, rows = self._producership, outgoing.rows
        if outgoing.sequence < 0:
            outgoing.sequence = identity.take(rows.topic, rows.partition, outgoing.records.record_count)
        outgoing.sealed = seal(
            outgoing.records,
            identity.producer_id,
            identity.epoch,
            outgoing.sequence,
            identity.transactional_id is not None,
        )

    # Answers

    def _collect(self) -> Trouble | None:
        """Take the answers to all that was sent. Returns an error after which trying again may help."""
        trouble: Trouble | None = None
        in_flight, self._in_flight = self._in_flight, []
        for pending, sent in in_flight:
            try:
                response: ProduceResponse | None = self._link.wire.receive(pending)
            except BrokerUnreachable as error:
                for place, _ in sent:
                    self._link.forget(place.name)
                trouble = error
                continue
            if response is None:  # acks=0
                for _, outgoing in sent:
                    self._done(outgoing, -1)
                continue
            trouble = self._match(response, sent) or trouble
        if self._forgotten:
            self._begin_anew()
        return trouble

    def _match(
        self, response: ProduceResponse, sent: Sequence[tuple[TopicPlace, _Outgoing]]
    ) -> Trouble | None:
        trouble: Trouble | None = None
        unanswered = {(place.name, outgoing.rows.partition): outgoing for place, outgoing in sent}
        names = {place.topic_id: place.name for place, _ in sent}
        for topic in response.responses:
            name = topic.name or names.get(topic.topic_id, "")
            for answer in topic.partition_responses:
                outgoing = unanswered.pop((name, answer.index), None)
                if outgoing is not None:
                    trouble = self._answered(outgoing, answer) or trouble
        if unanswered:
            trouble = ApiError(ErrorCode.NETWORK_EXCEPTION, "a broker answered for some partitions only")
        return trouble

    def _answered(self, outgoing: _Outgoing, answer: PartitionProduceResponse) -> Trouble | None:
        rows = outgoing.rows
        try:
            check(answer.error_code, _message(answer))
        except ApiError as error:
            if error.code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:  # an earlier try arrived after all
                self._done(outgoing, -1)
                return None
            if error.code in _TOO_LARGE:
                self._halve(outgoing, error)
                return None
            if error.code in _TRANSACTION_LOST and self._given:
                raise TransactionLost(f"{rows.where}: {error.message}") from None
            if error.code in _FORGOTTEN:
                self._forgotten = True
                return ApiError(ErrorCode.NETWORK_EXCEPTION, error.message)
            if error.code.retriable:
                self._link.forget(rows.topic)
                return error
            raise WriteRefused(f"{rows.where}: {error.message}") from None
        self._done(outgoing, answer.base_offset)
        return None

    def _done(self, outgoing: _Outgoing, base_offset: int) -> None:
        count = outgoing.records.record_count
        self.summary.records += count
        self.summary.bytes += len(outgoing.sealed or b"")
        self._wave = [o for o in self._wave if o is not outgoing]
        if base_offset >= 0:
            place = outgoing.rows.topic, outgoing.rows.partition
            first = self.summary.offsets.get(place, (base_offset, 0))[0]
            self.summary.offsets[place] = first, base_offset + count - 1

    def _halve(self, outgoing: _Outgoing, error: ApiError) -> None:
        """Put two batches in the place of one that was too large. Sequences stay as they were given."""
        rows, count = outgoing.rows, outgoing.records.record_count
        if count == 1:
            if self.options.cut_oversized and self._cut(outgoing):
                return
            raise WriteRefused(
                f"{rows.where}: a record of {len(outgoing.records.body)} bytes is too large: {error.message} "
                "The topic's max.message.bytes, or the broker's message.max.bytes, says how large it may be"
            )
        rows = reopened(rows, outgoing.records)
        middle = count // 2
        halves = encode_rows(
            rows.keys,
            rows.values,
            rows.headers,
            [0, middle],
            codec=outgoing.records.codec,
            timestamp=outgoing.records.timestamp,
            times=rows.times,
        )
        parts = [
            _Outgoing(rows.part(0, middle), halves[0], outgoing.sequence),
            _Outgoing(rows.part(middle, count), halves[1], outgoing.sequence),
        ]
        if outgoing.sequence >= 0:
            parts[1].sequence = (outgoing.sequence + middle) & 0x7FFFFFFF
        for part in parts:
            self._seal(part)
        at = next(i for i, o in enumerate(self._wave) if o is outgoing)
        self._wave[at : at + 1] = parts

    def _cut(self, outgoing: _Outgoing) -> bool:
        """Put a smaller record in the place of one that was too large; False when it cannot be smaller."""
        records = outgoing.records
        rows = reopened(outgoing.rows, records)
        letter = smaller(outgoing.letter or letter_of(rows.keys, rows.values, rows.headers))
        if letter is None:
            return False
        (encoded,) = encode_rows(*columns_of(letter), [0], codec=records.codec, timestamp=records.timestamp)
        outgoing.letter, outgoing.records = letter, encoded
        self._seal(outgoing)
        return True

    def _begin_anew(self) -> None:
        """The broker has forgotten our producer (its last records may be deleted): take a new identity.

        All batches before this wave are acknowledged, so a new count of sequences cannot lose or reorder.
        """
        self._forgotten = False
        self._link.producership = None
        self._producership = self._identity()
        for outgoing in self._wave:
            outgoing.sequence = -1
            self._seal(outgoing)

    # Waiting and learning

    def _wait(self, trouble: Trouble, patience: Patience) -> None:
        what = ", ".join(sorted({o.rows.where for o in self._wave})[:3])
        try:
            patience.pause(trouble)
        except ApiError as error:
            raise ApiError(error.code, f"writing to {what}: {error.message}") from None
        except BrokerUnreachable as error:
            raise ConnectionLost(
                error.address,
                f"{error.reason} (writing to {what}, tried for {self.options.delivery_timeout:g} s)",
                error.advice,
            ) from None

    def _place(self, topic: str) -> TopicPlace:
        return find_topic(self._link, topic, self.options.delivery_timeout)

    def _identity(self) -> Producership:
        """The producer id of this worker; a new one when there is none, -1 without idempotence."""
        if not self.options.idempotent or self.options.acks != ALL:
            return Producership()
        if self._link.producership is None:
            patience = Patience(self.options.delivery_timeout)
            while self._link.producership is None:
                try:
                    request = InitProducerIdRequest(transactional_id=None)
                    answer: InitProducerIdResponse = self._link.wire.call(request)
                    check(answer.error_code)
                    self._link.producership = Producership(answer.producer_id, answer.producer_epoch)
                except UnsupportedByBroker:  # a small broker: a retry may then write a batch twice
                    return Producership()
                except (ApiError, BrokerUnreachable) as error:
                    patience.pause(error)
        return self._link.producership


def _message(answer: PartitionProduceResponse) -> str | None:
    for wrong in answer.record_errors:
        if wrong.batch_index_error_message:
            return wrong.batch_index_error_message
    return answer.error_message
