"""The client of another broker, on the simulated network: its peer answers, stalls and goes away."""

from __future__ import annotations

import asyncio
import socket
from random import Random
from typing import Any

import pytest

import ottla.testing
from ottla.peer.client import Address, PeerClient, PeerUnreachable, UnsupportedByPeer
from ottla.peer.tcp import TcpConnector
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.testing.simulation.virtual_time import Host
from unit.peer.scripted_peer import ASK, Peer, World, numbered


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
