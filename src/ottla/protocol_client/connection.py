"""One blocking connection to one broker.

When it is opened it asks the broker which versions of which requests it speaks. From then on every request is
sent in the highest version both sides know, unless the caller wants a certain one. Requests may be pipelined
and their responses taken later, in any order: `send` returns a `Pending`, `receive` waits for its response.

A connection that failed is closed and stays closed; `Wire` opens a new one. Every failure is a
`BrokerUnreachable` whose text names the address and says what to try, because it is shown to a person.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from ottla import __version__
from ottla.protocol.apis import API_VERSIONS, APIS, PRODUCE, Api
from ottla.protocol.codec import Malformed
from ottla.protocol.errors import ErrorCode
from ottla.protocol.frames import parse_response, request_frame
from ottla.protocol.framing import FrameReader, FrameTooLarge
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.schema import Request

MAX_RESPONSE = 256 << 20
"""A response larger than this is taken for another protocol or a broken peer, and is not read."""

_CORRELATION_ID = Struct(">i")


class BrokerUnreachable(Exception):
    """No connection, or a connection that broke. `reason` says what happened, `advice` what to try."""

    def __init__(self, address: str, reason: str, advice: str = "") -> None:
        self.address = address
        self.reason = reason
        self.advice = advice
        super().__init__(f"{address}: {reason}")


class ConnectionRefused(BrokerUnreachable):
    """Nothing listens at the address: no broker runs there, or it is still starting."""


class ConnectionLost(BrokerUnreachable):
    """The broker was reached, and then closed the connection or fell silent."""


class UnsupportedByBroker(Exception):
    """The broker does not offer this request, or no version of it that we speak."""


@dataclass(slots=True)
class Pending:
    """A request on its way. `connection.receive(pending)` waits for its response."""

    connection: Connection
    api: Api
    version: int
    correlation_id: int
    answered: bool = False
    response: Any = field(default=None, repr=False)


class Connection:
    """A socket to `host:port` that speaks Kafka's protocol. Not for use by several threads at once."""

    def __init__(self, host: str, port: int, *, client_id: str, connect_timeout: float) -> None:
        self.host = host
        self.port = port
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.client_id = client_id
        self.versions: dict[int, tuple[int, int]] = {}
        self._next_correlation = 0
        self._in_flight: dict[int, Pending] = {}
        self._frames = FrameReader(MAX_RESPONSE)
        self._socket = self._connect(connect_timeout)
        try:
            self._negotiate(connect_timeout)
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        return self._socket.fileno() == -1

    def fileno(self) -> int:
        """So that `select` takes a connection."""
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()
        self._in_flight.clear()

    def version_for(self, request: type[Request], at_most: int | None = None) -> int:
        """The highest version of `request` that both sides speak (and the caller wants)."""
        api = APIS[request.api_key]
        offered = self.versions.get(api.key)
        if offered is None:
            raise UnsupportedByBroker(f"the broker at {self.address} does not offer {api.name}")
        version = api.common_version(offered, at_most)
        if version is None:
            ours = api.max_version if at_most is None else min(api.max_version, at_most)
            raise UnsupportedByBroker(
                f"the broker at {self.address} speaks {api.name} {offered[0]} to {offered[1]}, "
                f"this client {api.min_version} to {ours}"
            )
        return version

    def send(self, request: Request, version: int | None = None, timeout: float = 30.0) -> Pending:
        """Put `request` on the wire. One that the broker will not answer (acks=0) counts as answered."""
        api = APIS[request.api_key]
        if version is None:
            version = self.version_for(type(request))
        self._next_correlation = (self._next_correlation + 1) & 0x7FFFFFFF
        pending = Pending(self, api, version, self._next_correlation)
        parts = request_frame(request, version, pending.correlation_id, self.client_id)
        try:
            self._socket.settimeout(timeout)
            for part in parts:
                self._socket.sendall(part)
        except TimeoutError:
            raise self._lost(f"took no data for {timeout:g} s", "The broker may be overloaded.") from None
        except OSError as error:
            raise self._lost(_says(error)) from None
        if api.key == PRODUCE and getattr(request, "acks", 1) == 0:
            pending.answered = True
        else:
            self._in_flight[pending.correlation_id] = pending
        return pending

    def receive(self, pending: Pending, timeout: float = 30.0) -> Any:
        """The response to `pending`; `ConnectionLost` when it does not come within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not pending.answered:
            self._receive_some(deadline, pending)
        return pending.response

    def call(self, request: Request, version: int | None = None, timeout: float = 30.0) -> Any:
        return self.receive(self.send(request, version, timeout), timeout)

    def _receive_some(self, deadline: float, wanted: Pending) -> None:
        """Wait for bytes, and take all responses that they complete."""
        if self.closed:
            raise ConnectionLost(self.address, "the connection is closed")
        self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            count = self._socket.recv_into(self._frames.buffer())
        except TimeoutError:
            raise self._lost(
                f"did not answer {wanted.api.name} in time",
                "The broker may be overloaded, or the address may lead elsewhere.",
            ) from None
        except OSError as error:
            raise self._lost(_says(error)) from None
        if count == 0:
            raise self._lost("closed the connection", "The broker may be stopping; its log says more.")
        try:
            for frame in self._frames.received(count):
                self._take(frame)
        except FrameTooLarge as error:
            raise self._lost(*_not_kafka(error.size)) from None

    def _take(self, frame: memoryview) -> None:
        if len(frame) < _CORRELATION_ID.size:
            raise self._lost(*_not_kafka(len(frame)))
        pending = self._in_flight.pop(_CORRELATION_ID.unpack_from(frame)[0], None)
        if pending is None:
            raise self._lost("answered a request that was not sent; it may not be a Kafka broker")
        version = pending.version
        if pending.api.key == API_VERSIONS and bytes(frame[4:6]) == b"\x00\x23":
            version = 0  # "unsupported version", the one error that every client can read: its body is v0
        try:
            pending.response = parse_response(pending.api, version, frame)[1]
        except Malformed as error:
            raise self._lost(f"sent a {pending.api.name} response that cannot be read ({error})") from None
        pending.answered = True

    def _connect(self, timeout: float) -> socket.socket:
        try:
            sock = socket.create_connection((self.host, self.port), timeout)
        except socket.gaierror:
            raise BrokerUnreachable(
                self.address, f"no such host: {self.host}", "Check the name given to --bootstrap."
            ) from None
        except TimeoutError:
            raise BrokerUnreachable(
                self.address,
                f"no answer within {timeout:g} s",
                "Check the address, and firewalls on the way.",
            ) from None
        except ConnectionRefusedError:
            raise ConnectionRefused(
                self.address, "connection refused", "Is the broker running? `ottla serve` starts one."
            ) from None
        except OSError as error:
            raise BrokerUnreachable(self.address, _says(error)) from None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def _negotiate(self, timeout: float) -> None:
        """Ask for the version table: in our own highest version, then in one that the broker knows."""
        version = APIS[API_VERSIONS].max_version
        for _ in range(2):
            request = ApiVersionsRequest(client_software_name="ottla", client_software_version=__version__)
            response = self.call(request, version, timeout)
            self.versions = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
            if response.error_code != ErrorCode.UNSUPPORTED_VERSION:
                break
            version = min(version - 1, self.versions.get(API_VERSIONS, (0, 0))[1])
        if response.error_code:
            raise self._lost(f"refused to say which versions it speaks (error {response.error_code})")

    def _lost(self, reason: str, advice: str = "") -> ConnectionLost:
        self.close()
        return ConnectionLost(self.address, reason, advice)


def _says(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _not_kafka(size: int) -> tuple[str, str]:
    """What a frame of an absurd size probably is: the first four bytes of another protocol."""
    start = size.to_bytes(4, "big", signed=True)
    if start[:2] in (b"\x15\x03", b"\x16\x03"):
        return "answered in TLS", "This listener wants TLS, which this command does not speak yet."
    if start == b"HTTP":
        return "answered in HTTP", "This is a web server, not a Kafka broker. Check the port."
    return f"sent a frame of {size} bytes, which is no Kafka response", "Check the port."
