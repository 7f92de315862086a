"""A broker as a process of its own: `ottla serve`, started, killed and measured by tests.

What only a real process shows is tested with it: SIGKILL at any moment, SIGTERM, how long a start takes
from the command to the first answer, and how much memory it uses. Its output is kept in a file beside the
data, which is printed when a start fails.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ottla.testing.ports import ReservedPort

OTTLA = Path(sys.executable).with_name("ottla")
START_DEADLINE = 60.0  # a limit for a hanging start on a busy machine; how fast it is, tests check themselves
API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000001 ffff")


class BrokerProcess:
    def __init__(self, folder: Path, settings: Mapping[str, object] = {}) -> None:
        self.data = folder / "data"
        self.output = folder / "output.txt"
        self._port = ReservedPort()
        self.host = self._port.host
        self.port = self._port.number
        self.bootstrap_servers = f"{self.host}:{self.port}"
        self._command = [str(OTTLA), "serve", "--data", str(self.data), "--listen", self.bootstrap_servers]
        for name, value in settings.items():
            self._command += ["--set", f"{name}={value}"]
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> BrokerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._port.release()

    def start(self) -> float:
        """Starts the broker and returns the seconds from the command to its first answer."""
        began = time.monotonic()
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() - began > START_DEADLINE:
                self.kill()
                raise AssertionError(f"the broker did not start:\n{self.output.read_text()}")
            time.sleep(0.002)
        return time.monotonic() - began

    def answers(self) -> bool:
        """True when a client's first request gets an answer."""
        try:
            with socket.create_connection((self.host, self.port), 1) as sock:
                sock.settimeout(5)
                sock.sendall(API_VERSIONS)
                return len(sock.recv(4)) == 4
        except OSError:
            return False

    def kill(self) -> None:
        """SIGKILL, as the kernel does it to a process that uses too much memory."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def terminate(self, patience: float = 20.0) -> int:
        """SIGTERM, as an operator does it; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(patience)
        self.process = None
        return code

    @property
    def resident_bytes(self) -> int:
        """Memory of the broker's own, without the pages of files it has mapped."""
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no RssAnon")

    @property
    def cpu_seconds(self) -> float:
        """Processor time since its start: what a start costs, however busy the machine is."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def open_files(self) -> int:
        assert self.process is not None
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))
