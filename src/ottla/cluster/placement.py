"""Where the replicas of new partitions go.

Leaders go round robin over the brokers from a random start, so that many small topics do not all land on
the first broker. The followers of a partition sit on the brokers after its leader, at a distance that grows
with each round, so that the partitions led by one broker are followed by different ones and its failure
spreads over all. With racks, brokers are taken in an order that alternates between racks, and a partition
uses a second broker of a rack only when it has one in every rack.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from ottla.cluster.image import BrokerNode


def place_replicas(
    brokers: Iterable[BrokerNode], *, partitions: int, replication_factor: int, rng: random.Random
) -> list[tuple[int, ...]]:
    """The replicas of each partition, the preferred leader first."""
    ring = _alternating_racks(brokers)
    if not 0 < replication_factor <= len(ring):
        raise ValueError(f"cannot place {replication_factor} replicas on {len(ring)} brokers")
    racks = {broker.rack for broker in ring}
    start = rng.randrange(len(ring))
    shift = rng.randrange(len(ring))
    placed = []
    for partition in range(partitions):
        if partition and partition % len(ring) == 0:
            shift += 1
        first = (start + partition) % len(ring)
        placed.append(_replicas(ring, first, shift, replication_factor, len(racks)))
    return placed


def _alternating_racks(brokers: Iterable[BrokerNode]) -> list[BrokerNode]:
    by_rack: dict[str, list[BrokerNode]] = {}
    for broker in sorted(brokers, key=lambda broker: broker.id):
        by_rack.setdefault(broker.rack or "", []).append(broker)
    queues = [by_rack[rack] for rack in sorted(by_rack)]
    longest = max(map(len, queues), default=0)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]


def _replicas(
    ring: list[BrokerNode], first: int, shift: int, replication_factor: int, racks: int
) -> tuple[int, ...]:
    chosen = [ring[first]]
    others = len(ring) - 1
    # Followers from the ring without the leader, turned by the shift.
    candidates = [ring[(first + 1 + (shift + step) % others) % len(ring)] for step in range(others)]
    while len(chosen) < replication_factor:
        used = {broker.rack for broker in chosen}
        fresh = (broker for broker in candidates if len(used) >= racks or broker.rack not in used)
        follower = next(fresh)
        candidates.remove(follower)
        chosen.append(follower)
    return tuple(broker.id for broker in chosen)
