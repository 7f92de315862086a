"""A process that kills itself just before a write to a log, as SIGKILL would at that moment.

Python imports a module of this name before everything else. While the file named by OTTLA_TEST_DEATH is
there, it says how many more writes to files of logs are done.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

_FILE = Path(os.environ["OTTLA_TEST_DEATH"])

_pwrite = os.pwrite
_done = 0


def _pwrite_or_die(fd: int, data: Any, position: int) -> int:
    global _done
    if _FILE.exists() and Path(f"/proc/self/fd/{fd}").readlink().suffix == ".log":
        if _done >= int(_FILE.read_text()):
            os.kill(os.getpid(), signal.SIGKILL)
        _done += 1
    return _pwrite(fd, data, position)


os.pwrite = _pwrite_or_die
