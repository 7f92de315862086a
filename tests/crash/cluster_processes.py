"""Three brokers as processes of their own, `ottla serve` each, with a network between them that can be cut.

A relay (`ottla.testing.network`) stands before each broker's address for clients, and one between every two
brokers in each direction. A broker advertises one address to all others, so a `_Door` accepts there, reads in
the first request which broker is calling, and hands the connection to the relay of that pair. The output of a
broker is kept in a file over all its restarts.

A broker may run another release of Ottla (`sources`), and have a clock of its own (`set_clock`).
"""

from __future__ import annotations

import contextlib
import os
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
from crash.cluster_registries import NODES, RegistryUnderTest, SqliteFile
from ottla.testing.network import HOST, Network
from ottla.testing.ports import ReservedPort

_CLOCK = Path(__file__).with_name("jumping_clock")
_STOP_DEADLINE = 40.0
_NO_REGISTRY = "error: cannot use the registry"
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
        self,
        folder: Path,
        settings: Mapping[str, object] = {},
        registry: RegistryUnderTest | None = None,
        *,
        wrong_clocks: bool = False,
    ) -> None:
        """With `wrong_clocks` the brokers' clocks can be set."""
        self.folder = folder
        self.registry = registry or SqliteFile(folder / "cluster.sqlite")
        self.sources: dict[int, Path] = {}
        """By broker: the folder of the package that it runs from its next start on, if it is not ours."""
        self._wrong_clocks = wrong_clocks
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
        self._stopping: set[int] = set()
        self._output_before: dict[int, int] = {}
        """Bytes of output of the earlier processes."""
        self._settings = {
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
        return self.folder / f"broker-{node}"

    def output(self, node: int) -> Path:
        return self.folder / f"broker-{node}.txt"

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
        self.registry.close()
        for port in (*self._ports.values(), *self._peer_ports.values()):
            port.release()

    def command(self, node: int) -> list[str]:
        client, peer = (f"{HOST}:{ports[node].number}" for ports in (self._ports, self._peer_ports))
        settings = {
            "ottla.registry": self.registry.url(node),
            **self._settings,
            "node.id": node,
            "log.dirs": self.data(node),
            "listeners": f"PLAINTEXT://{client},INTERNAL://{peer}",
            "advertised.listeners": (
                f"PLAINTEXT://{self.clients[node].address},INTERNAL://{self._doors[node].address}"
            ),
        }
        return [str(OTTLA), "serve", *(f"--set={name}={value}" for name, value in settings.items())]

    def environment(self, node: int) -> dict[str, str]:
        environment = dict(os.environ)
        if node in self.sources:
            environment["PYTHONPATH"] = str(self.sources[node])
        if self._wrong_clocks:
            places = [str(_CLOCK), *filter(None, [environment.get("PYTHONPATH")])]
            environment["PYTHONPATH"] = os.pathsep.join(places)
            environment["OTTLA_TEST_CLOCK"] = str(self._clock_file(node))
        return environment

    def start(self, node: int) -> None:
        """Start a broker, without waiting until it answers."""
        assert node not in self.processes
        self._output_before[node] = self.output(node).stat().st_size if self.output(node).exists() else 0
        if self._wrong_clocks and not self._clock_file(node).exists():
            self.set_clock(node, 0)
        with self.output(node).open("ab") as output:
            self.processes[node] = subprocess.Popen(
                self.command(node),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment(node),
            )

    def kill(self, node: int) -> None:
        process = self.processes.pop(node)
        process.kill()
        process.wait()

    def terminate(self, node: int) -> None:
        """SIGTERM, without waiting for the end."""
        self._stopping.add(node)
        self.processes[node].send_signal(signal.SIGTERM)

    def ended(self, node: int) -> None:
        """The broker that was told to stop has stopped cleanly, or before it had begun."""
        code = self.processes[node].wait(_STOP_DEADLINE)
        del self.processes[node]
        self._stopping.discard(node)
        text = self._last_output(node)
        early = " is ready on " not in text and (code == -signal.SIGTERM or _NO_REGISTRY in text)
        assert code == 0 or early, f"broker {node} ended with exit code {code}:\n{text[-3000:]}"

    def start_again(self) -> None:
        """As a service manager does: a broker that could not start without its registry is tried again."""
        for node, process in list(self.processes.items()):
            if node not in self._stopping and process.poll() is not None:
                text = self._last_output(node)
                assert " is ready on " not in text and _NO_REGISTRY in text, (
                    f"broker {node} ended by itself:\n{text[-3000:]}"
                )
                del self.processes[node]
                self.start(node)

    def _last_output(self, node: int) -> str:
        """Of the newest process of this broker."""
        return self.output(node).read_bytes()[self._output_before[node] :].decode(errors="replace")

    def runs(self, node: int) -> bool:
        return node in self.processes and self.processes[node].poll() is None

    def pause(self, node: int) -> None:
        self.processes[node].send_signal(signal.SIGSTOP)

    def resume(self, node: int) -> None:
        self.processes[node].send_signal(signal.SIGCONT)

    def set_clock(self, node: int, seconds: int) -> None:
        """The broker's clock jumps: it is so many seconds ahead of the true time, or behind it."""
        fresh = self._clock_file(node).with_suffix(".new")
        fresh.write_text(str(seconds))
        fresh.replace(self._clock_file(node))

    def _clock_file(self, node: int) -> Path:
        return self.folder / f"clock-{node}"

    def wait_for_answers(self) -> None:
        """Until all brokers that were started take clients."""
        deadline = time.monotonic() + START_DEADLINE
        for node, process in self.processes.items():
            while not self._answers(node):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"broker {node} did not start:\n{self.output(node).read_text()}")
                time.sleep(0.01)

    def _answers(self, node: int) -> bool:
        try:
            with socket.create_connection((HOST, self._ports[node].number), 1) as sock:
                sock.settimeout(5)
                sock.sendall(API_VERSIONS)
                return len(sock.recv(4)) == 4
        except OSError:
            return False
