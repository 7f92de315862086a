"""Replication as the follower does it: one loop for each broker that leads partitions with a replica here.

The loop sends one Fetch after the other, which the leader answers when there is something new or a time has
passed, and does to the logs what the answers say (`following`). `fetch_plan` decides what to ask for next.

* Records go from the frame of the answer to the file as they are. Between two partitions clients are served.
* A partition whose disk is slow, or that is flushed before its records count, is written to in a task of its
  own: the others go on, and it is asked for again when that has ended.
* An answer that cannot be true, or an error, lets one partition back off, with a line in the log. Its
  records stay as they were. A leader that cannot be reached is tried again for ever, until the image names
  another one.
* A partition that comes while the leader waits to answer is asked for at once: that request is given up.
* An answer that was asked for in an earlier leader epoch, or from another position, is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ottla.peer.client import PeerUnreachable, UnsupportedByPeer
from ottla.protocol.errors import ApiError, ErrorCode, error_of
from ottla.protocol.schema import Request
from ottla.replication.fetch_plan import Answer, FetchPlan, FetchSettings, Key, SessionLost
from ottla.replication.following import (
    Position,
    append_records,
    follow_range,
    learn,
    position_of,
    truncate,
)
from ottla.replication.leader_range import OffsetRange, ask_for_ranges
from ottla.replication.partition import Partition
from ottla.storage.log_config import FOREVER

logger = logging.getLogger("ottla.replication")

_SLICE_SECONDS = 0.002
"""After so long other requests are served, before the next partition of an answer."""
_WRITES_SECONDS = 0.1
"""So long the next request waits for writes that an answer has begun. Partitions whose writes take longer are
left out of requests until they have ended."""
_STOP_SECONDS = 1.0
_PAUSE_AFTER_EMPTY = 0.01

WAITS_FOR_IMAGE = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""The leader and this broker have different images, for as long as it takes one of them to get the newer."""


class Leader(Protocol):
    """A broker that leads partitions."""

    async def call(self, request: Request, *, timeout: float) -> Any:
        """Its response, or PeerUnreachable. A call that is cancelled does not hold up the next one."""
        ...


class FetchLoop:
    """`leader_id` names the leader in the log; `replica_epoch` is that of this broker's registration."""

    def __init__(
        self,
        leader_id: int,
        leader: Leader,
        replica_id: int,
        *,
        replica_epoch: Callable[[], int],
        settings: Callable[[], FetchSettings],
        admit: Callable[[Partition, int], None] = lambda partition, size: None,
    ) -> None:
        """`admit` is asked before so many bytes are written to a log; ApiError when there is no space."""
        self._leader_id = leader_id
        self._leader = leader
        self._replica_id = replica_id
        self._replica_epoch = replica_epoch
        self._settings = settings
        self._admit = admit
        self._plan = FetchPlan(replica_id)
        self._partitions: dict[Key, Partition] = {}
        self._writes: dict[Key, asyncio.Task[None]] = {}
        self._unflushed: dict[Key, None] = {}  # not asked for before that is done
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._asking: asyncio.Task[Any] | None = None  # waits for the leader's answer
        self._interrupted = False
        self._may_interrupt_at = 0.0
        self._unreachable = False
        self._empty = 0
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._partitions)

    # -- which partitions ---------------------------------------------------------------------------------

    def follow(self, partition: Partition) -> None:
        """Fetch this partition, from now on or in its new leader epoch."""
        key = partition.topic_id, partition.index
        self._partitions[key] = partition
        is_new = key not in self._plan
        self._plan.follow(key, None)
        self._move(key)
        self._wake.set()
        if is_new:
            self._interrupt()

    def _interrupt(self) -> None:
        """Do not let a new partition wait until the leader has answered a request that does not name it.

        Its first producer waits for this. At most one request in `replica.fetch.wait.max.ms` is given up.
        """
        now = self._loop.time()
        if self._asking is not None and not self._interrupted and now >= self._may_interrupt_at:
            self._may_interrupt_at = now + self._settings().max_wait_ms / 1000
            self._interrupted = self._asking.cancel()

    def forget(self, key: Key) -> None:
        self._partitions.pop(key, None)
        self._unflushed.pop(key, None)
        self._plan.forget(key)

    def _move(self, key: Key) -> None:
        """Ask for a partition from where its log is now; if a write or a flush is due, after that."""
        partition = self._partitions.get(key)
        if partition is None:
            return
        position = position_of(partition) if key not in self._writes else None
        self._plan.move(key, position)
        if position is None and key not in self._writes:
            self._unflushed[key] = None

    def _flush_due(self, now: float) -> None:
        """Flush what could not be flushed before, or was left behind by an earlier run."""
        for key in [key for key in self._unflushed if not self._plan.backs_off(key, now)]:
            del self._unflushed[key]
            partition = self._partitions[key]
            self._write(key, partition, partition.flushed())

    # -- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._task = self._loop.create_task(self._run(), name=f"fetch-from-{self._leader_id}")

    async def stop(self) -> None:
        """Send no further request. A thread that writes is waited for, but not for ever."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._writes:
            await asyncio.wait(list(self._writes.values()), timeout=_STOP_SECONDS)

    async def _run(self) -> None:
        while True:
            try:
                await self.step()
            except PeerUnreachable as error:
                await self._unreached(str(error))
            except UnsupportedByPeer as error:
                await self._unreached(str(error))
            except ApiError as error:  # the broker is not in the image
                await self._unreached(error.message)
            except Exception:
                logger.exception("fetching from broker %d failed by a defect; trying again", self._leader_id)
                self._plan.failed()
                await asyncio.sleep(self._settings().backoff)

    async def _unreached(self, why: str) -> None:
        self._plan.failed()
        if not self._unreachable:
            self._unreachable = True
            logger.warning(
                "cannot replicate %d partitions from broker %d, trying again: %s",
                len(self._partitions),
                self._leader_id,
                why,
            )
        await asyncio.sleep(min(self._settings().backoff, 0.1))

    # -- one request and its answer -----------------------------------------------------------------------

    async def step(self) -> None:
        """Ask once, and do what the answer says; or wait until there is something to ask for."""
        settings = self._settings()
        self._wake.clear()
        began = self._loop.time()
        if self._unflushed:
            self._flush_due(began)
        request = self._plan.request(self._replica_epoch(), settings, began)
        if request is None:
            await self._wait_for_wake()
            return
        response = await self._ask(request, settings.timeout)
        if response is None:
            self._plan.failed()
            return
        if self._unreachable:
            self._unreachable = False
            logger.info("replicating from broker %d again", self._leader_id)
        try:
            answers = self._plan.answered(response)
        except SessionLost as lost:
            logger.debug("broker %d ended the fetch session: %s", self._leader_id, lost)
            await self._pause()
            return
        if answers:
            self._empty = 0
            await self._take(answers)
        elif self._loop.time() - began < settings.max_wait_ms / 2000:
            await self._pause()

    async def _ask(self, request: Request, timeout: float) -> Any:
        """The leader's answer; None when the request was given up for a new partition (`_interrupt`)."""
        # The task that waits is cancelled, not one of its own for the request: that would cost each fetch two
        # more iterations of the event loop.
        self._asking = this = asyncio.current_task()
        assert this is not None
        try:
            return await self._leader.call(request, timeout=timeout)
        except asyncio.CancelledError:
            if not self._interrupted or this.cancelling() > 1:
                raise
            return None
        finally:
            if self._interrupted:
                this.uncancel()
            self._asking, self._interrupted = None, False

    async def _pause(self) -> None:
        """A leader that answers at once, time and again, with nothing may not keep this broker busy."""
        self._empty = min(self._empty + 1, 32)
        await asyncio.sleep(_PAUSE_AFTER_EMPTY * self._empty)

    async def _wait_for_wake(self) -> None:
        retry_at = self._plan.retry_at()
        try:
            async with asyncio.timeout_at(retry_at):
                await self._wake.wait()
        except TimeoutError:
            pass  # a partition has backed off for long enough

    async def _take(self, answers: Iterable[Answer]) -> None:
        out_of_range: list[tuple[Partition, Position]] = []
        hanging = set(self._writes)
        slice_ends = self._loop.time() + _SLICE_SECONDS
        for answer in answers:
            partition = self._partitions.get(answer.key)
            if partition is None or answer.key in self._writes:
                continue
            if not _is_at(partition, answer.asked):
                self._move(answer.key)
                continue
            if answer.data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                out_of_range.append((partition, answer.asked))
            else:
                await self._take_one(partition, answer)
            if self._loop.time() >= slice_ends:
                await asyncio.sleep(0)
                slice_ends = self._loop.time() + _SLICE_SECONDS
        if out_of_range:
            await self._take_ranges(out_of_range)
        begun = [write for key, write in self._writes.items() if key not in hanging]
        if begun:
            await asyncio.wait(begun, timeout=_WRITES_SECONDS)

    async def _take_one(self, partition: Partition, answer: Answer) -> None:
        key, data, asked = answer
        if data.error_code:
            code = error_of(data.error_code)
            self._back_off(key, f"it answers {code.name}", quiet=code in WAITS_FOR_IMAGE)
            return
        diverging = data.diverging_epoch
        records = data.records
        try:
            if diverging.epoch >= 0:
                if not await truncate(partition, diverging.epoch, diverging.end_offset, asked.leader_epoch):
                    self._back_off(key, f"it parts from epoch {diverging.epoch}, which ends there as here")
                    return
            elif not records:
                learn(partition, data.high_watermark, data.log_start_offset)
            elif partition.writes_in_thread(len(records)) or partition.config.flush_messages != FOREVER:
                self._write(key, partition, self._append(partition, answer))
                return
            else:
                await self._append(partition, answer)
        except ApiError as error:
            self._refused(key, partition, error)
            return
        self._plan.succeed(key)
        self._move(key)

    async def _append(self, partition: Partition, answer: Answer) -> None:
        data = answer.data
        records = memoryview(data.records or b"")
        self._admit(partition, len(records))
        await append_records(partition, records, answer.asked.leader_epoch)
        if partition.follows(answer.asked.leader_epoch):
            learn(partition, data.high_watermark, data.log_start_offset)

    def _write(self, key: Key, partition: Partition, work: Any) -> None:
        """Do what may take long beside the loop. The partition is not asked for meanwhile."""
        before = self._writes.get(key)

        async def write() -> None:
            try:
                if before is not None:
                    await asyncio.wait([before])
                await work
                self._plan.succeed(key)
            except ApiError as error:
                self._refused(key, partition, error)
            finally:
                if self._writes.get(key) is asyncio.current_task():
                    del self._writes[key]
                self._move(key)
                self._wake.set()

        self._plan.move(key, None)
        self._writes[key] = self._loop.create_task(write(), name=f"replicate-{partition.topic}-{key[1]}")

    async def _take_ranges(self, out_of_range: list[tuple[Partition, Position]]) -> None:
        """The leader does not have the offsets that were asked for. Find out which it has."""
        try:
            ranges = await ask_for_ranges(
                self._leader, self._replica_id, out_of_range, timeout=self._settings().timeout
            )
        except BaseException:
            for partition, _ in out_of_range:
                self._back_off((partition.topic_id, partition.index), "it does not tell its offsets")
            raise
        for partition, asked in out_of_range:
            key = partition.topic_id, partition.index
            found = ranges.get((partition.topic, partition.index))
            try:
                if not isinstance(found, OffsetRange):
                    reason = error_of(found).name if found is not None else "nothing"
                    self._back_off(key, f"asked for its offsets, it answers {reason}")
                elif not await follow_range(partition, found.start, found.end, asked.leader_epoch):
                    self._back_off(
                        key,
                        f"{asked.fetch_offset} is out of range, and between {found.start} and {found.end}",
                    )
                else:
                    self._move(key)
            except ApiError as error:
                self._refused(key, partition, error)

    # -- what goes wrong ----------------------------------------------------------------------------------

    def _refused(self, key: Key, partition: Partition, error: ApiError) -> None:
        """The log did not take an answer."""
        if self._partitions.get(key) is not partition:
            return
        if partition.log.failure is not None:
            logger.error("%s is not replicated any more: %s", partition.log.name, error.message)
            self.forget(key)
        elif error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self._move(key)  # another epoch has begun meanwhile
        else:
            self._back_off(key, error.message)

    def _back_off(self, key: Key, why: str, quiet: bool = False) -> None:
        failures = self._plan.back_off(key, self._loop.time(), self._settings().backoff)
        partition = self._partitions.get(key)
        if partition is None:
            return
        self._move(key)
        # The first time, and rarer and rarer while it lasts.
        if failures & (failures - 1) == 0:
            logger.log(
                logging.DEBUG if quiet and failures < 8 else logging.WARNING,
                "%s cannot be replicated from broker %d now (attempt %d): %s",
                partition.log.name,
                self._leader_id,
                failures,
                why,
            )


def _is_at(partition: Partition, asked: Position) -> bool:
    """Whether an answer is for what the log is now. (Its start may have moved.)"""
    now = position_of(partition)
    return now is not None and now[:3] == asked[:3] and partition.follows(asked.leader_epoch)
