"""What a broker does by itself without being asked: retention, checkpoints, flushes by time, forgetting.

One task that sleeps until the next chore is due, so that an idle broker costs nothing. Work on many
partitions gives the loop back after each slice of them; what blocks on the disk goes to a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from ottla.broker.space import Space
from ottla.clock import Clock
from ottla.config.values import BrokerConfig
from ottla.protocol.errors import ApiError
from ottla.replication.partition import Partition
from ottla.replication.replicas import Replicas
from ottla.storage.log_directory import LogDirectory
from ottla.storage.producer_state import fair_limit

logger = logging.getLogger("ottla.maintenance")

_SLICE = 100
"""Partitions handled in one iteration of the loop."""

_COUNT_PRODUCERS = 10.0
"""Seconds between two looks at how many producers all partitions remember."""

_FREE_SPACE_AGAIN = 0.5
"""Seconds between two rounds of freeing space."""


@dataclass(slots=True)
class _Chore:
    name: str
    interval: Callable[[], float]
    work: Callable[[], Awaitable[None]]
    due: float = 0.0


InThread = Callable[[Callable[[], object]], Awaitable[object]]


class Maintenance:
    """`config` gives the settings of the broker as they are now."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        clock: Clock,
        replicas: Replicas,
        directory: LogDirectory,
        space: Space,
        in_thread: InThread,
    ) -> None:
        self._config = config
        self._clock = clock
        self._replicas = replicas
        self._directory = directory
        self._space = space
        self._in_thread = in_thread
        self._task: asyncio.Task[None] | None = None
        self._freeing_space: asyncio.Task[None] | None = None
        self._freed_space_at = float("-inf")
        ms = self.seconds
        self._chores = [
            _Chore("retention", ms("log.retention.check.interval.ms"), self._retain),
            _Chore("flushing", self._flush_interval, self._flush),
            _Chore("checkpointing", ms("log.flush.offset.checkpoint.interval.ms"), self._checkpoint),
            _Chore(
                "checkpointing high watermarks",
                ms("replica.high.watermark.checkpoint.interval.ms"),
                self._checkpoint_high_watermarks,
            ),
            _Chore(
                "forgetting producers", ms("producer.id.expiration.check.interval.ms"), self._expire_producers
            ),
            _Chore("counting producers", lambda: _COUNT_PRODUCERS, self._bound_producers),
            _Chore("removing deleted files", lambda: 15.0, self._remove_deleted),
            _Chore("looking at the free space", lambda: 5.0, self._look_at_space),
        ]

    def add(self, name: str, interval: Callable[[], float], work: Callable[[], Awaitable[None]]) -> None:
        """A chore of another part of the broker, with the seconds between two runs. Before `start`."""
        self._chores.append(_Chore(name, interval, work))

    def start(self) -> None:
        now = self._clock.monotonic()
        for chore in self._chores:
            chore.due = now + chore.interval()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="maintenance")

    async def stop(self) -> None:
        for task in (self._task, self._freeing_space):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._task = None

    async def _run(self) -> None:
        clock = self._clock
        while True:
            next_chore = min(self._chores, key=lambda chore: chore.due)
            await asyncio.sleep(max(next_chore.due - clock.monotonic(), 0.0))
            try:
                await next_chore.work()
            except (OSError, ApiError) as error:
                logger.error("%s failed: %s; trying again later", next_chore.name, error)
            except Exception:
                logger.exception("%s failed by a defect of ours; trying again later", next_chore.name)
            next_chore.due = clock.monotonic() + next_chore.interval()

    def seconds(self, key: str) -> Callable[[], float]:
        return lambda: max(int(self._config()[key]), 50) / 1000

    def _partitions(self) -> Iterator[Partition]:
        return (partition for partition in self._replicas if partition.log.failure is None)

    async def _each_partition(self, work: Callable[[Partition], object]) -> None:
        """A partition that fails is logged and skipped, so that the others are handled."""
        for count, partition in enumerate(self._partitions(), 1):
            try:
                work(partition)
            except ApiError as error:
                logger.error("%s-%d: %s", partition.topic, partition.index, error.message)
            if count % _SLICE == 0:
                await asyncio.sleep(0)

    def free_space(self) -> None:
        """Bring retention forward. At most one round at a time, and not one right behind the other."""
        now = self._clock.monotonic()
        is_due = now - self._freed_space_at >= _FREE_SPACE_AGAIN
        if self._freeing_space is None and is_due and self._task is not None:
            self._freeing_space = asyncio.get_running_loop().create_task(
                self._free_space(), name="freeing space"
            )

    async def _free_space(self) -> None:
        try:
            await self._retain()
            await self._in_thread(self._directory.delete_all_pending)
        except (OSError, ApiError) as error:
            logger.error("freeing space failed: %s; trying again later", error)
        finally:
            self._freed_space_at = self._clock.monotonic()
            self._freeing_space = None
        self._space.look()

    # -- the chores ---------------------------------------------------------------------------------------

    async def _retain(self) -> None:
        await self._each_partition(_retain_one)

    def _flush_interval(self) -> float:
        """Looked at often only while a topic asks for it: most leave flushing to the operating system."""
        soonest = min((p.log.config.flush_ms for p in self._replicas), default=3_600_000)
        return min(max(soonest / 2, 50), 15_000) / 1000

    async def _flush(self) -> None:
        await self._each_partition(Partition.flush_if_due)

    async def _checkpoint(self) -> None:
        marks = {(p.topic, p.index): p.high_watermark for p in self._replicas}
        await self._in_thread(lambda: self._directory.checkpoint(marks))

    async def _checkpoint_high_watermarks(self) -> None:
        """For partitions with other replicas: a lone replica's whole log counts when it is opened."""
        if any(len(partition.state.replicas) > 1 for partition in self._replicas):
            marks = {(p.topic, p.index): p.high_watermark for p in self._replicas}
            await self._in_thread(lambda: self._directory.checkpoint_high_watermarks(marks))

    async def _expire_producers(self) -> None:
        now_ms = self._clock.now_ms()
        after_ms = self._config()["producer.id.expiration.ms"]
        await self._each_partition(lambda partition: partition.log.expire_producers(now_ms, after_ms))

    async def _bound_producers(self) -> None:
        counts: list[int] = []
        await self._each_partition(lambda partition: counts.append(len(partition.log.producers)))
        limit = fair_limit(counts, self._config()["producer.id.max.per.broker"])
        if limit is None:
            return
        gone: list[int] = []
        await self._each_partition(lambda one: gone.append(one.log.forget_idle_producers(limit)))
        logger.warning(
            "%d idempotent producers are remembered, producer.id.max.per.broker allows %d: forgot the %d "
            "that were silent for longest, in partitions with more than %d of them",
            sum(counts),
            self._config()["producer.id.max.per.broker"],
            sum(gone),
            limit,
        )

    async def _remove_deleted(self) -> None:
        await self._in_thread(self._directory.delete_pending)

    async def _look_at_space(self) -> None:
        self._space.look()


def _retain_one(partition: Partition) -> None:
    """A partition whose disk fails keeps no other from its retention."""
    try:
        partition.log.apply_retention(partition.high_watermark)
    except ApiError as error:
        logger.error("retention of %s-%d failed: %s", partition.topic, partition.index, error.message)
