"""Memory for requests on their way in and answers on their way out, bounded for the whole broker.

A fresh buffer per frame would double the cost of producing (page faults and zeroing), so large frames
borrow one from here, and the request gives it back when it needs it no longer. Small frames are received into
one buffer of the server, which all connections share. Where such a request outlives its handler's call, that
buffer is handed over to it (`hand_over`) and the server goes on with another. `queued.max.request.bytes`
bounds what is lent: a connection that needs more waits, unread, until others are done, and the kernel slows
its sender down. Buffers that are handed over count too, but are not refused: there is at most one per
connection.

No client can hold all of it against the others (`RequestMemory`):

* An eighth of the limit is lent to small frames only, so that a few huge ones never stop ordinary producers.
* A claim is granted when it fits, also past a larger one that came before it. A claim that has waited for
  `PATIENCE` seconds is not passed any more, except by small frames within their eighth.
* While others wait, one client address gets at most half of the limit.
* Senders that bring too few bytes while others wait are closed by the server; see `Connection.crawls`.

Answers are mostly slices of files, which take no memory. The others are held until their clients take them,
up to the same bound; beyond it, the client that has kept its answer waiting for longest is cut off
(`UnsentAnswers`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from mmap import mmap
from typing import Protocol, cast

RECEIVE_BUFFER = 64 * 1024
_RECEIVE_BUFFERS_KEPT = 16
_SMALLEST = 64 * 1024
_NOTHING = bytearray()
_MAPPED = 4 * 1024 * 1024
"""Above this a buffer is mapped: its pages cost nothing before bytes have come, and go back at once."""
PATIENCE = 10.0
"""Seconds after which a claim is not passed by larger ones that came later."""


class Lease:
    """A buffer lent to one frame. `view` is exactly as long as the frame."""

    __slots__ = ("_address", "_buffer", "_handed_over", "_large", "_memory", "view")

    def __init__(
        self,
        memory: RequestMemory,
        buffer: bytearray | mmap,
        size: int,
        address: str,
        *,
        large: bool = False,
        handed_over: bool = False,
    ) -> None:
        self._memory = memory
        self._buffer = buffer
        self._address = address
        self._large = large
        self._handed_over = handed_over
        self.view = memoryview(buffer)[:size]

    def release(self) -> None:
        self._memory.give_back(self)


class Claim:
    """A frame that waits for memory."""

    __slots__ = ("address", "capacity", "granted", "since", "size")

    def __init__(
        self, size: int, capacity: int, address: str, granted: Callable[[Lease], None], since: float
    ) -> None:
        self.size = size
        self.capacity = capacity
        self.address = address
        self.granted = granted
        self.since = since


class RequestMemory:
    def __init__(
        self, limit: int, keep: int = 16 * 1024 * 1024, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit = limit
        self.lent = 0
        self.on_contention: Callable[[], None] | None = None
        """Called when the first claim begins to wait."""
        self._now = now
        self._keep = keep
        self._kept = 0
        self._free: dict[int, list[bytearray | mmap]] = {}
        self._waiting: dict[Claim, None] = {}  # in the order of their coming
        self._receive_buffers: list[bytearray] = []  # free ones
        self._large = 0  # of `lent`, what large frames have
        self._by_address: Counter[str] = Counter()

    @property
    def contended(self) -> bool:
        """True while a connection waits for memory that others hold."""
        return bool(self._waiting)

    @property
    def waiting(self) -> int:
        """How many frames wait for memory."""
        return len(self._waiting)

    @property
    def _reserve(self) -> int:
        return self.limit // 8

    def _is_small(self, capacity: int) -> bool:
        return capacity <= max(self._reserve // 16, _SMALLEST)

    def borrow(self, size: int, address: str = "") -> Lease | None:
        """A buffer of `size` bytes, or None when it does not fit now: then `wait` for it."""
        capacity = _class_of(size)
        if self._waiting and not self._may_pass(capacity, address):
            return None
        return self._lend(size, capacity, address) if self._fits(capacity) else None

    def _fits(self, capacity: int) -> bool:
        """A single large frame may exceed the limit while no other large one is lent, else it could never
        be read at all; the frame limit bounds it."""
        if not self.lent:
            return True
        if self._is_small(capacity):
            return self.lent + capacity <= self.limit
        if not self._large:
            return self.lent + capacity <= max(self.limit, capacity + self._reserve)
        return self._large + capacity <= self.limit - self._reserve and self.lent + capacity <= self.limit

    def _may_pass(self, capacity: int, address: str) -> bool:
        """Whether a new request may be served before the waiting ones."""
        first = next(iter(self._waiting))
        if self._now() - first.since < PATIENCE:
            if self._by_address[address] + capacity <= self.limit // 2:
                return True
            return all(claim.address == address for claim in self._waiting)
        return self._is_small(capacity) and self.lent - self._large + capacity <= self._reserve

    def _lend(self, size: int, capacity: int, address: str) -> Lease:
        large = not self._is_small(capacity)
        self.lent += capacity
        if large:
            self._large += capacity
        self._by_address[address] += capacity
        free = self._free.get(capacity)
        buffer: bytearray | mmap
        if free:
            self._kept -= capacity
            buffer = free.pop()
        else:
            buffer = mmap(-1, capacity) if capacity > _MAPPED else bytearray(capacity)
        return Lease(self, buffer, size, address, large=large)

    def receive_buffer(self) -> bytearray:
        """A buffer to receive small frames into. It counts as lent from when it is handed over."""
        return self._receive_buffers.pop() if self._receive_buffers else bytearray(RECEIVE_BUFFER)

    def hand_over(self, buffer: bytearray, address: str) -> Lease:
        """A request from `address` needs the receive buffer in which it lies for longer than one call."""
        self.lent += len(buffer)
        self._by_address[address] += len(buffer)
        return Lease(self, buffer, len(buffer), address, handed_over=True)

    def wait(self, size: int, granted: Callable[[Lease], None], address: str = "") -> Claim:
        """Have `granted` called with a buffer when it fits, unless the claim is withdrawn."""
        claim = Claim(size, _class_of(size), address, granted, self._now())
        self._waiting[claim] = None
        if len(self._waiting) == 1 and self.on_contention is not None:
            self.on_contention()
        return claim

    def withdraw(self, claim: Claim) -> None:
        self._waiting.pop(claim, None)

    def refuse_all(self) -> None:
        """No claim is granted any more: the broker stops."""
        self._waiting.clear()

    def give_back(self, lease: Lease) -> None:
        buffer, address = lease._buffer, lease._address
        lease._buffer, lease.view = _NOTHING, memoryview(_NOTHING)  # so that it is free before others ask
        capacity = len(buffer)
        self.lent -= capacity
        if lease._large:
            self._large -= capacity
        self._by_address[address] -= capacity
        if self._by_address[address] <= 0:
            del self._by_address[address]
        if lease._handed_over:
            # Not for other frames: the connection may still look at what came behind the request.
            if len(self._receive_buffers) < _RECEIVE_BUFFERS_KEPT:
                self._receive_buffers.append(cast(bytearray, buffer))
        elif self._kept + capacity <= self._keep:
            self._kept += capacity
            self._free.setdefault(capacity, []).append(buffer)
        del buffer
        if self._waiting:
            self._grant()

    def _grant(self) -> None:
        """Serve waiting requests in order: first of addresses that hold little memory, then of the others."""
        share = self.limit // 2
        smallest_refused = 1 << 62
        for fair in (True, False):
            for claim in list(self._waiting):
                if self.lent and self.lent + _SMALLEST > self.limit:
                    return
                capacity = claim.capacity
                if claim not in self._waiting or capacity >= smallest_refused:
                    continue
                if fair and self._by_address[claim.address] + capacity > share:
                    continue
                if self._fits(capacity):
                    del self._waiting[claim]
                    claim.granted(self._lend(claim.size, capacity, claim.address))
                elif self._now() - claim.since >= PATIENCE:
                    smallest_refused = max(self._reserve // 16, _SMALLEST) + 1  # only small ones may pass it
                else:
                    smallest_refused = min(smallest_refused, capacity)


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
