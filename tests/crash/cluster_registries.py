"""The registry of a cluster of processes, with what can go wrong with it.

`SqliteFile` is the file that all brokers of one machine share: another process may hold its lock.
`ZooKeepers` are one server or an ensemble; each broker reaches each server through a relay of its own, which
can be cut, and the servers can be killed and paused.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from ottla.testing.network import Network
from zookeeper_server import ZooKeeperServer

NODES = (1, 2, 3)
_LOCK_SECONDS = 60.0


class RegistryUnderTest(Protocol):
    @property
    def kinds(self) -> tuple[str, ...]:
        """What can happen to it."""
        ...

    def url(self, node: int) -> str:
        """As a broker is told it."""
        ...

    def begin(self, kind: str, node: int) -> Callable[[], None]:
        """Does it to a broker, or to the server with this number; what is returned mends it."""
        ...

    def close(self) -> None: ...


class SqliteFile:
    kinds = ("lock registry",)

    def __init__(self, file: Path) -> None:
        self._file = file

    def url(self, node: int) -> str:
        return f"sqlite:{self._file}"

    def begin(self, kind: str, node: int) -> Callable[[], None]:
        """A backup or a person in a shell holds the lock: no broker can write, and all can read."""
        assert kind in self.kinds, kind
        connection = sqlite3.connect(self._file, timeout=_LOCK_SECONDS, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        return connection.close

    def close(self) -> None:
        pass


class ZooKeepers:
    kinds = ("cut registry", "restart registry", "pause registry")

    def __init__(self, servers: Sequence[ZooKeeperServer], root: str) -> None:
        """`root` keeps clusters apart."""
        self._servers = servers
        self._root = root
        self._links = {node: [Network(server.port) for server in servers] for node in NODES}

    def url(self, node: int) -> str:
        return f"zookeeper://{','.join(link.address for link in self._links[node])}/{self._root}"

    def begin(self, kind: str, node: int) -> Callable[[], None]:
        server = self._servers[node % len(self._servers)]
        match kind:
            case "cut registry":
                for link in self._links[node]:
                    link.cut()

                def mend() -> None:
                    for link in self._links[node]:
                        link.mend()

                return mend
            case "restart registry":
                server.stop()
                return server.start
            case "pause registry":
                server.pause()
                return server.resume
            case _:
                raise ValueError(kind)

    def close(self) -> None:
        for links in self._links.values():
            for link in links:
                link.close()
