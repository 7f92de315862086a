"""Small clusters for tests: a registry in memory, controllers, brokers, and faults of the registry."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from ottla.clock import SystemClock
from ottla.cluster.controller import Controller
from ottla.cluster.image import BrokerNode
from ottla.cluster.registration import Registration
from ottla.cluster.registry import Node, Operation, Registry, Stat
from ottla.cluster.sqlite_registry import SqliteRegistry, SqliteStore
from ottla.cluster.topic_rules import ConfigCheck, TopicDefaults

Fault = Callable[[Callable[[], Awaitable[list[Stat | None]]]], Awaitable[list[Stat | None]]]


async def open_session(store: SqliteStore | None = None) -> SqliteRegistry:
    registry = SqliteRegistry(store or SqliteStore(None), clock=SystemClock(), session_timeout=0.5)
    await registry.open()
    return registry


def ambiguous(*, happened: bool) -> Fault:
    """The connection breaks during the commit: before it was done, or after."""
    from ottla.cluster.registry import Ambiguous

    async def fault(commit: Callable[[], Awaitable[list[Stat | None]]]) -> list[Stat | None]:
        if happened:
            await commit()
        raise Ambiguous("the connection broke")

    return fault


def failing(error: Exception) -> Fault:
    async def fault(commit: Callable[[], Awaitable[list[Stat | None]]]) -> list[Stat | None]:
        raise error

    return fault


class FaultyRegistry:
    """A registry whose next commits can be made to fail; one of `faults` per commit, None for none."""

    def __init__(self, inner: Registry) -> None:
        self._inner = inner
        self.faults: list[Fault | None] = []
        self.commits: list[Sequence[Operation]] = []

    @property
    def session_id(self) -> int:
        return self._inner.session_id

    @property
    def lost(self) -> asyncio.Event:
        return self._inner.lost

    def may_be_over(self) -> bool:
        return self._inner.may_be_over()

    async def open(self) -> None:
        await self._inner.open()

    async def renew(self) -> int:
        return await self._inner.renew()

    def leave_soon(self) -> None:
        self._inner.leave_soon()

    async def close(self) -> None:
        await self._inner.close()

    async def commit(self, operations: Sequence[Operation]) -> list[Stat | None]:
        self.commits.append(operations)
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            return await fault(lambda: self._inner.commit(operations))
        return await self._inner.commit(operations)

    async def get(self, path: str) -> Node:
        return await self._inner.get(path)

    async def find(self, path: str) -> Node | None:
        return await self._inner.find(path)

    async def exists(self, path: str) -> bool:
        return await self._inner.exists(path)

    async def children(self, path: str) -> list[str]:
        return await self._inner.children(path)

    async def subtree(self, path: str, without: str = "") -> Mapping[str, Node]:
        return await self._inner.subtree(path, without)

    async def watch(self, path: str) -> asyncio.Future[None]:
        return await self._inner.watch(path)


def controller_of(
    registry: Registry,
    *,
    broker_id: int = 1,
    defaults: TopicDefaults | None = None,
    check_topic_configs: ConfigCheck = lambda configs: None,
) -> Controller:
    return Controller(
        registry,
        rng=random.Random(broker_id),
        broker_id=broker_id,
        check_topic_configs=check_topic_configs,
        defaults=defaults,
    )


async def has_brokers(controller: Controller, *ids: int) -> None:
    """Waits until the image shows exactly these brokers."""
    while set(controller.image.brokers) != set(ids):
        await controller.feed.after(controller.image.version)


@asynccontextmanager
async def cluster_of_one(
    *, defaults: TopicDefaults | None = None, check_topic_configs: ConfigCheck = lambda configs: None
) -> AsyncIterator[tuple[FaultyRegistry, Controller]]:
    registry = FaultyRegistry(await open_session())
    controller = controller_of(registry, defaults=defaults, check_topic_configs=check_topic_configs)
    await controller.start()
    registration = Registration(registry, BrokerNode(1, "localhost", 9092))
    await registration.start()
    await has_brokers(controller, 1)
    try:
        yield registry, controller
    finally:
        await registration.stop()
        await controller.stop()
        await registry.close()
