"""Transactions on a simulated cluster show no anomaly under faults, zombies, late and doubled requests."""

from __future__ import annotations

import os

import pytest

from effort import examples
from simulation.other_processes import run_many_seeds, trace_of
from simulation.transactions import run

FIRST_SEED = int(os.environ.get("OTTLA_SIMULATION_SEED", "1"))

FOUND_DEFECTS: list[int] = []
"""Seeds that found something once."""


@pytest.mark.parametrize("seed", [*range(FIRST_SEED, FIRST_SEED + examples(4, 6)), *FOUND_DEFECTS])
def test_no_anomaly_is_seen_under_faults(seed: int) -> None:
    report = run(seed, seconds=25)
    assert not report.violation, f"{report}\n{report.log}"
    assert report.outcomes["committed"] > 20
    assert report.transformed > 2
    assert report.late > 10


def test_the_same_seed_gives_the_same_run_in_another_process() -> None:
    """Byte for byte, whatever the order of sets and the addresses of objects are."""
    assert trace_of("transactions", "7, seconds=8")


@pytest.mark.slow
@pytest.mark.timeout(21_600)
def test_no_anomaly_is_seen_for_many_seeds() -> None:
    run_many_seeds("transactions", 1000)
