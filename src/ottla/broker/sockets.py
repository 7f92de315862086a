"""Where a server's sockets come from: the operating system, unless a simulation hands in its own.

The port is what the server and its connections use of a socket, and the two things that a socket in memory
does in another way: being made, and sending a part of a file.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any, Protocol

from ottla.storage.files import File

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Socket(Protocol):
    """A non-blocking stream socket."""

    def fileno(self) -> int: ...

    def setblocking(self, flag: bool, /) -> None: ...

    def setsockopt(self, level: int, option: int, value: Any, /) -> None: ...

    def getsockname(self) -> Any: ...

    def send(self, data: Buffer, flags: int = ..., /) -> int: ...

    def recv(self, count: int, flags: int = ..., /) -> bytes: ...

    def recv_into(self, buffer: Buffer, nbytes: int = ..., flags: int = ...) -> int: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...


class Listener(Protocol):
    """A listening, non-blocking socket."""

    def fileno(self) -> int: ...

    def getsockname(self) -> Any: ...

    def accept(self) -> tuple[Any, Any]: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...


class Sockets(Protocol):
    def listen(
        self, host: str, port: int, backlog: int, *, receive_buffer: int, send_buffer: int
    ) -> Listener:
        """A listening socket; port 0 picks a free one. Negative buffer sizes leave them to the system."""
        ...

    def send_file(self, sock: Any, file: File, position: int, length: int) -> int:
        """Send a part of a file, as sendfile(2): how much was sent, 0 at the end of the file."""
        ...


class CannotListen(OSError):
    """The address cannot be listened on; `__cause__` is the system's error."""

    host: str = ""
    port: int = 0


class SystemSockets:
    """Sockets of the operating system."""

    def listen(
        self, host: str, port: int, backlog: int, *, receive_buffer: int, send_buffer: int
    ) -> socket.socket:
        try:
            return self._listen(host, port, backlog, receive_buffer, send_buffer)
        except OSError as error:
            refusal = CannotListen(error.errno, error.strerror)
            refusal.host, refusal.port = host, port
            raise refusal from error

    def _listen(
        self, host: str, port: int, backlog: int, receive_buffer: int, send_buffer: int
    ) -> socket.socket:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Resolved here, since `bind` would forget the interface in an address like fe80::1%eth0.
        found = socket.getaddrinfo(host or None, port, family, socket.SOCK_STREAM, 0, socket.AI_PASSIVE)
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Connections inherit them; set before a client comes, they also bound the window it is offered.
            for option, size in ((socket.SO_RCVBUF, receive_buffer), (socket.SO_SNDBUF, send_buffer)):
                if size >= 0:
                    listener.setsockopt(socket.SOL_SOCKET, option, size)
            listener.bind(found[0][4])
            listener.listen(backlog)
        except OSError:
            listener.close()
            raise
        listener.setblocking(False)
        return listener

    def send_file(self, sock: socket.socket, file: File, position: int, length: int) -> int:
        return os.sendfile(sock.fileno(), file.fileno(), position, length)
