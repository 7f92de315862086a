"""A transaction coordinator over a partition in memory, with virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, cast

from ottla.coordinator.transactions.coordinator import TransactionCoordinator, TransactionSettings
from ottla.coordinator.transactions.endings import MarkersDue
from ottla.coordinator.transactions.transaction import Transaction
from ottla.coordinator.transactions.transitions import Producer
from ottla.replication.partition import Partition
from ottla.replication.purgatory import Purgatory
from unit.coordinator.simulated import Answer, ManualScheduler, MemoryPartition

NAME = "tx"
TIMEOUT_MS = 1000
T0, T1 = ("t", 0), ("t", 1)


class World:
    """A coordinator of one partition, and the markers that it wants to be sent."""

    def __init__(self, batches: list[bytes] | None = None, skew_ms: int = 0) -> None:
        self.scheduler = ManualScheduler()
        self.scheduler.host.skew_ms = skew_ms
        self.partition = MemoryPartition(batches)
        self.purgatory = Purgatory(self.scheduler)
        self.sent: list[MarkersDue] = []
        self.server_version = 2
        self.expiration_ms = 60_000
        self.most_ids = 1_000
        self._ids = itertools.count(7)

        async def in_thread(work: Callable[[], int]) -> int:
            return work()

        self.coordinator = TransactionCoordinator(
            TransactionSettings(
                commit_timeout_ms=lambda: 5000,
                expiration_ms=lambda: self.expiration_ms,
                most_ids=lambda: self.most_ids,
                server_version=lambda: self.server_version,
            ),
            clock=self.scheduler.clock,
            scheduler=self.scheduler,
            purgatory=self.purgatory,
            in_thread=in_thread,
            next_producer_id=self._next_id,
            send_markers=self.sent.append,
        )
        asyncio.run(self._load())

    async def _load(self) -> None:
        self.coordinator.follow(1, [cast(Partition, self.partition)])
        await self.coordinator.loading_done()

    async def _next_id(self) -> int:
        return next(self._ids)

    def restarted(self, ahead_ms: int = 0) -> World:
        """What a new coordinator, whose wall clock is ahead by so much, makes of the same log."""
        elapsed_ms = round(self.scheduler.now * 1000)
        return World(self.partition.batches, elapsed_ms + ahead_ms)

    def init(self, name: str = NAME) -> Producer:
        async def ask() -> Producer:
            return await self.coordinator.initialize(name, TIMEOUT_MS, None).as_future()

        return asyncio.run(ask())

    def add(self, producer: Producer, *partitions: tuple[str, int], name: str = NAME) -> Answer:
        answer = Answer()
        added = self.coordinator.add_partitions(name, producer, partitions or [T0], client_version=2)
        added.then(answer, answer)
        return answer

    def end(self, producer: Producer, *, commit: bool = True) -> Answer:
        answer = Answer()
        self.coordinator.end(NAME, producer, commit=commit, client_version=2).then(answer, answer)
        self.scheduler.run()
        return answer

    def described(self, name: str = NAME) -> Transaction:
        answer = Answer()
        self.coordinator.describe(name).then(answer, answer)
        found = answer.value
        assert isinstance(found, Transaction), found
        return found

    def names(self) -> list[str]:
        """All transactional ids."""
        return [name for shard in self.coordinator.all_shards() for name in shard.state.ids()]

    def caught_up(self) -> None:
        self.partition.is_slow = False
        self.partition.high_watermark = self.partition.end_offset
        self.purgatory.notify(self.partition)
        self.scheduler.run()

    def run(self, chore: Any) -> None:
        asyncio.run(chore)
        self.scheduler.run()
