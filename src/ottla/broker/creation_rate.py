"""How many topics a client address may have created by asking for them: a bucket of tokens for each address.

A bucket holds as many tokens as may be spent in a minute, is full at first and fills up evenly. Full buckets
are forgotten, so that only addresses that created something in the last minute are remembered.

Pure state: the time comes in as an argument.
"""

from __future__ import annotations

_MINUTE = 60.0
_FORGET_AT = 1000
"""So many buckets are kept before the full ones are looked for."""


class CreationRate:
    def __init__(self) -> None:
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens, and when there were so many
        self._forget_at = _FORGET_AT

    def take(self, address: str, wanted: int, per_minute: int, now: float) -> int:
        """How many of `wanted` topics may be created now."""
        left = self._left(address, per_minute, now)
        granted = min(wanted, int(left))
        self._buckets[address] = (left - granted, now)
        if len(self._buckets) > self._forget_at:
            self._forget(per_minute, now)
        return granted

    def give_back(self, address: str, unused: int, per_minute: int, now: float) -> None:
        """So many of those that were granted have not been created."""
        self._buckets[address] = (min(self._left(address, per_minute, now) + unused, per_minute), now)

    def _left(self, address: str, per_minute: int, now: float) -> float:
        tokens, since = self._buckets.get(address, (float(per_minute), now))
        return min(tokens + (now - since) * per_minute / _MINUTE, per_minute)

    def _forget(self, per_minute: int, now: float) -> None:
        self._buckets = {
            address: bucket
            for address, bucket in self._buckets.items()
            if self._left(address, per_minute, now) < per_minute
        }
        self._forget_at = max(2 * len(self._buckets), _FORGET_AT)
