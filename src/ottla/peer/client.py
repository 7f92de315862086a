"""An asynchronous client of another broker: for replication, the image feed and forwarded requests.

    client = PeerClient(("broker-2", 9092), client_id="broker-1", sockets=TcpConnector(), rng=rng)
    response = await client.call(FetchRequest(...), timeout=30.0)

One connection, opened on first use and opened again after it broke. Requests are pipelined: several may be in
flight, and responses come in their order. Every call ends within its timeout, with the response or with
`PeerUnreachable`, which says whether the request may have been carried out.

* A request without a response at its deadline closes the connection, since all responses behind it are late
  too. That holds as well when the caller was cancelled in the meantime.
* After a failure the next connection attempt waits, twice as long each time up to `MAX_BACKOFF`, with jitter,
  so that not all brokers reconnect to a restarted one at the same moment. The first response ends the
  back-off. Calls during that pause wait for it, and fail at once when their timeout is shorter. All callers
  share one attempt, which takes at most `CONNECT_TIMEOUT`.
* Memory is bounded: at most `max_in_flight` requests sent or queued (further callers wait for a free slot),
  and at most `max_response` bytes for one response.

Versions are negotiated with ApiVersions when a connection is opened, so that two releases can talk.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from ottla.protocol.apis import APIS
from ottla.protocol.codec import Malformed
from ottla.protocol.errors import error_of
from ottla.protocol.frames import parse_response, request_frame
from ottla.protocol.framing import FrameReader, FrameTooLarge
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.schema import Request

logger = logging.getLogger("ottla.peer")

Address = tuple[str, int]

FIRST_BACKOFF = 0.05
MAX_BACKOFF = 2.0
CONNECT_TIMEOUT = 10.0
"""For the connection and the negotiation of versions together."""
MAX_RESPONSE = 128 << 20
MAX_IN_FLIGHT = 64

_API_VERSIONS_VERSION = 0


class PeerUnreachable(Exception):
    """No response came. `maybe_done` is true when the request may have been sent, and so carried out."""

    def __init__(self, address: Address, reason: str, *, maybe_done: bool) -> None:
        super().__init__(f"{address[0]}:{address[1]}: {reason}")
        self.reason = reason
        self.maybe_done = maybe_done


class UnsupportedByPeer(Exception):
    """The peer does not offer this request in any version that we speak."""


class Socket(Protocol):
    """What is used of a non-blocking socket."""

    def fileno(self) -> int: ...

    def recv_into(self, buffer: Any, /) -> int: ...

    def send(self, data: Any, /) -> int: ...

    def close(self) -> None: ...


class Connector(Protocol):
    """Where sockets come from: the operating system, or a simulation."""

    async def connect(self, address: Address) -> Socket:
        """A connected non-blocking socket, or OSError."""
        ...


@dataclass(slots=True)
class _Call:
    """A request that is sent or queued. `ended` is called once, when its response came or cannot come."""

    correlation_id: int
    api_key: int
    version: int
    response: asyncio.Future[Any]
    expiry: asyncio.TimerHandle
    ended: Callable[[], None]


class PeerClient:
    def __init__(
        self,
        address: Address,
        *,
        client_id: str,
        sockets: Connector,
        rng: Random,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_response: int = MAX_RESPONSE,
    ) -> None:
        self.address = address
        self._client_id = client_id
        self._sockets = sockets
        self._rng = rng
        self._max_response = max_response
        self._slots = asyncio.Semaphore(max_in_flight)
        self._opening: asyncio.Task[_Connection] | None = None
        self._connection: _Connection | None = None
        self._failures = 0
        self._not_before = 0.0
        self._closed = False

    @property
    def connected(self) -> bool:
        return self._connection is not None and not self._connection.broken

    async def call(self, request: Request, *, timeout: float, version: int | None = None) -> Any:
        """Send `request` and wait for its response. PeerUnreachable when none comes within `timeout` seconds,
        UnsupportedByPeer when the peer does not offer it."""
        if timeout <= 0:
            reason = f"no time was left to send {type(request).__name__}"
            raise PeerUnreachable(self.address, reason, maybe_done=False)
        deadline = asyncio.get_running_loop().time() + timeout
        try:
            if self.connected and self._opening is None and not self._slots.locked():
                call = await self._send(request, version, deadline)  # there is nothing to wait for
            else:
                async with asyncio.timeout_at(deadline):
                    call = await self._send(request, version, deadline)
        except TimeoutError:
            reason = f"{type(request).__name__} could not be sent within {timeout:g} s"
            raise PeerUnreachable(self.address, reason, maybe_done=False) from None
        except _Broken as broken:
            raise PeerUnreachable(self.address, str(broken), maybe_done=False) from None
        try:
            response = await call.response
        except _Broken as broken:
            raise PeerUnreachable(self.address, str(broken), maybe_done=True) from None
        self._failures = 0
        return response

    async def close(self) -> None:
        """Close the connection. Calls in flight fail, and so do all later ones."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._connection is not None:
            self._connection.fail("the client was closed")
            self._connection = None

    async def _send(self, request: Request, version: int | None, deadline: float) -> _Call:
        """The slot that is taken here is freed by the connection, when the call has ended."""
        await self._slots.acquire()
        try:
            connection = await self._usable_connection(deadline)
            return connection.send(
                request, connection.version_of(request, version), deadline, self._slots.release
            )
        except BaseException:
            self._slots.release()
            raise

    async def _usable_connection(self, deadline: float) -> _Connection:
        while True:
            if self._closed:
                raise _Broken("the client was closed")
            if self._opening is not None and self._opening.done():
                # To await it would not let others run, so its callback would never come.
                self._opened(self._opening)
            if self._connection is not None:
                if not self._connection.broken:
                    return self._connection
                self._connection = None
                self._back_off()
            if self._not_before >= deadline:
                raise _Broken(
                    "the last attempt to connect failed; the next one starts after this call's timeout"
                )
            if self._opening is None:
                self._opening = asyncio.get_running_loop().create_task(self._open())
                self._opening.add_done_callback(self._opened)
            attempt = self._opening
            try:
                # Another caller may have a later deadline: the attempt goes on when this one is cancelled.
                await asyncio.shield(attempt)
            except asyncio.CancelledError:
                if self._closed and attempt.cancelled():
                    raise _Broken("the client was closed") from None
                raise

    async def _open(self) -> _Connection:
        pause = self._not_before - asyncio.get_running_loop().time()
        if pause > 0:
            await asyncio.sleep(pause)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                sock = await self._sockets.connect(self.address)
                connection = _Connection(self.address, sock, self._client_id, self._max_response)
                try:
                    await connection.negotiate_versions(CONNECT_TIMEOUT)
                except BaseException:
                    connection.fail("it was not opened")
                    raise
        except TimeoutError:
            raise _Broken(f"no connection within {CONNECT_TIMEOUT:g} s") from None
        except OSError as error:
            raise _Broken(f"no connection: {error}") from None
        return connection

    def _opened(self, attempt: asyncio.Task[_Connection]) -> None:
        if attempt is not self._opening:
            return  # its outcome has been taken already
        self._opening = None
        if attempt.cancelled():
            return
        error = attempt.exception()
        if error is None:
            self._connection = attempt.result()
            return
        self._back_off()
        if not isinstance(error, _Broken):
            logger.error("connection to %s:%d: unexpected error", *self.address, exc_info=error)

    def _back_off(self) -> None:
        longest = min(FIRST_BACKOFF * 2**self._failures, MAX_BACKOFF)
        self._failures = min(self._failures + 1, 32)
        self._not_before = asyncio.get_running_loop().time() + longest * self._rng.uniform(0.5, 1.0)


class _Broken(Exception):
    """The connection cannot be used any more."""


class _Connection:
    """One open connection and its calls in flight, in their order.

    The socket is read and written in callbacks of the event loop, without tasks: a response resolves its call
    in the iteration in which its last byte came.
    """

    def __init__(self, address: Address, sock: Socket, client_id: str, max_response: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._sock = sock
        self._client_id = client_id
        self._frames = FrameReader(max_response)
        self._versions: dict[int, tuple[int, int]] = {}
        self._next_id = 0
        self._calls: deque[_Call] = deque()
        self._out: deque[Any] = deque()
        self._writing = False
        self.broken: str = ""
        self._loop.add_reader(sock.fileno(), self._readable)

    async def negotiate_versions(self, timeout: float) -> None:
        deadline = self._loop.time() + timeout
        call = self.send(ApiVersionsRequest(), _API_VERSIONS_VERSION, deadline, _nothing)
        response = await call.response
        if response.error_code:
            raise _Broken(f"it refuses ApiVersions: {error_of(response.error_code).name}")
        self._versions = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}

    def version_of(self, request: Request, wanted: int | None) -> int:
        api = APIS[request.api_key]
        version = api.common_version(self._versions.get(request.api_key, (0, -1)), wanted)
        if version is None or wanted not in (None, version):
            raise UnsupportedByPeer(f"{self._address[0]}:{self._address[1]} does not offer {api.name}")
        return version

    def send(self, request: Request, version: int, deadline: float, ended: Callable[[], None]) -> _Call:
        """Queue a request. Without a response at `deadline` the connection is closed."""
        if self.broken:
            raise _Broken(self.broken)
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        parts = request_frame(request, version, self._next_id, self._client_id)
        late = f"no response to {type(request).__name__} within {deadline - self._loop.time():g} s"
        call = _Call(
            self._next_id,
            request.api_key,
            version,
            self._loop.create_future(),
            self._loop.call_at(deadline, self.fail, late),
            ended,
        )
        self._calls.append(call)
        idle = not self._out
        self._out.extend(parts)
        if idle:
            self._writable()
        return call

    def fail(self, why: str) -> None:
        """Close the connection: calls in flight fail."""
        if self.broken:
            return
        self.broken = why
        logger.debug("connection to %s:%d: %s", *self._address, why)
        self._loop.remove_reader(self._sock.fileno())
        if self._writing:
            self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        for call in self._calls:
            call.expiry.cancel()
            call.ended()
            if not call.response.done():
                call.response.set_exception(_Broken(why))
        self._calls.clear()
        self._out.clear()

    def _readable(self) -> None:
        try:
            count = self._sock.recv_into(self._frames.buffer())
            if not count:
                self.fail("it closed the connection")
                return
            for frame in self._frames.received(count):
                self._take(frame)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, FrameTooLarge, Malformed) as error:
            self.fail(str(error))
        except Exception as error:
            logger.exception("connection to %s:%d: unexpected error", *self._address)
            self.fail(f"unexpected error: {error!r}")

    def _take(self, frame: memoryview) -> None:
        if not self._calls:
            raise Malformed("a response without a request")
        call = self._calls[0]
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        if correlation_id != call.correlation_id:
            raise Malformed(f"response {correlation_id} came where {call.correlation_id} was due")
        api = APIS[call.api_key]
        try:
            response = parse_response(api, call.version, frame)[1]
        except Malformed as error:
            raise Malformed(f"its {api.name} response cannot be read: {error}") from None
        self._calls.popleft()
        call.expiry.cancel()
        call.ended()
        if not call.response.done():
            call.response.set_result(response)

    def _writable(self) -> None:
        """Send what is queued, as far as the socket takes it."""
        try:
            while self._out:
                part = memoryview(self._out[0])
                sent = self._sock.send(part)
                if sent < len(part):
                    self._out[0] = part[sent:]
                else:
                    self._out.popleft()
        except (BlockingIOError, InterruptedError):
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._sock.fileno(), self._writable)
            return
        except OSError as error:
            self.fail(str(error))
            return
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock.fileno())


def _nothing() -> None:
    pass
