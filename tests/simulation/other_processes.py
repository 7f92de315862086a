"""Simulated runs in processes of their own, for the tests of all simulations."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
_ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS)])}


def trace_of(simulation: str, arguments: str) -> str:
    """The trace of `run(arguments)`, the same in two processes that order their sets differently."""
    program = f"from simulation.{simulation} import run; print(run({arguments}).trace)"
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**_ENVIRONMENT, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=200,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }
    assert len(traces) == 1, traces
    return traces.pop()


def run_many_seeds(simulation: str, count: int) -> None:
    """The command of `make simulate`; fails when a run does, with the end of what it printed."""
    result = subprocess.run(
        [sys.executable, "-m", f"simulation.{simulation}", "--seeds", str(count), "--first", "1000", "--log"],
        cwd=TESTS,
        env=_ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    print(result.stdout[-20_000:])
    assert result.returncode == 0, result.stdout[-5000:]
