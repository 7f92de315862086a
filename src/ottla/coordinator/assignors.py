"""Server-side assignors: which member of a group gets which partitions.

An assignor is a pure function of the members, their subscriptions, the numbers of partitions of the topics
and the assignment before. It assigns every partition of a subscribed topic to one subscriber.

`uniform` spreads partitions as evenly as the subscriptions allow and moves as few as it can. When all members
subscribe to the same topics a quota per member is enough. When they differ, partitions move along chains of
members (A gives one to B, B gives one to C) until no chain leads from a member to one that has at least two
fewer: then the assignment is as even as it can be.

`range` gives each topic's partitions in contiguous ranges to its subscribers, in the order of their instance
ids or member ids, so that topics with equally many partitions are split alike and can be joined. It does not
look at the assignment before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

TopicId: TypeAlias = bytes
Partitions: TypeAlias = Mapping[TopicId, frozenset[int]]
"""Partitions by topic id. A topic without partitions does not stand in it."""

NOTHING: Partitions = {}


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as an assignor sees it."""

    topics: frozenset[TopicId]
    """The topics that it subscribes to and that exist."""
    instance_id: str | None = None
    previous: Partitions = field(default_factory=dict)
    """What the last assignment gave it."""


Assignor: TypeAlias = Callable[[Mapping[str, Subscriber], Mapping[TopicId, int]], dict[str, Partitions]]
"""From members and numbers of partitions to the assignment of each member."""


def uniform(members: Mapping[str, Subscriber], topics: Mapping[TopicId, int]) -> dict[str, Partitions]:
    """Even and sticky."""
    if not members:
        return {}
    plan = _Plan(members, topics)
    plan.keep_previous()
    subscriptions = {member.topics for member in members.values()}
    if len(subscriptions) == 1:
        plan.fill_quotas(next(iter(subscriptions)))
    else:
        plan.give_to_least_loaded()
        plan.balance()
    return plan.result()


def range_(members: Mapping[str, Subscriber], topics: Mapping[TopicId, int]) -> dict[str, Partitions]:
    """Contiguous ranges of each topic; static members first, by their instance id."""
    order = sorted(members, key=lambda m: (members[m].instance_id is None, members[m].instance_id or m, m))
    result: dict[str, dict[TopicId, frozenset[int]]] = {member: {} for member in members}
    for topic, count in topics.items():
        subscribers = [member for member in order if topic in members[member].topics]
        if not subscribers:
            continue
        share, rest = divmod(count, len(subscribers))
        start = 0
        for position, member in enumerate(subscribers):
            end = start + share + (position < rest)
            if end > start:
                result[member][topic] = frozenset(range(start, end))
            start = end
    return {**result}


ASSIGNORS: dict[str, Assignor] = {"uniform": uniform, "range": range_}


class _Plan:
    """An unfinished assignment: lists of partitions per member and topic, which shrink and grow."""

    def __init__(self, members: Mapping[str, Subscriber], topics: Mapping[TopicId, int]) -> None:
        self._members = members
        self._counts = topics
        self._order = sorted(members)
        self._held: dict[str, dict[TopicId, list[int]]] = {member: {} for member in self._order}
        self._load = dict.fromkeys(self._order, 0)
        self._free: dict[TopicId, list[int]] = {}

    def keep_previous(self) -> None:
        """Members keep what they had, where the partition still exists and they still subscribe."""
        free = {topic: set(range(count)) for topic, count in self._counts.items()}
        for member in self._order:
            subscriber = self._members[member]
            for topic, partitions in subscriber.previous.items():
                if topic in free and topic in subscriber.topics and (kept := partitions & free[topic]):
                    free[topic] -= kept
                    self._held[member][topic] = sorted(kept)
                    self._load[member] += len(kept)
        self._free = {topic: sorted(partitions) for topic, partitions in free.items() if partitions}

    def fill_quotas(self, topics: frozenset[TopicId]) -> None:
        """All members subscribe to the same `topics`: each gets the same number, some get one more.

        The extra ones go to members that have more than the others already, so that few partitions move.
        """
        self._free = {topic: partitions for topic, partitions in self._free.items() if topic in topics}
        total = sum(self._counts[topic] for topic in topics)
        share, extras = divmod(total, len(self._order))
        quota = dict.fromkeys(self._order, share)
        for member in sorted(self._order, key=lambda m: -self._load[m])[:extras]:
            quota[member] += 1
        for member in self._order:
            self._give_up(member, self._load[member] - quota[member])
        needy = deque(member for member in self._order if self._load[member] < quota[member])
        for topic in sorted(self._free):
            for partition in self._free[topic]:
                member = needy[0]
                self._take(member, topic, partition)
                if self._load[member] == quota[member]:
                    needy.popleft()

    def give_to_least_loaded(self) -> None:
        """Free partitions go to the subscriber with the fewest; topics that few may read go first."""
        subscribers = {t: [m for m in self._order if t in self._members[m].topics] for t in self._free}
        for topic in sorted(self._free, key=lambda t: (len(subscribers[t]), t)):
            if subscribers[topic]:
                for partition in self._free[topic]:
                    member = min(subscribers[topic], key=self._load.__getitem__)
                    self._take(member, topic, partition)

    def balance(self) -> None:
        """Move partitions along chains of members until no chain makes the loads more equal."""
        subscribers = {t: [m for m in self._order if t in self._members[m].topics] for t in self._counts}
        settled: set[str] = set()
        while open_ := [m for m in self._order if m not in settled]:
            giver = max(open_, key=self._load.__getitem__)
            came_by, poorest = self._reach(giver, subscribers)
            if self._load[giver] - self._load[poorest] < 2:
                # A member that is reached and has no more than the giver cannot reach a poorer one either.
                settled.update(m for m in came_by if self._load[m] <= self._load[giver])
                continue
            self._pass_on(giver, poorest, came_by)

    def _reach(
        self, giver: str, subscribers: Mapping[TopicId, list[str]]
    ) -> tuple[dict[str, tuple[str, TopicId] | None], str]:
        """All members that partitions can move to from `giver`, how, and the one that has fewest."""
        came_by: dict[str, tuple[str, TopicId] | None] = {giver: None}
        seen: set[TopicId] = set()
        queue = deque([giver])
        poorest = giver
        while queue:
            member = queue.popleft()
            for topic, partitions in self._held[member].items():
                if not partitions or topic in seen:
                    continue
                seen.add(topic)
                for other in subscribers[topic]:
                    if other not in came_by:
                        came_by[other] = (member, topic)
                        queue.append(other)
                        if self._load[other] < self._load[poorest]:
                            poorest = other
        return came_by, poorest

    def _pass_on(self, giver: str, taker: str, came_by: Mapping[str, tuple[str, TopicId] | None]) -> None:
        """Move as many partitions from `giver` to `taker` as the chain between them and their loads allow."""
        chain: list[tuple[str, TopicId, str]] = []
        end = taker
        while (step := came_by[end]) is not None:
            chain.append((step[0], step[1], end))
            end = step[0]
        number = (self._load[giver] - self._load[taker]) // 2
        number = min([number, *(len(self._held[source][topic]) for source, topic, _ in chain)])
        for source, topic, target in reversed(chain):
            moving = self._held[source][topic][-number:]
            del self._held[source][topic][-number:]
            self._held[target].setdefault(topic, []).extend(moving)
        self._load[giver] -= number
        self._load[taker] += number

    def _give_up(self, member: str, number: int) -> None:
        """Put `number` of a member's partitions among the free ones, from the end of its last topics."""
        for topic in sorted(self._held[member], reverse=True):
            if number <= 0:
                return
            partitions = self._held[member][topic]
            given = partitions[-number:]
            del partitions[-number:]
            self._free[topic] = sorted(self._free.get(topic, []) + given)
            self._load[member] -= len(given)
            number -= len(given)

    def _take(self, member: str, topic: TopicId, partition: int) -> None:
        self._held[member].setdefault(topic, []).append(partition)
        self._load[member] += 1

    def result(self) -> dict[str, Partitions]:
        return {
            member: {topic: frozenset(partitions) for topic, partitions in held.items() if partitions}
            for member, held in self._held.items()
        }
