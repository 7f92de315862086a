"""What compaction does with a whole batch before it looks at keys, and when an emptied batch leaves a header.

Of transactions: the records of an aborted one are removed. A marker stays as long as a batch of its
transaction is left, emptied or not. When none is, the marker gets a delete horizon, as tombstones do, so that
readers in the middle of the transaction still meet it, and goes when that has passed. An aborted transaction
leaves the transaction index when no batch of it was met.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto

from ottla.protocol.batches import CONTROL, DELETE_HORIZON, TRANSACTIONAL, BatchHeader
from ottla.storage.transaction_index import AbortedTransaction
from ottla.storage.transaction_markers import read_control_record


class Verdict(Enum):
    """What happens to the records of a batch."""

    COMPACT = auto()  # those that are the latest of their keys stay
    KEEP = auto()  # all stay; their keys say nothing about other records
    DISCARD = auto()  # none stays; their keys say nothing about other records
    EXPIRE = auto()  # a marker whose transaction has nothing left: it stays until its delete horizon


class TransactionRules:
    """Asked for each batch in the order of offsets. `aborted` are the aborted transactions of the log."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._to_come = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTransaction] = {}  # by producer: the one that goes on here
        self._with_batches: set[int] = set()  # producers of whose present transaction a batch was met
        self._ended: AbortedTransaction | None = None

    def judge(self, header: BatchHeader, batch: memoryview) -> Verdict:
        if not header.attributes & (TRANSACTIONAL | CONTROL):
            return Verdict.COMPACT
        producer_id = header.producer_id
        while self._to_come and self._to_come[-1].first_offset <= header.last_offset:
            begun = self._to_come.pop()
            self._aborted[begun.producer_id] = begun
        if header.attributes & CONTROL:
            return self._judge_marker(header, batch)
        self._with_batches.add(producer_id)
        aborted = self._aborted.get(producer_id)
        if aborted is not None and header.last_offset < aborted.last_offset:
            return Verdict.DISCARD
        return Verdict.COMPACT

    def _judge_marker(self, header: BatchHeader, batch: memoryview) -> Verdict:
        if not header.record_count:
            return Verdict.DISCARD  # emptied by an earlier pass
        marker = read_control_record(batch)
        if marker is None:
            return Verdict.KEEP
        aborted = self._aborted.get(header.producer_id)
        if aborted is not None and aborted.last_offset <= header.base_offset:
            del self._aborted[header.producer_id]
        if header.producer_id not in self._with_batches:
            return Verdict.EXPIRE
        self._with_batches.discard(header.producer_id)
        if not marker.is_commit and aborted is not None and aborted.last_offset == header.base_offset:
            self._ended = aborted
        return Verdict.KEEP

    def take_ended(self) -> AbortedTransaction | None:
        """The aborted transaction that the batch just judged has ended, if its marker stays for that."""
        ended, self._ended = self._ended, None
        return ended


def must_leave_header(
    header: BatchHeader,
    last_of_producer: Mapping[int, int],
    epoch_of_marker: Mapping[int, int],
    end_of_round: int,
) -> bool:
    """Whether a batch without survivors stays as a header with no records.

    The last batch of a producer that is still known carries its sequence, without which the producer would
    be refused after the state had to be read from the log. Where a marker came last, its epoch fences the
    producer. The last batch of the round tells where the offsets had got to.
    """
    producer_id = header.producer_id
    last_offset = header.base_offset + header.last_offset_delta
    if producer_id >= 0 and last_of_producer.get(producer_id) == last_offset:
        return True
    if header.attributes & CONTROL and epoch_of_marker.get(producer_id) == header.producer_epoch:
        return True
    return last_offset + 1 == end_of_round


def delete_horizon(header: BatchHeader) -> int | None:
    """From when on the tombstones of a batch may go; None while it is not set."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def keeps_tombstones(header: BatchHeader, now_ms: int) -> bool:
    horizon = delete_horizon(header)
    return horizon is None or now_ms < horizon
