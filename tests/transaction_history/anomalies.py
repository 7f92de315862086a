"""All that can be wrong with a history. Nothing is, if nobody was promised more than a broker kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from transaction_history.cycles import read_cycles, write_cycles
from transaction_history.group_offsets import offset_reads, transformations
from transaction_history.history import Anomaly, History
from transaction_history.order import nonmonotonic_sends, poll_order, poll_skips
from transaction_history.visibility import (
    aborted_reads,
    duplicate_writes,
    inconsistent_offsets,
    intermediate_reads,
    torn_and_lost,
)


def unstable_ends(history: History) -> Iterator[Anomaly]:
    """Transactions that nobody ends keep readers of committed records from the end of a log."""
    for key, (stable, end) in history.ends.items():
        if stable < end:
            detail = f"{key[0]}-{key[1]} is stable up to {stable} of {end}, though no fault is left"
            yield Anomaly("stuck", detail)


CHECKS: tuple[Callable[[History], Iterator[Anomaly]], ...] = (
    aborted_reads,
    intermediate_reads,
    torn_and_lost,
    duplicate_writes,
    inconsistent_offsets,
    poll_order,
    poll_skips,
    nonmonotonic_sends,
    write_cycles,
    read_cycles,
    offset_reads,
    transformations,
    unstable_ends,
)


def anomalies(history: History) -> list[Anomaly]:
    return [anomaly for check in CHECKS for anomaly in check(history)]
