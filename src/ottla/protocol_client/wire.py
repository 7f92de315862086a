"""A small blocking client: sends requests to the brokers they belong to, and returns the responses.

    with Wire("127.0.0.1:9092") as wire:
        response = wire.call(MetadataRequest(topics=None))

`Wire` keeps one connection per broker and opens it on first use. It learns the brokers and leaders from
Metadata and gives every request a time limit. It does not hide the protocol: the caller builds the
request and reads the response. `produce.py` and `consume.py` use it, and so do the commands of the `ottla`
tool and many tests. It needs nothing but the standard library and `ottla.protocol`.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from ottla.protocol.schema import Request
from ottla.protocol_client.connection import (
    BrokerUnreachable,
    Connection,
    ConnectionLost,
    ConnectionRefused,
    Pending,
    UnsupportedByBroker,
)

__all__ = [
    "BrokerUnreachable",
    "ConnectionLost",
    "Patience",
    "Pending",
    "UnsupportedByBroker",
    "Wire",
    "check",
    "parse_bootstrap",
]

DEFAULT_PORT = 9092

_ERRORS = {int(code): code for code in ErrorCode}


class Patience:
    """How long a caller tries again after errors that may pass: a deadline, and pauses that grow."""

    def __init__(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds
        self._pause = 0.02

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def pause(self, error: ApiError | BrokerUnreachable) -> None:
        """Wait a little; raises `error` instead when it will not pass, or after the timeout."""
        if isinstance(error, ApiError) and not error.code.retriable:
            raise error
        if self.left <= 0:
            raise error
        time.sleep(min(self._pause, max(self.left, 0.0)))
        self._pause = min(self._pause * 2, 1.0)


class Wire:
    """Connections to the brokers of one cluster. Not for use by several threads at once."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = "ottla",
        connect_timeout: float = 5.0,
        request_timeout: float = 30.0,
        start_timeout: float = 0.0,
    ) -> None:
        """`start_timeout` is how long the first connection is tried again while nothing listens there."""
        self.bootstrap = parse_bootstrap(bootstrap)
        self.client_id = client_id
        self.connect_timeout = connect_timeout
        self.request_timeout = request_timeout
        self._start_timeout = start_timeout
        self.nodes: dict[int, tuple[str, int]] = {}
        self.controller_id = -1
        self._connections: dict[tuple[str, int], Connection] = {}

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Requests

    def call(
        self,
        request: Request,
        version: int | None = None,
        node: int | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Send `request` to broker `node` (any broker when None) and wait for its response.

        `version` None is the highest that both sides know. Raises `BrokerUnreachable` when no response comes
        and `UnsupportedByBroker` when the broker does not offer the request. Error codes inside the
        response are the caller's to read.
        """
        limit = self.request_timeout if timeout is None else timeout
        pending = self.connection(node).send(request, version, limit)
        return pending.connection.receive(pending, limit)

    def send(self, request: Request, version: int | None = None, node: int | None = None) -> Pending:
        """Send `request` and do not wait: `ready` and `receive` take the response later."""
        return self.connection(node).send(request, version, self.request_timeout)

    def receive(self, pending: Pending, timeout: float | None = None) -> Any:
        return pending.connection.receive(pending, self.request_timeout if timeout is None else timeout)

    def ready(self, pendings: Iterable[Pending], timeout: float) -> list[Pending]:
        """Those of `pendings` whose connection has something to read (or has failed), within `timeout`."""
        waiting = list(pendings)
        done = [p for p in waiting if p.answered or p.connection.closed]
        if done or not waiting:
            return done
        poll = select.poll()
        for pending in waiting:
            poll.register(pending.connection, select.POLLIN)
        readable = {number for number, _ in poll.poll(timeout * 1000)}
        return [p for p in waiting if p.connection.fileno() in readable]

    def offers(self, request: type[Request], node: int | None = None) -> bool:
        """True when the broker speaks some version of `request` that we speak."""
        try:
            self.connection(node).version_for(request)
        except UnsupportedByBroker:
            return False
        return True

    # Where things are

    def metadata(self, topics: Iterable[str] | None = None, *, create: bool = False) -> MetadataResponse:
        """Fresh metadata of `topics` (all when None); remembers brokers and controller on the way.

        `create` lets the broker create a topic that is missing, if it is set up to do that.
        """
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=create)
        patience = Patience(self.connect_timeout)
        while True:
            try:
                response: MetadataResponse = self.call(request)
                break
            except ConnectionLost as error:  # an idle connection may have been closed behind our back
                patience.pause(error)
        if response.brokers:
            self.nodes = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        self.controller_id = response.controller_id
        return response

    def topic(self, name: str, *, create: bool = False, patience: float = 0.0) -> MetadataResponseTopic:
        """Metadata of one topic; ApiError when there is none.

        Waits up to `patience` seconds for a topic that is unknown (a new one may not have got around yet),
        and up to the request timeout for one that exists but is not ready. Single partitions may still be
        without a leader.
        """
        waiting = Patience(self.request_timeout)
        unknown = Patience(patience)
        while True:
            found = self.metadata([name], create=create).topics[0]
            try:
                check(found.error_code)
                return found
            except ApiError as error:
                missing = error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                (unknown if missing else waiting).pause(error)

    def controller(self) -> int | None:
        """The broker to send changes of topics and configurations to."""
        if self.controller_id < 0:
            self.metadata([])
        return self.controller_id if self.controller_id in self.nodes else None

    def connection(self, node: int | None = None) -> Connection:
        """The open connection to broker `node`, or to any broker; opens one when there is none."""
        if node is None:
            return self._any()
        if node not in self.nodes:
            self.metadata([])
        if node not in self.nodes:
            raise BrokerUnreachable(f"broker {node}", "not in the cluster any more")
        return self._to(self.nodes[node], node)

    def _any(self) -> Connection:
        for connection in self._connections.values():
            if not connection.closed:
                return connection
        starting = Patience(0.0 if self._connections else self._start_timeout)
        while True:
            try:
                return self._first_that_answers()
            except ConnectionRefused as error:
                starting.pause(error)

    def _first_that_answers(self) -> Connection:
        first: BrokerUnreachable | None = None
        for address in dict.fromkeys([*self.bootstrap, *self.nodes.values()]):
            try:
                return self._to(address)
            except BrokerUnreachable as error:
                first = first or error
        assert first is not None  # bootstrap is never empty
        raise first

    def _to(self, address: tuple[str, int], node: int | None = None) -> Connection:
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            try:
                connection = Connection(
                    *address, client_id=self.client_id, connect_timeout=self.connect_timeout
                )
            except BrokerUnreachable as error:
                if node is None or address in self.bootstrap:
                    raise
                raise BrokerUnreachable(
                    error.address,
                    error.reason,
                    f"Broker {node} advertised this address. "
                    "If it is not meant for this machine, change advertised.listeners of the broker.",
                ) from None
            self._connections[address] = connection
        return connection


def check(code: int, message: str | None = None) -> None:
    """Raise the ApiError for an error code of a response; nothing when the code is 0."""
    if code:
        known = _ERRORS.get(code)
        if known is None:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"error code {code}: {message or 'unknown to us'}")
        raise ApiError(known, message or None)


def parse_bootstrap(bootstrap: str | Sequence[str]) -> list[tuple[str, int]]:
    """`host:port,host,[::1]:9093` as pairs; ValueError says what is wrong with it."""
    pieces = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    found = [_parse_address(piece.strip()) for piece in pieces if piece.strip()]
    if not found:
        raise ValueError("no broker address given; HOST:PORT is wanted, for example 127.0.0.1:9092")
    return found


def _parse_address(text: str) -> tuple[str, int]:
    address = text.removeprefix("PLAINTEXT://")
    if "://" in address:
        raise ValueError(f"{text!r}: only PLAINTEXT listeners can be reached so far; HOST:PORT is wanted")
    if address.startswith("["):
        host, bracket, rest = address[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is not an address; an IPv6 one looks like [::1]:9092")
        port = rest[1:]
    elif address.count(":") > 1:
        host, port = address, ""
    else:
        host, _, port = address.partition(":")
    if not host:
        raise ValueError(f"{text!r} has no host; HOST:PORT is wanted, for example 127.0.0.1:9092")
    if not port:
        return host, DEFAULT_PORT
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError(f"{text!r}: the port is not a number from 1 to 65535")
    return host, int(port)
