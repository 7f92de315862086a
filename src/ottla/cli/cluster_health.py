"""How a cluster is: which partitions are in trouble, which brokers are to blame, and what to do about it.

Pure: brokers and partitions as the cluster describes them in, a judgement out. A partition has the worst of
three troubles: it is offline (it has no leader: nothing can be read or written), below min.insync.replicas
(writes with acks=all are refused), or under-replicated (it works, and one more failure may hurt).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

OFFLINE = "offline"
BELOW_MIN_ISR = "below min ISR"
UNDER_REPLICATED = "under-replicated"
TROUBLES = (OFFLINE, BELOW_MIN_ISR, UNDER_REPLICATED)
"""The worst first."""


class BrokerView(NamedTuple):
    id: int
    address: str
    rack: str | None
    fenced: bool
    full: bool = False
    """Its disk is full: it takes no records."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    topic: str
    index: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_isr: int = 1
    offline: tuple[int, ...] = ()
    """Replicas that are away or have no sound log."""

    @property
    def trouble(self) -> str | None:
        if self.leader < 0:
            return OFFLINE
        if len(self.isr) < min(self.min_isr, len(self.replicas)):
            return BELOW_MIN_ISR
        if len(self.isr) < len(self.replicas):
            return UNDER_REPLICATED
        return None

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.index}"


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    brokers: Sequence[BrokerView]
    partitions: Sequence[PartitionView]

    @property
    def missing(self) -> list[int]:
        """Brokers that have replicas and are not registered."""
        known = {broker.id for broker in self.brokers}
        return sorted({node for each in self.partitions for node in each.replicas} - known)

    @property
    def fenced(self) -> list[int]:
        return [broker.id for broker in self.brokers if broker.fenced]

    @property
    def full(self) -> list[int]:
        return [broker.id for broker in self.brokers if broker.full]

    @property
    def failed(self) -> dict[int, int]:
        """How many replicas without a sound log each broker has, of those that are in service."""
        there = [broker.id for broker in self.brokers if not broker.fenced]
        counts = {node: sum(node in each.offline for each in self.partitions) for node in there}
        return {node: count for node, count in counts.items() if count}

    @property
    def troubled(self) -> list[PartitionView]:
        """The worst first."""
        found = [each for each in self.partitions if each.trouble is not None]
        return sorted(found, key=lambda each: (TROUBLES.index(each.trouble or ""), each.topic, each.index))

    def count(self, trouble: str) -> int:
        return sum(each.trouble == trouble for each in self.partitions)

    @property
    def healthy(self) -> bool:
        return not (self.missing or self.fenced or self.full or self.failed or self.troubled)

    def leads(self, broker: int) -> int:
        return sum(each.leader == broker for each in self.partitions)

    def replicas(self, broker: int) -> int:
        return sum(broker in each.replicas for each in self.partitions)

    def advice(self) -> list[str]:
        """What to do, the most urgent first."""
        lines = []
        if count := self.count(OFFLINE):
            lines.append(
                f"Nothing can be read from or written to {_count(count, 'partition')} until a replica that "
                "was in sync is back."
            )
        if count := self.count(BELOW_MIN_ISR):
            lines.append(
                f"acks=all is refused by {_count(count, 'partition')} until more replicas are in sync."
            )
        lines += [
            f"Broker {node} has {_count(self.replicas(node), 'replica')} and is not registered: "
            "`ottla serve --brokers` starts it again; on its own, start it."
            for node in self.missing
        ]
        lines += [
            f"Broker {node} is registered, but the controller does not hear from it: "
            "look into its log, and whether it reaches the controller's address for brokers."
            for node in self.fenced
        ]
        lines += [
            f"Broker {node} takes no records, as its disk is full: delete a topic (`ottla topic delete`), "
            "lower a retention (`ottla topic alter`) or enlarge the disk."
            for node in self.full
        ]
        lines += [
            f"Broker {node} has {_count(count, 'replica')} without a sound log: look into its log, and start "
            "it again when its disk is in order."
            for node, count in self.failed.items()
        ]
        if self.troubled and not (self.missing or self.fenced or self.full or self.failed):
            behind = sorted({node for each in self.troubled for node in set(each.replicas) - set(each.isr)})
            lines.append(
                f"All brokers are there; replicas on broker {', '.join(map(str, behind))} are not in sync. "
                "They may be catching up. If that lasts, look into the logs of these brokers."
            )
        return lines


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
