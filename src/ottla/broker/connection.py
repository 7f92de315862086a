"""One client's connection: frames in, answers out, strictly in order.

A non-blocking socket on the event loop's `add_reader`/`add_writer`, without asyncio's transports: a frame is
received straight into the memory it is decoded from, and an answer is a list of bytes and file slices, which
`answer_sender` sends.

The life of a connection is a simple cycle: read a frame, hand it to dispatch, send the answer, read the next.
One request is under way at a time, as in Kafka, so answers leave in the order of their requests, and while a
request waits or its answer is not yet taken by the client nothing more is read: a slow reader holds back
itself only. Clients may pipeline; what they sent stays in the kernel's buffer or in `_early`.

A client that is gone waits for nothing: its request is cancelled and the connection closed. Whole Produce
requests that came before its end are handled first, without answers: with acks=0 a client may send its
records and leave.
"""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from typing import Protocol, TypeAlias

from ottla.broker.answer_sender import AnswerSender, Parts, SendingHost
from ottla.broker.buffers import Claim, Lease, RequestMemory
from ottla.broker.client_memory import HALF_FRAMES, ClientMemory, Holding
from ottla.broker.sockets import Socket
from ottla.completion import Completion
from ottla.config.listeners import PLAINTEXT
from ottla.log_lines import ClientLog
from ottla.printable import shown

logger = logging.getLogger("ottla.connection")

Answer: TypeAlias = "Parts | Completion[Parts | None] | None"
"""A frame, now or later; None where no answer is due."""

_SIZE = 4
_PRODUCE_KEY = b"\0\0"
"""A request begins with its API key."""
_FEW = 4096
"""So few bytes of an unfinished frame are not worth an account."""
_ITERATION_REQUESTS = 32
"""Pipelined requests of one connection handled in one iteration of the loop."""
ITERATION_SECONDS = 0.005
"""After this time the next pipelined request waits for the next iteration of the loop."""


class Refused(Exception):
    """The connection has to be closed: what came in is not a request we can answer. The text says why."""


class Host(SendingHost, Protocol):
    """What a connection needs of its server."""

    memory: RequestMemory
    client_memory: ClientMemory
    scratch: memoryview
    """What comes in is received here, and small frames are handled here."""
    max_frame: int
    client_log: ClientLog

    def dispatch(self, connection: Connection, frame: memoryview) -> Answer: ...

    def hand_over_scratch(self, address: str) -> Lease: ...

    def closed(self, connection: Connection) -> None: ...


class Connection:
    __slots__ = (
        "_answering",
        "_claim",
        "_client_gone",
        "_closed",
        "_early",
        "_fd",
        "_filled",
        "_frame",
        "_half",
        "_handled",
        "_host",
        "_in_scratch",
        "_looked",
        "_out",
        "_producing",
        "_reading",
        "_sender",
        "_sock",
        "_yields",
        "address",
        "client_id",
        "draining",
        "from_broker",
        "last_active",
        "listener",
        "peer",
    )

    def __init__(
        self,
        host: Host,
        sock: Socket,
        address: str,
        peer: str,
        listener: str = PLAINTEXT,
        *,
        from_broker: bool = False,
    ) -> None:
        self._host = host
        self._sock = sock
        self._fd = sock.fileno()
        self.address = address
        self.peer = peer
        self.listener = listener
        """The name of the listener that it came in by."""
        self.from_broker = from_broker
        """It came in by the listener for other brokers."""
        self.client_id: str | None = None
        self.last_active = host.now()
        self.draining = False
        """True once the server stops: the request under way is answered, no other is read."""
        self._frame: Lease | None = None  # a large frame being received, `_filled` bytes of it are there
        self._filled = 0
        self._looked = (0.0, 0)  # when `crawls` was asked last, and how many bytes were there then
        self._handled: Lease | None = None  # the memory of a large frame that is being handled now
        self._in_scratch = False  # the frame that is being handled now lies in the host's `scratch`
        self._claim: Claim | None = None
        self._early = bytearray()  # bytes that came behind a request which is still under way
        self._half: Holding | None = None  # the account of bytes that are kept for later
        self._sender = AnswerSender(host, sock, self)
        self._out = self._sender.out  # what of an answer is not yet sent
        self._answering: Completion[Parts | None] | None = None
        self._producing = False  # whether the request that is waited for (`_answering`) is a Produce
        self._client_gone = False  # Produce requests it has sent are still to be handled; it gets no answers
        self._yields = False
        self._reading = False
        self._closed = False
        self._read_on()

    def __repr__(self) -> str:
        return f"{self.peer} ({shown(self.client_id) if self.client_id else 'no client id'})"

    @property
    def client_gone(self) -> bool:
        """The client takes no answer any more. Produce requests that came before may still be handled."""
        return self._client_gone or self._closed

    @property
    def busy(self) -> bool:
        """A request is under way or its answer not yet sent."""
        return self._answering is not None or bool(self._out)

    @property
    def waits(self) -> bool:
        """Its request is with us; the client can do nothing."""
        return self._answering is not None

    def crawls(self, window: float, least_rate: float, longest: float) -> bool:
        """Too few bytes of a large frame came since this was asked last, at least `window` seconds ago.

        It has to bring `least_rate` bytes a second, and enough to have the whole frame within `longest`
        seconds. What counts is the time since the last question: a frame that came quickly and stopped short
        of its end crawls too.
        """
        frame = self._frame
        if frame is None:
            return False
        now = self._host.now()
        since, before = self._looked
        if now - since < window:
            return False
        self._looked = (now, self._filled)
        return self._filled - before < (now - since) * max(least_rate, len(frame.view) / longest)

    def close(self, why: str | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        if why:
            self._host.client_log.warning(logger, self.address, "closing %r: %s", self, why)
        self.stop_reading()
        self._sender.close()
        if self._answering is not None:
            self._answering.cancel()
            self._answering = None
        if self._frame is not None:
            self._host.memory.give_back(self._frame)
            self._frame = None
        if self._claim is not None:
            self._host.memory.withdraw(self._claim)
            self._claim = None
        # Its bytes go now: the connection and its sender know each other, and wait for the garbage collector.
        self._early = bytearray()
        self._keep(0)
        # A process forked from this one holds the socket too: closing alone would leave the connection open.
        with suppress(OSError):  # the client may be gone already
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._host.closed(self)

    def drain(self) -> None:
        """Read no further request; close when the one under way is answered."""
        self.draining = True
        if not self.busy:
            self.close()

    # -- in -----------------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        if not self._reading and not self._closed:
            self._reading = True
            self._host.loop.add_reader(self._fd, self._readable)

    def stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._host.loop.remove_reader(self._fd)

    def _readable(self) -> None:
        host = self._host
        try:
            if self._answering is not None:
                # It may be gone, or it sends the next request already: that one has to wait.
                if self._sock.recv(1, socket.MSG_PEEK):
                    self.stop_reading()
                    return
            elif self._frame is None:
                # The start of a small frame that came before is put in front of what comes now.
                kept = len(self._early)
                if kept:
                    host.scratch[:kept] = self._early
                received = self._sock.recv_into(host.scratch[kept:] if kept else host.scratch)
                if received:
                    self.last_active = host.now()
                    if kept:
                        self._early = bytearray()
                    self._take(host.scratch, kept + received)
                    return
            else:
                received = self._sock.recv_into(self._frame.view[self._filled :])
                if received:
                    self.last_active = host.now()
                    self._filled += received
                    if self._filled == len(self._frame.view):
                        self._frame_complete()
                    return
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            logger.debug("%r is gone: %s", self, error)
        self._end_of_stream()

    def _end_of_stream(self) -> None:
        """Close, but handle the Produce requests first that came behind the one under way."""
        if self._answering is not None and not self._client_gone:
            self._early = _whole_produce_frames(self._early, self._host.max_frame)
            self._keep(len(self._early))
        if self._answering is None or not self._early:
            self.close()
            return
        self._client_gone = True
        self.stop_reading()
        if not self._producing:
            self._answering.cancel()
            self._answering = None
            self._host.loop.call_soon(self.read_next)

    def _take(self, data: memoryview, end: int) -> None:
        """Handle the frames in data[:end]; keep what is not a whole frame for later."""
        position = requests = 0
        self._yields = False
        self._in_scratch = data is self._host.scratch
        while not self._closed:
            left = end - position
            if left < _SIZE:
                break
            if self._yields or requests == _ITERATION_REQUESTS:
                # Other connections are served first. The rest is handled in the next iteration.
                self.stop_reading()
                self._host.loop.call_soon(self.read_next)
                break
            requests += 1
            size = int.from_bytes(data[position : position + _SIZE], "big", signed=True)
            if not 0 < size <= self._host.max_frame:
                self.close(
                    f"a frame of {size} bytes was announced, {self._host.max_frame} are allowed "
                    "(socket.request.max.bytes); is the client speaking another protocol?"
                )
                return
            if left - _SIZE < size:
                if size + _SIZE > len(self._host.scratch):
                    self._receive_large(data[position + _SIZE : end], size)
                    return
                break
            position += _SIZE + size
            if not self._handle(data[position - size : position]):
                break
        # Mostly nothing is left. What is left waits for its rest, or for the request before it.
        if position < end and not self._closed:
            # Writable, as every frame is: the leader stamps offsets into a batch where it lies.
            self._early = bytearray(data[position:end])
            if end - position > _FEW or self._half is not None:
                self._keep(end - position)
        elif self._half is not None:
            self._keep(0)

    def yield_loop(self) -> None:
        """The request that is handled now has taken long: handle no other in this iteration of the loop."""
        self._yields = True

    def take_frame(self) -> Lease | None:
        """Let the frame that is handled now outlive the call. The caller owns its memory and releases it.

        None when the frame lies in memory that no other request uses: then nothing has to be released.
        """
        lease, self._handled = self._handled, None
        if lease is None and self._in_scratch:
            lease = self._host.hand_over_scratch(self.address)
            self._in_scratch = False
            self._yields = True  # the frames behind it are moved out of the memory that is not ours now
        return lease

    def _keep(self, size: int) -> None:
        """Account for bytes that wait for the rest of their frame or for the request before them."""
        memory, half = self._host.client_memory, self._half
        if half is not None and size <= _FEW:
            self._half = None
            memory.release(half)
        elif half is not None:
            memory.resize(half, size)
            memory.touch(half)
        elif size > _FEW:
            who = repr(self)
            if not memory.admit(self.address, who, HALF_FRAMES, size):
                self.close("there is no memory for its unfinished frame")
                return
            self._half = memory.hold(self.address, who, HALF_FRAMES, size, self._evicted)

    def _evicted(self, why: str) -> None:
        logger.debug("closing %r: %s", self, why)
        self.close()

    def _receive_large(self, start: memoryview, size: int) -> None:
        """Borrow memory for a frame of `size` bytes whose first bytes are in `start`, and go on receiving."""
        memory = self._host.memory
        lease = memory.borrow(size, self.address)
        if lease is None:
            self.stop_reading()
            held = bytes(start)
            self._keep(len(held))
            if self._closed:
                return
            self._claim = memory.wait(size, lambda lease: self._receive(lease, held), self.address)
            return
        self._receive(lease, start)

    def _receive(self, lease: Lease, start: memoryview | bytes) -> None:
        self._claim = None
        self._keep(0)
        lease.view[: len(start)] = start
        self._frame, self._filled = lease, len(start)
        self._looked = (self._host.now(), self._filled)
        self._read_on()

    def _frame_complete(self) -> None:
        lease = self._frame
        assert lease is not None
        self._frame, self._handled = None, lease
        try:
            self._handle(lease.view)
        finally:
            if self._handled is not None:  # nothing has taken it
                self._handled = None
                lease.release()

    def _handle(self, frame: memoryview) -> bool:
        """Let one request be answered. True when the next one may be read at once."""
        try:
            answer = self._host.dispatch(self, frame)
        except Exception as error:  # noqa: BLE001 - a defect of ours ends this connection and no other
            self._failed(error)
            return False
        if isinstance(answer, Completion):
            self._answering = answer
            self._producing = frame[:2] == _PRODUCE_KEY
            answer.then(self._answered, self._failed)
            return not self.busy and not self._closed
        if answer is not None and not self._client_gone:
            self._sender.send(answer)
        return not self.busy and not self._closed

    def _failed(self, error: Exception) -> None:
        """There is no answer to the request: close the connection."""
        self._answering = None
        if isinstance(error, Refused):
            self.close(str(error))
            return
        self._host.client_log.log(
            logger, logging.ERROR, self.address, "a request of %r could not be taken", self, error=error
        )
        self.close("an internal error")

    def _answered(self, answer: Parts | None) -> None:
        self._answering = None
        if answer is not None and not self._client_gone:
            self._sender.send(answer)
        if not self.busy:
            self.read_next()

    def read_next(self) -> None:
        """The answer is out: go on with what came early, then with the socket."""
        if self._closed:
            return
        if self.draining:
            self.close()
            return
        self._read_on()
        if self._early:
            self.last_active = self._host.now()
            early, self._early = self._early, bytearray()
            self._take(memoryview(early), len(early))


def _whole_produce_frames(data: bytearray, max_frame: int) -> bytearray:
    """The Produce requests in `data`, up to where a frame is not whole."""
    found = bytearray()
    position = 0
    while len(data) - position >= _SIZE:
        size = int.from_bytes(data[position : position + _SIZE], "big", signed=True)
        end = position + _SIZE + size
        if not 0 < size <= max_frame or end > len(data):
            break
        if data[position + _SIZE : position + _SIZE + 2] == _PRODUCE_KEY:
            found += data[position:end]
        position = end
    return found
