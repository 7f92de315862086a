"""What the controller tells its operator about brokers and elections, in few lines for many partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from ottla.cluster.image import NO_LEADER, BrokerNode, ClusterImage, PartitionState
from ottla.cluster.partition_rules import Brokers, is_unclean

_log = logging.getLogger(__name__)

_AT_A_TIME = 1000
_NAMED = 5
"""Partitions that a line names."""


def broker_news(broker_id: int, old: BrokerNode | None, new: BrokerNode | None) -> str:
    if new is None:
        return f"broker {broker_id} left"
    if old is None or old.epoch != new.epoch:
        rack = "" if new.rack is None else f", rack {new.rack}"
        return f"broker {broker_id} joined: {new.host}:{new.port}{rack}, epoch {new.epoch}"
    if old.fenced == new.fenced:
        if old.disk == new.disk:
            return f"broker {broker_id} changed: {new}"
        return f"broker {broker_id} {_disk_news(new)}"
    if new.fenced:
        return f"broker {broker_id} is fenced: it has not asked for the cluster image for too long"
    return f"broker {broker_id} is in service: it follows the cluster image"


def _disk_news(broker: BrokerNode) -> str:
    disk = broker.disk
    troubles = []
    if disk.impaired:
        troubles.append("has a full or failing disk: others lead what they can")
    if disk.failed:
        troubles.append(f"has {len(disk.failed)} replicas without a sound log")
    return " and ".join(troubles) or "has a sound disk again"


async def report_elections(
    before: ClusterImage, changed: Mapping[str, Mapping[int, PartitionState]], brokers: Brokers
) -> int:
    """Says how many partitions got another leader, none, or one that may lack records; returns the last."""
    count, elected, leaderless, unclean = 0, 0, 0, []
    for name, states in changed.items():
        old = before.topics[name].partitions
        for index, new in states.items():
            count += 1
            if count % _AT_A_TIME == 0:
                await asyncio.sleep(0)
            elected += new.leader_epoch > old[index].leader_epoch
            leaderless += new.leader == NO_LEADER
            if is_unclean(old[index], new, brokers):
                unclean.append(f"{name}-{index} (broker {new.leader}, leader epoch {new.leader_epoch})")
    if changed:
        _log.info("%d partitions changed: %d elections, %d without a leader", count, elected, leaderless)
    if unclean:
        more = f" and {len(unclean) - _NAMED} more" if len(unclean) > _NAMED else ""
        _log.warning(
            "%d partitions have a leader that may lack acknowledged records: %s%s",
            len(unclean),
            ", ".join(unclean[:_NAMED]),
            more,
        )
    return len(unclean)
