"""An asynchronous client of another broker: for replication, the image feed and forwarded requests.

    client = PeerClient(("broker-2", 9092), client_id="broker-1", sockets=sockets, rng=rng)
    response = await client.call(FetchRequest(...), timeout=30.0)

One connection, opened on first use and opened again when it broke. Requests are pipelined: several may be
under way, and answers come in their order. Every call ends within its timeout, with the response or with
`PeerUnreachable`, which says whether the request may have been carried out.

* A call that times out closes the connection: the answers behind it could not be told apart from a stall.
* After a failure the next attempt waits, twice as long each time up to `MAX_BACKOFF`, with jitter, so that a
  restarted broker is not met by all others in the same moment. A call during that pause waits for it, or
  fails at once when its timeout is over before.
* Memory is bounded: at most `max_in_flight` requests under way (further callers wait their turn) and at most
  `max_response` bytes for one answer.

Versions are agreed on with ApiVersions when a connection is opened, so that brokers of two releases can talk.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
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
MAX_RESPONSE = 128 << 20
MAX_IN_FLIGHT = 64

_API_VERSIONS_VERSION = 0


class PeerUnreachable(Exception):
    """The peer gave no answer. `maybe_done` is true when the request had been sent before that was known."""

    def __init__(self, address: Address, reason: str, *, maybe_done: bool) -> None:
        super().__init__(f"{address[0]}:{address[1]}: {reason}")
        self.reason = reason
        self.maybe_done = maybe_done


class UnsupportedByPeer(Exception):
    """The peer does not offer this request in any version that we speak."""


class Socket(Protocol):
    """What is used of a non-blocking socket, through asyncio's `sock_*` methods."""

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class Connector(Protocol):
    """Where sockets come from: the operating system, or a simulation."""

    async def connect(self, address: Address) -> Socket:
        """A connected non-blocking socket, or OSError."""
        ...


@dataclass(slots=True)
class _Call:
    correlation_id: int
    api_key: int
    version: int
    answer: asyncio.Future[Any]


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
        self._turns = asyncio.Semaphore(max_in_flight)
        self._connecting = asyncio.Lock()
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
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        connection: _Connection | None = None
        call: _Call | None = None
        try:
            async with asyncio.timeout_at(deadline):
                async with self._turns:
                    connection = await self._open(deadline)
                    call = connection.send(request, connection.version_of(request, version))
                    return await call.answer
        except TimeoutError:
            if call is not None and connection is not None:
                connection.fail(f"no answer to {type(request).__name__} within {timeout:g} s")
            raise PeerUnreachable(
                self.address, f"no answer within {timeout:g} s", maybe_done=call is not None
            ) from None
        except _Broken as broken:
            raise PeerUnreachable(self.address, str(broken), maybe_done=call is not None) from None

    async def close(self) -> None:
        """Break off: calls under way fail."""
        self._closed = True
        if self._connection is not None:
            await self._connection.end("the client was closed")
            self._connection = None

    async def _open(self, deadline: float) -> _Connection:
        async with self._connecting:
            if self._connection is not None and not self._connection.broken:
                return self._connection
            if self._closed:
                raise _Broken("the client was closed")
            loop = asyncio.get_running_loop()
            if self._connection is not None:
                await self._connection.end("it broke")
                self._connection = None
                self._back_off()
            pause = self._not_before - loop.time()
            if loop.time() + pause >= deadline:
                raise _Broken("it could not be reached a moment ago; the next attempt comes later")
            if pause > 0:
                await asyncio.sleep(pause)
            try:
                sock = await self._sockets.connect(self.address)
                connection = _Connection(self.address, sock, self._client_id, self._max_response)
                try:
                    await connection.agree_on_versions()
                except BaseException:
                    await connection.end("it was not opened")
                    raise
            except (OSError, _Broken) as error:
                self._back_off()
                raise _Broken(f"no connection: {error}") from None
            self._failures = 0
            self._connection = connection
            return connection

    def _back_off(self) -> None:
        longest = min(FIRST_BACKOFF * 2**self._failures, MAX_BACKOFF)
        self._failures = min(self._failures + 1, 32)
        self._not_before = asyncio.get_running_loop().time() + longest * self._rng.uniform(0.5, 1.0)


class _Broken(Exception):
    """The connection is of no use any more."""


class _Connection:
    """One open connection: a task that reads, a task that writes, and the calls under way in their order."""

    def __init__(self, address: Address, sock: Any, client_id: str, max_response: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._sock = sock
        self._client_id = client_id
        self._frames = FrameReader(max_response)
        self._versions: dict[int, tuple[int, int]] | None = None
        self._next_id = 0
        self._calls: deque[_Call] = deque()
        self._out: deque[Any] = deque()
        self._more = asyncio.Event()
        self.broken: str = ""
        self._tasks = [
            self._loop.create_task(self._read(), name=f"reading from {address}"),
            self._loop.create_task(self._write(), name=f"writing to {address}"),
        ]

    async def agree_on_versions(self) -> None:
        call = self.send(ApiVersionsRequest(), _API_VERSIONS_VERSION)
        answer = await call.answer
        if answer.error_code:
            raise _Broken(f"it refuses ApiVersions: {error_of(answer.error_code).name}")
        self._versions = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}

    def version_of(self, request: Request, wanted: int | None) -> int:
        api = APIS[request.api_key]
        assert self._versions is not None
        lowest, highest = self._versions.get(request.api_key, (0, -1))
        highest = min(highest, api.max_version) if wanted is None else min(highest, wanted)
        if highest < max(lowest, api.min_version) or wanted not in (None, highest):
            raise UnsupportedByPeer(f"{self._address[0]}:{self._address[1]} does not offer {api.name}")
        return highest

    def send(self, request: Request, version: int) -> _Call:
        if self.broken:
            raise _Broken(self.broken)
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        call = _Call(self._next_id, request.api_key, version, self._loop.create_future())
        self._calls.append(call)
        self._out.extend(request_frame(request, version, call.correlation_id, self._client_id))
        self._more.set()
        return call

    def fail(self, why: str) -> None:
        """Use it no more: everybody who waits for an answer hears why."""
        if self.broken:
            return
        self.broken = why
        logger.debug("connection to %s:%d: %s", *self._address, why)
        for call in self._calls:
            if not call.answer.done():
                call.answer.set_exception(_Broken(why))
        self._calls.clear()
        self._out.clear()
        self._more.set()

    async def end(self, why: str) -> None:
        self.fail(why)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._sock.close()

    async def _read(self) -> None:
        try:
            while not self.broken:
                count = await self._loop.sock_recv_into(self._sock, self._frames.buffer())
                if not count:
                    self.fail("it closed the connection")
                    return
                for frame in self._frames.received(count):
                    self._take(frame)
        except (OSError, FrameTooLarge, Malformed) as error:
            self.fail(str(error))

    def _take(self, frame: memoryview) -> None:
        if not self._calls:
            raise Malformed("an answer came that nobody asked for")
        call = self._calls.popleft()
        correlation_id, response = parse_response(APIS[call.api_key], call.version, frame)
        if correlation_id != call.correlation_id:
            call.answer.set_exception(_Broken("answers came out of order"))
            raise Malformed(f"answer {correlation_id} came where {call.correlation_id} was due")
        if not call.answer.done():
            call.answer.set_result(response)

    async def _write(self) -> None:
        try:
            while not self.broken:
                while self._out:
                    await self._loop.sock_sendall(self._sock, self._out.popleft())
                self._more.clear()
                await self._more.wait()
        except OSError as error:
            self.fail(str(error))
