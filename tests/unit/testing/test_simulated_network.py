"""The simulated network: sockets as asyncio uses them, and every fault it can have."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from random import Random
from typing import Any

import pytest

from ottla.testing.simulation.loop import SimulatedLoop
from ottla.testing.simulation.network import SimulatedNetwork
from ottla.testing.simulation.sockets import BUFFER, SimulatedSocket
from ottla.testing.simulation.virtual_time import Host

PORT = 9092


class World:
    """A client, a server with one listener, and the network between them."""

    def __init__(self, seed: int = 1) -> None:
        self.loop = SimulatedLoop(Random(seed))
        self.network = SimulatedNetwork(self.loop, Random(seed + 1))
        self.client, self.server = Host("client"), Host("server")
        self.listener = self.network.listen(self.server, ("server", PORT))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    async def connected(self) -> tuple[Any, Any]:
        """Both ends of a new connection; typed as asyncio's methods want them."""
        sock: Any = self.network.socket(self.client)
        await self.loop.sock_connect(sock, ("server", PORT))
        listener: Any = self.listener
        accepted, _ = await self.loop.sock_accept(listener)
        return sock, accepted

    async def read_all(self, sock: Any) -> bytes:
        received = bytearray()
        while data := await self.loop.sock_recv(sock, 65536):
            received += data
        return bytes(received)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.loop.discard()


def test_bytes_arrive_whole_and_in_order(world: World) -> None:
    sent = Random(3).randbytes(3 * BUFFER)

    async def scenario() -> bytes:
        one, other = await world.connected()

        async def send() -> None:
            await world.loop.sock_sendall(one, sent)
            one.close()

        _, received = await asyncio.gather(send(), world.read_all(other))
        return received

    assert world.run(scenario()) == sent
    assert 0 < world.loop.time() < 10


def test_a_peer_that_reads_nothing_stops_its_sender(world: World) -> None:
    async def scenario() -> None:
        one, _ = await world.connected()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(world.loop.sock_sendall(one, bytes(2 * BUFFER)), 60)

    world.run(scenario())


def test_a_connection_to_a_closed_port_is_refused(world: World) -> None:
    async def scenario() -> None:
        sock: Any = world.network.socket(world.client)
        with pytest.raises(ConnectionRefusedError):
            await world.loop.sock_connect(sock, ("server", PORT + 1))

    world.run(scenario())


def test_a_cut_holds_bytes_back_until_it_is_mended(world: World) -> None:
    async def scenario() -> None:
        one, other = await world.connected()
        world.network.cut(world.client, world.server, both=False)
        await world.loop.sock_sendall(one, b"to the server")
        await world.loop.sock_sendall(other, b"to the client")
        assert await world.loop.sock_recv(one, 100) == b"to the client"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(world.loop.sock_recv(other, 100), 30)
        world.network.mend()
        assert await world.loop.sock_recv(other, 100) == b"to the server"

    world.run(scenario())


def test_connecting_into_a_cut_times_out(world: World) -> None:
    async def scenario() -> None:
        world.network.cut(world.client, world.server)
        sock: Any = world.network.socket(world.client)
        with pytest.raises(TimeoutError):
            await world.loop.sock_connect(sock, ("server", PORT))

    world.run(scenario())
    assert world.loop.time() > 4


def test_a_crash_of_the_peer_is_a_reset_and_its_port_is_free_again(world: World) -> None:
    async def scenario() -> None:
        one, _ = await world.connected()
        world.server.crash()
        world.network.crash(world.server)
        with pytest.raises(ConnectionResetError):
            await world.loop.sock_recv(one, 100)
        again = Host("server")
        world.listener = world.network.listen(again, ("server", PORT))
        await world.connected()

    world.run(scenario())


def test_a_reset_ends_both_ends(world: World) -> None:
    async def scenario() -> None:
        one, other = await world.connected()
        world.network.reset(world.client, world.server)
        for end in (one, other):
            with pytest.raises(ConnectionResetError):
                await world.loop.sock_recv(end, 100)

    world.run(scenario())


def test_a_slow_link_is_slow_one_way(world: World) -> None:
    async def scenario() -> tuple[float, float]:
        one, other = await world.connected()
        world.network.slow_down(world.client, world.server, 2.0)
        began = world.loop.time()
        await world.loop.sock_sendall(one, b"x")
        await world.loop.sock_recv(other, 1)
        there = world.loop.time() - began
        await world.loop.sock_sendall(other, b"x")
        await world.loop.sock_recv(one, 1)
        return there, world.loop.time() - began - there

    there, back = world.run(scenario())
    assert there > 2.0 > 0.1 > back


def test_files_go_out_like_bytes(world: World) -> None:
    class File:
        def read_at(self, position: int, size: int) -> bytes:
            return b"0123456789"[position : position + size]

    async def scenario() -> None:
        one, other = await world.connected()
        sender: SimulatedSocket = one
        sent = 0
        while sent < 6:
            sent += sender.sendfile(File(), 2 + sent, 6 - sent)
        assert sender.sendfile(File(), 10, 5) == 0
        one.close()
        assert await world.read_all(other) == b"234567"

    world.run(scenario())


def test_the_same_seed_gives_the_same_run() -> None:
    def trace(seed: int) -> list[tuple[float, int]]:
        world = World(seed)
        seen: list[tuple[float, int]] = []

        async def scenario() -> None:
            one, other = await world.connected()

            async def send() -> None:
                for _ in range(50):
                    await world.loop.sock_sendall(one, bytes(1000))
                one.close()

            async def receive() -> None:
                while data := await world.loop.sock_recv(other, 65536):
                    seen.append((world.loop.time(), len(data)))

            await asyncio.gather(send(), receive())

        world.run(scenario())
        world.loop.discard()
        return seen

    assert trace(5) == trace(5) != trace(6)
