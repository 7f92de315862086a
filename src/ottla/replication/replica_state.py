"""What one replica knows of its partition: leader, epoch, in-sync set, log ends, high watermark.

Pure state: events go in ("I appended up to 17", "follower 2 has fetched up to 15"), the high watermark
comes out. No clock, no disk, no network; the shell around it is `partition.py`.

Rules kept here:

- The high watermark is the smallest log end among the in-sync replicas. What lies below it is committed:
  every in-sync replica has it.
- It never goes back while a leader leads. A new leader starts from what it knew as a follower and moves on
  when its followers report.
- A leader's own log end counts only as far as it is acknowledged to be durable (see `Partition.append`), so
  a topic that asks for fsync before the answer gets it without a special case anywhere else.
- A report under an older leader epoch changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

UNKNOWN_OFFSET = -1
NO_LEADER = -1


@dataclass(slots=True)
class Follower:
    """A leader's view of one follower."""

    log_end_offset: int = UNKNOWN_OFFSET
    caught_up_ms: int = 0
    """When the follower last had everything the leader had; the in-sync decision is made of this."""


class ReplicaState:
    """One partition as the broker `local_id` sees it."""

    __slots__ = (
        "_followers",
        "_local_end",
        "high_watermark",
        "isr",
        "leader",
        "leader_epoch",
        "local_id",
        "partition_epoch",
        "replicas",
    )

    def __init__(self, local_id: int, log_end_offset: int, high_watermark: int) -> None:
        self.local_id = local_id
        self.leader = NO_LEADER
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.high_watermark = min(high_watermark, log_end_offset)
        self._local_end = log_end_offset
        self._followers: dict[int, Follower] = {}

    @property
    def is_leader(self) -> bool:
        return self.leader == self.local_id

    @property
    def local_end(self) -> int:
        """The end of this replica's own log, as far as it counts for the high watermark."""
        return self._local_end

    def assign(
        self,
        leader: int,
        leader_epoch: int,
        replicas: Iterable[int],
        isr: Iterable[int],
        partition_epoch: int,
    ) -> bool:
        """Take what the controller decided. True when this made the replica the leader of a new epoch."""
        if partition_epoch < self.partition_epoch or leader_epoch < self.leader_epoch:
            return False
        begins_to_lead = leader == self.local_id and (leader_epoch > self.leader_epoch or not self.is_leader)
        self.leader, self.leader_epoch, self.partition_epoch = leader, leader_epoch, partition_epoch
        self.replicas, self.isr = tuple(replicas), tuple(isr)
        if begins_to_lead:
            self._followers = {}
        if self.is_leader:
            peers = [r for r in self.replicas if r != self.local_id]
            self._followers = {r: self._followers.get(r) or Follower() for r in peers}
            self._advance()
        else:
            self._followers = {}
        return begins_to_lead

    def appended(self, log_end_offset: int) -> bool:
        """The local log now counts up to `log_end_offset`. True when the high watermark moved."""
        self._local_end = log_end_offset
        if len(self.isr) == 1 and self.is_leader:
            moved = log_end_offset > self.high_watermark
            if moved:
                self.high_watermark = log_end_offset
            return moved
        return self._advance()

    def fetched(self, replica: int, leader_epoch: int, offset: int, now_ms: int) -> bool:
        """Follower `replica` asks for `offset`, so it has all before. True when the high watermark moved."""
        follower = self._followers.get(replica)
        if follower is None or leader_epoch != self.leader_epoch:
            return False
        follower.log_end_offset = offset
        if offset >= self._local_end:
            follower.caught_up_ms = now_ms
        return self._advance()

    def truncated(self, log_end_offset: int) -> None:
        """The local log was cut; a follower's high watermark cannot stand above its log."""
        self._local_end = log_end_offset
        self.high_watermark = min(self.high_watermark, log_end_offset)

    def learned(self, high_watermark: int) -> bool:
        """A follower gets its leader's high watermark. True when its own moved."""
        reached = min(high_watermark, self._local_end)
        if self.is_leader or reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True

    def follower(self, replica: int) -> Follower | None:
        return self._followers.get(replica)

    def _advance(self) -> bool:
        if not self.is_leader:
            return False
        ends = [self._local_end]
        for replica in self.isr:
            if replica != self.local_id:
                follower = self._followers.get(replica)
                ends.append(follower.log_end_offset if follower else UNKNOWN_OFFSET)
        reached = min(ends)
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True
