"""A process that Spark started ends with it, whatever it waits for; another process does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHILD = """
import time
from ottla.pipeline.topics.source import end_with_spark
end_with_spark()
end_with_spark()
print("watching", flush=True)
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
@pytest.mark.parametrize("of_spark", [True, False])
def test_a_process_started_by_spark_ends_with_it(of_spark: bool) -> None:
    environment = {**os.environ, "PYTHON_WORKER_FACTORY_PORT": "1"} if of_spark else dict(os.environ)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert is_there(child)
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + (20 if of_spark else 2.5)
        while is_there(child) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert is_there(child) is not of_spark
    finally:
        parent.stdout.close()
        if is_there(child):
            os.kill(child, signal.SIGKILL)
