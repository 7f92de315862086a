"""`make demo`, seen from outside: it tells its story without a terminal, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def processes_of(folder: Path) -> list[int]:
    """Processes that were given the folder, in an argument or in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            known = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except (OSError, PermissionError):
            continue
        if os.fsencode(folder) in known and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found


def wait_until_none(folder: Path) -> None:
    deadline = time.monotonic() + 120
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    # Its own session, as a terminal would give it; an interrupt must come to the demo alone.
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "ottla.examples.news", "demo", str(folder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("number", "moment"),
    [
        pytest.param(signal.SIGINT, "ottla pipeline run", id="before Spark is up"),
        pytest.param(signal.SIGTERM, "normalise: running", id="while the stages run", marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_ends_the_demo_and_all_it_started(
    tmp_path: Path, number: signal.Signals, moment: str
) -> None:
    folder = tmp_path / ".demo"
    process = start(folder)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if moment in line:
                break
        deadline = time.monotonic() + 60
        while len(processes_of(folder)) < 3 and time.monotonic() < deadline:  # itself, broker, pipeline
            time.sleep(0.05)
        assert len(processes_of(folder)) >= 3
        process.send_signal(number)
        told = process.stdout.read()
        assert process.wait(120) == 130, told
        assert "stopped, with all that it started" in told
        # Spark's Python processes end by themselves when they find that their JVM is gone.
        wait_until_none(folder)
    finally:
        for left in processes_of(folder):
            os.kill(left, signal.SIGKILL)
        process.stdout.close()
        process.wait()


def test_a_folder_that_is_not_a_demo_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("irreplaceable")
    process = start(tmp_path)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "name another folder" in told
    assert (tmp_path / "thesis.txt").read_text() == "irreplaceable"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_runs_without_a_terminal(tmp_path: Path) -> None:
    folder = tmp_path / ".demo"
    process = start(folder, "--seconds", "30")
    told, _ = process.communicate(timeout=880)
    assert process.returncode == 0, told
    for part in (
        "What was trending",
        "What to read next",
        "How good it was",
        "In the lake",
        "What to try next",
    ):
        assert part in told
    wait_until_none(folder)
