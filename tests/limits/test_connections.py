"""How many clients may connect, and that one bad client does not affect the others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import ottla.testing
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from raw_client import FETCH_VERSION, RawClient, fetch_request, produce_request

SOON = 5.0


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def is_served(client: RawClient) -> bool:
    try:
        return bool(client.call(ApiVersionsRequest(), 0).error_code == 0)
    except OSError:
        return False


def await_served(address: str, source: str = "") -> None:
    """A refused client can connect once a connection is free again."""
    deadline = time.monotonic() + SOON
    while True:
        with RawClient(address, source=source) as client:
            if is_served(client):
                return
        assert time.monotonic() < deadline, "no connection became free"


def test_connections_above_the_limit_are_refused_and_the_others_served(stack: ExitStack) -> None:
    with ottla.testing.broker(max_connections=5) as broker:
        inside = [stack.enter_context(RawClient(broker.bootstrap_servers)) for _ in range(5)]
        assert all(is_served(client) for client in inside)
        for _ in range(3):
            assert not is_served(stack.enter_context(RawClient(broker.bootstrap_servers)))
        assert all(is_served(client) for client in inside)
        inside[0].socket.close()
        await_served(broker.bootstrap_servers)


def test_connections_of_one_address_above_its_limit_are_refused(stack: ExitStack) -> None:
    with ottla.testing.broker(max_connections_per_ip=3) as broker:
        inside = [stack.enter_context(RawClient(broker.bootstrap_servers)) for _ in range(3)]
        assert all(is_served(client) for client in inside)
        assert not is_served(stack.enter_context(RawClient(broker.bootstrap_servers)))
        assert is_served(stack.enter_context(RawClient(broker.bootstrap_servers, source="127.0.0.2")))
        inside[0].socket.close()
        await_served(broker.bootstrap_servers, "127.0.0.1")


def test_an_address_may_have_a_limit_of_its_own(stack: ExitStack) -> None:
    with ottla.testing.broker(
        max_connections_per_ip=1, settings={"max.connections.per.ip.overrides": "127.0.0.2:3"}
    ) as broker:
        assert is_served(stack.enter_context(RawClient(broker.bootstrap_servers, source="127.0.0.1")))
        assert not is_served(stack.enter_context(RawClient(broker.bootstrap_servers, source="127.0.0.1")))
        others = [
            stack.enter_context(RawClient(broker.bootstrap_servers, source="127.0.0.2")) for _ in range(4)
        ]
        assert [is_served(client) for client in others] == [True, True, True, False]


def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    with ottla.testing.broker(connections_max_idle_ms=400) as broker:
        with RawClient(broker.bootstrap_servers) as idle, RawClient(broker.bootstrap_servers) as busy:
            assert is_served(idle)
            deadline = time.monotonic() + SOON
            while not idle.is_closed(within=0.05):
                assert time.monotonic() < deadline, "the idle connection was kept"
                assert is_served(busy)
            assert is_served(busy)


def test_a_waiting_fetch_is_not_idle() -> None:
    """The broker owes this client an answer, so its silence is not the client's."""
    with ottla.testing.broker(topics=["t"], connections_max_idle_ms=200) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            began = time.monotonic()
            fetched = client.fetch("t", 0, max_wait_ms=900)
            assert fetched.error_code == 0
            assert time.monotonic() - began > 0.85


def test_pipelined_requests_are_answered_in_order() -> None:
    """`RawClient.receive` fails when an answer is not the one that is due."""
    with ottla.testing.broker(topics=["t"]) as broker, RawClient(broker.bootstrap_servers) as client:
        frames = b""
        for n in range(200):
            frames += client.frame(ApiVersionsRequest(), 0)
            frames += client.frame(produce_request("t", [b"%d" % n]), 9)
            frames += client.frame(MetadataRequest(topics=None), 9)
        client.socket.sendall(frames)
        for n in range(200):
            client.receive()
            assert client.receive().responses[0].partition_responses[0].base_offset == n
            client.receive()


def test_a_waiting_fetch_holds_back_the_requests_behind_it() -> None:
    with ottla.testing.broker(topics=["t"]) as broker, RawClient(broker.bootstrap_servers) as client:
        began = time.monotonic()
        client.socket.sendall(
            client.frame(fetch_request("t", 0, max_wait_ms=400), FETCH_VERSION)
            + client.frame(ApiVersionsRequest(), 0)
            + client.frame(produce_request("t", [b"v"]), 9)
        )
        assert client.receive().responses[0].partitions[0].records in (None, b"")
        assert time.monotonic() - began > 0.35
        client.receive()
        assert client.receive().responses[0].partition_responses[0].base_offset == 0


def test_a_client_that_disconnects_inside_a_frame_does_not_affect_others() -> None:
    with ottla.testing.broker(topics=["t"]) as broker, RawClient(broker.bootstrap_servers) as neighbour:
        frame = neighbour.frame(produce_request("t", [b"x" * 200_000]), 9)
        for cut in (1, 3, 4, 10, 1000, 70_000, len(frame) - 1):
            with RawClient(broker.bootstrap_servers) as client:
                client.socket.sendall(frame[:cut])
        for _ in range(5):
            with RawClient(broker.bootstrap_servers) as client:
                client.send(fetch_request("t", 0, max_wait_ms=10_000), FETCH_VERSION)
        neighbour.socket.sendall(frame)
        assert neighbour.receive().responses[0].partition_responses[0].base_offset == 0


def test_frames_that_arrive_byte_by_byte_do_not_hold_up_other_clients(stack: ExitStack) -> None:
    """Slow-loris: a hundred clients that never finish a frame."""
    with ottla.testing.broker(topics=["t"]) as broker:
        slow = [stack.enter_context(RawClient(broker.bootstrap_servers)) for _ in range(100)]
        frames = [client.frame(ApiVersionsRequest(), 0) for client in slow]
        for position in range(len(frames[0])):
            for client, frame in zip(slow, frames, strict=True):
                client.socket.sendall(frame[position : position + 1])
            with RawClient(broker.bootstrap_servers) as neighbour:
                began = time.monotonic()
                assert is_served(neighbour)
                assert time.monotonic() - began < 5  # milliseconds, unless the machine is busy
        for client in slow:  # byte by byte is slow, but it is no mistake
            assert client.receive().error_code == 0


def test_memory_held_by_a_stalled_client_is_freed_for_waiting_clients() -> None:
    settings = {
        "socket.request.max.bytes": 1_000_000,
        "queued.max.request.bytes": 1_000_000,
        "connections.max.idle.ms": 1500,
    }
    with ottla.testing.broker(topics=["t"], settings=settings) as broker:
        with RawClient(broker.bootstrap_servers) as stalled, RawClient(broker.bootstrap_servers) as producer:
            stalled.socket.sendall((900_000).to_bytes(4, "big") + b"\0" * 1000)
            assert not stalled.is_closed(within=0.8)
            assert producer.produce("t", b"x" * 500_000).base_offset == 0
            assert stalled.is_closed(within=SOON)
