"""A network in memory that can delay, cut one way or both, and reset; all from one seed.

A cut direction holds bytes back, as TCP does while it sends again, and they arrive when the cut is mended. A
connection attempt into a cut fails after `CONNECT_TIMEOUT`.
"""

from __future__ import annotations

import contextvars
import errno
import itertools
import socket
from collections.abc import Callable
from random import Random
from typing import cast

from ottla.testing.simulation.loop import SimulatedLoop
from ottla.testing.simulation.sockets import (
    Address,
    Pipe,
    ReadableFile,
    SimulatedListener,
    SimulatedSocket,
    error,
)
from ottla.testing.simulation.virtual_time import Host

CONNECT_TIMEOUT = 5.0


class SimulatedNetwork:
    """All hosts and the links between them. Hosts are known by name, which is also their address."""

    def __init__(
        self, loop: SimulatedLoop, rng: Random, *, delay: tuple[float, float] = (0.0001, 0.002)
    ) -> None:
        self.loop = loop
        self.context = contextvars.Context()
        """Deliveries belong to the network, not to the host that sent."""
        self._rng = rng
        self._delay = delay
        self._slow: dict[tuple[str, str], float] = {}
        self._cut: set[tuple[str, str]] = set()
        self._fds = itertools.count(1_000_000)  # far from the descriptors of the process
        self._ports = itertools.count(40_000)
        self._sockets: dict[int, SimulatedSocket | SimulatedListener] = {}
        self._listeners: dict[Address, SimulatedListener] = {}
        self.on_delivery: Callable[[Host, Host, bytes], None] | None = None
        """Called with every piece of bytes that arrives."""
        loop.use(self)

    # -- what programs use ----------------------------------------------------------------------------

    def listen(self, host: Host, address: Address, backlog: int = 128) -> SimulatedListener:
        """A listening socket; port 0 picks a free one. EADDRINUSE when another socket listens there."""
        name, port = address
        port = port or next(self._ports)
        if (name, port) in self._listeners:
            raise error(errno.EADDRINUSE)
        listener = SimulatedListener(self, host, (name, port), backlog)
        self._listeners[name, port] = listener
        self._sockets[listener.fileno()] = listener
        return listener

    def socket(self, host: Host) -> SimulatedSocket:
        """A socket that is to be connected."""
        return self._add(SimulatedSocket(self, host))

    # -- faults ---------------------------------------------------------------------------------------

    def cut(self, sender: Host, receiver: Host, *, both: bool = True) -> None:
        """From now on nothing passes from one host to the other; with `both`, nor back."""
        self._cut.add((sender.name, receiver.name))
        if both:
            self._cut.add((receiver.name, sender.name))

    def mend(self, one: Host | None = None, other: Host | None = None) -> None:
        """Join what was cut: all of it, or between two hosts."""
        if one is None or other is None:
            self._cut.clear()
        else:
            self._cut -= {(one.name, other.name), (other.name, one.name)}
        for pipe in self._pipes():
            if not self.is_cut(pipe.sender, pipe.receiver):
                pipe.mend()

    def slow_down(self, sender: Host, receiver: Host, seconds: float) -> None:
        """Add a delay to everything that one host sends to the other; 0 takes it back."""
        self._slow[sender.name, receiver.name] = seconds

    def speed_up(self) -> None:
        """Take back all delays of `slow_down`."""
        self._slow.clear()

    def reset(self, one: Host, other: Host | None = None) -> None:
        """Break off the connections of a host: all, or those to another one."""
        for each in list(self._sockets.values()):
            peers = each.peers if isinstance(each, SimulatedSocket) else None
            if isinstance(each, SimulatedSocket) and peers and one in peers and other in (None, *peers):
                each.break_off()

    def crash(self, host: Host) -> None:
        """The host is gone: its listeners close, peers of its connections get a reset."""
        for fd, each in list(self._sockets.items()):
            if isinstance(each, SimulatedListener) and each.host is host:
                each.close()
            elif isinstance(each, SimulatedSocket) and each.host is host:
                each.break_off()
                self._sockets.pop(fd, None)
                self.loop.forget(fd)

    def resume(self, host: Host) -> None:
        """A paused host goes on: it sees what came in meanwhile."""
        for fd, each in self._sockets.items():
            if each.host is host:
                self.loop.touch(fd)

    def is_cut(self, sender: Host, receiver: Host) -> bool:
        return bool(self._cut) and (sender.name, receiver.name) in self._cut

    # -- for sockets and the loop ---------------------------------------------------------------------

    def events(self, fd: int) -> int:
        found = self._sockets.get(fd)
        return found.events if found is not None and found.host.runs else 0

    def next_fd(self) -> int:
        return next(self._fds)

    def delay(self, sender: Host, receiver: Host) -> float:
        shortest, longest = self._delay
        slow = self._slow.get((sender.name, receiver.name), 0.0) if self._slow else 0.0
        return slow + shortest + (longest - shortest) * self._rng.random()

    def portion(self, count: int) -> int:
        """How many of `count` bytes go at once: mostly all, sometimes a part, as with a kernel's sockets."""
        if count > 1 and self._rng.random() < 0.02:
            return self._rng.randint(1, count)
        return count

    def closed(self, fd: int) -> None:
        self._sockets.pop(fd, None)

    def stop_listening(self, address: Address) -> None:
        self._listeners.pop(address, None)

    def connect(self, client: SimulatedSocket, address: Address) -> None:
        due = self.loop.time() + self.delay(client.host, client.host)
        self.loop.call_at(due, self._connect, client, address, context=self.context)

    def _connect(self, client: SimulatedSocket, address: Address) -> None:
        listener = self._listeners.get(address)
        if listener is None:
            client.fail_to_connect(errno.ECONNREFUSED)
            return
        if self.is_cut(client.host, listener.host) or self.is_cut(listener.host, client.host):
            due = self.loop.time() + CONNECT_TIMEOUT
            self.loop.call_at(due, client.fail_to_connect, errno.ETIMEDOUT, context=self.context)
            return
        server = self._add(SimulatedSocket(self, listener.host))
        there, back = Pipe(self, client, server), Pipe(self, server, client)
        local = (client.host.name, next(self._ports))
        server.join(address, local, back, there)
        if not listener.offer(server):
            client.fail_to_connect(errno.ECONNREFUSED)
            return
        client.join(local, address, there, back)

    def _add(self, one: SimulatedSocket) -> SimulatedSocket:
        self._sockets[one.fileno()] = one
        return one

    def _pipes(self) -> list[Pipe]:
        found: dict[int, Pipe] = {}
        for each in self._sockets.values():
            if isinstance(each, SimulatedSocket):
                found.update((id(pipe), pipe) for pipe in each.pipes)
        return list(found.values())


class SimulatedConnector:
    """Where the programs of one host get their connected sockets from."""

    def __init__(self, network: SimulatedNetwork, host: Host) -> None:
        self._network = network
        self._host = host

    async def connect(self, address: Address) -> SimulatedSocket:
        sock = self._network.socket(self._host)
        try:
            # asyncio asks for a socket of the operating system, and uses of it what this one offers too.
            await self._network.loop.sock_connect(cast("socket.socket", sock), address)
        except BaseException:
            sock.close()
            raise
        return sock


class SimulatedSockets:
    """The sockets of the servers of one host (the port of `ottla.broker.sockets`)."""

    def __init__(self, network: SimulatedNetwork, host: Host) -> None:
        self._network = network
        self._host = host

    def listen(
        self, host: str, port: int, backlog: int, *, receive_buffer: int, send_buffer: int
    ) -> SimulatedListener:
        return self._network.listen(self._host, (host, port), backlog)

    def send_file(self, sock: SimulatedSocket, file: ReadableFile, position: int, length: int) -> int:
        return sock.sendfile(file, position, length)
