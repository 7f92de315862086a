"""The listeners: accept clients within the limits, own their connections, and let them go gracefully.

A server has one or more listeners for clients and one for other brokers; each connection knows the name of
its own.

Limits: `max.connections` in all and `max.connections.per.ip` (with overrides) are checked at the door. Other
brokers have a limit of their own: clients that use up all connections cannot cut a broker off from its
cluster. Idle connections are closed after `connections.max.idle.ms`; one that sits on an unfinished frame
while others wait for request memory must go on bringing bytes, 10 KB a second and the whole frame within five
minutes, so that a few slow senders cannot starve the rest.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from ottla.broker.buffers import Lease, RequestMemory, UnsentAnswers
from ottla.broker.client_memory import ClientMemory
from ottla.broker.connection import Answer, Connection
from ottla.broker.page_cache import Done, PageReader
from ottla.broker.sockets import Listener, Socket, Sockets
from ottla.log_lines import ClientLog
from ottla.storage.files import File

logger = logging.getLogger("ottla.server")

_ANSWER_SCRATCH = 64 * 1024
_CRAWL_SECONDS = 5.0
_CRAWL_BYTES_PER_SECOND = 10_000
_CRAWL_LONGEST = 300.0
"""While others wait for memory, a frame has to come whole within so many seconds."""
_SWEEP_SECONDS = 30.0
_SWEEP_CONTENDED_SECONDS = 1.0
_DRAIN_SECONDS = 2.0
_MOST_FROM_BROKERS = 1_000
"""A broker has a handful of connections to another one."""
_ITERATION_ACCEPTS = 64
"""Clients accepted per iteration of the loop, so that many new ones do not stop the connected ones."""

Dispatch = Callable[[Connection, memoryview], Answer]


@dataclass(frozen=True, slots=True)
class _Bound:
    """A listener that is bound to its address."""

    name: str
    for_brokers: bool
    socket: Listener


def _without_pacing(sock: Socket) -> None:
    """For a client on this machine: send what there is at once.

    Where the machine's default is BBR, the kernel spreads every answer over time by a timer, so as not to
    flood a network. Here there is none, and the timers made a fetch cost up to twice the processor time.
    """
    option = getattr(socket, "TCP_CONGESTION", None)  # of Linux
    if option is not None:
        with suppress(OSError):  # reno is in every kernel, but an administrator may have forbidden the choice
            sock.setsockopt(socket.IPPROTO_TCP, option, b"reno")


@dataclass(slots=True)
class Limits:
    """What the server may use. Changed at run time by assigning a new one."""

    max_frame: int = 100 * 1024 * 1024
    max_connections: int = 10_000
    descriptors: int = 10_000
    """What the operating system leaves for connections; none is accepted that would take one from a file."""
    max_connections_per_address: int = 10_000
    address_overrides: dict[str, int] = field(default_factory=dict)
    request_memory: int = 256 * 1024 * 1024
    receive_buffer: int = -1
    send_buffer: int = -1
    """Of the kernel, for each connection; negative ones grow with need. Fixed once the server listens."""
    idle_seconds: float = 600.0


class Server:
    def __init__(
        self, dispatch: Dispatch, limits: Limits, sockets: Sockets, client_memory: ClientMemory
    ) -> None:
        self.dispatch = dispatch
        self.client_memory = client_memory
        self.send_file = sockets.send_file
        self.answer_scratch = memoryview(bytearray(_ANSWER_SCRATCH))
        self.on_read_error: Callable[[], None] = lambda: None
        self.page_reader = PageReader()
        self.memory = RequestMemory(limits.request_memory, now=lambda: self.now())
        self.memory.on_contention = self._sweep_soon
        self._receive_buffer = self.memory.receive_buffer()
        self.scratch = memoryview(self._receive_buffer)
        self.unsent = UnsentAnswers(limits.request_memory)
        self.connections: dict[Connection, None] = {}  # in the order of their coming
        self.client_log = ClientLog()
        self.max_frame = limits.max_frame
        self._limits = limits
        self._sockets = sockets
        self._per_address: Counter[str] = Counter()
        self._from_brokers = 0
        self._listeners: dict[str, _Bound] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._all_closed: asyncio.Event | None = None

    @property
    def limits(self) -> Limits:
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._limits = limits
        self.max_frame = limits.max_frame
        self.memory.limit = self.unsent.limit = limits.request_memory

    # -- life ---------------------------------------------------------------------------------------------

    def listen(
        self, name: str, host: str, port: int, backlog: int, *, for_brokers: bool = False
    ) -> tuple[str, int]:
        """Bind a listener, without accepting yet; returns the address that was bound."""
        limits = self._limits
        listener = self._sockets.listen(
            host, port, backlog, receive_buffer=limits.receive_buffer, send_buffer=limits.send_buffer
        )
        if not self._listeners:
            self.loop = asyncio.get_running_loop()
            self.now = self.loop.time
            self.client_log = ClientLog(self.loop.time, self.loop.call_later)
        self._listeners[name] = _Bound(name, for_brokers, listener)
        bound = listener.getsockname()
        return str(bound[0]), int(bound[1])

    def serve(self, *names: str) -> None:
        """Start to accept on these listeners; on all of them where none is named."""
        for bound in [self._listeners[name] for name in names] or self._listeners.values():
            self.loop.add_reader(bound.socket.fileno(), self._accept, bound)
        if self._sweeper is None:
            self._sweep_later()

    def stop_accepting(self) -> None:
        while self._listeners:
            _, bound = self._listeners.popitem()
            self.loop.remove_reader(bound.socket.fileno())
            # A process forked from this one holds the socket too: closing alone would leave it open.
            with suppress(OSError):  # macOS refuses it for a socket without a peer
                bound.socket.shutdown(socket.SHUT_RDWR)
            bound.socket.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def stop_reading(self) -> None:
        """Accept no client and read no further request; connections go as their last answer is out.

        Frames that wait for memory are not read any more: what a closed connection held is not lent again.
        """
        self.stop_accepting()
        self.memory.refuse_all()
        for connection in list(self.connections):
            connection.drain()

    async def drain(self) -> None:
        """Wait until all responses are sent; a client that does not read its own in time is disconnected."""
        self.stop_reading()
        if self.connections:
            self._all_closed = asyncio.Event()
            try:
                await asyncio.wait_for(self._all_closed.wait(), _DRAIN_SECONDS)
            except TimeoutError:
                logger.warning("%d connections did not finish in time", len(self.connections))
        self.abort()

    def abort(self) -> None:
        """Close everything at once."""
        self.stop_accepting()
        self.memory.refuse_all()
        for connection in list(self.connections):
            connection.close()
        self.client_log.close()
        self.page_reader.close()

    def hand_over_scratch(self, address: str) -> Lease:
        """A request that lies in `scratch` keeps that memory; the next ones are received elsewhere."""
        lease = self.memory.hand_over(self._receive_buffer, address)
        self._receive_buffer = self.memory.receive_buffer()
        self.scratch = memoryview(self._receive_buffer)
        return lease

    def read_ahead(self, file: File, position: int, length: int, done: Done) -> None:
        self.page_reader.read(self.loop, file, position, length, done)

    # -- the door -----------------------------------------------------------------------------------------

    def _accept(self, bound: _Bound) -> None:
        for _ in range(_ITERATION_ACCEPTS):
            try:
                sock, name = bound.socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    logger.error("cannot accept a client: %s; trying again in a second", error)
                    self.loop.remove_reader(bound.socket.fileno())
                    self.loop.call_later(1.0, self._accept_again, bound)
                    return
                raise
            self._admit(bound, sock, str(name[0]), int(name[1]))

    def _accept_again(self, bound: _Bound) -> None:
        if bound.name in self._listeners:
            self.loop.add_reader(bound.socket.fileno(), self._accept, bound)

    def _admit(self, bound: _Bound, sock: Socket, address: str, port: int) -> None:
        refusal = self._brokers_refusal() if bound.for_brokers else self._refusal(address)
        if refusal is not None:
            sock.close()
            self.client_log.warning(logger, address, "refused %s:%d: %s", address, port, refusal)
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sock.getsockname()[0] == address:
            _without_pacing(sock)
        if bound.for_brokers:
            self._from_brokers += 1
        else:
            self._per_address[address] += 1
        connection = Connection(
            self, sock, address, f"{address}:{port}", bound.name, from_broker=bound.for_brokers
        )
        self.connections[connection] = None

    def _refusal(self, address: str) -> str | None:
        """Why one more client is too many; None if it is not."""
        limits = self._limits
        clients = len(self.connections) - self._from_brokers
        if clients >= limits.max_connections:
            return f"{clients} connections (max.connections)"
        if len(self.connections) >= limits.descriptors:
            return f"{len(self.connections)} connections (raise ulimit -n)"
        allowed = limits.address_overrides.get(address, limits.max_connections_per_address)
        if self._per_address[address] >= allowed:
            return f"{allowed} from there (max.connections.per.ip)"
        return None

    def _brokers_refusal(self) -> str | None:
        if self._from_brokers >= min(_MOST_FROM_BROKERS, self._limits.descriptors):
            return f"{self._from_brokers} connections of brokers"
        return None

    def closed(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        if connection.from_broker:
            self._from_brokers -= 1
        else:
            self._per_address[connection.address] -= 1
            if not self._per_address[connection.address]:
                del self._per_address[connection.address]
        if not self.connections and self._all_closed is not None:
            self._all_closed.set()

    # -- the idle -----------------------------------------------------------------------------------------

    def _sweep_later(self) -> None:
        pause = _SWEEP_CONTENDED_SECONDS if self.memory.contended else _SWEEP_SECONDS
        pause = min(max(self._limits.idle_seconds / 4, 0.05), pause)
        self._sweeper = self.loop.call_later(pause, self._sweep)

    def _sweep_soon(self) -> None:
        """A connection begins to wait for memory: check the connections that hold it."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweep_later()

    def _sweep(self) -> None:
        self._sweep_later()
        now = self.now()
        contended = self.memory.contended
        for connection in list(self.connections):
            silent = now - connection.last_active
            if connection.waits:
                continue
            crawls = connection.crawls(_CRAWL_SECONDS, _CRAWL_BYTES_PER_SECOND, _CRAWL_LONGEST)
            if silent > self._limits.idle_seconds:
                logger.debug("closing %r: idle for %.0f s", connection, silent)
                connection.close()
            elif crawls and contended:
                connection.close("its frame comes too slowly while others wait for memory")
