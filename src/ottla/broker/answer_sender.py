"""The answers of one connection on their way out: bytes, and slices of files that go out by sendfile.

Most answers leave at once, by one call of the socket's `send`. What the socket does not take waits in `out`
and leaves when the client reads on; the connection reads no further request meanwhile. A slice of a file is
sent only when it is in memory. Where it is not, a thread reads it first (`page_cache`), so that no client
waits for a disk that another one needs. A small answer that contains slices is copied into one piece.
"""

from __future__ import annotations

import errno
import logging
import socket
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ottla.broker.buffers import UnsentAnswers
from ottla.broker.page_cache import Done, is_cached
from ottla.broker.sockets import Socket
from ottla.storage.files import File
from ottla.storage.log import FileSlice

logger = logging.getLogger("ottla.connection")

Part = bytes | bytearray | memoryview | FileSlice
Parts = list[Part]

_JOINED = 32 * 1024
"""Up to here copying a slice of a file costs less than the two system calls it saves."""
_SHORT_FILE = "a log file is shorter than its index says; the answer cannot be completed"
_MORE_FOLLOWS = getattr(socket, "MSG_MORE", 0)
_ITERATION_SENDFILE = 4 * 1024 * 1024
"""One answer may not keep the loop longer than it takes to send this much."""
_CACHED_SECONDS = 1.0
"""So long what was found in memory is taken to be there."""


class SendingHost(Protocol):
    """What sending needs of the server."""

    loop: AbstractEventLoop
    unsent: UnsentAnswers
    answer_scratch: memoryview
    """Small answers are put together here."""

    on_read_error: Callable[[], None]
    """Called when the disk did not let an answer be read."""

    def now(self) -> float: ...

    def send_file(self, sock: Socket, file: File, position: int, length: int) -> int: ...

    def read_ahead(self, file: File, position: int, length: int, done: Done) -> None: ...


class AnsweredConnection(Protocol):
    """What sending needs of the connection."""

    last_active: float

    def close(self, why: str | None = None) -> None: ...

    def stop_reading(self) -> None: ...

    def read_next(self) -> None:
        """An answer that had to wait is out."""
        ...


class AnswerSender:
    __slots__ = (
        "_cached",
        "_closed",
        "_connection",
        "_fd",
        "_host",
        "_sock",
        "_writing",
        "out",
        "waits_for_disk",
    )

    def __init__(self, host: SendingHost, sock: Socket, connection: AnsweredConnection) -> None:
        self._host = host
        self._sock = sock
        self._fd = sock.fileno()
        self._connection = connection
        self.out: deque[Part] = deque()
        """What is not yet sent. This object stays the same."""
        self.waits_for_disk = False
        self._cached = 0  # how much of a slice that is sent next is known to be in memory
        self._writing = False
        self._closed = False

    def close(self) -> None:
        """Send nothing more. The socket is closed by the connection."""
        self._closed = True
        self._write_off()
        self.out.clear()
        self._host.unsent.release(self._connection)

    def _write_on(self) -> None:
        if not self._writing:
            self._writing = True
            self._host.loop.add_writer(self._fd, self._writable)

    def _write_off(self) -> None:
        if self._writing:
            self._writing = False
            self._host.loop.remove_writer(self._fd)

    def send(self, parts: Parts) -> None:
        """Send an answer; what the socket does not take now leaves when it can."""
        if len(parts) > 1 and sum(map(len, parts)) <= _JOINED:
            try:
                parts = self._joined(parts)
            except OSError as error:
                self._unreadable(error)
                return
        if len(parts) == 1:
            only = parts[0]
            if not isinstance(only, FileSlice):
                try:
                    sent = self._sock.send(only)
                except (BlockingIOError, InterruptedError):
                    sent = 0
                except OSError as error:
                    logger.debug("%r is gone: %s", self._connection, error)
                    self._connection.close()
                    return
                if sent == len(only):
                    return
                parts = [memoryview(only)[sent:]]
        self.out.extend(parts)
        if self._push():
            return
        if not self._closed:
            self._connection.stop_reading()
            if not self.waits_for_disk:
                self._write_on()
            self._host.unsent.hold(
                self._connection, sum(len(p) for p in self.out if not isinstance(p, FileSlice))
            )

    def _joined(self, parts: Parts) -> Parts:
        """A small answer in one piece, if nothing of it has to be waited for."""
        scratch, pieces = self._host.answer_scratch, []
        start = 0
        for part in parts:
            if isinstance(part, FileSlice):
                end = start + part.length
                if part.file.read_cached(part.position, scratch[start:end]) < part.length:
                    return parts
                pieces.append(scratch[start:end])
                start = end
            else:
                pieces.append(memoryview(part))
        return [b"".join(pieces)]

    def _writable(self) -> None:
        now = self._host.now()
        if now - self._connection.last_active > _CACHED_SECONDS:
            self._cached = 0
        self._connection.last_active = now
        self._go_on()

    def _go_on(self) -> None:
        if self._push():
            self._host.unsent.release(self._connection)
            self._write_off()
            self._connection.read_next()
        elif self.waits_for_disk:
            self._write_off()
        elif not self._closed:
            self._write_on()

    def _wait_for_disk(self, part: FileSlice, length: int) -> None:
        """The next `length` bytes to send are not in memory: go on when they are."""
        self.waits_for_disk = True

        def done(error: OSError | None) -> None:
            self.waits_for_disk = False
            if self._closed:
                return
            if error is not None:
                self._unreadable(error)
            else:
                self._cached = length
                self._go_on()

        self._host.read_ahead(part.file, part.position, length, done)

    def _push(self) -> bool:
        """Send what the socket takes. True when all is out; False when it must wait or is closed."""
        out, sock = self.out, self._sock
        budget = _ITERATION_SENDFILE
        try:
            while out:
                part = out[0]
                if isinstance(part, FileSlice):
                    if budget <= 0:
                        return False
                    length = min(part.length, budget)
                    if self._cached < length:
                        if not is_cached(part.file, part.position, length):
                            self._wait_for_disk(part, length)
                            return False
                        self._cached = length
                    sent = self._host.send_file(sock, part.file, part.position, length)
                    if sent == 0:
                        self._connection.close(_SHORT_FILE)
                        return False
                    budget -= sent
                    self._cached -= sent
                    if sent == part.length:
                        out.popleft()
                    else:
                        out[0] = FileSlice(part.file, part.position + sent, part.length - sent)
                    continue
                # Bytes with a slice behind them wait for it in the kernel, so that both share a packet.
                flags = _MORE_FOLLOWS if len(out) > 1 else 0
                sent = sock.send(part, flags)
                if sent == len(part):
                    out.popleft()
                else:
                    out[0] = memoryview(part)[sent:]
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if error.errno == errno.EIO:  # of the file: a socket has other errors
                self._unreadable(error)
                return False
            logger.debug("%r is gone: %s", self._connection, error)
            self._connection.close()
            return False
        return True

    def _unreadable(self, error: OSError) -> None:
        self._host.on_read_error()
        self._connection.close(f"an answer cannot be read from the log: {error}")
