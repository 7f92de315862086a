"""What one replica knows of its partition: leader, epoch, in-sync set, log ends, high watermark.

Pure state: events go in ("I appended up to 17", "follower 2 has fetched up to 15"), the high watermark and
the changes of the in-sync set (ISR) that are due come out. No clock, no disk, no network; the shell around it
is `partition.py`, and `broker/isr_changes.py` brings proposed changes to the controller.

Rules kept here:

- The high watermark is the smallest log end among the replicas that count. What lies below it is committed:
  every in-sync replica has it.
- Those that count are the maximal ISR (KIP-497): the committed one and, while a proposed change is under way,
  the proposed one. Whichever of the two the controller holds, each of its members has what is committed. A
  follower that has caught up and is about to be proposed counts as well: otherwise the high watermark could
  run ahead of it for ever.
- It does not move while the committed ISR is smaller than `min.insync.replicas` (KIP-966): as many replicas
  as the topic demands have what is committed, whatever the producers' acks were.
- It never goes back while a leader leads. A new leader starts from what it knew as a follower and moves on
  when its followers report.
- A follower may join the ISR when it has all below the high watermark and all that was in the log when this
  leader epoch began: before its followers have reported, a new leader's high watermark may be too low.
- A proposal is over when the controller has answered for it, or when an assignment with a larger partition
  epoch comes: then the controller has accepted it, or never will. An unknown outcome leaves it under way.
- A proposal names its members with the broker epochs of the fetches it was made of, also when it is sent
  again: one that has started again since may have lost what it had.
- A leader's own log end counts only as far as it is acknowledged to be durable (see `Partition.append`), so
  a topic that asks for fsync before the answer gets it without a special case anywhere else.
- A report under another leader epoch, or of a broker's former registration, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from ottla.replication.follower_progress import UNKNOWN_EPOCH, FollowerFetch, FollowerProgress

NO_LEADER = -1


class Assignment(Protocol):
    """What a replica must know of a partition; the cluster image has it."""

    @property
    def leader(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def replicas(self) -> tuple[int, ...]: ...
    @property
    def isr(self) -> tuple[int, ...]: ...
    @property
    def partition_epoch(self) -> int: ...


class IsrProposal(NamedTuple):
    """An in-sync set that a leader asks the controller for, with the epochs it is bound to."""

    isr: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int
    broker_epochs: tuple[int, ...]
    """Under which the members last fetched; -1 for one that did not, and for the leader."""


class ReplicaState:
    """One partition as the broker `local_id` sees it."""

    __slots__ = (
        "_counted",
        "_followers",
        "_is_alone",
        "_joining",
        "_local_end",
        "_min_isr",
        "epoch_start",
        "has_followers",
        "high_watermark",
        "is_under_min_isr",
        "isr",
        "leader",
        "leader_epoch",
        "local_id",
        "partition_epoch",
        "proposal",
        "replicas",
    )

    def __init__(self, local_id: int, log_end_offset: int, high_watermark: int, *, min_isr: int = 1) -> None:
        self.local_id = local_id
        self.leader = NO_LEADER
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        """As the controller has committed it."""
        self.proposal: IsrProposal | None = None
        """What the controller has been asked for, or is about to be."""
        self.high_watermark = min(high_watermark, log_end_offset)
        self.epoch_start = 0
        """Where the log ended when this replica began to lead in this epoch."""
        self.has_followers = False
        """Whether this replica leads others."""
        self.is_under_min_isr = False
        """Whether fewer replicas are in sync than the topic demands."""
        self._min_isr = min_isr
        self._local_end = log_end_offset
        self._followers: dict[int, FollowerProgress] = {}
        self._joining: set[int] = set()
        self._counted: tuple[FollowerProgress, ...] = ()
        self._is_alone = False  # nothing but the local log holds back the high watermark

    @property
    def is_leader(self) -> bool:
        return self.leader == self.local_id

    @property
    def local_end(self) -> int:
        """The end of this replica's own log, as far as it counts for the high watermark."""
        return self._local_end

    @property
    def is_under_replicated(self) -> bool:
        """Whether this replica leads and not all the others are in sync."""
        return self.is_leader and len(self.isr) < len(self.replicas)

    @property
    def maximal_isr(self) -> frozenset[int]:
        """All that may be in sync by what the controller knows now (KIP-497)."""
        return frozenset(self.isr).union(self.proposal.isr if self.proposal else ())

    # -- what the controller decides ----------------------------------------------------------------------

    def assign(
        self,
        leader: int,
        leader_epoch: int,
        replicas: Iterable[int],
        isr: Iterable[int],
        partition_epoch: int,
        *,
        log_end: int | None = None,
        now_ms: int = 0,
    ) -> bool:
        """Take what the controller decided. True when this made the replica the leader of a new epoch.

        `log_end` is the end of the local log, flushed or not.
        """
        if partition_epoch < self.partition_epoch or leader_epoch < self.leader_epoch:
            return False
        begins_to_lead = leader == self.local_id and (leader_epoch > self.leader_epoch or not self.is_leader)
        if begins_to_lead or partition_epoch > self.partition_epoch or leader != self.leader:
            self.proposal = None
            self.isr = tuple(isr)
        self.leader, self.leader_epoch, self.partition_epoch = leader, leader_epoch, partition_epoch
        self.replicas = tuple(replicas)
        if begins_to_lead:
            self._followers = {}
            self._joining.clear()
            self.epoch_start = self._local_end if log_end is None else log_end
        known = self._followers if self.is_leader else {}
        peers = [replica for replica in self.replicas if self.is_leader and replica != self.local_id]
        self._followers = {replica: known.get(replica) or self._new(replica, now_ms) for replica in peers}
        self._recount()
        self._advance()
        return begins_to_lead

    def _new(self, replica: int, now_ms: int) -> FollowerProgress:
        """A follower of which nothing is known. One that is in sync gets time to fetch."""
        return FollowerProgress(caught_up_ms=now_ms) if replica in self.isr else FollowerProgress()

    def set_min_isr(self, min_isr: int) -> bool:
        """The topic demands so many replicas in sync. True when the high watermark moved."""
        self._min_isr = min_isr
        self._recount()
        return self._advance()

    @property
    def min_isr(self) -> int:
        """`min.insync.replicas` of the topic, as far as there are replicas."""
        return min(self._min_isr, len(self.replicas))

    # -- log ends -----------------------------------------------------------------------------------------

    def appended(self, log_end_offset: int) -> bool:
        """The local log now counts up to `log_end_offset`. True when the high watermark moved."""
        self._local_end = log_end_offset
        if self._is_alone:
            moved = log_end_offset > self.high_watermark
            if moved:
                self.high_watermark = log_end_offset
            return moved
        return self._advance()

    def fetched(
        self,
        fetch: FollowerFetch,
        leader_epoch: int,
        offset: int,
        *,
        log_end: int,
        log_start: int = -1,
    ) -> bool:
        """A follower asks for `offset`, so it has all before. True when the high watermark moved.

        `log_end` is the end of the leader's log, flushed or not; `log_start` the start of the follower's.
        """
        replica = fetch.broker_id
        follower = self._followers.get(replica)
        if follower is None or leader_epoch != self.leader_epoch:
            return False
        if not follower.fetched(fetch, offset, log_start, log_end):
            return False
        joins = (
            fetch.may_join
            and replica not in self.isr
            and follower.is_caught_up(log_end, fetch.now_ms, fetch.max_lag_ms)
        )
        if joins != (replica in self._joining):
            self._joining ^= {replica}
            self._recount()
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

    def follower(self, replica: int) -> FollowerProgress | None:
        return self._followers.get(replica)

    def low_watermark(self, log_start: int, is_alive: Callable[[int], bool]) -> int:
        """The smallest log start among this replica, which starts at `log_start`, and the living others."""
        starts = [f.log_start_offset for replica, f in self._followers.items() if is_alive(replica)]
        return min([log_start, *starts])

    # -- changes of the in-sync set -----------------------------------------------------------------------

    @property
    def may_expand(self) -> bool:
        """Whether it is worth to ask for `expand_due`."""
        return bool(self._joining) and self.proposal is None

    def expand_due(self, broker_epoch: Callable[[int], int | None]) -> tuple[int, ...] | None:
        """The ISR with the followers that may join it; None when there are none, or a change is under way.

        `broker_epoch` gives the epoch under which a broker is registered and not fenced, else None.
        """
        if not self.may_expand:
            return None
        needed = max(self.high_watermark, self.epoch_start)
        joining = {
            replica
            for replica in self._joining
            if (follower := self._followers[replica]).log_end_offset >= needed
            and broker_epoch(replica) == follower.broker_epoch
        }
        return self._in_order(joining.union(self.isr)) if joining else None

    def shrink_due(self, now_ms: int, max_lag_ms: int, log_end: int) -> tuple[int, ...] | None:
        """The ISR without the followers that lag; None when none do, or a change is under way."""
        if self.proposal is not None or not self._followers:
            return None
        kept = {
            replica
            for replica in self.isr
            if replica == self.local_id
            or (
                (follower := self._followers.get(replica)) is not None
                and follower.is_caught_up(log_end, now_ms, max_lag_ms)
            )
        }
        return self._in_order(kept) if len(kept) < len(self.isr) else None

    def stop_waiting_for(self, leaves: Callable[[int, FollowerProgress], bool]) -> bool:
        """Followers that were about to join do not count any more. True when the high watermark moved."""
        gone = {replica for replica in self._joining if leaves(replica, self._followers[replica])}
        if not gone:
            return False
        self._joining -= gone
        self._recount()
        return self._advance()

    def propose(self, isr: Iterable[int]) -> IsrProposal:
        """The controller is being asked for this ISR; until it has answered, both count."""
        assert self.is_leader and self.proposal is None
        members = tuple(isr)
        epochs = tuple(f.broker_epoch if (f := self._followers.get(r)) else UNKNOWN_EPOCH for r in members)
        self.proposal = IsrProposal(members, self.leader_epoch, self.partition_epoch, epochs)
        self._recount()
        return self.proposal

    def altered(
        self,
        proposal: IsrProposal,
        leader: int,
        leader_epoch: int,
        isr: Iterable[int],
        partition_epoch: int,
    ) -> bool:
        """The controller's answer to a proposal: the state that holds now.

        True when the high watermark moved. An answer about another leader or epoch changes nothing: the
        cluster image brings that.
        """
        if leader != self.leader or leader_epoch != self.leader_epoch or not self.is_leader:
            return False
        is_answer = proposal is self.proposal and partition_epoch == self.partition_epoch
        if not is_answer and partition_epoch <= self.partition_epoch:
            return False
        self.isr, self.partition_epoch, self.proposal = tuple(isr), partition_epoch, None
        self._recount()
        return self._advance()

    def _in_order(self, members: Iterable[int]) -> tuple[int, ...]:
        members = set(members)
        return tuple(replica for replica in self.replicas if replica in members)

    # -- the high watermark -------------------------------------------------------------------------------

    def _recount(self) -> None:
        """Note which followers the high watermark waits for, and whether it waits for more of them."""
        self.has_followers = bool(self._followers)
        self.is_under_min_isr = len(self.isr) < self.min_isr
        self._joining &= self._followers.keys()
        self._joining.difference_update(self.isr)
        counted = self.maximal_isr | self._joining
        self._counted = tuple(
            self._followers.get(replica) or FollowerProgress()
            for replica in counted
            if replica != self.local_id
        )
        self._is_alone = self.is_leader and not self._counted and not self.is_under_min_isr

    def _advance(self) -> bool:
        if not self.is_leader or self.is_under_min_isr:
            return False
        reached = self._local_end
        for follower in self._counted:
            if follower.log_end_offset < reached:
                reached = follower.log_end_offset
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True
