"""A simulated broker keeps its promises under crashes, losses of power and a bad network."""

from __future__ import annotations

import os

import pytest

from effort import examples
from simulation.other_processes import run_many_seeds, trace_of
from simulation.single_broker import run

FIRST_SEED = int(os.environ.get("OTTLA_SIMULATION_SEED", "1"))


FOUND_DEFECTS = [156, 522, 562]
"""Seeds that found something once."""


@pytest.mark.parametrize("seed", [*range(FIRST_SEED, FIRST_SEED + examples(4, 12)), *FOUND_DEFECTS])
def test_promises_hold_under_faults(seed: int) -> None:
    report = run(seed)
    assert not report.violation, f"{report}\n{report.log}"
    assert report.requests > 1000
    assert report.crashes >= 2
    assert report.acknowledged > 200
    assert report.commits > 10


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + examples(2, 6)))
def test_promises_hold_on_a_disk_that_is_slow_at_times(seed: int) -> None:
    report = run(seed, slow_disk=True)
    assert not report.violation, f"{report}\n{report.log}"
    assert report.acknowledged > 100


def test_the_same_seed_gives_the_same_run_in_another_process() -> None:
    """Byte for byte, whatever the order of sets and the addresses of objects are."""
    trace = run(7).trace
    assert trace == trace_of("single_broker", "7")
    assert trace != run(8).trace


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_promises_hold_for_many_seeds() -> None:
    run_many_seeds("single_broker", 500)
