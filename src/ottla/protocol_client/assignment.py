"""Who reads what: the decision that the leader of a classic group takes for all its members.

Two ways, under the names and with the results of Kafka's own assignors, because in the next generation the
leader may be a client of another make. Both are for members that let everything go before they join again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

Subscriptions: TypeAlias = Mapping[str, Sequence[str]]
"""The topics that each member wants."""
Shares: TypeAlias = dict[str, dict[str, list[int]]]
"""Member, topic, partitions."""


def range_shares(subscriptions: Subscriptions, partitions: Mapping[str, int]) -> Shares:
    """Topic by topic: the partitions in a row, cut into pieces of nearly the same length."""
    shares: Shares = {member: {} for member in subscriptions}
    for topic in sorted({topic for topics in subscriptions.values() for topic in topics}):
        members = sorted(member for member, topics in subscriptions.items() if topic in topics)
        size, longer = divmod(partitions.get(topic, 0), len(members))
        first = 0
        for index, member in enumerate(members):
            count = size + (index < longer)
            if count:
                shares[member][topic] = list(range(first, first + count))
            first += count
    return shares


def roundrobin_shares(subscriptions: Subscriptions, partitions: Mapping[str, int]) -> Shares:
    """All partitions of all topics assigned round robin; members that do not subscribe to a topic are
    skipped."""
    shares: Shares = {member: {} for member in subscriptions}
    members = sorted(subscriptions)
    turn = 0
    for topic in sorted({topic for topics in subscriptions.values() for topic in topics}):
        for partition in range(partitions.get(topic, 0)):
            while topic not in subscriptions[members[turn % len(members)]]:
                turn += 1
            shares[members[turn % len(members)]].setdefault(topic, []).append(partition)
            turn += 1
    return shares


ASSIGNORS: dict[str, Callable[[Subscriptions, Mapping[str, int]], Shares]] = {
    "range": range_shares,
    "roundrobin": roundrobin_shares,
}
