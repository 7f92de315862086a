"""A group coordinator of one partition without a broker, and handlers over it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import GeneratorType, SimpleNamespace
from typing import Any, cast

from ottla.cluster.image import ClusterImage
from ottla.completion import Completion
from ottla.coordinator.group import GroupSettings, NewOffset, OffsetCommit
from ottla.coordinator.group_coordinator import GroupCoordinator
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.replication.partition import Partition
from ottla.replication.purgatory import Purgatory
from unit.coordinator.simulated import NO_TOPICS, Answer, ManualScheduler, MemoryPartition

CONTEXT: Any = SimpleNamespace(version=5)


class World:
    """Handlers over a coordinator of one partition."""

    refusal = ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
    image = ClusterImage()

    def __init__(
        self, batches: list[bytes] | None = None, *, topic_exists: bool = False, load: bool = True
    ) -> None:
        self.scheduler = ManualScheduler()
        self.partition = MemoryPartition(batches)
        self.topic_exists = topic_exists
        self.asked_for_topics = False
        self.may_be_replaced = False
        self.purgatory = Purgatory(self.scheduler)

        async def in_thread(work: Callable[[], int]) -> int:
            return work()

        self.groups = GroupCoordinator(
            GroupSettings(),
            environment=NO_TOPICS,
            topic_id=self._topic_id,
            clock=self.scheduler.clock,
            scheduler=self.scheduler,
            purgatory=self.purgatory,
            in_thread=in_thread,
            commit_timeout_ms=lambda: 5000,
            may_be_replaced=lambda: self.may_be_replaced,
        )

        if load:
            asyncio.run(self._load())

    def _topic_id(self, name: str) -> bytes | None:
        self.asked_for_topics = True
        return b"t" * 16 if self.topic_exists else None

    def follow(self) -> None:
        self.groups.follow(1, [cast(Partition, self.partition)])

    async def _load(self) -> None:
        self.follow()
        await self.groups.loading_done()

    def commit_offset(self, group: str, answer: Answer | None = None) -> None:
        """Makes the group exist."""
        commit = OffsetCommit(group, "", None, -1, [NewOffset("t", b"t" * 16, 0, 5, -1, "")])
        outcome = self.groups.run(
            group, lambda groups, reply, effects: effects.answer(reply, groups.commit(commit, effects))
        )
        if answer is not None:
            outcome.then(answer, answer)

    def ask(self, handler: Callable[..., Any], request: Any) -> Answer:
        """As dispatch runs a handler, without pauses."""
        answer = Answer()

        def take(response: Any) -> None:
            while isinstance(response, GeneratorType):
                response = _result_of(response)
            if isinstance(response, Completion):
                response.then(take, answer)
            else:
                answer(response)

        take(handler(self, request, CONTEXT))
        return answer

    @contextmanager
    def lagging(self) -> Iterator[None]:
        """Followers do not fetch; at the end they have caught up."""
        self.partition.is_slow = True
        yield
        self.partition.is_slow = False
        self.partition.high_watermark = self.partition.end_offset
        self.purgatory.notify(self.partition)
        self.scheduler.run()


def _result_of(steps: Any) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            return finished.value
