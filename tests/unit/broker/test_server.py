"""The door: how a client's socket is set up before its first request is read."""

from __future__ import annotations

import asyncio
import socket
import sys

import pytest

from ottla.broker.server import Limits, Server


@pytest.mark.skipif(sys.platform != "linux", reason="congestion control is chosen per socket on Linux only")
def test_a_client_on_this_machine_is_answered_without_pacing(monkeypatch: pytest.MonkeyPatch) -> None:
    admitted: list[socket.socket] = []
    admit = Server._admit

    def admit_and_keep(self: Server, sock: socket.socket, address: str, port: int) -> None:
        admitted.append(sock)
        admit(self, sock, address, port)

    monkeypatch.setattr(Server, "_admit", admit_and_keep)

    async def scenario() -> tuple[bytes, int]:
        server = Server(lambda connection, frame: None, Limits())
        _, port = server.listen("127.0.0.1", 0, 5)
        server.serve()
        with socket.create_connection(("127.0.0.1", port)):
            async with asyncio.timeout(5):
                while not server.connections:
                    await asyncio.sleep(0)
            control = admitted[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            delay = admitted[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        server.abort()
        return control, delay

    control, delay = asyncio.run(scenario())
    assert control.rstrip(b"\0") == b"reno"
    assert delay
