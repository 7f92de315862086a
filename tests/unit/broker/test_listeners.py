"""Several listeners: clients learn the addresses of theirs, and only brokers get what is for brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import ottla.testing
from ottla.broker.client_memory import ClientMemory
from ottla.broker.client_view import ClientView, endpoints_on
from ottla.broker.connection import Connection, Refused
from ottla.broker.dispatch import Dispatcher
from ottla.broker.server import Limits, Server
from ottla.broker.sockets import SystemSockets
from ottla.cluster.image import BrokerNode, ClusterImage, Endpoint, ImageDelta, PartitionState
from ottla.config.listeners import Listener, assign_listeners, parse_listeners
from ottla.log_lines import ClientLog
from ottla.protocol.errors import ErrorCode
from ottla.protocol.frames import request_frame
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from ottla.protocol.messages.fetch_image import FetchImageRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol_client.wire import Wire
from ottla.testing.in_process import InProcessBroker

INTERNAL = "INTERNAL"


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with ottla.testing.broker(topics={"t": 1}) as broker:
        yield broker


def endpoint(broker: InProcessBroker, listener: str) -> Endpoint:
    assert broker.broker is not None
    return next(each for each in broker.broker.endpoints if each.listener == listener)


def wire_to(broker: InProcessBroker, listener: str) -> Wire:
    _, host, port = endpoint(broker, listener)
    return Wire(f"{host}:{port}")


# -- which listener is for whom -----------------------------------------------------------------------------


def assigned(text: str, inter_broker: str | None = None) -> tuple[list[str], str]:
    listeners = assign_listeners(parse_listeners(text.split(",")), ["CONTROLLER"], inter_broker)
    return [str(each) for each in listeners.clients], str(listeners.inter_broker)


@pytest.mark.parametrize(
    ("text", "inter_broker", "clients", "for_brokers"),
    [
        (":1", None, ["PLAINTEXT://:1"], "INTERNAL://127.0.0.1:0"),
        (":1,INTERNAL://:2", None, ["PLAINTEXT://:1"], "INTERNAL://:2"),
        (":1,OUT://:2,IN://:3", "in", ["PLAINTEXT://:1", "OUT://:2"], "IN://:3"),
        (":1,CONTROLLER://:2", None, ["PLAINTEXT://:1"], "INTERNAL://127.0.0.1:0"),
        (":1,CONTROLLER://:2", "PLAINTEXT", ["PLAINTEXT://:1"], "INTERNAL://127.0.0.1:0"),
    ],
)
def test_one_listener_is_for_brokers_and_the_others_for_clients(
    text: str, inter_broker: str | None, clients: list[str], for_brokers: str
) -> None:
    assert assigned(text, inter_broker) == (clients, for_brokers)


def test_a_broker_without_a_listener_for_clients_is_refused() -> None:
    with pytest.raises(ValueError, match="for clients"):
        assign_listeners([Listener(INTERNAL, "", 1)], [], None)


# -- what clients are told ----------------------------------------------------------------------------------

BOTH = (Endpoint("PLAINTEXT", "one", 1), Endpoint("OUTSIDE", "one.example", 11), Endpoint(INTERNAL, "in", 9))
IMAGE = ClusterImage.of(
    version=1,
    cluster_id="c",
    controller_id=1,
    brokers={
        1: BrokerNode(1, "one", 1, endpoints=BOTH),
        2: BrokerNode(2, "two", 2, endpoints=(Endpoint("PLAINTEXT", "two", 2),)),
        3: BrokerNode(3, "three", 3, fenced=True, endpoints=(Endpoint("PLAINTEXT", "three", 3),)),
    },
    topics={},
    configs={},
)


def test_clients_are_told_of_brokers_that_have_their_listener_and_are_in_service() -> None:
    assert endpoints_on(IMAGE, "PLAINTEXT") == {1: ("PLAINTEXT", "one", 1), 2: ("PLAINTEXT", "two", 2)}
    assert endpoints_on(IMAGE, "OUTSIDE") == {1: ("OUTSIDE", "one.example", 11)}
    assert set(endpoints_on(IMAGE, "PLAINTEXT", fenced=True)) == {1, 2, 3}


@pytest.mark.parametrize(
    ("version", "leader", "error"),
    [
        (13, 2, ErrorCode.LISTENER_NOT_FOUND),
        (5, 2, ErrorCode.LEADER_NOT_AVAILABLE),
        (13, 3, ErrorCode.LEADER_NOT_AVAILABLE),
        (13, 4, ErrorCode.LEADER_NOT_AVAILABLE),
        (13, 1, ErrorCode.NONE),
    ],
)
def test_a_leader_that_the_client_cannot_reach_is_an_error(
    version: int, leader: int, error: ErrorCode
) -> None:
    view = ClientView(IMAGE, "OUTSIDE", version).partition(PartitionState((leader, 1), (leader,), leader))
    assert (view.error, view.leader) == (error, leader if error is ErrorCode.NONE else -1)


def test_while_the_controller_is_away_changes_go_to_any_broker() -> None:
    assert ClientView(IMAGE, "PLAINTEXT").controller == 1
    away = IMAGE.apply(ImageDelta(base=1, version=2, controller_id=9))
    assert ClientView(away, "PLAINTEXT").controller == 1
    assert ClientView(away, "NOWHERE").controller == -1


@pytest.mark.parametrize("listener", ["PLAINTEXT", INTERNAL])
def test_addresses_are_those_of_the_listener_the_request_came_in_by(
    broker: InProcessBroker, listener: str
) -> None:
    _, host, port = endpoint(broker, listener)
    with wire_to(broker, listener) as wire:
        for nodes in (
            wire.call(MetadataRequest(topics=[])).brokers,
            wire.call(DescribeClusterRequest()).brokers,
            wire.call(FindCoordinatorRequest(coordinator_keys=["g"])).coordinators,
        ):
            assert [(node.host, node.port) for node in nodes] == [(host, port)]


def test_a_broker_with_several_listeners_serves_clients_on_each() -> None:
    settings = {
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "advertised.listeners": "OUTSIDE://localhost:0",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
    }
    with ottla.testing.broker(settings=settings) as broker:
        names = [("INSIDE", "127.0.0.1"), ("OUTSIDE", "localhost")]
        for name, host in names:
            with wire_to(broker, name) as wire:
                (node,) = wire.call(MetadataRequest(topics=[])).brokers
                assert (node.host, node.port) == (host, endpoint(broker, name).port)


# -- what is for brokers only -------------------------------------------------------------------------------


def fetch_as_replica(wire: Wire) -> int:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    request = FetchRequest(
        replica_id=1,
        replica_state=ReplicaState(replica_id=1),
        max_bytes=1000,
        topics=[FetchTopic(topic="t", partitions=[partition])],
    )
    (topic,) = wire.call(request, version=12).responses
    return int(topic.partitions[0].error_code)


def test_a_fetch_as_a_replica_is_refused_on_a_listener_for_clients(broker: InProcessBroker) -> None:
    with wire_to(broker, "PLAINTEXT") as wire:
        assert fetch_as_replica(wire) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with wire_to(broker, INTERNAL) as wire:
        assert fetch_as_replica(wire) == ErrorCode.NOT_LEADER_OR_FOLLOWER, "it has no replica of this"


class _Peer:
    """As much of a connection as dispatch looks at before it has a handler."""

    client_id: str | None = None
    last_active = 0.0

    def __init__(self, from_broker: bool) -> None:
        self.from_broker = from_broker


class _Scheduler:
    def take(self, *_: Any, **__: Any) -> str:
        return "taken"


def dispatched(*, from_broker: bool) -> Any:
    handlers: dict[int, Any] = {FetchImageRequest.api_key: lambda *_: None}
    nothing: Any = None
    scheduler: Any = _Scheduler()

    class Time:
        @staticmethod
        def now() -> float:
            return 0.0

    class Metrics:
        requests = nothing

    watchdog: Any = Time()
    metrics: Any = Metrics()
    dispatcher = Dispatcher(nothing, {}, handlers, scheduler, watchdog, metrics, nothing)
    frame = b"".join(request_frame(FetchImageRequest(broker_id=1), 0, 1, "b"))[4:]
    connection: Any = _Peer(from_broker)
    return dispatcher(connection, memoryview(frame))


def test_requests_between_brokers_are_refused_on_listeners_for_clients() -> None:
    assert dispatched(from_broker=True) == "taken"
    with pytest.raises(Refused, match="FetchImage is served on the listener for other brokers only"):
        dispatched(from_broker=False)


# -- the server ---------------------------------------------------------------------------------------------


async def _connect(port: int) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    return writer


def test_connections_know_their_listener_and_brokers_get_in_beyond_the_limits() -> None:
    async def scenario() -> None:
        memory = ClientMemory(1 << 20, 1 << 20, asyncio.get_running_loop().time, ClientLog)
        limits = Limits(max_connections=1, max_connections_per_address=1)
        server = Server(lambda connection, frame: None, limits, SystemSockets(), memory)
        _, for_clients = server.listen("OUTSIDE", "127.0.0.1", 0, 5)
        _, for_brokers = server.listen(INTERNAL, "127.0.0.1", 0, 5, for_brokers=True)
        server.serve(INTERNAL)
        waiting = await _connect(for_clients)
        brokers = [await _connect(for_brokers) for _ in range(2)]
        await until_connected(server, 2)
        assert {(each.listener, each.from_broker) for each in server.connections} == {(INTERNAL, True)}
        server.serve("OUTSIDE")
        await until_connected(server, 3)
        reader, refused = await asyncio.open_connection("127.0.0.1", for_clients)
        assert await reader.read() == b""
        for writer in (*brokers, waiting, refused):
            writer.close()
        await until_connected(server, 0)
        again = await _connect(for_clients)
        await until_connected(server, 1)
        (connection,) = server.connections
        assert (connection.listener, connection.from_broker) == ("OUTSIDE", False)
        again.close()
        server.abort()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_connections_of_brokers_have_a_limit_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.broker.server._MOST_FROM_BROKERS", 1)

    async def scenario() -> None:
        memory = ClientMemory(1 << 20, 1 << 20, asyncio.get_running_loop().time, ClientLog)
        server = Server(lambda connection, frame: None, Limits(), SystemSockets(), memory)
        _, port = server.listen(INTERNAL, "127.0.0.1", 0, 5, for_brokers=True)
        server.serve()
        first = await _connect(port)
        await until_connected(server, 1)
        reader, second = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        for writer in (first, second):
            writer.close()
        server.abort()

    asyncio.run(asyncio.wait_for(scenario(), 20))


async def until_connected(server: Server, count: int) -> list[Connection]:
    while len(server.connections) != count:
        await asyncio.sleep(0.001)
    return list(server.connections)
