"""A leader's view of one follower: how far it has come, and since when it is behind.

A follower that asks for an offset has everything before it. It counts as caught up at the time of a fetch
that asks for the leader's log end. While producers write, the log end moves on between any two fetches, so a
follower that now asks for the end *as of its previous fetch* counts as caught up at the time of that one:
comparing with the present end would push healthy followers out of the in-sync set under load.

Pure state: time comes in as an argument, in milliseconds of a clock that never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

UNKNOWN_OFFSET = -1
UNKNOWN_EPOCH = -1
NEVER = -(1 << 62)


class FollowerFetch(NamedTuple):
    """One Fetch request of a follower, in what is the same for all its partitions."""

    broker_id: int
    broker_epoch: int
    """Of the registration under which it runs; grows with each start."""
    may_join: bool
    """The cluster image has it under this epoch, and not fenced: it may be in in-sync sets."""
    now_ms: int
    max_lag_ms: int
    """`replica.lag.time.max.ms`."""


@dataclass(slots=True)
class FollowerProgress:
    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    broker_epoch: int = UNKNOWN_EPOCH
    """Under which it last fetched."""
    caught_up_ms: int = NEVER
    """When it last had everything that the leader had."""
    _fetched_ms: int = NEVER
    _leader_end_then: int = UNKNOWN_OFFSET

    def fetched(self, fetch: FollowerFetch, offset: int, log_start_offset: int, leader_end: int) -> bool:
        """It asks for `offset` while the leader's log ends at `leader_end`.

        False, and no change, when the request is of a registration that is over.
        """
        if fetch.broker_epoch < self.broker_epoch:
            return False
        if fetch.broker_epoch > self.broker_epoch and offset < self.log_end_offset:
            self.caught_up_ms = NEVER  # it has started again, without records that it had
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, fetch.now_ms)
        elif self._leader_end_then != UNKNOWN_OFFSET and offset >= self._leader_end_then:
            self.caught_up_ms = max(self.caught_up_ms, self._fetched_ms)
        self.log_end_offset = offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = fetch.broker_epoch
        self._fetched_ms, self._leader_end_then = fetch.now_ms, leader_end
        return True

    def repeats(self, fetch: FollowerFetch, offset: int, log_start_offset: int) -> bool:
        """Whether it asks once more for the same offset, which is the leader's log end: it is caught up now.

        False, and no change, when something is different.
        """
        if (
            offset != self.log_end_offset
            or offset != self._leader_end_then
            or log_start_offset != self.log_start_offset
            or fetch.broker_epoch != self.broker_epoch
        ):
            return False
        self._fetched_ms = max(self._fetched_ms, fetch.now_ms)
        self.caught_up_ms = max(self.caught_up_ms, fetch.now_ms)
        return True

    def is_caught_up(self, leader_end: int, now_ms: int, max_lag_ms: int) -> bool:
        """Whether it has all that the leader has, or had it not longer ago than `max_lag_ms`."""
        return self.log_end_offset == leader_end or now_ms - self.caught_up_ms <= max_lag_ms
