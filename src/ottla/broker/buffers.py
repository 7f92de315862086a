"""Memory for requests on their way in and answers on their way out, bounded for the whole broker.

A fresh buffer per frame would double the cost of producing (page faults and zeroing), so large frames
borrow one from here and give it back when the request has been handled; small frames never come here, they
share one buffer of the server. `queued.max.request.bytes` bounds what is lent out: a connection that would
go above waits, unread, until others are done, and the kernel slows its sender down.

Answers are mostly slices of files, which take no memory. The others are held until their clients take them,
up to the same bound; beyond it, whoever has kept his waiting for longest is cut off (`UnsentAnswers`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

_SMALLEST = 64 * 1024
_NOTHING = bytearray()


class Lease:
    """A buffer lent to one frame. `view` is exactly as long as the frame."""

    __slots__ = ("_buffer", "view")

    def __init__(self, buffer: bytearray, size: int) -> None:
        self._buffer = buffer
        self.view = memoryview(buffer)[:size]


_Claim = tuple[int, Callable[[], bool], Callable[[Lease], None]]
"""Somebody who waits for memory: how much, whether still, and what then."""


class RequestMemory:
    def __init__(self, limit: int, keep: int = 16 * 1024 * 1024) -> None:
        self.limit = limit
        self.lent = 0
        self._keep = keep
        self._kept = 0
        self._free: dict[int, list[bytearray]] = {}
        self._waiting: deque[_Claim] = deque()

    @property
    def contended(self) -> bool:
        """True while somebody waits for memory that others hold."""
        return bool(self._waiting)

    def borrow(self, size: int) -> Lease | None:
        """A buffer of `size` bytes, or None when the limit is reached: then `wait` for it.

        A single frame may be larger than the whole limit as long as nothing else is lent, else it could never
        be read at all; the frame limit bounds it.
        """
        room = _class_of(size)
        if self.lent and self.lent + room > self.limit:
            return None
        self.lent += room
        free = self._free.get(room)
        if free:
            self._kept -= room
            return Lease(free.pop(), size)
        return Lease(bytearray(room), size)

    def wait(self, size: int, wanted: Callable[[], bool], granted: Callable[[Lease], None]) -> None:
        """Have `granted` called with a buffer when there is room for it, if it is still `wanted` then.

        Who came first is asked first, but one who asks for little need not wait for one who asks for much.
        """
        self._waiting.append((size, wanted, granted))

    def give_back(self, lease: Lease) -> None:
        buffer = lease._buffer
        lease._buffer, lease.view = _NOTHING, memoryview(_NOTHING)  # so that it is free before others ask
        room = len(buffer)
        self.lent -= room
        if self._kept + room <= self._keep:
            self._kept += room
            self._free.setdefault(room, []).append(buffer)
        del buffer
        if self._waiting:
            self._grant()

    def _grant(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        while waiting and (not self.lent or self.lent + _SMALLEST <= self.limit):
            size, wanted, granted = claim = waiting.popleft()
            if not wanted():
                continue
            lease = self.borrow(size)
            if lease is None:
                self._waiting.append(claim)
            else:
                granted(lease)
        self._waiting += waiting


class Reader(Protocol):
    """A client that has not taken its answer yet."""

    def close(self, why: str | None = None) -> None:
        """Has to `release` what is held for it."""


class UnsentAnswers:
    """Bytes of answers that lie here because their clients do not read."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._held: dict[Reader, int] = {}  # the first has kept us waiting for longest

    def hold(self, reader: Reader, size: int) -> None:
        self.release(reader)
        self._held[reader] = size
        self.size += size
        while self.size > self.limit and len(self._held) > 1:
            slowest = next(iter(self._held))
            slowest.close(
                f"it does not take its answer, and {self.size} bytes of answers are waiting, "
                f"{self.limit} are allowed (queued.max.request.bytes)"
            )

    def release(self, reader: Reader) -> None:
        """Its answer is out, or it is gone. Nothing happens when nothing is held for it."""
        self.size -= self._held.pop(reader, 0)


def _class_of(size: int) -> int:
    """Sizes are rounded up to a quarter of a power of two, so that a few kinds of buffer serve all frames."""
    if size <= _SMALLEST:
        return _SMALLEST
    step = 1 << ((size - 1).bit_length() - 3)
    return -(-size // step) * step
