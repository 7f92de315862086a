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
these is where readers of committed data must stop. A control batch, the marker, ends the transaction of its
producer:

* a marker of an older producer epoch comes late (INVALID_PRODUCER_EPOCH). With transaction version 2 it must
  be a newer one than that of the records, so that a late marker can never end a later transaction; only where
  no transaction is open may it be the same, since then it is a retry;
* a marker of an older coordinator epoch is of a coordinator that was replaced
  (TRANSACTION_COORDINATOR_FENCED).

The first batch of a transaction must have been verified with the coordinator (`verification`).

The state is pure: it is changed by appends and, after a restart, by the newest snapshot (`producer_snapshot`)
and a replay of the batches behind it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from operator import attrgetter
from typing import NamedTuple

from ottla.protocol.batches import CONTROL, NO_SEQUENCE, TRANSACTIONAL, BatchHeader
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.storage.producer_snapshot import (
    LAST_SEQUENCE,
    BatchRange,
    ProducerState,
    decode_snapshot,
    encode_snapshot,
)
from ottla.storage.transaction_index import AbortedTransaction
from ottla.storage.verification import UNCHECKED, Verification, VerificationGuard, Verifications

WINDOW = 5
DEFAULT_LIMIT = 10_000
_FORGOTTEN_SHARE = 8  # beyond the limit one part in so many is forgotten at once, which keeps it cheap
_EPOCH_PER_TRANSACTION = 2  # the transaction version from which on each transaction has its own epoch


class EndOfTransaction(NamedTuple):
    """A transaction that a control batch ended."""

    producer_id: int
    first_offset: int
    marker_offset: int
    last_stable_offset: int
    """With the marker replicated."""
    is_aborted: bool

    @property
    def as_aborted(self) -> AbortedTransaction:
        return AbortedTransaction(
            self.producer_id, self.first_offset, self.marker_offset, self.last_stable_offset
        )


class ControlRecord(NamedTuple):
    """What the one record of a control batch says."""

    is_commit: bool
    coordinator_epoch: int


class ProducerStates:
    """All producers of one partition."""

    __slots__ = ("_by_id", "_finished", "_open", "_partition", "_verifications", "limit")

    def __init__(self, partition: str, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self._partition = partition
        self._by_id: dict[int, ProducerState] = {}
        self._verifications = Verifications()
        # Producer id -> first offset of its open transaction, rising. Not a plain dict, whose first item is
        # found slowly when many before it were removed.
        self._open: OrderedDict[int, int] = OrderedDict()
        # Ended, but readers may not pass before the marker itself is below the high watermark. Both offsets
        # rise: one that began later than a transaction whose marker follows holds nobody back.
        self._finished: deque[EndOfTransaction] = deque()

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, producer_id: int) -> ProducerState | None:
        return self._by_id.get(producer_id)

    @property
    def active(self) -> list[ProducerState]:
        return list(self._by_id.values())

    # -- checks before an append ---------------------------------------------------------------------

    def check(
        self,
        batches: Iterable[tuple[int, int, BatchHeader]],
        *,
        from_client: bool,
        verification: VerificationGuard | None = UNCHECKED,
    ) -> BatchRange | None:
        """Raise ApiError unless the batches of one append follow what their producers wrote before.

        Returns the remembered range when a batch is a retry: then nothing of the append is to be written.
        `verification` is the guard under which the first batch of a transaction was verified.
        """
        pending: dict[int, tuple[int, int]] | None = None  # within one append: id -> epoch, last sequence
        for _, base_offset, header in batches:
            producer_id = header.producer_id
            if producer_id < 0:
                continue
            state = self._by_id.get(producer_id)
            epoch, sequence = header.producer_epoch, header.base_sequence
            last_sequence = (sequence + header.last_offset_delta) & LAST_SEQUENCE
            if pending is not None and producer_id in pending:
                known_epoch, known_sequence = pending[producer_id]
                self._check_sequence(header, base_offset, known_epoch, known_sequence, from_client)
            elif state is not None:
                is_next = sequence == (state.last_sequence + 1) & LAST_SEQUENCE
                if from_client and state.epoch == epoch and not is_next:
                    for known in state.batches:
                        if known.first_sequence == sequence and known.last_sequence == last_sequence:
                            self._check_same_transaction(header, state, known)
                            return known
                verified = None
                if verification is not UNCHECKED and header.attributes & TRANSACTIONAL:
                    verified = self._check_verified(header, state, verification)
                self._check_sequence(header, base_offset, state.epoch, state.last_sequence, from_client)
                if verified is not None and from_client:
                    self._check_verified_sequence(header, verified, is_known=bool(state.batches))
                if state.transaction_start >= 0 and not header.attributes & (TRANSACTIONAL | CONTROL):
                    raise ApiError(
                        ErrorCode.INVALID_TXN_STATE,
                        f"{self._partition}: producer {producer_id} has an open transaction and sent a batch "
                        "outside of it",
                    )
            elif verification is not UNCHECKED and header.attributes & TRANSACTIONAL:
                verified = self._check_verified(header, None, verification)
                if verified is not None and from_client:
                    self._check_verified_sequence(header, verified, is_known=False)
            if pending is None:
                pending = {}
            pending[producer_id] = (epoch, last_sequence)
        return None

    def _check_same_transaction(self, header: BatchHeader, state: ProducerState, known: BatchRange) -> None:
        """A batch that repeats one of a transaction which has ended is no retry, and must not count as one.

        librdkafka uses the sequences again of a batch whose outcome it does not know when it aborts, without
        a new epoch. Its next records would be acknowledged as duplicates, and be in no log.
        """
        is_of_open = 0 <= state.transaction_start <= known.first_offset
        if header.attributes & TRANSACTIONAL and not is_of_open:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{self._partition}: producer {header.producer_id} uses sequence {header.base_sequence} "
                f"again, which is at offset {known.first_offset} in a transaction that has ended",
            )

    def _check_verified(
        self, header: BatchHeader, state: ProducerState | None, guard: VerificationGuard | None
    ) -> Verification | None:
        """How this batch, which opens a transaction, was verified; None when it is open here already."""
        if header.attributes & CONTROL:
            return None
        if state is not None and state.transaction_start >= 0 and state.epoch == header.producer_epoch:
            return None
        verification = self._verifications.get(header.producer_id)
        if verification is None or guard is None or verification.guard is not guard:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"{self._partition}: producer {header.producer_id} has no transaction that is known to "
                "include this partition",
            )
        return verification

    def _check_verified_sequence(
        self, header: BatchHeader, verification: Verification, *, is_known: bool
    ) -> None:
        """Of the batches that were sent before the first was verified, the first must come first."""
        sequence = header.base_sequence
        expected = verification.lowest_sequence if is_known or not verification.bumps_epoch else 0
        if sequence > expected:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{self._partition}: producer {header.producer_id} begins a transaction with sequence "
                f"{sequence} instead of {expected}",
            )

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int
    ) -> None:
        """Raise ApiError when a marker with these epochs may not end the transaction of its producer."""
        state = self._by_id.get(producer_id)
        if state is None:
            return
        is_late = epoch < state.epoch
        if transaction_version >= _EPOCH_PER_TRANSACTION and epoch == state.epoch:
            is_late = state.transaction_start >= 0
        if is_late:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"{self._partition}: a marker with epoch {epoch} of producer {producer_id} comes late, "
                f"epoch {state.epoch} has already written",
            )
        if coordinator_epoch < state.coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"{self._partition}: a marker of producer {producer_id} comes from coordinator epoch "
                f"{coordinator_epoch}, which epoch {state.coordinator_epoch} has replaced",
            )

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int, *, bumps_epoch: bool = False
    ) -> VerificationGuard | None:
        """The guard to verify the producer's next batch with; None when its transaction is open here.

        `bumps_epoch`: the client's transactions have an epoch each.
        """
        state = self._by_id.get(producer_id)
        if state is not None and state.transaction_start >= 0 and state.epoch == epoch:
            return None
        return self._verifications.begin(producer_id, epoch, sequence, now_ms, bumps_epoch=bumps_epoch)

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
        elif sequence != (known_sequence + 1) & LAST_SEQUENCE:
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
            self._verifications.end(producer_id)
            return self._end_transaction(state, base_offset, control) if control is not None else None
        batches = state.batches
        if len(batches) == WINDOW:
            del batches[0]
        delta, sequence = header.last_offset_delta, header.base_sequence
        last_sequence = (sequence + delta) & LAST_SEQUENCE if sequence >= 0 else NO_SEQUENCE
        batches.append(
            BatchRange(sequence, last_sequence, base_offset, base_offset + delta, header.max_timestamp)
        )
        if header.attributes & TRANSACTIONAL:
            self._verifications.end(producer_id)
            if state.transaction_start < 0:
                state.transaction_start = base_offset
                self._open[producer_id] = base_offset
        return None

    def _end_transaction(
        self, state: ProducerState, offset: int, control: ControlRecord
    ) -> EndOfTransaction | None:
        state.coordinator_epoch = control.coordinator_epoch
        if state.transaction_start < 0:
            return None
        first_offset, state.transaction_start = state.transaction_start, -1
        self._open.pop(state.producer_id, None)
        stable = next(iter(self._open.values()), offset + 1)
        ended = EndOfTransaction(state.producer_id, first_offset, offset, stable, not control.is_commit)
        while self._finished and self._finished[-1].first_offset > first_offset:
            self._finished.pop()
        self._finished.append(ended)
        return ended

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that wrote nothing for `expiration_ms`; how many they were."""
        limit = now_ms - expiration_ms
        self._verifications.expire(limit)
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
        self._verifications.clear()

    # -- transactions --------------------------------------------------------------------------------

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """The first offset that readers of committed data may not see yet, None when all is decided."""
        if not self._open and not self._finished:
            return None
        if self._finished:
            self.forget_replicated(high_watermark)
        first = next(iter(self._open.values()), None)
        if self._finished and (first is None or self._finished[0].first_offset < first):
            first = self._finished[0].first_offset
        return first

    @property
    def has_unreplicated(self) -> bool:
        """Whether there are ended transactions whose markers were not known to be replicated."""
        return bool(self._finished)

    def forget_replicated(self, high_watermark: int) -> None:
        """Ended transactions hold readers back only until their markers are below the high watermark."""
        finished = self._finished
        while finished and finished[0].marker_offset < high_watermark:
            finished.popleft()

    # -- snapshots -----------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The state as a snapshot file."""
        return encode_snapshot(self._by_id.values())

    def load(self, data: bytes, now_ms: int) -> None:
        """Replace the state by that of a snapshot file. CorruptSnapshot, and no change, if damaged."""
        states = decode_snapshot(data)
        self.clear()
        for state in states:
            state.last_seen_ms = now_ms
            self._by_id[state.producer_id] = state
        opened = [state for state in states if state.transaction_start >= 0]
        for state in sorted(opened, key=attrgetter("transaction_start")):
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
