"""The client of another broker whose responses are too large, cut, in the wrong order or nonsense."""

from __future__ import annotations

import pytest

from ottla.peer.client import PeerUnreachable
from ottla.protocol.apis import APIS
from ottla.protocol.codec import encode
from ottla.protocol.frames import response_frame
from ottla.protocol.messages.metadata import MetadataResponse
from unit.peer.scripted_peer import ASK, METADATA, Cut, Peer, World, numbered


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
