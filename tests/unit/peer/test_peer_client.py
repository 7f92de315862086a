"""The client of another broker, on the simulated network: its peer answers, stalls, breaks and lies."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any

import pytest

import ottla.testing
from ottla.peer.client import Address, PeerClient, PeerUnreachable, UnsupportedByPeer
from ottla.peer.tcp import TcpConnector
from ottla.protocol.apis import APIS
from ottla.protocol.codec import decode, encode
from ottla.protocol.frames import parse_request_header, response_frame
from ottla.protocol.framing import FrameReader
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
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


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.loop.discard()
    assert world.loop.defects == []


def numbered(n: int) -> MetadataResponse:
    return MetadataResponse(controller_id=n)


ASK = MetadataRequest(topics=[])


def test_calls_are_pipelined_and_answered_in_order(world: World) -> None:
    peer = Peer(world, numbered)

    async def scenario() -> list[int]:
        client = world.client()
        world.network.slow_down(world.here, world.server, 1.0)
        answers = await asyncio.gather(*(client.call(ASK, timeout=5) for _ in range(50)))
        await client.close()
        return [answer.controller_id for answer in answers]

    assert world.run(scenario()) == list(range(1, 51))
    assert peer.connections == 1
    assert world.loop.time() < 4  # one after another they would take 50 seconds


def test_no_more_calls_are_under_way_than_allowed(world: World) -> None:
    peer = Peer(world, numbered)

    async def scenario() -> None:
        client = world.client(max_in_flight=3)
        world.network.slow_down(world.here, world.server, 1.0)
        await asyncio.gather(*(client.call(ASK, timeout=60) for _ in range(30)))
        await client.close()

    world.run(scenario())
    assert peer.requests == 30
    assert 10 < world.loop.time() < 15  # ten rounds of three


def test_an_api_that_the_peer_does_not_support_fails_without_a_request(world: World) -> None:
    Peer(world, numbered)

    async def scenario() -> None:
        client = world.client()
        with pytest.raises(UnsupportedByPeer):
            await client.call(ListGroupsRequest(), timeout=5)
        with pytest.raises(UnsupportedByPeer):
            await client.call(ASK, timeout=5, version=12)
        assert (await client.call(ASK, timeout=5, version=4)).controller_id == 1
        await client.close()

    world.run(scenario())


def test_a_call_without_an_answer_ends_in_time_and_the_next_one_has_a_new_connection(world: World) -> None:
    peer = Peer(world, lambda n: None if n == 1 else numbered(n))

    async def scenario() -> None:
        client = world.client()
        with pytest.raises(PeerUnreachable) as failure:
            await client.call(ASK, timeout=2)
        assert failure.value.maybe_done
        assert world.loop.time() == pytest.approx(2, abs=0.1)
        assert (await client.call(ASK, timeout=2)).controller_id == 2
        await client.close()

    world.run(scenario())
    assert peer.connections == 2


def test_calls_behind_one_that_timed_out_fail_with_its_connection(world: World) -> None:
    Peer(world, lambda n: None if n == 1 else numbered(n))

    async def scenario() -> list[Any]:
        client = world.client()
        calls = [client.call(ASK, timeout=2), client.call(ASK, timeout=60)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        await client.close()
        return results

    results = world.run(scenario())
    assert all(isinstance(each, PeerUnreachable) for each in results)
    assert world.loop.time() < 10


def test_connection_attempts_to_an_unreachable_peer_back_off(world: World) -> None:
    async def scenario() -> int:
        client = world.client()
        attempts = 0
        while world.loop.time() < 20:
            with pytest.raises(PeerUnreachable) as failure:
                await client.call(ASK, timeout=10)
            assert not failure.value.maybe_done
            attempts += 1
        await client.close()
        return attempts

    assert 8 < world.run(scenario()) < 40


def test_a_restarted_peer_is_found_again(world: World) -> None:
    Peer(world, numbered)

    async def scenario() -> None:
        client = world.client()
        await client.call(ASK, timeout=5)
        world.server.crash()
        world.network.crash(world.server)
        with pytest.raises(PeerUnreachable):
            await client.call(ASK, timeout=1)
        world.server = Host("peer")
        Peer(world, numbered)
        assert (await client.call(ASK, timeout=10)).controller_id == 1
        await client.close()

    world.run(scenario())


def test_a_cut_network_ends_calls_in_time_and_heals(world: World) -> None:
    Peer(world, numbered)

    async def scenario() -> None:
        client = world.client()
        await client.call(ASK, timeout=5)
        world.network.cut(world.here, world.server)
        for _ in range(3):
            with pytest.raises(PeerUnreachable):
                await client.call(ASK, timeout=3)
        world.network.mend()
        await client.call(ASK, timeout=15)
        await client.close()

    world.run(scenario())


def test_an_oversized_response_breaks_the_connection_without_allocating_memory(world: World) -> None:
    large = MetadataResponse(cluster_id="x" * 30_000)
    Peer(world, lambda n: large if n == 1 else numbered(n))

    async def scenario() -> None:
        client = world.client(max_response=10_000)
        with pytest.raises(PeerUnreachable, match="are allowed"):
            await client.call(ASK, timeout=5)
        assert (await client.call(ASK, timeout=5)).controller_id == 2
        await client.close()

    world.run(scenario())


def test_closing_ends_the_calls_under_way(world: World) -> None:
    Peer(world, lambda n: None)

    async def scenario() -> None:
        client = world.client()
        call = asyncio.get_running_loop().create_task(client.call(ASK, timeout=600))
        await asyncio.sleep(1)
        await client.close()
        with pytest.raises(PeerUnreachable, match="closed"):
            await call
        with pytest.raises(PeerUnreachable, match="closed"):
            await client.call(ASK, timeout=5)

    world.run(scenario())
    assert world.loop.time() < 10


def test_a_peer_that_stops_reading_ends_calls_in_time_and_holds_bounded_memory(world: World) -> None:
    peer = Peer(world, numbered)
    peer.reads = 1  # ApiVersions, and nothing more
    large = MetadataRequest(topics=[MetadataRequestTopic(name="x" * 30_000) for _ in range(10)])

    async def scenario() -> list[Any]:
        client = world.client(max_in_flight=4)
        calls = [client.call(large, timeout=5) for _ in range(20)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        peer.reads = None
        assert (await client.call(ASK, timeout=5)).controller_id == 1
        await client.close()
        return results

    results = world.run(scenario())
    assert all(isinstance(each, PeerUnreachable) for each in results)
    assert sum(each.maybe_done for each in results) == 4  # the others never got a slot
    assert world.loop.time() < 12


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"\x00\x00\x00\x03abc", "came where 2 was due"),
        (b"\x00\x00\x00\x06\x00\x00\x00\x02\xff\xff", "Metadata response cannot be read"),
        (b"\x00\x00\x00\x08\x00\x00\x00\x63junk", "response 99 came where 2 was due"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "are allowed"),
        (b"\xff\xff\xff\xff", "are allowed"),
    ],
)
def test_a_response_that_cannot_be_read_breaks_the_connection(world: World, sent: bytes, reason: str) -> None:
    Peer(world, lambda n: sent if n == 1 else numbered(n))

    async def scenario() -> None:
        client = world.client()
        with pytest.raises(PeerUnreachable, match=reason) as failure:
            await client.call(ASK, timeout=5)
        assert failure.value.maybe_done
        assert (await client.call(ASK, timeout=5)).controller_id == 2
        await client.close()

    world.run(scenario())


def test_responses_in_the_wrong_order_break_the_connection(world: World) -> None:
    wrong = b"".join(response_frame(APIS[METADATA], 9, 77, encode(numbered(1), 9)))
    Peer(world, lambda n: wrong)

    async def scenario() -> None:
        client = world.client()
        with pytest.raises(PeerUnreachable, match="response 77 came where 2 was due"):
            await client.call(ASK, timeout=5)
        await client.close()

    world.run(scenario())


def test_a_response_to_no_request_breaks_the_connection(world: World) -> None:
    one = b"".join(response_frame(APIS[METADATA], 9, 2, encode(numbered(1), 9)))
    peer = Peer(world, lambda n: one + one if n == 1 else numbered(n))

    async def scenario() -> None:
        client = world.client()
        assert (await client.call(ASK, timeout=5)).controller_id == 1
        assert not client.connected
        assert (await client.call(ASK, timeout=5)).controller_id == 2
        await client.close()

    world.run(scenario())
    assert peer.connections == 2


@pytest.mark.parametrize("kept", [0, 3, 4, 6, 20])
def test_a_connection_that_is_cut_inside_a_response_fails_its_call(world: World, kept: int) -> None:
    whole = b"".join(response_frame(APIS[METADATA], 9, 2, encode(numbered(1), 9)))
    Peer(world, lambda n: Cut(whole[:kept]) if n == 1 else numbered(n))

    async def scenario() -> None:
        client = world.client()
        with pytest.raises(PeerUnreachable, match="closed the connection") as failure:
            await client.call(ASK, timeout=5)
        assert failure.value.maybe_done
        assert (await client.call(ASK, timeout=5)).controller_id == 2
        await client.close()

    world.run(scenario())


def test_cancelled_calls_keep_their_slots_until_their_deadline(world: World) -> None:
    peer = Peer(world, lambda n: None)

    async def scenario() -> None:
        client = world.client(max_in_flight=2)
        calls = [asyncio.get_running_loop().create_task(client.call(ASK, timeout=5)) for _ in range(2)]
        await asyncio.sleep(1)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        with pytest.raises(PeerUnreachable) as failure:
            await client.call(ASK, timeout=1)
        assert not failure.value.maybe_done
        assert peer.requests == 2
        peer.answer = numbered
        assert (await client.call(ASK, timeout=10)).controller_id == 3
        await client.close()

    world.run(scenario())
    assert peer.connections == 2
    assert 5 < world.loop.time() < 7


def test_a_broken_connection_is_closed_without_another_call(world: World) -> None:
    peer = Peer(world, lambda n: None)

    async def scenario() -> None:
        client = world.client()
        with pytest.raises(PeerUnreachable):
            await client.call(ASK, timeout=1)
        await asyncio.sleep(1)
        assert peer.ended == 1
        await client.close()

    world.run(scenario())


def test_reconnects_back_off_when_a_peer_closes_after_each_request(world: World) -> None:
    peer = Peer(world, lambda n: b"\xff\xff\xff\xff")

    async def scenario() -> None:
        client = world.client()
        while world.loop.time() < 20:
            with pytest.raises(PeerUnreachable):
                await client.call(ASK, timeout=10)
        await client.close()

    world.run(scenario())
    assert 8 < peer.connections < 40


def test_a_peer_that_never_negotiates_fails_calls_in_time(world: World) -> None:
    peer = Peer(world, numbered)
    peer.reads = 0

    async def scenario() -> None:
        client = world.client()
        results = await asyncio.gather(
            client.call(ASK, timeout=2), client.call(ASK, timeout=60), return_exceptions=True
        )
        assert [each.maybe_done for each in results if isinstance(each, PeerUnreachable)] == [False, False]
        await client.close()

    world.run(scenario())
    assert 10 <= world.loop.time() < 12


def test_a_call_that_comes_right_after_the_connection_was_opened_uses_it(world: World) -> None:
    peer = Peer(world, numbered)

    async def scenario() -> None:
        client = world.client()
        open_, second = client._open, []

        async def opened() -> Any:
            connection = await open_()
            # It runs when the attempt has ended, before the client is told of it.
            second.append(asyncio.ensure_future(client.call(ASK, timeout=5)))
            return connection

        client._open = opened  # type: ignore[method-assign]
        await client.call(ASK, timeout=5)
        await second[0]
        await client.close()

    world.run(scenario())
    assert peer.connections == 1


def test_closing_ends_a_call_that_waits_for_its_connection(world: World) -> None:
    peer = Peer(world, numbered)
    peer.reads = 0

    async def scenario() -> None:
        client = world.client()
        call = asyncio.get_running_loop().create_task(client.call(ASK, timeout=600))
        await asyncio.sleep(1)
        await client.close()
        with pytest.raises(PeerUnreachable, match="closed"):
            await call
        await asyncio.sleep(1)
        assert peer.ended == 1

    world.run(scenario())
    assert world.loop.time() < 3


def test_a_broker_is_called_over_tcp() -> None:
    async def scenario(address: Address) -> None:
        client = PeerClient(address, client_id="broker-1", sockets=TcpConnector(), rng=Random(1))
        responses = await asyncio.gather(*(client.call(ASK, timeout=30) for _ in range(100)))
        assert len({response.cluster_id for response in responses}) == 1
        await client.close()

    with ottla.testing.broker() as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        asyncio.run(scenario((host, int(port))))


def test_a_refused_tcp_connection_fails_the_call() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address: Address = closed.getsockname()

    async def scenario() -> None:
        client = PeerClient(address, client_id="broker-1", sockets=TcpConnector(), rng=Random(1))
        with pytest.raises(PeerUnreachable, match="no connection") as failure:
            await client.call(ASK, timeout=30)
        assert not failure.value.maybe_done
        await client.close()

    asyncio.run(scenario())
