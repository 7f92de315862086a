"""What a command costs: `python -m bench.pipeline.cost COMMAND...` prints seconds and CPU seconds as JSON.

The seconds are those until the command has ended. The CPU seconds are those of all processes that came from
it, and some outlive it for a moment: Spark's JVM ends when the program that started it has. So this process
becomes the parent of orphans, waits for all of them and asks the kernel what its children have used.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time

_SET_CHILD_SUBREAPER = 36


def main(command: list[str]) -> int:
    if ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError("this system does not let a process adopt orphans")
    began = time.monotonic()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    seconds = time.monotonic() - began
    try:
        while True:
            os.wait()
    except ChildProcessError:  # none is left
        used = os.times()
    sys.stderr.write(done.stdout + done.stderr)
    print(json.dumps({"seconds": seconds, "cpu": used.children_user + used.children_system}))
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
