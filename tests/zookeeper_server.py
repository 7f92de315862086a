"""A real ZooKeeper for tests: Debian's package, started as plain processes, one or an ensemble of three."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Self

from kazoo.client import KazooClient

CLASSES = "/etc/zookeeper/conf:/usr/share/java/*"
SESSION_SECONDS = 10.0
"""Long enough for a busy machine."""
_TICK_MS = 500
_START_SECONDS = 60.0


class ZooKeeperServer:
    """`stop` and `start` keep the data and the port; `pause` and `resume` make it hang."""

    def __init__(self, folder: Path, number: int = 0, ensemble: Mapping[int, str] = {}) -> None:
        """`ensemble`: the addresses of its servers for each other, by their numbers."""
        self.folder = folder
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "zoo.cfg").write_text(
            f"tickTime={_TICK_MS}\ndataDir={folder}/data\nclientPortAddress=127.0.0.1\n"
            f"clientPort={self.port}\nadmin.enableServer=false\n4lw.commands.whitelist=ruok,srvr\n"
            "maxClientCnxns=0\ninitLimit=20\nsyncLimit=10\n"
            + "".join(f"server.{each}={address}\n" for each, address in ensemble.items())
        )
        if ensemble:
            (folder / "data").mkdir()
            (folder / "data" / "myid").write_text(f"{number}\n")

    def start(self) -> None:
        self.launch()
        self.wait_until(lambda: self._ask(b"ruok") == b"imok")

    def launch(self) -> None:
        """Start it without waiting."""
        java = shutil.which("java")
        assert java and Path("/usr/share/java/zookeeper.jar").exists(), "run: apt-get install zookeeper"
        command = [java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", CLASSES]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self.folder / "zoo.cfg")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def wait_until(self, true: Callable[[], bool]) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while not true():
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

    @property
    def mode(self) -> str:
        """`standalone`, `leader` or `follower`; empty while it serves nobody."""
        _, _, rest = self._ask(b"srvr").partition(b"Mode: ")
        return rest.partition(b"\n")[0].decode()

    def _ask(self, word: bytes) -> bytes:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as sock:
                sock.sendall(word)
                return b"".join(iter(lambda: sock.recv(4096), b""))
        except OSError:
            return b""


class ZooKeeperEnsemble:
    """Three servers, of which two are enough. Use it in a `with` statement."""

    def __init__(self, folder: Path) -> None:
        addresses = {number: f"127.0.0.1:{free_port()}:{free_port()}" for number in (1, 2, 3)}
        self.servers = []
        for number in addresses:
            (folder / f"zookeeper-{number}").mkdir(parents=True)
            self.servers.append(ZooKeeperServer(folder / f"zookeeper-{number}", number, addresses))

    def __enter__(self) -> Self:
        try:
            for server in self.servers:
                server.launch()
            for server in self.servers:
                server.wait_until(lambda server=server: bool(server.mode))  # type: ignore[misc]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.stop()

    @property
    def leader(self) -> ZooKeeperServer | None:
        """The server that leads; None while they elect."""
        return next((server for server in self.servers if server.mode == "leader"), None)


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
