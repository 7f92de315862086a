"""What must hold on the brokers of a cluster at every moment, seen from outside of all of them.

`ReplicaChecks.check` looks at the replicas of all brokers that run, and at the partition states in the
registry, which are the truth about leadership:

* in one leader epoch of a partition only one broker ever leads;
* a record below the high watermark of any replica is committed: every other replica holds the same batch
  there as far as its own high watermark goes, and those that are in the in-sync set or eligible to lead (ELR)
  by the registry hold all that is committed;
* no high watermark is above the end of its log.

Batches are compared by offset, leader epoch and checksum. Looking at what was compared already would take
most of a run, so a replica is looked at again only where it moved.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field

from ottla.cluster import layout
from ottla.cluster.image import PartitionState
from ottla.protocol.batches import headers
from ottla.protocol.errors import ApiError
from ottla.replication.partition import Partition as Replica
from ottla.storage.log import Log
from ottla.testing.simulation.registry import Tree
from ottla.testing.simulation.virtual_time import Host
from ottla.testing.simulation.world import SimulatedBroker
from simulation.history import Violation

_READ_BYTES = 1 << 20
Batch = tuple[int, int, int, int]
"""Its first offset, the offset behind it, its leader epoch and its checksum."""
TopicPartition = tuple[bytes, str, int]


def batches(log: Log, start: int, limit: int) -> Iterator[Batch]:
    """The batches from `start` on that end at or before `limit`."""
    offset = max(start, log.log_start_offset)
    while (found := log.read(offset, _READ_BYTES, limit)) is not None:
        before = offset
        for _, header in headers(memoryview(found.read())):
            if header.next_offset > limit:
                return
            if header.next_offset > offset:
                yield header.base_offset, header.next_offset, header.leader_epoch, header.crc
                offset = header.next_offset
        if offset == before:
            return


@dataclass
class _Committed:
    """What some replica had below its high watermark."""

    batches: dict[int, Batch] = field(default_factory=dict)  # by first offset
    end: int = 0


class ReplicaChecks:
    def __init__(
        self,
        brokers: Mapping[int, SimulatedBroker],
        tree: Tree,
        is_incomplete: Callable[[int, str, int], bool],
    ) -> None:
        """`is_incomplete` says whether a broker has lost records of a partition, and the cluster has not
        drawn its conclusions from that yet."""
        self._brokers = brokers
        self._is_incomplete = is_incomplete
        self._tree = tree
        self._leaders: dict[tuple[TopicPartition, int], int] = {}
        self._committed: dict[TopicPartition, _Committed] = {}
        self._seen: dict[Replica, tuple[object, ...]] = {}
        self._compared: dict[tuple[int, TopicPartition], tuple[Log, int, int]] = {}
        self._commits = 0  # how often something more was committed
        self._checked_all = (-1, -1)  # transactions and commits when all brokers were looked at
        self._states: dict[bytes, PartitionState] = {}
        self._topic_ids: dict[bytes, bytes] = {}

    @property
    def epochs(self) -> int:
        """In how many leader epochs, of all partitions, somebody led."""
        return len(self._leaders)

    def check(self, ran: Container[Host | None]) -> None:
        """To be called after every step with the hosts of which something ran: others hold what they held."""
        seen, transactions = self._seen, self._tree.transactions
        now_all = transactions, self._commits
        check_all = now_all != self._checked_all
        self._checked_all = now_all
        for node_id, each in self._brokers.items():
            broker = each.broker
            if broker is None or not (check_all or each.host in ran):
                continue
            for replica in getattr(broker, "replicas", ()):
                log, state = replica.log, replica.state
                now = (
                    log.end_offset,
                    state.high_watermark,
                    state.leader_epoch,
                    state.leader,
                    transactions,
                    self._commits,
                    log.truncations,
                )
                if seen.get(replica) != now:
                    seen[replica] = now
                    self._check_replica(node_id, replica)

    def registered_state(self, topic: str, index: int) -> tuple[bytes, PartitionState] | None:
        """The topic's id and what the registry holds of a partition."""
        node = self._tree.nodes.get(layout.partition_path(topic, index))
        above = self._tree.nodes.get(layout.topic_path(topic))
        if node is None or above is None:
            return None
        state = self._states.get(node.data)
        if state is None:
            state = self._states[node.data] = layout.partition_from(node.data)
        topic_id = self._topic_ids.get(above.data)
        if topic_id is None:
            found = layout.image_from(
                {layout.topic_path(topic): above, **self._tree.subtree(layout.topic_path(topic))},
                version=1,
                controller_id=0,
            )
            held = found.image.topics.get(topic)
            if held is None:
                return None  # half made or half deleted
            topic_id = self._topic_ids[above.data] = held.id
        return topic_id, state

    def _check_replica(self, node_id: int, replica: Replica) -> None:
        log, state = replica.log, replica.state
        if log.failure is not None:
            return
        place = (replica.topic_id, replica.topic, replica.index)
        registered = self.registered_state(replica.topic, replica.index)
        complete = (
            registered is not None
            and registered[0] == replica.topic_id
            and node_id in registered[1].isr + registered[1].elr
            and not self._is_incomplete(node_id, replica.topic, replica.index)
        )
        committed = self._committed.setdefault(place, _Committed())
        if state.is_leader:
            leader = self._leaders.setdefault((place, state.leader_epoch), node_id)
            if leader != node_id:
                raise Violation(
                    f"{replica.topic}-{replica.index}: brokers {leader} and {node_id} lead in leader epoch "
                    f"{state.leader_epoch}"
                )
        if state.high_watermark > log.end_offset:
            raise Violation(
                f"{replica.topic}-{replica.index} on broker {node_id}: high watermark "
                f"{state.high_watermark}, log end {log.end_offset}"
            )
        self._compare(node_id, replica, committed, place, complete)

    def _compare(
        self, node_id: int, replica: Replica, committed: _Committed, place: TopicPartition, complete: bool
    ) -> None:
        log = replica.log
        end = max(replica.state.high_watermark, committed.end) if complete else replica.state.high_watermark
        known = self._compared.get((node_id, place))
        start = known[2] if known is not None and known[:2] == (log, log.truncations) else 0
        who = f"{replica.topic}-{replica.index} on broker {node_id} (epoch {replica.leader_epoch})"
        reached = max(start, log.log_start_offset)
        try:
            for batch in batches(log, start, min(end, log.end_offset)):
                first, reached, _, _ = batch
                expected = committed.batches.setdefault(first, batch)
                if expected != batch or (first < committed.end and reached > committed.end):
                    raise Violation(
                        f"{who} holds batch {batch} below its high watermark {replica.high_watermark}, "
                        f"where {expected} was committed"
                    )
                if (end_now := min(reached, replica.state.high_watermark)) > committed.end:
                    committed.end = end_now
                    self._commits += 1
        except (ApiError, OSError):
            return  # its disk fails
        if complete and reached < committed.end:
            raise Violation(
                f"{who} is in sync or may lead, but ends at {log.end_offset}; records up to {committed.end} "
                "were committed"
            )
        self._compared[node_id, place] = (log, log.truncations, reached)

    # -- the end --------------------------------------------------------------------------------------

    def differences(self) -> list[str]:
        """What keeps the cluster from being whole: replicas that are out of sync, logs that differ."""
        found = []
        for topic in self._topics():
            for index in range(1000):
                registered = self.registered_state(topic, index)
                if registered is None:
                    break
                found += self._differences_of(topic, index, registered[1])
        return found

    def _topics(self) -> list[str]:
        return self._tree.children(layout.TOPICS)

    def _differences_of(self, topic: str, index: int, state: PartitionState) -> list[str]:
        name = f"{topic}-{index}"
        if set(state.isr) != set(state.replicas) or state.leader not in state.isr:
            return [f"{name}: leader {state.leader}, in sync {state.isr} of {state.replicas}"]
        found: dict[int, list[Batch]] = {}
        for node_id in state.replicas:
            broker = self._brokers[node_id].broker
            replica = next(
                (r for r in (broker.replicas if broker else ()) if (r.topic, r.index) == (topic, index)), None
            )
            if replica is None or replica.log.failure is not None:
                return [f"{name}: broker {node_id} has no sound log"]
            if replica.high_watermark < replica.end_offset:
                return [
                    f"{name}: broker {node_id} has high watermark {replica.high_watermark} of "
                    f"{replica.end_offset}"
                ]
            found[node_id] = list(batches(replica.log, 0, replica.end_offset))
        logs = list(found.values())
        return [] if all(log == logs[0] for log in logs) else [f"{name}: logs differ"]
