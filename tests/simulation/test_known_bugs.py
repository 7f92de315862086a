"""The simulation can fail: bugs put back on purpose are found within a few seeds."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.coordinator.offsets import Offsets
from ottla.storage.flushing import Flushing
from ottla.storage.loaded import Loaded
from ottla.storage.producer_state import ProducerStates
from ottla.storage.recovery import Loader
from simulation.single_broker import run

MOST_SEEDS = 12


def violation_found() -> str:
    for seed in range(1, MOST_SEEDS + 1):
        report = run(seed)
        if report.violation:
            print(report)
            return report.violation
    return ""


def test_a_flush_that_syncs_nothing_loses_acknowledged_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flushing, "sync", lambda self, captured: None)
    assert "flushed" in violation_found()


def test_producers_that_are_forgotten_at_a_restart_write_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Loader.load

    def load_without_producers(self: Loader) -> Loaded:
        loaded = load(self)
        loaded.producers.clear()
        return loaded

    monkeypatch.setattr(Loader, "load", load_without_producers)
    assert "twice" in violation_found()


def test_retries_that_are_not_recognised_write_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerStates, "check", lambda self, batches, **how: None)
    assert "twice" in violation_found()


def test_commits_that_are_not_replayed_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = Offsets.replay
    count = 0

    def replay_most(self: Offsets, *arguments: Any) -> None:
        nonlocal count
        count += 1
        if count % 10:
            replay(self, *arguments)

    monkeypatch.setattr(Offsets, "replay", replay_most)
    assert "committed" in violation_found()
