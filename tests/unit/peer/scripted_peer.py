"""A peer on the simulated network that answers as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from ottla.peer.client import PeerClient
from ottla.protocol.apis import APIS
from ottla.protocol.codec import decode, encode
from ottla.protocol.frames import parse_request_header, response_frame
from ottla.protocol.framing import FrameReader
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.testing.simulation.loop import SimulatedLoop
from ottla.testing.simulation.network import SimulatedConnector, SimulatedNetwork
from ottla.testing.simulation.virtual_time import Host

ADDRESS = ("peer", 9092)
METADATA = 3
Answer = Callable[[int], "MetadataResponse | bytes | Cut | None"]
"""From the number of a request to its answer; bytes are sent as they are, None is no answer."""


class Cut(bytes):
    """These bytes are sent, and then the connection is closed."""


class Peer:
    """A broker that speaks ApiVersions and Metadata, as scripted."""

    reads: int | None = None
    """How many requests of a connection it reads; all if None."""

    def __init__(self, world: World, answer: Answer) -> None:
        self.world = world
        self.answer = answer
        self.requests = 0
        self.connections = 0
        self.ended = 0
        self.listener: Any = world.network.listen(world.server, ADDRESS)
        world.server.run(world.loop.create_task, self._serve())

    async def _serve(self) -> None:
        while True:
            sock, _ = await self.world.loop.sock_accept(self.listener)
            self.connections += 1
            self.world.loop.create_task(self._talk(sock))

    async def _talk(self, sock: Any) -> None:
        try:
            await self._answer_all(sock)
        except ConnectionResetError:
            pass
        finally:
            sock.close()
            self.ended += 1

    async def _answer_all(self, sock: Any) -> None:
        loop, reader, read = self.world.loop, FrameReader(1 << 20), 0
        while count := await loop.sock_recv_into(sock, reader.buffer()):
            for frame in reader.received(count):
                if self.reads is not None and read >= self.reads:
                    await self._stalled(sock)
                    return
                read += 1
                header = parse_request_header(frame)
                api = APIS[header.api_key]
                decode(api.request, header.api_version, frame, header.body_start)
                if header.api_key == METADATA:
                    self.requests += 1
                    response: Any = self.answer(self.requests)
                    if response is None:
                        continue
                else:
                    keys = [
                        ApiVersion(api_key=18, max_version=3),
                        ApiVersion(api_key=METADATA, min_version=1, max_version=9),
                    ]
                    response = ApiVersionsResponse(api_keys=keys)
                if not isinstance(response, bytes):
                    parts = encode(response, header.api_version)
                    frame_parts = response_frame(api, header.api_version, header.correlation_id, parts)
                    response = b"".join(bytes(part) for part in frame_parts)
                await loop.sock_sendall(sock, response)
                if isinstance(response, Cut):
                    return

    async def _stalled(self, sock: Any) -> None:
        """Leave the connection open and read nothing, until its client has closed it."""
        _, incoming = sock.pipes
        while not incoming.ended:
            await asyncio.sleep(0.1)


class World:
    def __init__(self) -> None:
        self.loop = SimulatedLoop(Random(1))
        self.network = SimulatedNetwork(self.loop, Random(2))
        self.here, self.server = Host("here"), Host("peer")

    def client(self, **options: Any) -> PeerClient:
        connector = SimulatedConnector(self.network, self.here)
        return PeerClient(ADDRESS, client_id="broker-1", sockets=connector, rng=Random(3), **options)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)


def numbered(n: int) -> MetadataResponse:
    return MetadataResponse(controller_id=n)


ASK = MetadataRequest(topics=[])
