"""A file system of a few megabytes, to be filled to the last byte."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_file_system(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mounts one at `folder`; where that is not allowed the test is skipped."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"this machine does not let root mount: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        # Lazily, so that nothing stays mounted even if a process that failed to stop holds a file.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
