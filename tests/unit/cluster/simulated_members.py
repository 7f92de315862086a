"""Brokers without logs on virtual time.

Each registers, stands for election as controller, and asks whoever is the controller for the image.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable

from ottla.cluster import layout
from ottla.cluster.controller import Controller
from ottla.cluster.elections import ElectionSettings
from ottla.cluster.image import BrokerNode, ClusterImage, PartitionState
from ottla.cluster.layout import Lost
from ottla.cluster.registration import Registration
from ottla.cluster.topic_rules import NewTopic, PlannedTopic, TopicDefaults
from ottla.testing.simulation.loop import SimulatedLoop
from ottla.testing.simulation.registry import SimulatedRegistry
from ottla.testing.simulation.virtual_time import Host, SimulatedClock
from unit.cluster.members import FaultyRegistry

SESSION_SECONDS = 9.0


class Member:
    def __init__(self, cluster: SimulatedCluster, number: int, lost: Lost) -> None:
        self.number = number
        self.is_cut_off = False
        """It does not reach the controller, but the registry."""
        self.host = Host(f"broker-{number}")
        self.registry = FaultyRegistry(cluster.registry.connect(self.host.name))
        self.registration = Registration(self.registry, BrokerNode(number, "localhost", 9000 + number))
        self._lost = lost
        self.controller = Controller(
            self.registry,
            rng=random.Random(number),
            broker_id=number,
            check_topic_configs=lambda configs: None,
            defaults=cluster.defaults,
            clock=SimulatedClock(cluster.loop),
            elections=cluster.settings,
        )
        self.version = 0
        self._cluster = cluster
        self._polling: asyncio.Task[None] | None = None

    @property
    def epoch(self) -> int:
        return self.registration.broker.epoch

    async def start(self) -> None:
        await self.registry.open()
        await layout.prepare(self.registry, random.Random(0))
        await self.registration.start(lost=self._lost)
        await self.controller.start()
        self._polling = asyncio.create_task(self._poll())

    async def _poll(self) -> None:
        while True:
            active = self._cluster.active
            if active is not None and not self.is_cut_off:
                active.polled(self.number, self.epoch, self.version)
                self.version = active.image.version
            await asyncio.sleep(0.5)

    async def stop(self) -> None:
        """Hands over what others can lead, and leaves."""
        active = self._cluster.active
        if active is not None:
            await active.begin_shutdown(self.number, self.epoch)
        assert self._polling is not None
        self._polling.cancel()
        await self.registration.stop()
        await self.controller.stop()
        await self.registry.close()


class SimulatedCluster:
    def __init__(self, loop: SimulatedLoop, defaults: TopicDefaults, settings: ElectionSettings) -> None:
        self.loop = loop
        self.defaults = defaults
        self.settings = settings
        self.registry = SimulatedRegistry(random.Random(1), delay=(0.001, 0.002))
        self.members: dict[int, Member] = {}

    async def start(self, *numbers: int, lost: Lost = Lost.NOTHING) -> None:
        for number in numbers:
            await self.begin_start(number, lost)
            await self.until(lambda number=number: number in self.unfenced)  # type: ignore[misc]

    async def begin_start(self, number: int, lost: Lost) -> None:
        """Starts a broker, whether the controller takes notice or not."""
        member = self.members[number] = Member(self, number, lost)
        await member.host.run(asyncio.ensure_future, member.start())

    async def stop(self, *numbers: int) -> None:
        for number in numbers:
            await self.until(lambda: self.active is not None)
            member = self.members[number]
            await member.host.run(asyncio.ensure_future, member.stop())
            del self.members[number]

    def kill(self, *numbers: int) -> None:
        for number in numbers:
            member = self.members.pop(number)
            member.host.crash()
            self.registry.notice_death(member.host.name)

    @property
    def active(self) -> Controller | None:
        return next((m.controller for m in self.members.values() if m.controller.active), None)

    @property
    def controller(self) -> Controller:
        active = self.active
        assert active is not None
        return active

    @property
    def controller_id(self) -> int:
        return next(m.number for m in self.members.values() if m.controller.active)

    @property
    def image(self) -> ClusterImage:
        return self.controller.image

    @property
    def unfenced(self) -> set[int]:
        active = self.active
        return {b.id for b in active.image.brokers.values() if not b.fenced} if active else set()

    def partition(self, topic: str = "t", index: int = 0) -> PartitionState:
        return self.image.topics[topic].partitions[index]

    async def create(self, topic: str, *assignments: tuple[int, ...]) -> None:
        outcome = await self.controller.create_topics(
            [NewTopic(topic, assignments=list(enumerate(assignments)))]
        )
        assert isinstance(outcome.results[0], PlannedTopic), outcome.results

    async def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = self.loop.time() + seconds
        while not condition():
            assert self.loop.time() < deadline, "it did not happen in time"
            await asyncio.sleep(0.01)


def in_cluster(
    scenario: Callable[[SimulatedCluster], Awaitable[None]],
    brokers: Iterable[int] = (1, 2, 3),
    *,
    defaults: TopicDefaults | None = None,
    balance_interval: float | None = None,
) -> None:
    """Runs a scenario in a cluster of these brokers."""
    loop = SimulatedLoop(random.Random(1))
    settings = ElectionSettings(SESSION_SECONDS, balance_interval)
    cluster = SimulatedCluster(loop, defaults or TopicDefaults(), settings)

    async def run() -> None:
        await cluster.start(*brokers)
        await scenario(cluster)

    try:
        loop.run_until_complete(run())
    finally:
        loop.discard()
