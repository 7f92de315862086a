"""The checker of transactions can fail: bugs put back on purpose are found, as the anomalies that they cause.

Which seed finds one changes with every change of the code, so they are looked for at length, and slowly, from
the seed on that found it last.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ottla.coordinator.offsets import Offsets
from ottla.coordinator.records import OffsetCommitKey, OffsetCommitValue
from ottla.protocol.batches import NO_PRODUCER_ID
from ottla.storage.log import Log
from simulation.transactions import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

MOST_SEEDS = 60


def violation_found(
    *kinds: str, first: int, settings: Mapping[str, object] = {}, all_late: bool = False
) -> str:
    """What the first seed found that found something, with faults of these kinds."""
    for seed in range(first, first + MOST_SEEDS):
        report = run(seed, kinds=kinds, seconds=30, settings=settings, all_late=all_late)
        if report.violation:
            print(report)
            return report.violation
    return ""


def test_a_late_end_without_an_epoch_for_each_transaction_ends_another_one() -> None:
    """KAFKA-17754, which Jepsen found: what remains possible with the first protocol."""
    found = violation_found("reset", "slow", first=10, all_late=True)
    assert any(kind in found for kind in ("aborted read", "lost write", "torn transaction")), found


def test_late_records_without_verification_hang_or_join_another_transaction() -> None:
    """KIP-890, part 1: a batch that comes after the end of its transaction begins one that nobody ends."""
    found = violation_found(
        "pause",
        "slow",
        "cut",
        first=30,
        settings={"transaction.partition.verification.enable": "false"},
    )
    assert any(kind in found for kind in ("stuck", "aborted read", "stable")), found


def test_a_fetch_beyond_the_last_stable_offset_reads_open_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Log, "last_stable_offset", lambda self, high_watermark: high_watermark)
    found = violation_found("reset", first=1)
    assert "intermediate read" in found or "aborted read" in found, found


def test_a_fetch_without_the_aborted_transactions_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "aborted_in", lambda self, offset, records, *, wait: [])
    assert "aborted read" in violation_found("reset", first=1)


def test_offsets_that_count_before_their_transaction_ends_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = Offsets.replay

    def replay_at_once(
        self: Offsets, offset: int, producer_id: int, key: OffsetCommitKey, value: OffsetCommitValue | None
    ) -> None:
        replay(self, offset, NO_PRODUCER_ID, key, value)

    monkeypatch.setattr(Offsets, "replay", replay_at_once)
    assert "offset read" in violation_found("reset", first=1)


def test_offsets_that_are_told_while_a_transaction_is_pending_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member that goes on at the offsets before a decided transaction transforms its records again."""
    monkeypatch.setattr(Offsets, "pending_of", lambda self, group_id: frozenset())
    found = violation_found("kill", "expire", "slow", first=40)
    assert "offset read" in found or "transformed twice" in found, found
