"""A real ZooKeeper for tests: Debian's package, started as a plain process, one per test worker."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

CLASSES = "/etc/zookeeper/conf:/usr/share/java/*"
SESSION_SECONDS = 10.0
"""Long enough for a busy machine."""
_TICK_MS = 500
_START_SECONDS = 60.0


class ZooKeeperServer:
    """`stop` and `start` keep the data and the port; `pause` and `resume` make it hang."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "zoo.cfg").write_text(
            f"tickTime={_TICK_MS}\ndataDir={folder}/data\nclientPortAddress=127.0.0.1\n"
            f"clientPort={self.port}\nadmin.enableServer=false\n4lw.commands.whitelist=ruok\n"
            "maxClientCnxns=0\n"
        )

    def start(self) -> None:
        java = shutil.which("java")
        assert java and Path("/usr/share/java/zookeeper.jar").exists(), "run: apt-get install zookeeper"
        command = [java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", CLASSES]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self.folder / "zoo.cfg")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                text = (self.folder / "log").read_text(errors="replace")
                raise AssertionError(f"ZooKeeper did not start:\n{text[-3000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """As kill -9: what it has acknowledged is on disk."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as sock:
                sock.sendall(b"ruok")
                return sock.recv(4) == b"imok"
        except OSError:
            return False


@cache
def shared_server() -> ZooKeeperServer:
    folder = Path(tempfile.mkdtemp(prefix="ottla-zookeeper-"))
    server = ZooKeeperServer(folder)
    server.start()
    return server


def end_shared_server() -> None:
    """Called at the end of the session: a test worker ends without running what `atexit` knows."""
    if shared_server.cache_info().currsize:
        server = shared_server()
        server.stop()
        shutil.rmtree(server.folder, ignore_errors=True)


def drop_without_a_word(client: Any) -> None:
    """End a kazoo client as the death of its process would: the server only misses its heartbeats."""
    client._stopped.set()
    client._connection._socket.shutdown(socket.SHUT_RDWR)


def end_session(hosts: str, client_id: tuple[int, bytes]) -> None:
    """Take over a session and close it: its owner finds it expired."""
    client = KazooClient(hosts, client_id=client_id, timeout=SESSION_SECONDS)
    client.start(timeout=_START_SECONDS)
    client.stop()
    client.close()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
