"""How much of what is there goes into the next micro-batch: plain arithmetic over offsets.

maxOffsetsPerTrigger and maxBytesPerTrigger are shared among partitions in proportion to what is waiting in
each, by the arithmetic of Spark's Kafka source: every partition with something waiting gets at least one
record, so that a small one is not starved by large ones. minOffsetsPerTrigger holds a batch back until enough
is there or maxTriggerDelay has passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor

from ottla.pipeline.topics.options import Place


def waiting(begin: Mapping[Place, int], ends: Mapping[Place, int]) -> dict[Place, int]:
    """How many offsets are there to be read; without partitions that have none."""
    return {place: end - begin[place] for place, end in ends.items() if end > begin[place]}


def share(limit: float, amounts: Mapping[Place, int]) -> dict[Place, int]:
    """`limit` in proportion to the amounts, at least one and at most all for each."""
    total = sum(amounts.values())
    shares = {}
    for place, amount in amounts.items():
        part = limit * (amount / total)
        shares[place] = min(amount, ceil(part) if part < 1 else floor(part))
    return shares


def within_bytes(limit: int, amounts: Mapping[Place, int], each: Mapping[Place, float]) -> dict[Place, int]:
    """As many offsets as make about `limit` bytes, given how many bytes an offset has in each partition."""
    total = sum(amount * each[place] for place, amount in amounts.items())
    if total <= limit:
        return dict(amounts)
    return {place: max(1, floor(amount * limit / total)) for place, amount in amounts.items()}


def admitted(
    begin: Mapping[Place, int],
    ends: Mapping[Place, int],
    *,
    max_offsets: int | None = None,
    max_bytes: int | None = None,
    bytes_each: Mapping[Place, float] | None = None,
) -> dict[Place, int]:
    """The end of the next micro-batch, for each partition of `ends`."""
    amounts = waiting(begin, ends)
    if not amounts:
        return dict(ends)
    allowed = dict(amounts)
    if max_offsets is not None:
        allowed = share(max_offsets, amounts)
    if max_bytes is not None and bytes_each is not None:
        allowed = within_bytes(max_bytes, allowed, bytes_each)
    return {place: begin[place] + allowed[place] if place in allowed else end for place, end in ends.items()}


class HoldBack:
    """minOffsetsPerTrigger and maxTriggerDelay: whether a batch shall wait for more. The first never does."""

    def __init__(self, least: int | None, longest: float) -> None:
        self.least = least
        self.longest = longest
        self._last: float | None = None

    def waits(self, available: int, now: float) -> bool:
        """True when a batch with so many offsets shall wait; otherwise the clock starts anew."""
        little = self.least is not None and available < self.least
        if little and self._last is not None and now - self._last < self.longest:
            return True
        self._last = now
        return False

    def left(self, now: float) -> float:
        """Seconds until waiting ends, however little there is."""
        if self.least is None or self._last is None:
            return self.longest
        return max(self._last + self.longest - now, 0.0)
