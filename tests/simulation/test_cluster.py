"""A simulated cluster keeps its promises under faults of machines, disks, links and the registry."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.cluster import run

FIRST_SEED = int(os.environ.get("OTTLA_SIMULATION_SEED", "1"))
TESTS = Path(__file__).parent.parent

FOUND_DEFECTS: list[int] = []
"""Seeds that found something once."""


@pytest.mark.parametrize("seed", [*range(FIRST_SEED, FIRST_SEED + 8), *FOUND_DEFECTS])
def test_promises_hold_under_faults(seed: int) -> None:
    report = run(seed, seconds=40)
    assert not report.violation, f"{report}\n{report.log}"
    assert sum(report.faults.values()) >= 5
    assert report.acknowledged > 20


def test_the_same_seed_gives_the_same_run_in_another_process() -> None:
    """Byte for byte, whatever the order of sets and the addresses of objects are."""
    program = "from simulation.cluster import run; print(run(7, seconds=15).trace)"
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS)]),
                "PYTHONHASHSEED": seed,
            },
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(traces) == 1
    assert run(7, seconds=15).trace == traces.pop().strip()


@pytest.mark.slow
@pytest.mark.timeout(10_800)
def test_promises_hold_for_many_seeds() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "simulation.cluster", "--seeds", "1000", "--first", "1000", "--log"],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS)])},
        capture_output=True,
        text=True,
        check=False,
    )
    print(result.stdout[-20_000:])
    assert result.returncode == 0, result.stdout[-5000:]
