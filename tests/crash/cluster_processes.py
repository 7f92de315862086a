"""Three brokers as processes of their own, `ottla serve` each, with a network between them that can be cut.

A relay (`ottla.testing.network`) stands before each broker's address for clients, and one between every two
brokers in each direction. A broker advertises one address to all others, so a `_Door` accepts there, reads in
the first request which broker is calling, and hands the connection to the relay of that pair. The output of a
broker is kept in a file over all its restarts.
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from broker_process import API_VERSIONS, OTTLA, START_DEADLINE
from ottla.testing.network import HOST, Network
from ottla.testing.ports import ReservedPort

NODES = (1, 2, 3)
_STOP_DEADLINE = 40.0
_HEADER = 14
"""Bytes of a request before its client id: size, API key, version, correlation id, length of the id."""
_FIRST_REQUEST_SECONDS = 10.0


class _Door:
    """Where all other brokers connect to one: leads each through the relay of its own."""

    def __init__(self, relays: Mapping[int, Network]) -> None:
        """`relays` by the id of the broker that connects."""
        self._relays = relays
        self._listener = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="door", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._lead, args=(caller,), name="door-caller", daemon=True).start()

    def _lead(self, caller: socket.socket) -> None:
        caller.settimeout(_FIRST_REQUEST_SECONDS)
        try:
            start = caller.recv(_HEADER + 16, socket.MSG_PEEK)
        except OSError:
            start = b""
        named = re.match(rb"broker-(\d+)", start[_HEADER:])
        if named is None:
            caller.close()
        else:
            self._relays[int(named[1])].join(caller)


class ClusterProcesses:
    """Use it in a `with` statement: all brokers answer when the block begins, and none is left after it."""

    def __init__(
        self, folder: Path, settings: Mapping[str, object] = {}, registry: str | None = None
    ) -> None:
        self._folder = folder
        self._ports = {node: ReservedPort() for node in NODES}
        self._peer_ports = {node: ReservedPort() for node in NODES}
        self.clients = {node: Network(self._ports[node].number) for node in NODES}
        """The relays between clients and brokers."""
        self.links = {(a, b): Network(self._peer_ports[b].number) for a in NODES for b in NODES if a != b}
        """The relays between brokers, by the one that connects and the one that accepts."""
        self._doors = {
            node: _Door({a: relay for (a, b), relay in self.links.items() if b == node}) for node in NODES
        }
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ready_before: dict[int, int] = {}
        self._settings = {
            "ottla.registry": registry or f"sqlite:{folder / 'cluster.sqlite'}",
            "default.replication.factor": 3,
            "offsets.topic.replication.factor": 3,
            "min.insync.replicas": 2,
            **settings,
        }

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(relay.address for relay in self.clients.values())

    @property
    def direct_servers(self) -> str:
        """Addresses that no cut reaches, until a client follows what it is told there."""
        return ",".join(f"{HOST}:{port.number}" for port in self._ports.values())

    def data(self, node: int) -> Path:
        return self._folder / f"broker-{node}"

    def output(self, node: int) -> Path:
        return self._folder / f"broker-{node}.txt"

    # -- life ---------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            for node in NODES:
                self.start(node)
            self.wait_for_answers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in list(self.processes):
            self.kill(node)
        for door in self._doors.values():
            door.close()
        for relay in (*self.links.values(), *self.clients.values()):
            relay.close()
        for port in (*self._ports.values(), *self._peer_ports.values()):
            port.release()

    def command(self, node: int) -> list[str]:
        client, peer = (f"{HOST}:{ports[node].number}" for ports in (self._ports, self._peer_ports))
        settings = {
            **self._settings,
            "node.id": node,
            "log.dirs": self.data(node),
            "listeners": f"PLAINTEXT://{client},INTERNAL://{peer}",
            "advertised.listeners": (
                f"PLAINTEXT://{self.clients[node].address},INTERNAL://{self._doors[node].address}"
            ),
        }
        return [str(OTTLA), "serve", *(f"--set={name}={value}" for name, value in settings.items())]

    def start(self, node: int) -> None:
        """Start a broker, without waiting until it answers."""
        assert node not in self.processes
        self._ready_before[node] = self._times_ready(node)
        with self.output(node).open("ab") as output:
            self.processes[node] = subprocess.Popen(
                self.command(node), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    def kill(self, node: int) -> None:
        process = self.processes.pop(node)
        process.kill()
        process.wait()

    def terminate(self, node: int) -> None:
        """SIGTERM, without waiting for the end."""
        self.processes[node].send_signal(signal.SIGTERM)

    def ended(self, node: int) -> None:
        """The broker that was told to stop has stopped cleanly, or before it had begun."""
        code = self.processes[node].wait(_STOP_DEADLINE)
        del self.processes[node]
        early = code == -signal.SIGTERM and self._times_ready(node) == self._ready_before[node]
        assert code == 0 or early, (
            f"broker {node} ended with exit code {code}:\n{self.output(node).read_text()[-3000:]}"
        )

    def pause(self, node: int) -> None:
        self.processes[node].send_signal(signal.SIGSTOP)

    def resume(self, node: int) -> None:
        self.processes[node].send_signal(signal.SIGCONT)

    def wait_for_answers(self) -> None:
        """Until all brokers that were started take clients."""
        deadline = time.monotonic() + START_DEADLINE
        for node, process in self.processes.items():
            while not self._answers(node):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"broker {node} did not start:\n{self.output(node).read_text()}")
                time.sleep(0.01)

    def _times_ready(self, node: int) -> int:
        output = self.output(node)
        return output.read_bytes().count(b" is ready on ") if output.exists() else 0

    def _answers(self, node: int) -> bool:
        try:
            with socket.create_connection((HOST, self._ports[node].number), 1) as sock:
                sock.settimeout(5)
                sock.sendall(API_VERSIONS)
                return len(sock.recv(4)) == 4
        except OSError:
            return False
