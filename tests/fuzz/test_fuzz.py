"""Runs the fuzz target for some minutes: OTTLA_FUZZ_SECONDS of them in seconds, 120 by default."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = float(os.environ.get("OTTLA_FUZZ_SECONDS", "120"))


def run(seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fuzz.fuzz_frames", "--seconds", str(seconds)],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=seconds + 60,
        check=False,
    )


def test_the_fuzz_target_runs() -> None:
    result = run(1)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "frames:" in result.stdout


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
def test_fuzzing_for_minutes_finds_nothing() -> None:
    result = run(SECONDS)
    assert result.returncode == 0, result.stdout + result.stderr
