"""Sockets in memory, with the unpleasant sides of a kernel's.

A `SimulatedSocket` offers what Ottla and asyncio use of a non-blocking TCP socket: a send may take only a
part, bytes arrive in pieces of another size than they were sent in, a peer that reads nothing stops its
sender, a closed peer is seen as an end of file, a crashed one as a reset. Bytes of one connection keep their
order; nothing is lost unless the connection is. When bytes arrive is up to the network between the sockets.
"""

from __future__ import annotations

import contextvars
import errno
import os
import selectors
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ottla.testing.simulation.loop import SimulatedLoop
from ottla.testing.simulation.virtual_time import Host

if TYPE_CHECKING:
    from typing_extensions import Buffer

BUFFER = 256 * 1024
"""Bytes that one direction of a connection holds, under way and arrived, before its sender must wait."""

Address = tuple[str, int]
_AGAIN = os.strerror(errno.EAGAIN)


class ReadableFile(Protocol):
    def read_at(self, position: int, size: int) -> bytes: ...


class Network(Protocol):
    """What sockets need of the network between them."""

    loop: SimulatedLoop
    context: contextvars.Context
    on_delivery: Callable[[Host, Host, bytes], None] | None

    def next_fd(self) -> int: ...
    def is_cut(self, sender: Host, receiver: Host) -> bool: ...
    def delay(self, sender: Host, receiver: Host) -> float: ...
    def portion(self, count: int) -> int: ...
    def connect(self, client: SimulatedSocket, address: Address) -> None: ...
    def closed(self, fd: int) -> None: ...
    def stop_listening(self, address: Address) -> None: ...


def error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


class Pipe:
    """One direction of a connection: bytes on their way, bytes that arrived, and how it ended."""

    def __init__(self, network: Network, sender: SimulatedSocket, receiver: SimulatedSocket) -> None:
        self._network = network
        self._ends = (sender.fileno(), receiver.fileno())
        self.sender = sender.host
        self.receiver = receiver.host
        self.arrived = bytearray()
        self._under_way: deque[bytes] = deque()
        self._held: deque[bytes] = deque()  # sent into a cut
        self._size = 0
        self._last_arrival = 0.0
        self.ended = False  # the sender has closed and everything has arrived
        self._ending = False
        self.is_reset = False

    @property
    def free(self) -> int:
        return max(BUFFER - self._size, 0)

    def send(self, data: memoryview) -> int:
        if self.is_reset:
            raise error(errno.ECONNRESET)
        count = min(len(data), self.free)
        if not count:
            raise BlockingIOError(errno.EAGAIN, _AGAIN)
        count = self._network.portion(count)
        self._size += count
        self._put(bytes(data[:count]))
        return count

    def receive(self, count: int) -> bytes:
        if self.is_reset:
            raise error(errno.ECONNRESET)
        if not self.arrived:
            if self.ended:
                return b""
            raise BlockingIOError(errno.EAGAIN, _AGAIN)
        data = bytes(self.arrived[:count])
        del self.arrived[: len(data)]
        self._size -= len(data)
        self._network.loop.touch(self._ends[0])
        return data

    def end(self) -> None:
        """The sender closes: an end of file behind all bytes."""
        if not self._ending:
            self._ending = True
            self._put(b"")

    def reset(self) -> None:
        self.is_reset = True
        self._under_way.clear()
        self._held.clear()
        self.arrived.clear()
        for fd in self._ends:
            self._network.loop.touch(fd)

    def mend(self) -> None:
        """The cut is over: what was held back is on its way again."""
        held, self._held = self._held, deque()
        for data in held:
            self._put(data)

    def _put(self, data: bytes) -> None:
        if self._network.is_cut(self.sender, self.receiver):
            self._held.append(data)
            return
        loop = self._network.loop
        # Never before what was sent earlier on this connection, and never at the same moment.
        due = max(loop.time() + self._network.delay(self.sender, self.receiver), self._last_arrival + 1e-7)
        self._last_arrival = due
        self._under_way.append(data)
        loop.call_at(due, self._arrive, context=self._network.context)

    def _arrive(self) -> None:
        if not self._under_way:
            return  # a reset came first
        data = self._under_way.popleft()
        if self._network.is_cut(self.sender, self.receiver):
            self._held.append(data)
            return
        if self._network.on_delivery is not None:
            self._network.on_delivery(self.sender, self.receiver, data)
        if data:
            self.arrived += data
        else:
            self.ended = True
        self._network.loop.touch(self._ends[1])


class SimulatedSocket:
    """One end of a connection."""

    family = socket.AF_UNIX  # no address is to be looked up

    def __init__(self, network: Network, host: Host) -> None:
        self._network = network
        self.host = host
        self._fd = network.next_fd()
        self._local: Address = (host.name, 0)
        self._remote: Address = ("", 0)
        self._out: Pipe | None = None
        self._in: Pipe | None = None
        self._connect_error = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"<simulated socket {self._local} to {self._remote}>"

    # -- as a socket ----------------------------------------------------------------------------------

    def fileno(self) -> int:
        return -1 if self._closed else self._fd

    def setblocking(self, flag: bool) -> None:
        if flag:
            raise NotImplementedError("a simulated socket never blocks")

    def gettimeout(self) -> float:
        return 0.0

    def setsockopt(self, *_: Any) -> None:
        """Options of the kernel mean nothing here."""

    def getsockopt(self, level: int, option: int) -> int:
        if (level, option) == (socket.SOL_SOCKET, socket.SO_ERROR):
            return self._connect_error
        return 0

    def getsockname(self) -> Address:
        return self._local

    def getpeername(self) -> Address:
        return self._remote

    def connect(self, address: Address) -> None:
        """Begin to connect, as a non-blocking socket does; writable when it is done, one way or the other."""
        self._network.connect(self, address)
        raise BlockingIOError(errno.EINPROGRESS, os.strerror(errno.EINPROGRESS))

    def send(self, data: Buffer, flags: int = 0) -> int:
        if self._out is None:
            raise error(self._connect_error or errno.ENOTCONN)
        view = memoryview(data).cast("B")
        if self._in is not None and self._in.is_reset:
            raise error(errno.EPIPE)
        return self._out.send(view) if view else 0

    def recv(self, count: int, flags: int = 0) -> bytes:
        if self._in is None:
            raise error(self._connect_error or errno.ENOTCONN)
        if flags & socket.MSG_PEEK:
            if self._in.is_reset:
                raise error(errno.ECONNRESET)
            if not self._in.arrived and not self._in.ended:
                raise BlockingIOError(errno.EAGAIN, _AGAIN)
            return bytes(self._in.arrived[:count])
        return self._in.receive(count)

    def recv_into(self, buffer: Buffer, nbytes: int = 0, flags: int = 0) -> int:
        view = memoryview(buffer).cast("B")
        if self._in is None:
            raise error(self._connect_error or errno.ENOTCONN)
        data = self._in.receive(self._network.portion(nbytes or len(view)))
        view[: len(data)] = data
        return len(data)

    def sendfile(self, file: ReadableFile, position: int, length: int) -> int:
        """Bytes of a file to the peer; 0 when the file ends before `position`."""
        data = file.read_at(position, min(length, BUFFER))
        return self.send(data) if data else 0

    def shutdown(self, how: int) -> None:
        if self._out is not None and how in (socket.SHUT_WR, socket.SHUT_RDWR):
            self._out.end()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._network.closed(self._fd)
            if self._out is not None:
                self._out.end()

    # -- for the network ------------------------------------------------------------------------------

    def join(self, local: Address, remote: Address, out: Pipe, incoming: Pipe) -> None:
        self._local, self._remote, self._out, self._in = local, remote, out, incoming
        self._network.loop.touch(self._fd)

    def fail_to_connect(self, code: int) -> None:
        self._connect_error = code
        self._network.loop.touch(self._fd)

    def break_off(self) -> None:
        """A reset: both ends get an error at their next call."""
        for pipe in (self._out, self._in):
            if pipe is not None:
                pipe.reset()

    @property
    def peers(self) -> tuple[Host, Host] | None:
        return None if self._out is None else (self._out.sender, self._out.receiver)

    @property
    def events(self) -> int:
        if self._out is None or self._in is None:
            return selectors.EVENT_WRITE if self._connect_error else 0
        if self._in.is_reset or self._out.is_reset:
            return selectors.EVENT_READ | selectors.EVENT_WRITE
        events = 0
        if self._in.arrived or self._in.ended:
            events |= selectors.EVENT_READ
        if self._out.free:
            events |= selectors.EVENT_WRITE
        return events

    @property
    def pipes(self) -> list[Pipe]:
        return [pipe for pipe in (self._out, self._in) if pipe is not None]


class SimulatedListener:
    """A listening socket."""

    def __init__(self, network: Network, host: Host, address: Address, backlog: int) -> None:
        self._network = network
        self.host = host
        self._fd = network.next_fd()
        self._address = address
        self._backlog = backlog
        self._waiting: deque[SimulatedSocket] = deque()
        self._closed = False

    def fileno(self) -> int:
        return -1 if self._closed else self._fd

    def setblocking(self, flag: bool) -> None:
        if flag:
            raise NotImplementedError("a simulated socket never blocks")

    def getsockname(self) -> Address:
        return self._address

    def accept(self) -> tuple[SimulatedSocket, Address]:
        if not self._waiting:
            raise BlockingIOError(errno.EAGAIN, _AGAIN)
        accepted = self._waiting.popleft()
        return accepted, accepted.getpeername()

    def shutdown(self, how: int) -> None:
        """Nothing more comes in; `close` follows."""

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._network.closed(self._fd)
            self._network.stop_listening(self._address)
            for one in self._waiting:
                one.break_off()

    # -- for the network ------------------------------------------------------------------------------

    def offer(self, end: SimulatedSocket) -> bool:
        if len(self._waiting) >= self._backlog:
            return False
        self._waiting.append(end)
        self._network.loop.touch(self._fd)
        return True

    @property
    def events(self) -> int:
        return selectors.EVENT_READ if self._waiting else 0
