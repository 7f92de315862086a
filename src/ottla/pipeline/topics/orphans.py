"""No process outlives its Spark.

The stream's driver side runs in a Python process that the JVM starts. That process ends when it finds its
connection to the JVM closed, which it does not look at while it waits for a broker: with both gone, it would
go on asking for a minute.
"""

from __future__ import annotations

import os
import threading
import time

_LOOK = 1.0
_OF_SPARK = "PYTHON_WORKER_FACTORY_"
_watching = threading.Lock()


def end_with_spark() -> None:
    """In a process that Spark started: end it soon after its parent has ended. Elsewhere do nothing."""
    if any(name.startswith(_OF_SPARK) for name in os.environ) and _watching.acquire(blocking=False):
        threading.Thread(target=_watch, args=(os.getppid(),), name="ends with Spark", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(0)  # nothing is left that could take an error, or an answer
