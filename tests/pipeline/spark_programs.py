"""Programs that use Spark, run as processes of their own: what a user's terminal and machine would see."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path


def without_java(folder: Path) -> dict[str, str]:
    """An environment in which no Java of this machine can be found: all other programs stay."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*"):
            link = folder / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    kept = {name: value for name, value in os.environ.items() if "JAVA" not in name}
    return {**kept, "PATH": str(folder)}


@contextmanager
def program(
    code: str, environment: Mapping[str, str] | None = None, *arguments: str
) -> Iterator[subprocess.Popen[str]]:
    """A Python program in a process group of its own, as a shell starts one; killed with the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={"OTTLA_SPARK_ARCHIVE": "use", **(os.environ if environment is None else environment)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        yield process
    finally:
        # Also when the program has ended: it may have been killed and have left children.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def until(condition: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    """Look again until it is so; fails with `what` after a time no sound machine needs."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.02)


def runs(pid: int) -> bool:
    """Whether a process of this id is at work, not only waiting for its parent to look at it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
