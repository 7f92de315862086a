"""A simulated broker keeps its promises under crashes, losses of power and a bad network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.single_broker import run

FIRST_SEED = int(os.environ.get("OTTLA_SIMULATION_SEED", "1"))
TESTS = Path(__file__).parent.parent


FOUND_DEFECTS = [156, 522, 562]
"""Seeds that found something once."""


@pytest.mark.parametrize("seed", [*range(FIRST_SEED, FIRST_SEED + 12), *FOUND_DEFECTS])
def test_promises_hold_under_faults(seed: int) -> None:
    report = run(seed)
    assert not report.violation, f"{report}\n{report.log}"
    assert report.requests > 1000
    assert report.crashes >= 2
    assert report.acknowledged > 200
    assert report.commits > 10


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 6))
def test_promises_hold_on_a_disk_that_is_slow_at_times(seed: int) -> None:
    report = run(seed, slow_disk=True)
    assert not report.violation, f"{report}\n{report.log}"
    assert report.acknowledged > 100


def test_the_same_seed_gives_the_same_run_in_another_process() -> None:
    """Byte for byte, whatever the order of sets and the addresses of objects are."""
    program = "from simulation.single_broker import run; print(run(7).trace)"
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
    assert run(7).trace == traces.pop().strip()
    assert run(8).trace != run(7).trace


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_promises_hold_for_many_seeds() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "simulation.single_broker", "--seeds", "500", "--first", "1000", "--log"],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS)])},
        capture_output=True,
        text=True,
        check=False,
    )
    print(result.stdout[-20_000:])
    assert result.returncode == 0, result.stdout[-5000:]
