"""What compaction does with a whole batch before it looks at keys, and when an emptied batch leaves a header.

The seat for transactions: their rules are another `BatchRules`, which knows the aborted transactions of the
log and answers DISCARD for their data. The pass itself (`job`) does not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Protocol

from ottla.protocol.batches import CONTROL, DELETE_HORIZON, BatchHeader


class Verdict(Enum):
    """What happens to the records of a batch."""

    COMPACT = auto()  # those that are the latest of their keys stay
    KEEP = auto()  # all stay; their keys say nothing about other records
    DISCARD = auto()  # none stays; their keys say nothing about other records


class BatchRules(Protocol):
    def judge(self, header: BatchHeader) -> Verdict:
        """Asked for each batch in the order of offsets, once while keys are noted and once while cleaning."""


class PlainRules:
    """Without transactions: markers stay, everything else is compacted."""

    def judge(self, header: BatchHeader) -> Verdict:
        return Verdict.KEEP if header.attributes & CONTROL else Verdict.COMPACT


def must_leave_header(header: BatchHeader, last_of_producer: Mapping[int, int], end_of_round: int) -> bool:
    """Whether a batch without survivors stays as a header with no records.

    The last batch of a producer that is still known carries its sequence, without which the producer would
    be refused after the state had to be read from the log. The last batch of the round tells where the
    offsets had got to.
    """
    last_offset = header.base_offset + header.last_offset_delta
    if header.producer_id >= 0 and last_of_producer.get(header.producer_id) == last_offset:
        return True
    return last_offset + 1 == end_of_round


def delete_horizon(header: BatchHeader) -> int | None:
    """From when on the tombstones of a batch may go; None while it is not set."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def keeps_tombstones(header: BatchHeader, now_ms: int) -> bool:
    horizon = delete_horizon(header)
    return horizon is None or now_ms < horizon
