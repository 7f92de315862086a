"""A partition on this broker: its log, its place among the replicas, and the requests that wait for it.

The shell around `ReplicaState`: it appends to and reads from the log, tells the state what happened, and
wakes the purgatory when the high watermark moves. Handlers talk to this object and to nothing below it. What
readers ask is in `partition_reading`.

Consumers and producers wait for the partition itself: its high watermark, or the end of its leadership.
Followers wait for `log_end`, because they read what is not committed yet. A producer waits in the leader
epoch in which its records were appended: in another one the same offsets may hold other records.

When a topic asks for fsync before the answer (`flush.messages`), an append that makes a flush due does not
count until a thread has flushed it: `local_end` stands still meanwhile, so neither the high watermark nor an
acks=1 answer can run ahead of the disk. Appends that arrive during a flush share the next one.

Writes are done on the event loop while they are fast. Where the disk is slow or a batch is large
(`writes_in_thread`), a thread writes, one batch after the other in the order they came (`append_in_thread`):
then only the clients of this partition wait.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections.abc import Awaitable, Callable
from typing import Protocol

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.replication.partition_reading import PartitionReading
from ottla.replication.purgatory import Purgatory
from ottla.replication.replica_state import Assignment, ReplicaState
from ottla.replication.slow_disk import LARGE_WRITE, SLOW_SECONDS, SlowDisk
from ottla.storage.log import AppendInfo, Log
from ottla.storage.log_config import FOREVER, LogConfig
from ottla.storage.validation import Validated
from ottla.storage.verification import VerificationGuard

logger = logging.getLogger("ottla.partition")

RunInThread = Callable[[Callable[[], int]], "Future[int]"]
WriteInThread = Callable[[Callable[[], None]], Awaitable[None]]
IsFenced = Callable[[], bool]
"""Whether this broker may have been replaced without knowing."""


_WRONG_IF_DEPOSED = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.OFFSET_OUT_OF_RANGE)


class Watching(Protocol):
    """A follower's session that does not look at a partition until it is woken. Fetches wait for it."""

    def woke(self, partition: Partition) -> None: ...
    def __hash__(self) -> int: ...


def never() -> bool:
    return False


class Partition(PartitionReading):
    __slots__ = (
        "_closed",
        "_disk",
        "_flush_outcome",
        "_flushing",
        "_in_thread",
        "_is_fenced",
        "_is_slow",
        "_may_be_deposed",
        "_purgatory",
        "_turn",
        "_write_in_thread",
        "log_end",
        "watching",
    )

    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: bytes,
        log: Log,
        state: ReplicaState,
        purgatory: Purgatory,
        in_thread: RunInThread,
        *,
        write_in_thread: WriteInThread | None = None,
        disk: SlowDisk | None = None,
        is_fenced: IsFenced = never,
        may_be_deposed: IsFenced = never,
    ) -> None:
        super().__init__(topic, index, topic_id, log, state)
        self.log_end = object()
        """What followers wait for in the purgatory."""
        self.watching: dict[int, Watching] = {}
        """By broker: sessions of followers that are woken, once, when there may be something new here."""
        self._purgatory = purgatory
        self._in_thread = in_thread
        self._write_in_thread = write_in_thread
        self._disk = disk or SlowDisk()
        self._is_fenced = is_fenced
        self._may_be_deposed = may_be_deposed
        self._is_slow = False
        self._turn = asyncio.Lock()  # of writes in threads
        self._closed = False
        self._flushing = False
        self._flush_outcome: Future[int] | None = None

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index} epoch {self.state.leader_epoch}>"

    # -- following (see `following`) ----------------------------------------------------------------------

    @property
    def turn(self) -> asyncio.Lock:
        """Held while a thread writes to the log, or a follower changes its end."""
        return self._turn

    def follows(self, leader_epoch: int) -> bool:
        """Whether what the leader of that epoch sends belongs into the log."""
        state = self.state
        return (
            state.leader_epoch == leader_epoch
            and not state.is_leader
            and not self._closed
            and self.log.failure is None
        )

    async def append_portion(self, portion: Validated, leader_epoch: int) -> None:
        """Write one portion of what the leader sent. Its caller has the turn."""
        log = self.log
        size = len(portion.data)
        write_in_thread = self._write_in_thread
        if write_in_thread is None or not (self._is_slow or self._disk.is_slow or size > LARGE_WRITE):
            log.append_portion(portion)
            if log.write_seconds > SLOW_SECONDS:
                self._wrote(size, log.write_seconds)
        else:
            slow = log.begin_replicated(portion)
            await write_in_thread(slow.write)
            self._wrote(size, slow.seconds)
            if not self.follows(leader_epoch):
                log.give_up_append(slow)
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            log.finish_append(slow)
        self._count()

    @property
    def counts_all(self) -> bool:
        """Whether all that is in the log counts: the topic asks for no flush before, or it has been done."""
        return self.state.local_end >= self.log.end_offset

    async def flushed(self) -> None:
        """Return when all counts that is in the log now. ApiError when the disk does not take it."""
        end = self.log.end_offset
        while self.state.local_end < min(end, self.log.end_offset):
            if not self._flushing:
                self._flush()
            assert self._flush_outcome is not None
            await asyncio.wait([self._flush_outcome])
            if not self._flush_outcome.cancelled() and (error := self._flush_outcome.exception()):
                raise error

    # -- leading (see `leading` for what followers and the controller say) ----------------------------------

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuse a client whose view of the leader is older or newer than ours (KIP-320)."""
        if current_leader_epoch < 0 or current_leader_epoch == self.state.leader_epoch:
            return
        if current_leader_epoch < self.state.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def assign(self, assignment: Assignment) -> None:
        """Take what the controller decided. Who waits here looks whether this replica leads as before."""
        log = self.log
        begins_to_lead = self.state.assign(
            assignment.leader,
            assignment.leader_epoch,
            assignment.replicas,
            assignment.isr,
            assignment.partition_epoch,
            log_end=log.end_offset,
            now_ms=int(log.monotonic() * 1000),
        )
        if begins_to_lead and log.failure is None:
            log.begin_epoch(assignment.leader_epoch)
        self.wake_all()

    def wake(self) -> None:
        """Let the requests of producers and consumers that wait for this partition look again."""
        self._purgatory.notify(self)

    def wake_all(self) -> None:
        """The same, and those of followers."""
        self._purgatory.notify(self)
        self._wake_followers()

    def _wake_followers(self) -> None:
        self._purgatory.notify(self.log_end)
        if self.watching:
            watching, self.watching = self.watching, {}
            for session in watching.values():
                session.woke(self)
                self._purgatory.notify(session)

    def require_in_sync(self, min_insync_replicas: int) -> None:
        """The topic demands so many replicas in sync from now on."""
        self.state.set_min_isr(min_insync_replicas)
        self._purgatory.notify(self)

    def check_in_sync(self) -> None:
        """acks=all is refused while fewer replicas are in sync than the topic demands."""
        if self.state.is_under_min_isr:
            raise self._not_enough_replicas(ErrorCode.NOT_ENOUGH_REPLICAS)

    def _not_enough_replicas(self, code: ErrorCode) -> ApiError:
        return ApiError(
            code,
            f"{self.topic}-{self.index} has {len(self.state.isr)} replicas in sync and needs "
            f"{self.state.min_isr} (min.insync.replicas)",
        )

    def append(
        self,
        records: memoryview,
        *,
        from_client: bool = True,
        prepared_under: LogConfig | None = None,
        only_small: bool = False,
        verification: VerificationGuard | None = None,
    ) -> AppendInfo:
        """Write batches, stamped with offset and epoch, to the log. ApiError when refused.

        `from_client=False` is for what the broker itself writes; see `Log.append`. The first batch of a
        transaction needs a guard of `begin_verification`, or UNCHECKED where that is switched off.
        """
        log = self.log
        if self._closed:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic}-{self.index} is closed here")
        try:
            info = log.append(
                records,
                self.state.leader_epoch,
                from_client=from_client,
                prepared_under=prepared_under,
                only_small=only_small,
                verification=verification,
            )
        except ApiError as refusal:
            raise self.checked(refusal) from None
        return self._appended(info)

    def checked(self, refusal: ApiError) -> ApiError:
        """A leader that was deposed without knowing lacks what its successor took.

        To a producer that was there a wrong sequence would be fatal, and a consumer that was there would go
        back to the first record, or skip some. So they are sent to find the leader.
        """
        if refusal.code in _WRONG_IF_DEPOSED and self._may_be_deposed():
            return ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"this broker does not hear from the controller, and {refusal.message}",
            )
        return refusal

    def _appended(self, info: AppendInfo) -> AppendInfo:
        log = self.log
        if log.write_seconds > SLOW_SECONDS:
            self._wrote(info.size, log.write_seconds)
        if not info.duplicate:
            self._count()
            if self.state.has_followers:
                self._wake_followers()
        return info

    def begin_verification(
        self, producer_id: int, producer_epoch: int, sequence: int, *, bumps_epoch: bool = False
    ) -> VerificationGuard | None:
        """A guard under which the coordinator is asked whether the transaction of a batch includes this
        partition; None when it is open here already. `bumps_epoch`: its transactions have an epoch each."""
        return self.log.begin_verification(producer_id, producer_epoch, sequence, bumps_epoch=bumps_epoch)

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int = 0,
    ) -> AppendInfo:
        """Write the marker that ends a producer's transaction; see `Log.append_marker`."""
        self._check_leads()
        info = self.log.append_marker(
            producer_id,
            producer_epoch,
            self.state.leader_epoch,
            commit=commit,
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
        )
        return self._appended(info)

    async def append_marker_in_turn(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int = 0,
    ) -> AppendInfo:
        """As `append_marker`, behind the writes in threads that came before."""
        async with self._turn:
            return self.append_marker(
                producer_id,
                producer_epoch,
                commit=commit,
                coordinator_epoch=coordinator_epoch,
                transaction_version=transaction_version,
            )

    def _check_leads(self) -> None:
        if self._closed or not self.state.is_leader:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic}-{self.index} is not led here")

    def writes_in_thread(self, size: int) -> bool:
        """Whether so many bytes of a client have to go through `append_in_thread`."""
        return (
            self._is_slow or size > LARGE_WRITE or self._disk.is_slow or self._turn.locked()
        ) and self._write_in_thread is not None

    async def append_in_thread(
        self,
        records: memoryview,
        check: Callable[[], object],
        *,
        prepared_under: LogConfig | None = None,
        verification: VerificationGuard | None = None,
    ) -> AppendInfo:
        """As `append`, for a client's batch, with the write in a thread and behind those that came before.

        `check` is called right before the write. What it raises is raised here, and nothing is written.
        """
        assert self._write_in_thread is not None
        async with self._turn:
            check()
            if self._closed:
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic}-{self.index} is closed here")
            try:
                slow = self.log.begin_append(
                    records,
                    self.state.leader_epoch,
                    prepared_under=prepared_under,
                    verification=verification,
                )
            except ApiError as refusal:
                raise self.checked(refusal) from None
            if isinstance(slow, AppendInfo):
                return slow
            await self._write_in_thread(slow.write)
            self._wrote(len(slow.validated.data), slow.seconds)
            if not self.state.is_leader or self.state.leader_epoch != slow.leader_epoch:
                self.log.give_up_append(slow)
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            info = self.log.finish_append(slow)
            self._count()
            self._wake_followers()
            return info

    def _wrote(self, size: int, seconds: float) -> None:
        self.log.write_seconds = 0.0
        self._is_slow = self._disk.wrote(self.log.name, size, seconds, self.log.monotonic())

    def close(self) -> bool:
        """Begin no further write in a thread. True when one is under way: then wait for `writes_ended`."""
        self._closed = True
        self._disk.forget(self.log.name)
        return self._turn.locked()

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def writes_ended(self) -> None:
        """Of a closed partition: return when no thread writes to its log any more."""
        async with self._turn:
            pass

    def acknowledged(self, end_offset: int, all_replicas: bool, leader_epoch: int) -> bool:
        """True when records before `end_offset`, appended in that epoch, may be answered for.

        ApiError when they never will be, or when too few replicas have become in sync meanwhile.
        """
        if self.log.failure is not None:
            raise self.log.failure
        state = self.state
        if state.leader_epoch != leader_epoch or state.leader != state.local_id:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic}-{self.index} has another leader")
        if self._is_fenced():
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker may have been replaced")
        if not all_replicas:
            return state.local_end >= end_offset
        if state.high_watermark >= end_offset:
            return True
        if state.is_under_min_isr:
            raise self._not_enough_replicas(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        return False

    def flush_if_due(self) -> None:
        """Called now and then: flush by time (`flush.ms`) or behind a sealed segment. Holds up no answer."""
        if not self._flushing and self.log.flush_due():
            self._flush()

    def _count(self) -> None:
        """Let what was appended count for the high watermark, after a flush where the topic asks for one."""
        log = self.log
        if log.end_offset - log.recovery_point >= log.config.flush_messages:
            if not self._flushing:
                self._flush()
            return
        if log.producers.has_unreplicated:
            log.producers.forget_replicated(self.state.high_watermark)
        held_back = self._flushing and log.config.flush_messages != FOREVER
        if not held_back and self.state.appended(log.end_offset):
            self._purgatory.notify(self)

    def _flush(self) -> None:
        self._flushing = True
        self._flush_outcome = self._in_thread(self.log.flush)
        self._flush_outcome.add_done_callback(self._flushed)

    def _flushed(self, outcome: Future[int]) -> None:
        self._flushing = False
        if outcome.cancelled():
            return
        if error := outcome.exception():
            # A failed fsync takes the log offline; a full disk only delays: the next append tries again, and
            # the requests that wait now time out.
            logger.error("%s-%d: flush failed: %s", self.topic, self.index, error)
            self._purgatory.notify(self)
            return
        self.state.appended(max(self.state.local_end, self.log.recovery_point))
        self._purgatory.notify(self)  # acks=1 waits for the flush alone
        self._count()
