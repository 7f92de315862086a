"""Accounts for the memory that clients make a broker keep: which client, what for, how much, since when.

Requests on their way in and answers on their way out are bounded where they flow (`buffers`). What stays
longer is accounted for here: unfinished frames, fetch sessions, the members of groups. There is one limit in
all (`client.memory.max.bytes`) and a share for each client address (`client.memory.max.bytes.per.ip`). The
share counts only when the memory is full, so a single address (the loopback one, with many honest clients
behind it) may have all of it:

* When memory is needed and none is left, entries are evicted: the longest idle first, of addresses that have
  more than their share if there are any.
* For an address within its share, entries of addresses above theirs are evicted at any time. Otherwise only
  entries that have been idle for `MIN_IDLE` seconds are. When nothing can be evicted, the request is refused.

A client can get everything back that is evicted: a session is opened again, a member joins again, a
connection is made again. `usage` is the metric; evictions and refusals are counted and logged.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from ottla.log_lines import ClientLog

logger = logging.getLogger("ottla.clients")

MIN_IDLE = 10.0
"""Seconds for which an entry must have been idle to be evicted for an address that has its share already."""

HALF_FRAMES = "unfinished frame"
FETCH_SESSIONS = "fetch session"
MEMBERS = "group member"
GROUPS = "group"


class Holding:
    """What is kept for one client, and how to get rid of it; see `ClientMemory`."""

    __slots__ = ("address", "client", "evict", "kind", "leaving", "size", "used_at")

    def __init__(
        self, address: str, client: str, kind: str, size: int, evict: Callable[[str], None] | None, now: float
    ) -> None:
        self.address = address
        self.client = client
        self.kind = kind
        self.size = size
        self.evict = evict
        self.used_at = now
        self.leaving = False
        """It was evicted, and is gone in a moment."""


class Usage(NamedTuple):
    """The metric: bytes now, and what had to be done to stay within the limit since the start."""

    used: int
    limit: int
    by_kind: dict[str, int]
    by_address: dict[str, int]
    evicted: dict[str, int]
    """How many of each kind."""
    refused: dict[str, int]


class ClientMemory:
    def __init__(
        self, limit: int, per_address: int, now: Callable[[], float], log: Callable[[], ClientLog]
    ) -> None:
        self.limit = limit
        self.per_address = per_address
        self.used = 0
        self._now = now
        self._log = log
        self._leaving = 0
        self._by_kind: Counter[str] = Counter()
        self._by_address: Counter[str] = Counter()
        self._idle: dict[str, OrderedDict[Holding, None]] = {}  # of each address, the longest idle first
        self._evicted: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()

    def usage(self) -> Usage:
        return Usage(
            self.used,
            self.limit,
            {kind: size for kind, size in self._by_kind.items() if size},
            dict(self._by_address),
            dict(self._evicted),
            dict(self._refused),
        )

    def admit(self, address: str, client: str, kind: str, size: int) -> bool:
        """Whether so many more bytes may be kept for a client. Evicts what is idle if it must."""
        while self.used - self._leaving + size > self.limit:
            victim = self._victim(address, size)
            if victim is None:
                self._refused[kind] += 1
                text = "no memory for a %s of %s: %s for clients (client.memory.max.bytes), none of it idle"
                self._log().warning(logger, address, text, kind, client, _amount(self.limit))
                return False
            self._evict(victim)
        return True

    def hold(
        self, address: str, client: str, kind: str, size: int, evict: Callable[[str], None] | None = None
    ) -> Holding:
        """Count what is kept from now on. `evict` drops it, now or soon, and has to `release`; it is given
        the reason. Without `evict` it stays until its owner releases it."""
        holding = Holding(address, client, kind, 0, evict, self._now())
        if evict is not None:
            self._idle.setdefault(address, OrderedDict())[holding] = None
        self.resize(holding, size)
        return holding

    def resize(self, holding: Holding, size: int) -> None:
        more = size - holding.size
        holding.size = size
        self.used += more
        self._by_kind[holding.kind] += more
        self._by_address[holding.address] += more
        if holding.leaving:
            self._leaving += more

    def touch(self, holding: Holding) -> None:
        """It was used just now."""
        holding.used_at = self._now()
        if holding.evict is not None and not holding.leaving:
            self._idle[holding.address].move_to_end(holding)

    def abandon(self, holding: Holding) -> None:
        """Its client is gone: it is the first to go."""
        holding.used_at = float("-inf")
        if holding.evict is not None and not holding.leaving:
            self._idle[holding.address].move_to_end(holding, last=False)

    def release(self, holding: Holding) -> None:
        """It is kept no longer."""
        self.resize(holding, 0)
        holding.leaving = False
        holding.evict = None
        self._forget(holding)
        if not self._by_address[holding.address]:
            del self._by_address[holding.address]

    def stay(self, holding: Holding) -> None:
        """It could not be dropped after all."""
        if holding.leaving:
            holding.leaving = False
            self._leaving -= holding.size
            self._idle.setdefault(holding.address, OrderedDict())[holding] = None
            self.touch(holding)

    def _forget(self, holding: Holding) -> None:
        idle = self._idle.get(holding.address)
        if idle is not None:
            idle.pop(holding, None)
            if not idle:
                del self._idle[holding.address]

    def _victim(self, address: str, size: int) -> Holding | None:
        share = self.per_address
        heavy = [each for each, used in self._by_address.items() if used > share and each in self._idle]
        firsts = [next(iter(self._idle[each])) for each in heavy or self._idle]
        victim = min(firsts, key=lambda holding: holding.used_at, default=None)
        if victim is None:
            return None
        within_share = self._by_address[address] + size <= share
        if heavy and within_share:
            return victim
        return victim if self._now() - victim.used_at >= MIN_IDLE else None

    def _evict(self, holding: Holding) -> None:
        assert holding.evict is not None
        self._forget(holding)
        holding.leaving = True
        self._leaving += holding.size
        self._evicted[holding.kind] += 1
        idle = max(self._now() - holding.used_at, 0.0)
        since = f"idle for {idle:.0f} s" if idle < 1e9 else "whose client is gone"
        why = (
            f"{_amount(self.limit)} for clients are used up (client.memory.max.bytes): dropped the "
            f"{holding.kind} of {holding.client}, {_amount(holding.size)}, {since}"
        )
        self._log().warning(logger, holding.address, "%s", why)
        holding.evict(why)


def _amount(size: int) -> str:
    return f"{size / 1_000_000:.1f} MB" if size >= 100_000 else f"{size} bytes"
