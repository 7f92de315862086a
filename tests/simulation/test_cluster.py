"""A simulated cluster keeps its promises under faults of machines, disks, links and the registry."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from ottla.broker.handlers.fetch import fetch
from simulation.cluster import SECONDS, run
from simulation.other_processes import run_many_seeds, trace_of
from simulation.running import little_garbage

FIRST_SEED = int(os.environ.get("OTTLA_SIMULATION_SEED", "1"))
QUICK_SEEDS = 50
QUICK_SECONDS = 15.0

FOUND_DEFECTS: list[int] = []
"""Seeds that found something once."""


@pytest.fixture(scope="module", autouse=True)
def _little_garbage() -> Iterator[None]:
    with little_garbage():
        yield


@pytest.mark.parametrize("seed", [*range(FIRST_SEED, FIRST_SEED + QUICK_SEEDS), *FOUND_DEFECTS])
def test_promises_hold_under_faults(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an even seed idle partitions rest in the sessions of followers, which else takes many of them."""
    if seed % 2 == 0:
        monkeypatch.setattr(sys.modules[fetch.__module__], "MANY_OF_FOLLOWER", 1)
    report = run(seed, seconds=SECONDS if seed in FOUND_DEFECTS else QUICK_SECONDS)
    assert not report.violation, f"{report}\n{report.log}"
    assert sum(report.faults.values()) >= 3
    assert report.acknowledged > 20


def test_the_same_seed_gives_the_same_run_in_another_process() -> None:
    """Byte for byte, whatever the order of sets and the addresses of objects are."""
    assert run(7, seconds=6).trace == trace_of("cluster", "7, seconds=6")


@pytest.mark.slow
@pytest.mark.timeout(10_800)
def test_promises_hold_for_many_seeds() -> None:
    run_many_seeds("cluster", 1000)
