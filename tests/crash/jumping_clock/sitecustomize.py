"""A wall clock that a test sets, for a broker in a process of its own.

Python imports a module of this name before everything else. The clock by which spans are measured runs on, as
it does when a person or a time server sets the clock of a machine. libfaketime does the same for any program,
but makes `time.sleep` of Python 3.11 fail or take too long.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_FILE = Path(os.environ["OTTLA_TEST_CLOCK"])
_LOOK_SECONDS = 0.1

_true_time_ns = time.time_ns
_looked_at = float("-inf")
_wrong_ns = 0


def _time_ns() -> int:
    global _looked_at, _wrong_ns
    now = time.monotonic()
    if now - _looked_at >= _LOOK_SECONDS:
        _looked_at = now
        _wrong_ns = int(_FILE.read_text()) * 1_000_000_000
    return _true_time_ns() + _wrong_ns


def _time() -> float:
    return _time_ns() / 1_000_000_000


time.time_ns = _time_ns
time.time = _time
