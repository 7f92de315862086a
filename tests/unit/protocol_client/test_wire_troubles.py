"""The client's answer to brokers that are old, wrong, silent or gone."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest

from ottla.protocol.apis import APIS
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.fetch import (
    FetchRequest,
)
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol_client.connection import ConnectionRefused
from ottla.protocol_client.wire import BrokerUnreachable, ConnectionLost, Patience, UnsupportedByBroker, Wire
from ottla.testing.ports import ReservedPort

from .scripted_broker import CLOSE, NODE, ScriptedBroker


def wire_to(broker: ScriptedBroker) -> Wire:
    return Wire(broker.bootstrap, connect_timeout=5, request_timeout=10)


# A broker that is starting


def test_the_first_connection_is_tried_again_until_the_broker_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = ReservedPort()
    with socket.socket() as listener, Wire(f"{port.host}:{port.number}", start_timeout=60) as wire:
        refused = []

        def listen_after_the_third_refusal(self: Patience, error: Exception) -> None:
            refused.append(error)
            if len(refused) == 3:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((port.host, port.number))
                listener.listen()
                threading.Thread(target=lambda: listener.accept()[0].close()).start()

        monkeypatch.setattr(Patience, "pause", listen_after_the_third_refusal)
        with pytest.raises(ConnectionLost):  # this listener is no broker: it closes the connection
            wire.connection()
    port.release()
    assert [type(error) for error in refused] == [ConnectionRefused] * 3


def test_a_broker_that_does_not_start_in_time_is_reported_as_refused() -> None:
    port = ReservedPort()
    with Wire(f"{port.host}:{port.number}", start_timeout=0.1) as wire, pytest.raises(ConnectionRefused):
        wire.metadata()
    port.release()


# Versions


def test_the_highest_version_both_know_is_used() -> None:
    broker = ScriptedBroker()
    broker.versions[MetadataRequest.api_key] = (0, 9)
    with broker, wire_to(broker) as wire:
        wire.metadata()
    assert [version for request, version in broker.seen if isinstance(request, MetadataRequest)] == [9]


def test_an_old_broker_is_asked_for_its_api_versions_in_a_version_it_supports() -> None:
    broker = ScriptedBroker()
    broker.versions[ApiVersionsRequest.api_key] = (0, 2)
    with broker, wire_to(broker) as wire:
        wire.metadata()
    assert [v for r, v in broker.seen if isinstance(r, ApiVersionsRequest)] == [4, 2]


def test_a_request_the_broker_does_not_offer_is_refused_before_it_is_sent() -> None:
    broker = ScriptedBroker()
    del broker.versions[DescribeClusterRequest.api_key]
    with broker, wire_to(broker) as wire:
        with pytest.raises(UnsupportedByBroker, match="does not offer DescribeCluster"):
            wire.call(DescribeClusterRequest())
        assert not wire.offers(DescribeClusterRequest)
        assert wire.offers(MetadataRequest)
    assert not broker.of(DescribeClusterRequest)


def test_disjoint_version_ranges_are_named() -> None:
    broker = ScriptedBroker()
    broker.versions[FetchRequest.api_key] = (90, 99)
    with (
        broker,
        wire_to(broker) as wire,
        pytest.raises(UnsupportedByBroker, match=f"Fetch 90 to 99, this client 4 to {APIS[1].max_version}"),
    ):
        wire.call(FetchRequest())


# Connections


def test_a_refused_connection_is_reported_with_advice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with Wire(f"127.0.0.1:{port}") as wire, pytest.raises(BrokerUnreachable, match="refused") as failure:
        wire.metadata()
    assert failure.value.address == f"127.0.0.1:{port}"
    assert "ottla serve" in failure.value.advice


def test_the_next_bootstrap_address_is_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = taken.getsockname()[1]
    with ScriptedBroker() as broker, Wire(f"127.0.0.1:{dead},{broker.bootstrap}") as wire:
        assert wire.metadata().topics[0].name == "t"


@pytest.mark.parametrize(
    ("greeting", "expected"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "answered in HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x50", "answered in TLS"),
        (b"\x7f\xff\xff\xff", "no Kafka response"),
        (b"\x00\x00\x00\x08\x00\x00\x00\x63junk", "was not sent"),
        (b"\x00\x00\x00\x09\x00\x00\x00\x01\xff\xff\xff\xff\xff", "cannot be read"),
    ],
)
def test_a_peer_that_is_no_broker_is_recognised(greeting: bytes, expected: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            client, _ = listener.accept()
            with client, suppress(ConnectionResetError):
                client.recv(1000)
                client.sendall(greeting)
                client.recv(1000)

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        with (
            Wire(f"127.0.0.1:{listener.getsockname()[1]}", connect_timeout=5) as wire,
            pytest.raises(ConnectionLost, match=expected),
        ):
            wire.call(MetadataRequest())
        thread.join(5)


def test_a_broker_that_stays_silent_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with (
            Wire(f"127.0.0.1:{port}", connect_timeout=0.2) as wire,
            pytest.raises(ConnectionLost, match="did not answer ApiVersions in time"),
        ):
            wire.call(MetadataRequest())


def test_responses_may_be_taken_in_another_order() -> None:
    with ScriptedBroker() as broker, wire_to(broker) as wire:
        first = wire.send(MetadataRequest())
        second = wire.send(MetadataRequest())
        assert wire.receive(second).topics[0].name == "t"
        assert wire.receive(first).topics[0].name == "t"
        assert wire.ready([first], 0) == [first]


def test_metadata_survives_a_connection_that_was_closed_meanwhile() -> None:
    broker = ScriptedBroker()
    answers = [CLOSE, broker.metadata()]
    broker.answer(MetadataRequest, lambda request, version: answers.pop(0))
    with broker, wire_to(broker) as wire:
        assert wire.metadata().topics[0].name == "t"


def test_a_topic_without_a_leader_yet_is_waited_for() -> None:
    broker = ScriptedBroker()
    answers = [broker.metadata(error=ErrorCode.LEADER_NOT_AVAILABLE), broker.metadata()]
    broker.answer(MetadataRequest, lambda request, version: answers.pop(0))
    with broker, wire_to(broker) as wire:
        assert len(wire.topic("t").partitions) == 1


def test_an_unknown_topic_is_an_error_at_once_or_after_the_given_wait() -> None:
    broker = ScriptedBroker()
    broker.answer(MetadataRequest, lambda request, version: broker.metadata(error=3))
    with broker, wire_to(broker) as wire:
        with pytest.raises(ApiError) as failure:
            wire.topic("t")
        assert failure.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert len(broker.of(MetadataRequest)) == 1
        with pytest.raises(ApiError):
            wire.topic("t", patience=0.1)
        assert len(broker.of(MetadataRequest)) > 2


def test_an_unreachable_advertised_address_is_reported_with_advice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = taken.getsockname()[1]
    broker = ScriptedBroker()

    def elsewhere(request: MetadataRequest, version: int) -> object:
        answer = broker.metadata()
        answer.brokers[0].port = dead
        return answer

    broker.answer(MetadataRequest, elsewhere)
    with broker, wire_to(broker) as wire, pytest.raises(BrokerUnreachable) as failure:
        wire.metadata()
        wire.call(MetadataRequest(), node=NODE)
    assert "advertised.listeners" in failure.value.advice
