"""How a client's socket is set up before its first request is read."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from ottla.broker.client_memory import ClientMemory
from ottla.broker.server import Limits, Server
from ottla.broker.sockets import SystemSockets
from ottla.log_lines import ClientLog

T = TypeVar("T")


def options_of_a_connection(
    monkeypatch: pytest.MonkeyPatch, limits: Limits, ask: Callable[[socket.socket], T]
) -> T:
    """What `ask` says of the server's end of a client's connection."""
    admitted: list[socket.socket] = []
    admit = Server._admit

    def admit_and_keep(self: Server, bound: Any, sock: socket.socket, address: str, port: int) -> None:
        admitted.append(sock)
        admit(self, bound, sock, address, port)

    monkeypatch.setattr(Server, "_admit", admit_and_keep)

    async def scenario() -> T:
        memory = ClientMemory(1 << 20, 1 << 20, asyncio.get_running_loop().time, ClientLog)
        server = Server(lambda connection, frame: None, limits, SystemSockets(), memory)
        _, port = server.listen("PLAINTEXT", "127.0.0.1", 0, 5)
        server.serve()
        with socket.create_connection(("127.0.0.1", port)):
            async with asyncio.timeout(5):
                while not server.connections:
                    await asyncio.sleep(0)
            answer = ask(admitted[0])
        server.abort()
        return answer

    return asyncio.run(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="congestion control is chosen per socket on Linux only")
def test_local_connections_use_reno_congestion_control(monkeypatch: pytest.MonkeyPatch) -> None:
    def control(sock: socket.socket) -> bytes:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")

    assert options_of_a_connection(monkeypatch, Limits(), control) == b"reno"


def test_connections_disable_nagles_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_delay(sock: socket.socket) -> int:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    assert options_of_a_connection(monkeypatch, Limits(), no_delay)


@pytest.mark.parametrize("option", [socket.SO_RCVBUF, socket.SO_SNDBUF])
def test_socket_buffers_have_the_configured_size(monkeypatch: pytest.MonkeyPatch, option: int) -> None:
    def size(sock: socket.socket) -> int:
        return sock.getsockopt(socket.SOL_SOCKET, option)

    limits = Limits(receive_buffer=6000, send_buffer=7000)
    asked = 6000 if option == socket.SO_RCVBUF else 7000
    assert asked <= options_of_a_connection(monkeypatch, limits, size) <= 2 * asked  # Linux doubles it
    assert options_of_a_connection(monkeypatch, Limits(), size) > 2 * asked
