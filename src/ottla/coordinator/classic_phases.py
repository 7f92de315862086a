"""The phases of a classic group, and its timers.

    Empty ---- a member joins ----> PreparingRebalance ---- all have joined, or the timeout passes ----.
      ^                                ^        |                                                      |
      |                                |        '---- all are gone ----> Empty                         v
      |                    a member joins, leaves,          .-------------------------- CompletingRebalance
      |                    times out or changes             |
      '--------- all are gone ---------|------ Stable <-----'  the leader sends the assignment

In PreparingRebalance the members rejoin with JoinGroup and wait until all have; a member that does not rejoin
within the rebalance timeout is removed. Then there is a new generation with a leader and a protocol, and all
are answered. In CompletingRebalance they wait with SyncGroup for the leader's assignment; when the log has
it, the group is Stable. A group that is deleted is gone, which Kafka calls Dead.
"""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


SESSION, JOIN, SYNC = "session", "join", "sync"
"""Timers: a member's session, the time for members to rejoin, the time for members to sync."""
REBALANCE = "rebalance"
"""A timer that starts a rebalance, after the group has changed from the consumer protocol to this one."""

MIN_INITIAL_DELAY_MS = 20
"""A new group waits at least this long for more members, and again while they come. Members that are started
together arrive within a few ms; a generation without some of them would cost another rebalance."""
