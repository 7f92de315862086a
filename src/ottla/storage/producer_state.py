"""What a partition remembers of each producer, so that no record enters the log twice or out of order.

An idempotent producer has an id and an epoch and numbers its records per partition. For each producer the
partition keeps the epoch, the last sequence, and sequence range and offset of the last five batches:

* a batch that is one of those five is a retry, and is answered with the offsets it got the first time;
* a batch that does not follow the last one is refused (OUT_OF_ORDER_SEQUENCE_NUMBER);
* a batch of an older epoch comes from a producer that has been replaced (INVALID_PRODUCER_EPOCH);
* the first batch of a producer that is not known may have any sequence: its earlier ones may have been
  deleted with their segments.

Any client can invent producer ids, so a partition remembers only so many (`limit`): beyond it the producers
that have been silent for longest are forgotten. They can go on; only a retry of theirs is not known as one.

Producers that write transactions also have an offset where their open transaction began. The smallest of
these is where readers of committed data must stop. A control batch ends the transaction of its producer.

The state is pure: it is changed by appends and, after a restart, by the newest snapshot and a replay of the
batches behind it. Snapshots are Kafka's `.snapshot` files, version 1. Kafka writes only the last batch of
each producer into them, so that a producer with five requests in flight can be refused after a restart; we
add the older four behind the part that Kafka reads (its reader checks the CRC over all and stops early).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nsmallest
from operator import attrgetter
from struct import Struct, error
from typing import NamedTuple

from crc32c import crc32c

from ottla.protocol.batches import CONTROL, NO_SEQUENCE, TRANSACTIONAL, BatchHeader
from ottla.protocol.errors import ApiError, ErrorCode

WINDOW = 5
DEFAULT_LIMIT = 10_000
_FORGOTTEN_SHARE = 8  # beyond the limit one part in so many is forgotten at once, which keeps it cheap
_NO_EPOCH = -1
_LAST_SEQUENCE = 0x7FFFFFFF

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


class EndOfTransaction(NamedTuple):
    """A transaction that a control batch ended."""

    producer_id: int
    first_offset: int
    marker_offset: int
    aborted: bool


class ControlRecord(NamedTuple):
    """What the one record of a control batch says."""

    is_commit: bool
    coordinator_epoch: int


class ProducerStates:
    """All producers of one partition."""

    __slots__ = ("_by_id", "_finished", "_open", "_partition", "limit")

    def __init__(self, partition: str, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self._partition = partition
        self._by_id: dict[int, ProducerState] = {}
        self._open: dict[int, int] = {}  # producer id -> first offset of its open transaction
        # Ended, but readers may not pass before the marker itself is below the high watermark.
        self._finished: list[EndOfTransaction] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, producer_id: int) -> ProducerState | None:
        return self._by_id.get(producer_id)

    @property
    def active(self) -> list[ProducerState]:
        return list(self._by_id.values())

    # -- checks before an append ---------------------------------------------------------------------

    def check(
        self, batches: Iterable[tuple[int, int, BatchHeader]], *, from_client: bool
    ) -> BatchRange | None:
        """Raise ApiError unless the batches of one append follow what their producers wrote before.

        Returns the remembered range when a batch is a retry: then nothing of the append is to be written.
        """
        pending: dict[int, tuple[int, int]] | None = None  # within one append: id -> epoch, last sequence
        for _, base_offset, header in batches:
            producer_id = header.producer_id
            if producer_id < 0:
                continue
            state = self._by_id.get(producer_id)
            epoch, sequence = header.producer_epoch, header.base_sequence
            last_sequence = (sequence + header.last_offset_delta) & _LAST_SEQUENCE
            if pending is not None and producer_id in pending:
                known_epoch, known_sequence = pending[producer_id]
                self._check_sequence(header, base_offset, known_epoch, known_sequence, from_client)
            elif state is not None:
                is_next = sequence == (state.last_sequence + 1) & _LAST_SEQUENCE
                if from_client and state.epoch == epoch and not is_next:
                    for known in state.batches:
                        if known.first_sequence == sequence and known.last_sequence == last_sequence:
                            return known
                self._check_sequence(header, base_offset, state.epoch, state.last_sequence, from_client)
                if state.transaction_start >= 0 and not header.attributes & (TRANSACTIONAL | CONTROL):
                    raise ApiError(
                        ErrorCode.INVALID_TXN_STATE,
                        f"{self._partition}: producer {producer_id} has an open transaction and sent a batch "
                        "outside of it",
                    )
            if pending is None:
                pending = {}
            pending[producer_id] = (epoch, last_sequence)
        return None

    def _check_sequence(
        self, header: BatchHeader, base_offset: int, known_epoch: int, known_sequence: int, from_client: bool
    ) -> None:
        epoch, sequence = header.producer_epoch, header.base_sequence
        if epoch < known_epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"{self._partition}: producer {header.producer_id} writes with epoch {epoch}, but epoch "
                f"{known_epoch} has already written: it has been replaced",
            )
        if not from_client:
            return
        if epoch != known_epoch:
            if sequence != 0:
                raise ApiError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"{self._partition}: producer {header.producer_id} begins epoch {epoch} with sequence "
                    f"{sequence} instead of 0",
                )
        elif sequence != (known_sequence + 1) & _LAST_SEQUENCE:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{self._partition}: producer {header.producer_id} sent sequence {sequence} for offset "
                f"{base_offset} after {known_sequence}",
            )

    # -- changes, by appends and by replay -----------------------------------------------------------

    def update(
        self, header: BatchHeader, base_offset: int, now_ms: int, control: ControlRecord | None = None
    ) -> EndOfTransaction | None:
        """Note a batch that is in the log. A control batch comes with its one record opened."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        state = self._by_id.get(producer_id)
        if state is None:
            if len(self._by_id) >= self.limit:
                self.forget_idle(self.limit - 1 - self.limit // _FORGOTTEN_SHARE)
            state = self._by_id[producer_id] = ProducerState(producer_id)
        if state.epoch != epoch:
            state.epoch = epoch
            state.batches = []
        state.last_seen_ms = now_ms
        state.last_timestamp = header.max_timestamp
        if header.attributes & CONTROL:
            return self._end_transaction(state, base_offset, control) if control is not None else None
        batches = state.batches
        if len(batches) == WINDOW:
            del batches[0]
        delta, sequence = header.last_offset_delta, header.base_sequence
        last_sequence = (sequence + delta) & _LAST_SEQUENCE if sequence >= 0 else NO_SEQUENCE
        batches.append(
            BatchRange(sequence, last_sequence, base_offset, base_offset + delta, header.max_timestamp)
        )
        if header.attributes & TRANSACTIONAL and state.transaction_start < 0:
            state.transaction_start = base_offset
            self._open[producer_id] = base_offset
        return None

    def _end_transaction(
        self, state: ProducerState, offset: int, control: ControlRecord
    ) -> EndOfTransaction | None:
        state.coordinator_epoch = control.coordinator_epoch
        if state.transaction_start < 0:
            return None
        ended = EndOfTransaction(state.producer_id, state.transaction_start, offset, not control.is_commit)
        state.transaction_start = -1
        self._open.pop(state.producer_id, None)
        self._finished.append(ended)
        return ended

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that wrote nothing for `expiration_ms`; how many they were."""
        limit = now_ms - expiration_ms
        gone = [
            s.producer_id for s in self._by_id.values() if s.last_seen_ms <= limit and s.transaction_start < 0
        ]
        for producer_id in gone:
            del self._by_id[producer_id]
        return len(gone)

    def forget_idle(self, keep: int) -> int:
        """Forget those that have been silent for longest until `keep` are left; how many they were.

        Those seen in the same millisecond, as all are that a start has read from disk, go in the order of
        their last batches in the log. A producer with an open transaction is never forgotten: its records
        would never be decided on.
        """
        surplus = len(self._by_id) - max(keep, 0)
        if surplus <= 0:
            return 0
        idle = [state for state in self._by_id.values() if state.transaction_start < 0]
        gone = nsmallest(surplus, idle, key=attrgetter("last_seen_ms", "last_offset"))
        for state in gone:
            del self._by_id[state.producer_id]
        return len(gone)

    def clear(self) -> None:
        self._by_id.clear()
        self._open.clear()
        self._finished.clear()

    # -- transactions --------------------------------------------------------------------------------

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """The first offset that readers of committed data may not see yet, None when all is decided."""
        if not self._open and not self._finished:
            return None
        if self._finished:
            self._finished = [ended for ended in self._finished if ended.marker_offset >= high_watermark]
        return min([*self._open.values(), *(ended.first_offset for ended in self._finished)], default=None)

    # -- snapshots -----------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The state as a snapshot file."""
        parts = [_COUNT.pack(len(self._by_id))]
        older: list[bytes] = []
        for state in self._by_id.values():
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

    def load(self, data: bytes, now_ms: int) -> None:
        """Replace the state by that of a snapshot file. CorruptSnapshot, and no change, if damaged."""
        states = decode_snapshot(data)
        self.clear()
        for state in states:
            state.last_seen_ms = now_ms
            self._by_id[state.producer_id] = state
            if state.transaction_start >= 0:
                self._open[state.producer_id] = state.transaction_start


def fair_limit(counts: Sequence[int], most: int) -> int | None:
    """How many producers each partition may keep so that all together are `most`; None when they are fewer.

    Partitions with few of them lose none for the sake of those with many.
    """
    left = most
    if sum(counts) <= most:
        return None
    ascending = sorted(counts)
    for index, count in enumerate(ascending):
        share = left // (len(ascending) - index)
        if count > share:
            return share
        left -= count
    return None


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
    first_sequence = (last_sequence - delta) & _LAST_SEQUENCE if last_sequence >= 0 else NO_SEQUENCE
    return BatchRange(first_sequence, last_sequence, last_offset - delta, last_offset, timestamp)
