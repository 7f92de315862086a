"""Applying a rule to all partitions of the cluster image, in portions between which others are served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from ottla.cluster.image import ClusterImage, PartitionState

AT_A_TIME = 500
"""Partitions that are looked at in one iteration of the event loop."""

Decision = Callable[[PartitionState, int, bool, frozenset[int]], PartitionState]
"""From a state, the topic's min.insync.replicas, its unclean.leader.election.enable and the brokers whose
replica has failed, to the next state."""


async def decisions(
    image: ClusterImage,
    decide: Decision,
    rules_of: Callable[[str], tuple[int, bool]],
    failed_at: Callable[[bytes, int], frozenset[int]],
    topics: Iterable[str] | None = None,
) -> dict[str, dict[int, PartitionState]]:
    """What `decide` changes, of all partitions or those of some topics."""
    changed: dict[str, dict[int, PartitionState]] = {}
    # Most partitions of a cluster are in one of a few states, which they share.
    decided: dict[tuple[int, int, bool, frozenset[int]], PartitionState] = {}
    looked_at = 0
    for name in image.topics if topics is None else topics:
        rules = rules_of(name)
        topic = image.topics[name]
        for index, state in enumerate(topic.partitions):
            looked_at += 1
            if looked_at % AT_A_TIME == 0:
                await asyncio.sleep(0)
            key = id(state), *rules, failed_at(topic.id, index)
            new = decided.get(key)
            if new is None:
                new = decided[key] = decide(state, *key[1:])
            if new is not state:
                changed.setdefault(name, {})[index] = new
    return changed
