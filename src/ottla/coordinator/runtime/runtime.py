"""Starts, loads and ends the shards of a coordinator as this broker gains and loses partitions of its topic.

A shard starts with loading: requests get COORDINATOR_LOAD_IN_PROGRESS. It ends when the leadership does:
requests that wait get NOT_COORDINATOR, and the state is dropped. A shard that cannot be loaded, whatever the
reason, has failed: clients get NOT_COORDINATOR, as from Apache Kafka, the log says why, and loading is tried
again after a while. Other shards are not affected.

A broker that was suspended may have lost leaderships without knowing. Until it knows (`may_be_replaced`),
clients get NOT_COORDINATOR, and timers do nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic

from ottla.clock import Clock
from ottla.coordinator.runtime.loading import InThread, Unloadable
from ottla.coordinator.runtime.shard import MayBeReplaced, Phase, S, Shard
from ottla.coordinator.runtime.state import RecordCodec
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.replication.partition import Partition
from ottla.replication.purgatory import Purgatory
from ottla.scheduler import Scheduler

logger = logging.getLogger("ottla.coordinator")

LOAD_AGAIN_SECONDS = 5.0
"""After which a shard is loaded again when the reason may pass by itself, as a disk error may."""
LOAD_DAMAGED_AGAIN_SECONDS = 60.0
"""The same for a log that holds what cannot be loaded, which ends when an operator repairs the files."""


class CoordinatorRuntime(Generic[S]):
    def __init__(
        self,
        topic: str,
        codec: RecordCodec[Any],
        make_state: Callable[[], S],
        *,
        clock: Clock,
        scheduler: Scheduler,
        purgatory: Purgatory,
        in_thread: InThread,
        commit_timeout_ms: Callable[[], int],
        compression: int = 0,
        on_loaded: Callable[[Shard[S]], Awaitable[None]] | None = None,
        may_be_replaced: Callable[[], bool] = lambda: False,
    ) -> None:
        """`on_loaded` is awaited for each shard after its log is replayed, before requests are served.

        While `may_be_replaced`, the leaderships known here may be over: shards do and answer nothing.
        """
        self.topic = topic
        self.codec = codec
        self.make_state = make_state
        self.clock = clock
        self.scheduler = scheduler
        self.purgatory = purgatory
        self.in_thread = in_thread
        self.commit_timeout_ms = commit_timeout_ms
        self.compression = compression
        self.on_loaded = on_loaded
        self.may_be_replaced = may_be_replaced
        self.partitions = 0
        """How many the topic has; 0 while it does not exist."""
        self._shards: dict[int, Shard[S]] = {}
        self._loading: set[asyncio.Task[None]] = set()
        self._failures: dict[int, str] = {}  # why the shard of a partition failed the last time

    def shard(self, index: int) -> Shard[S]:
        """The shard of a partition, if this broker coordinates it and has loaded it."""
        if self.may_be_replaced():  # first: the shards of a broker that is fenced have ended
            raise MayBeReplaced
        shard = self._shards.get(index)
        if shard is None or shard.phase is Phase.FAILED:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        if shard.phase is Phase.LOADING:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def active_shards(self) -> list[Shard[S]]:
        if self.may_be_replaced():
            return []
        return [shard for shard in self._shards.values() if shard.phase is Phase.ACTIVE]

    @property
    def is_loading(self) -> bool:
        return any(shard.phase is Phase.LOADING for shard in self._shards.values())

    # -- following the leadership -------------------------------------------------------------------------

    def follow(self, partitions: int, led: Iterable[Partition]) -> None:
        """The topic has so many partitions, of which this broker leads these: start and end shards."""
        self.partitions = partitions
        led_now = {partition.index: partition for partition in led}
        for index, shard in list(self._shards.items()):
            partition = led_now.get(index)
            if partition is not shard.partition or partition.leader_epoch != shard.leader_epoch:
                del self._shards[index]
                shard.end()
        for index, partition in led_now.items():
            if index not in self._shards:
                self._start(index, partition)

    def _start(self, index: int, partition: Partition) -> None:
        shard = self._shards[index] = Shard(partition, self)
        task = asyncio.ensure_future(self._load(index, shard))
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)

    async def _load(self, index: int, shard: Shard[S]) -> None:
        try:
            await shard.load()
            if shard.phase is Phase.LOADING and self.on_loaded is not None:
                await self.on_loaded(shard)
            if shard.phase is Phase.LOADING:
                shard.phase = Phase.ACTIVE
                self._failures.pop(index, None)
        except BaseException as problem:
            # Whatever it is: a shard of which nothing more is said would be loading for ever.
            if shard.phase is Phase.LOADING:
                self.fail(shard, problem)
            if not isinstance(problem, Exception | asyncio.CancelledError):
                raise

    # -- failures -----------------------------------------------------------------------------------------

    def fail(self, shard: Shard[S], problem: BaseException) -> None:
        """The shard cannot be loaded, or its state differs from its log: load it anew after a while."""
        index = shard.partition.index
        reason = str(problem) or repr(problem)
        may_pass = isinstance(problem, ApiError | OSError | asyncio.CancelledError)
        is_expected = may_pass or isinstance(problem, Unloadable)
        is_worth_a_try = may_pass or shard.phase is Phase.ACTIVE
        wait = LOAD_AGAIN_SECONDS if is_worth_a_try else LOAD_DAMAGED_AGAIN_SECONDS
        logger.log(
            logging.DEBUG if self._failures.get(index) == reason else logging.ERROR,
            "%r failed while it was %s; it answers NOT_COORDINATOR and is loaded again in %g s: %s",
            shard,
            shard.phase.value,
            wait,
            reason,
            exc_info=None if is_expected else problem,
        )
        self._failures[index] = reason
        shard.end(Phase.FAILED)
        self.scheduler.call_later(wait, self._load_again, index, shard)

    def _load_again(self, index: int, shard: Shard[S]) -> None:
        if self._shards.get(index) is shard:
            self._start(index, shard.partition)

    # -- end ----------------------------------------------------------------------------------------------

    async def loading_done(self) -> None:
        while self._loading:
            await asyncio.gather(*self._loading, return_exceptions=True)

    async def stop(self) -> None:
        """The broker stops: clients find another coordinator, or this one when it is back."""
        self.follow(0, ())
        for task in self._loading:
            task.cancel()
        await asyncio.gather(*self._loading, return_exceptions=True)
