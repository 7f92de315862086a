"""TCP sockets of the operating system for `PeerClient`."""

from __future__ import annotations

import asyncio
import socket


class TcpConnector:
    async def connect(self, address: tuple[str, int]) -> socket.socket:
        """A connected non-blocking socket to the first address of the host that accepts; OSError if none."""
        loop = asyncio.get_running_loop()
        refused: OSError | None = None
        for family, kind, protocol, _, where in await loop.getaddrinfo(*address, type=socket.SOCK_STREAM):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_connect(sock, where)
            except OSError as error:
                sock.close()
                refused = refused or error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        assert refused is not None  # getaddrinfo raises rather than finding nothing
        raise refused
