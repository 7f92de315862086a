"""How much may wait for one thread, and in which order it is served.

Pure decisions about batches that wait to be opened (`inspections`); time is handed in.

What waits is bounded in bytes and in estimated seconds of work. One client address gets at most half of what
the other addresses leave free, so there is always something left for an address that comes later. A batch
that is larger than that can still enter: one at a time may exceed the bound, from an address for which
nothing else waits.

The order is by arrival, with a head start of up to a second for little work (`due`): a short batch overtakes
long ones, but nothing is overtaken by what came more than a second later.
"""

from __future__ import annotations

from collections import Counter

from ottla.protocol.batches import BatchHeader

LONGEST_HEAD_START = 1.0
"""Seconds by which a batch with little work may overtake one with much."""
MOST_SECONDS = 20.0
"""Estimated work that may wait. Producers give up after 30 seconds by default."""
OVERHEAD = 4096
"""Bytes that a waiting batch costs besides its own."""
_RECORD_SECONDS = 2e-6
_BYTE_SECONDS = 2e-8
_SHARE = 2


def work_seconds(header: BatchHeader) -> float:
    """About how long it takes to open a batch, as far as its header tells."""
    return max(header.record_count, 0) * _RECORD_SECONDS + header.size * _BYTE_SECONDS


def due(now: float, seconds: float) -> float:
    """What comes now and takes `seconds` is served before all that is due later than this."""
    return now + min(seconds, LONGEST_HEAD_START)


class Holding:
    """A waiting batch, as it was counted."""

    __slots__ = ("address", "exceeds", "seconds", "size")

    def __init__(self, address: str, size: int, seconds: float, exceeds: bool) -> None:
        self.address = address
        self.size = size
        self.seconds = seconds
        self.exceeds = exceeds


class Backlog:
    def __init__(self, most_bytes: int, most_seconds: float = MOST_SECONDS) -> None:
        self.most_bytes = most_bytes
        self.most_seconds = most_seconds
        self.size = 0
        self.seconds = 0.0
        self._sizes: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._batches: Counter[str] = Counter()
        self._exceeded = False

    def admit(self, address: str, size: int, seconds: float) -> Holding | None:
        """Count a batch of `size` bytes of a client at `address`; None when it may not wait here."""
        size += OVERHEAD
        own_size, own_seconds = self._sizes[address], self._seconds.get(address, 0.0)
        fits = own_size + size <= (self.most_bytes - self.size + own_size) // _SHARE and (
            own_seconds + seconds <= (self.most_seconds - self.seconds + own_seconds) / _SHARE
        )
        if not fits and (self._exceeded or self._batches[address]):
            return None
        holding = Holding(address, size, seconds, not fits)
        self._exceeded |= holding.exceeds
        self._batches[address] += 1
        self._sizes[address] = own_size + size
        self._seconds[address] = own_seconds + seconds
        self.size += size
        self.seconds += seconds
        return holding

    def release(self, holding: Holding) -> None:
        """The batch does not wait any more."""
        address = holding.address
        if holding.exceeds:
            self._exceeded = False
        self._batches[address] -= 1
        self._sizes[address] -= holding.size
        self._seconds[address] -= holding.seconds
        self.size -= holding.size
        self.seconds -= holding.seconds
        if not self._batches[address]:
            del self._batches[address], self._sizes[address], self._seconds[address]
        if not self._batches:
            self.seconds = 0.0  # what rounding has left
