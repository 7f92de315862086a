"""What a process and the machine cost, read from the kernel: CPU seconds, memory, and what else was busy.

CPU of a broker is read from its process CPU clock, which is the user + sys of /proc/PID/stat for all its
threads (also the ended ones), but in nanoseconds instead of ticks of 10 ms. Clients read it themselves right
before their first and right after their last request, so that neither their start nor their end is counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_TOUCH_CHUNK = bytes(1 << 20)


def cpu_seconds(pid: int) -> float:
    """CPU seconds used so far by all threads of a process."""
    # The clock id that clock_getcpuclockid(3) gives for a process; Python has no name for it.
    return time.clock_gettime((~pid << 3) | 2)


def user_and_system(pid: int) -> tuple[float, float]:
    """The same as two numbers, in ticks of the kernel (10 ms), from /proc/PID/stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / _TICK, int(fields[12]) / _TICK


def memory_mb(pid: int, field: str = "VmRSS") -> float:
    """Resident memory in MB: `VmRSS` is now, `VmHWM` the highest so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise LookupError(f"no {field} for process {pid}")


class Meter:
    """Wall time and CPU of the brokers between its making and `stop`."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._split = self._user_and_system()
        self._cpu = sum(map(cpu_seconds, pids))
        self._began = time.perf_counter()

    def _user_and_system(self) -> tuple[float, float]:
        users, systems = zip(*map(user_and_system, self._pids), strict=True)
        return sum(users), sum(systems)

    def stop(self) -> dict[str, float]:
        seconds = time.perf_counter() - self._began
        cpu = sum(map(cpu_seconds, self._pids)) - self._cpu
        user, system = self._user_and_system()
        return {
            "seconds": seconds,
            "cpu": cpu,
            "user": user - self._split[0],
            "system": system - self._split[1],
        }


@dataclass(frozen=True)
class MachineTime:
    """Seconds the machine's cores were busy, and seconds the hypervisor gave to others (steal)."""

    at: float
    busy: float
    steal: float

    @classmethod
    def now(cls) -> MachineTime:
        fields = [int(f) / _TICK for f in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        user, nice, system, _idle, _iowait, irq, softirq, steal = fields
        return cls(time.monotonic(), user + nice + system + irq + softirq, steal)


def touch_page_cache(folder: Path, size: int) -> None:
    """Write and delete a file of this size, so that the memory a measured pass will use is there already.

    In a virtual machine the first touch of a page is paid by the process that touches it: writing a GB costs
    ten times the CPU on fresh memory. The host also takes free memory back, so this is done before every
    pass.
    """
    path = folder / "touch"
    try:
        with path.open("wb", buffering=0) as f:
            for _ in range(-(-size // len(_TOUCH_CHUNK))):
                f.write(_TOUCH_CHUNK)
    finally:
        path.unlink(missing_ok=True)
