"""Which brokers get the new replicas when a topic is to have more of them. Pure.

The replicas that are there stay. New ones go to racks that have none of the partition yet, and among these to
brokers with the fewest replicas. The preferred leader becomes the replica that is it for the fewest
partitions: otherwise the first broker of a cluster that has grown would go on leading everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

Partition = tuple[str, int]


class TooFewBrokers(Exception):
    """There are fewer brokers than replicas that are wanted."""


def raised(
    replicas: Mapping[Partition, Sequence[int]],
    chosen: Sequence[Partition],
    racks: Mapping[int, str | None],
    factor: int,
) -> dict[Partition, list[int]]:
    """The new replicas of the chosen partitions that have fewer than `factor`, preferred leader first.

    `replicas` are those of all partitions of the cluster; `racks` has the brokers that may get more.
    """
    if factor > len(racks):
        raise TooFewBrokers(f"{factor} replicas need as many brokers, and there are {len(racks)}")
    holds = Counter(broker for brokers in replicas.values() for broker in brokers)
    prefers = Counter(brokers[0] for brokers in replicas.values() if brokers)
    found = {}
    for partition in chosen:
        present = list(replicas[partition])
        if len(present) >= factor:
            continue
        brokers = list(present)
        while len(brokers) < factor:
            used = {racks.get(broker) for broker in brokers}
            free = [broker for broker in racks if broker not in brokers]
            new = min(free, key=lambda broker: (racks[broker] in used, holds[broker], broker))
            brokers.append(new)
            holds[new] += 1
        prefers[present[0]] -= 1
        first = min(brokers, key=lambda broker: (prefers[broker], brokers.index(broker)))
        prefers[first] += 1
        found[partition] = [first, *(broker for broker in brokers if broker != first)]
    return found
