"""The rebalance journal: for each group the last rebalances, why they came, how long they took, what moved.

The coordinator is the one place that sees all of it, and "why did my group rebalance" is the question people
ask most. An entry is made when a rebalance is over. Assignments are the members' own bytes; those of
consumers are decoded, of others only the members are told.

The journal lives in memory. A new coordinator begins an empty one: what the log keeps is the state of the
group, not its story.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ottla.printable import shown
from ottla.protocol.codec import Malformed
from ottla.protocol.messages.consumer_protocol import read_assignment

KEPT = 20
"""Rebalances kept per group."""
MAX_PLACES = 50_000
"""Partitions in all rebalances of a group that are kept: a leader may hand out as many as it likes."""
MAX_CAUSES = 20
"""Causes kept per rebalance: in a storm, the first ones tell enough."""

TopicPartition: TypeAlias = tuple[str, int]
Shares: TypeAlias = Mapping[str, frozenset[TopicPartition]]
"""Who owns which partitions, by the name of the member."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason why a group had to gather."""

    what: str
    """JOINED, LEFT and the other words below."""
    member: str = ""
    """The member it is about, by its instance id if it is static, else by its member id."""
    client_id: str = ""
    reason: str = ""
    """What the client said."""

    def __post_init__(self) -> None:
        """Kept for people to read, for long and many times over: what is not fit for that is left out."""
        for name in ("member", "client_id", "reason"):
            object.__setattr__(self, name, shown(getattr(self, name)))

    def __str__(self) -> str:
        who = f" {self.member}" if self.member else ""
        client = f" of client {self.client_id}" if self.client_id else ""
        return f"{self.what}{':' if who else ''}{who}{client}{f' ({self.reason})' if self.reason else ''}"


JOINED = "a member joined"
LEFT = "a member left"
SILENT = "a member sent no heartbeat within its session timeout"
DID_NOT_REJOIN = "a member did not come back within the rebalance timeout"
DID_NOT_SYNC = "a member did not fetch its assignment within the rebalance timeout"
LEADER_REJOINED = "the leader joined again, as it does when its topics changed"
CHANGED = "a member changed its subscription"
REPLACED = "a static member came back with other protocols"
TOO_LARGE = "the group is larger than group.max.size"
TOPICS_CHANGED = "the topics that the group reads changed"


@dataclass(frozen=True, slots=True)
class Move:
    """A partition that has another owner than before; None is nobody."""

    topic: str
    partition: int
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Rebalance:
    """A rebalance that is over."""

    group_id: str
    generation: int
    """The generation, or the epoch, that it led to."""
    causes: tuple[Cause, ...]
    began_ms: int
    ended_ms: int
    protocol: str | None
    leader: str | None
    shares: Shares
    """What each member owns now. Members whose assignment could not be read own nothing here."""
    moves: tuple[Move, ...]
    joined: tuple[str, ...]
    left: tuple[str, ...]

    @property
    def duration_ms(self) -> int:
        return max(self.ended_ms - self.began_ms, 0)

    @property
    def places(self) -> int:
        """How many partitions are kept with it."""
        return sum(map(len, self.shares.values())) + len(self.moves)

    @property
    def idle(self) -> tuple[str, ...]:
        """Members that own nothing: there are more members than partitions, or nothing to read."""
        return tuple(member for member, share in self.shares.items() if not share)


class Journal:
    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._entries: dict[str, deque[Rebalance]] = {}

    def add(self, entry: Rebalance) -> None:
        entries = self._entries.setdefault(entry.group_id, deque(maxlen=self._kept))
        entries.append(entry)
        while len(entries) > 1 and sum(each.places for each in entries) > MAX_PLACES:
            entries.popleft()

    def forget(self, group_id: str) -> None:
        self._entries.pop(group_id, None)

    def of(self, group_id: str) -> list[Rebalance]:
        """The rebalances of a group, the last one first."""
        return list(reversed(self._entries.get(group_id, ())))


def decoded_shares(assignments: Iterable[tuple[str, bytes]], is_consumer: bool) -> Shares:
    """What each member was given, as far as it can be read."""
    return {name: _decoded(data) if is_consumer else frozenset() for name, data in assignments}


def _decoded(data: bytes) -> frozenset[TopicPartition]:
    if not data:
        return frozenset()
    try:
        assigned = read_assignment(data).assigned_partitions
    except Malformed:
        return frozenset()
    return frozenset((each.topic, partition) for each in assigned for partition in each.partitions)


def moves_between(before: Shares, after: Shares) -> tuple[Move, ...]:
    """The partitions that changed hands, in order."""
    owners_before = _owners(before)
    owners_after = _owners(after)
    return tuple(
        Move(*place, owners_before.get(place), owners_after.get(place))
        for place in sorted(owners_before.keys() | owners_after.keys())
        if owners_before.get(place) != owners_after.get(place)
    )


def _owners(shares: Shares) -> dict[TopicPartition, str]:
    return {place: member for member, share in shares.items() for place in share}
