"""The rebalance history: for each group the last rebalances, their causes, how long they took, what moved.

The coordinator is the only process that sees all of it, and "why did my group rebalance" is the question that
users ask most. An entry is added when a rebalance is over. Assignments are opaque bytes of the members; those
of consumers are decoded, of other groups only the members are listed.

The history is kept in memory. A new coordinator starts with an empty one: the log holds the state of a group,
not its past.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ottla.printable import shown
from ottla.protocol.codec import Malformed
from ottla.protocol.messages.consumer_protocol import read_assignment

KEPT = 20
"""Rebalances kept per group."""
MAX_PLACES = 50_000
"""Partitions in all kept rebalances of a group. The size of an assignment is up to the leader."""
MAX_CAUSES = 20
"""Causes kept per rebalance. When members come and go all the time, the first ones tell enough."""

TopicPartition: TypeAlias = tuple[str, int]
Shares: TypeAlias = Mapping[str, frozenset[TopicPartition]]
"""The partitions of each member, by the name of the member."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason why a group had to rebalance."""

    what: str
    """JOINED, LEFT and the other words below."""
    member: str = ""
    """The member it is about, by its instance id if it is static, else by its member id."""
    client_id: str = ""
    reason: str = ""
    """As the client gave it."""

    def __post_init__(self) -> None:
        """These texts come from clients and are shown to users: control characters and excess are cut."""
        for name in ("member", "client_id", "reason"):
            object.__setattr__(self, name, shown(getattr(self, name)))

    def __str__(self) -> str:
        member = f" {self.member}" if self.member else ""
        client = f" of client {self.client_id}" if self.client_id else ""
        return (
            f"{self.what}{':' if member else ''}{member}{client}{f' ({self.reason})' if self.reason else ''}"
        )


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
DID_NOT_REVOKE = "a member did not give back partitions within its rebalance timeout"
DOWNGRADED = "the last member of the consumer protocol left, and the group became a classic one"


@dataclass(frozen=True, slots=True)
class Move:
    """A partition that has another owner than before; None stands for no owner."""

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


class OngoingRebalance(NamedTuple):
    """A rebalance that is not over yet."""

    began_ms: int
    causes: tuple[Cause, ...] = ()

    def because(self, causes: Iterable[Cause]) -> OngoingRebalance:
        """With more causes, as far as they are kept."""
        return self._replace(causes=(*self.causes, *causes)[:MAX_CAUSES])

    def concluded(
        self,
        *,
        group_id: str,
        generation: int,
        now_ms: int,
        protocol: str | None,
        leader: str | None,
        before: Shares,
        after: Shares,
    ) -> Rebalance:
        """The rebalance is over: members owned `before` and own `after` now."""
        return Rebalance(
            group_id=group_id,
            generation=generation,
            causes=self.causes,
            began_ms=self.began_ms,
            ended_ms=now_ms,
            protocol=protocol,
            leader=leader,
            shares=after,
            moves=moves_between(before, after),
            joined=tuple(sorted(after.keys() - before.keys())),
            left=tuple(sorted(before.keys() - after.keys())),
        )


class RebalanceHistory:
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
    """What each member was assigned, as far as it can be decoded."""
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
    """The partitions that have another owner than before, in order."""
    owners_before = _owners(before)
    owners_after = _owners(after)
    return tuple(
        Move(*place, owners_before.get(place), owners_after.get(place))
        for place in sorted(owners_before.keys() | owners_after.keys())
        if owners_before.get(place) != owners_after.get(place)
    )


def _owners(shares: Shares) -> dict[TopicPartition, str]:
    return {place: member for member, share in shares.items() for place in share}
