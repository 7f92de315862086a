"""Faults for a cluster, from a seed: what machines, disks, networks and registries do to brokers.

Several faults may be under way at once, but one broker suffers one at a time. Each one mends what it broke.

How much may be lost: records are acknowledged by at least two of three replicas (`min.insync.replicas`), so
one replica at a time may lose what it had not synced, or all it had. It counts as one that lost something
until it is in the in-sync set of all its partitions again, having been out of it since. Everything else
(kill -9, pauses, cuts, expired sessions, unknown outcomes) may happen to all brokers at the same time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from random import Random

from ottla.cluster import layout
from ottla.cluster.registry import Node, RegistryError
from ottla.replication.replicas import Replicas
from ottla.testing.simulation.world import SimulatedBroker, World

logger = logging.getLogger("ottla.simulation")

_STOP_SECONDS = 60.0
_START_AGAIN_SECONDS = 1.0
_THREAD_START = 0.001
Fault = Callable[[SimulatedBroker], Awaitable[None]]


def has_failed_log(broker: SimulatedBroker) -> bool:
    return any(replica.log.failure is not None for replica in getattr(broker.broker, "replicas", ()))


class Faults:
    def __init__(self, world: World, brokers: Mapping[int, SimulatedBroker]) -> None:
        self._world = world
        self._brokers = list(brokers.values())
        self._rng: Random = world.rng("faults")
        self._busy: dict[str, None] = {}
        self._incomplete: tuple[SimulatedBroker, dict[str, bool]] | None = None
        self._noted = 0  # transactions of the registry that were looked at
        self.counts: dict[str, int] = {}
        self._starts: list[asyncio.Task[None]] = []

    def kinds(self) -> dict[str, Fault]:
        return {
            "kill": self._kill,
            "power": self._lose_power,
            "empty": self._empty_disk,
            "pause": self._pause,
            "stop": self._stop,
            "cut": self._cut,
            "isolate": self._isolate,
            "registry": self._cut_from_registry,
            "expire": self._expire,
            "ambiguous": self._ambiguous,
            "slow": self._slow,
            "reset": self._reset,
            "disk": self._fail_disk,
            "full": self._fill_disk,
            "slow-disk": self._slow_down_disk,
            "clock": self._set_clock,
            "rejoin": self._lose_while_joining,
            "depose": self._depose,
        }

    async def run(self, seconds: float, kinds: Mapping[str, Fault]) -> None:
        """Something happens every few seconds, at most two things at once."""
        await asyncio.gather(self._one_by_one(seconds, kinds), self._one_by_one(seconds, kinds))

    async def _one_by_one(self, seconds: float, kinds: Mapping[str, Fault]) -> None:
        rng, loop = self._rng, self._world.loop
        end = loop.time() + seconds
        while loop.time() < end:
            await asyncio.sleep(rng.uniform(0.5, 6.0))
            kind = rng.choice(list(kinds))
            broker = rng.choice(self._brokers)
            if broker.name in self._busy:
                continue
            self._busy[broker.name] = None
            try:
                self.counts[kind] = self.counts.get(kind, 0) + 1
                logger.warning("fault: %s, %s", kind, broker.name)
                await kinds[kind](broker)
                logger.warning("fault over: %s, %s", kind, broker.name)
            finally:
                del self._busy[broker.name]

    # -- starts and ends ------------------------------------------------------------------------------

    async def start(self, broker: SimulatedBroker) -> None:
        """Start a broker as a supervisor does, which tries again when a start fails."""
        while broker.broker is None:
            try:
                await broker.start()
            except (RegistryError, OSError) as error:
                logger.warning("%s could not start: %r", broker.name, error)
                await asyncio.sleep(_START_AGAIN_SECONDS)

    def crash(self, broker: SimulatedBroker, *, power: bool = False) -> None:
        broker.crash(power=power, noticed=self._rng.random() < 0.5)

    async def _start_again(self, broker: SimulatedBroker) -> None:
        """Start after a while, and sometimes crash in the middle of it. Starting may take long while others
        are away: that goes on beside other faults."""
        await asyncio.sleep(self._rng.choice([0.0, 1.0, 5.0, 15.0]) * self._rng.random())
        start = asyncio.ensure_future(self.start(broker))
        if self._rng.random() < 0.2:
            await asyncio.wait([start], timeout=self._rng.uniform(0.0, 0.5))
            self.crash(broker)
        await asyncio.wait([start], timeout=self._rng.uniform(1.0, 20.0))
        if start.done():
            start.result()
            if broker.broker is None:
                await self._start_again(broker)
        else:
            self._starts.append(start)

    async def _kill(self, broker: SimulatedBroker) -> None:
        if self._rng.random() < 0.7:
            # After the append and before the answer: in the middle of a request.
            sender = self._rng.choice([f"producer-{self._rng.randrange(3)}", self._other(broker).name])
            request = asyncio.ensure_future(self._world.delivery(sender, broker.name))
            await asyncio.wait([request], timeout=2.0)
            await asyncio.sleep(self._rng.uniform(0.0, 0.004))
        self.crash(broker)
        await self._start_again(broker)

    async def _lose_power(self, broker: SimulatedBroker) -> None:
        if not self._may_lose(broker):
            await self._kill(broker)
            return
        self.crash(broker, power=True)
        await self._start_again(broker)

    async def _empty_disk(self, broker: SimulatedBroker) -> None:
        if not self._may_lose(broker):
            await self._kill(broker)
            return
        self.crash(broker)
        broker.use_new_disk()
        await self._start_again(broker)

    async def _lose_while_joining(self, broker: SimulatedBroker) -> None:
        """It loses its disk while a leader asks the controller, over a slow link, to count it as in sync.

        When it is back, the controller hears it before the leaders do.
        """
        self.crash(broker)
        await self.start(broker)
        links = [(one.host, other.host) for one in self._brokers for other in self._brokers if one != other]
        for link in links:
            self._world.network.slow_down(*link, 0.3)
        for _ in range(1000):
            if self._is_joining(broker.node_id):
                break
            await asyncio.sleep(0.005)
        if self._is_joining(broker.node_id) and self._may_lose(broker):
            broker.crash()
            broker.use_new_disk()
            controller = self._controller()
            for other in self._brokers:
                seconds = 0.0 if other.node_id == controller else 1.0
                self._world.network.slow_down(broker.host, other.host, seconds)
                self._world.network.slow_down(other.host, broker.host, 0.0)
            await self.start(broker)
            await asyncio.sleep(1.0)
        self._world.network.speed_up()

    def _controller(self) -> int:
        node = self._world.registry.tree.nodes.get(layout.CONTROLLER)
        return layout.from_bytes(node.data)["broker"] if node is not None else -1

    def _is_joining(self, node_id: int) -> bool:
        """Whether a leader waits for the controller to let this broker into an in-sync set."""
        return any(
            replica.state.proposal is not None
            and node_id in replica.state.proposal.isr
            and node_id not in replica.state.isr
            for each in self._brokers
            for replica in getattr(each.broker, "replicas", ())
        )

    async def _stop(self, broker: SimulatedBroker) -> None:
        stop = asyncio.ensure_future(broker.stop())
        done, _ = await asyncio.wait([stop], timeout=_STOP_SECONDS)
        if not done:
            self.crash(broker)
        await stop
        await self._start_again(broker)

    async def _pause(self, broker: SimulatedBroker) -> None:
        """Shorter or longer than its session."""
        broker.host.pause()
        await asyncio.sleep(self._rng.choice([1.0, 8.0, 20.0]) * self._rng.random())
        self._world.resume(broker.host)

    # -- how much may be lost -------------------------------------------------------------------------

    def note_states(self) -> None:
        """To be called after every step: follows whether the broker that lost records is complete again."""
        if self._incomplete is None or self._noted == self._world.registry.tree.transactions:
            return
        self._noted = self._world.registry.tree.transactions
        broker, was_out = self._incomplete
        complete = True
        for path, node in self._partition_nodes():
            state = layout.partition_from(node.data)
            if broker.node_id not in state.replicas:
                continue
            if broker.node_id not in state.isr:
                was_out[path] = True
                complete = False
            elif path in was_out and not was_out[path]:
                complete = False
        if complete:
            logger.warning("%s has again all that it lost", broker.name)
            self._incomplete = None

    def is_incomplete(self, node_id: int, topic: str, index: int) -> bool:
        """Whether a broker has lost records of a partition and has not been out of sync since."""
        if self._incomplete is None or self._incomplete[0].node_id != node_id:
            return False
        return not self._incomplete[1].get(layout.partition_path(topic, index), True)

    def _may_lose(self, broker: SimulatedBroker) -> bool:
        if self._incomplete is not None:
            return False
        # A partition that comes later begins with what the broker has then.
        self._incomplete = broker, {path: False for path, _ in self._partition_nodes()}
        return True

    def _partition_nodes(self) -> list[tuple[str, Node]]:
        nodes = self._world.registry.tree.subtree(layout.TOPICS)
        return [(path, node) for path, node in nodes.items() if path.count("/") == 4]

    # -- links ----------------------------------------------------------------------------------------

    def _other(self, broker: SimulatedBroker) -> SimulatedBroker:
        return self._rng.choice([each for each in self._brokers if each is not broker])

    def _a_while(self) -> float:
        return self._rng.choice([1.0, 6.0, 20.0]) * self._rng.random()

    async def _cut(self, broker: SimulatedBroker) -> None:
        """Between two brokers, one way or both."""
        other = self._other(broker)
        self._world.network.cut(broker.host, other.host, both=self._rng.random() < 0.5)
        await asyncio.sleep(self._a_while())
        self._world.network.mend(broker.host, other.host)

    async def _isolate(self, broker: SimulatedBroker) -> None:
        """From all other brokers, and sometimes from the registry too, while clients reach it."""
        others = [each for each in self._brokers if each is not broker]
        both, with_registry = self._rng.random() < 0.7, self._rng.random() < 0.5
        for other in others:
            self._world.network.cut(broker.host, other.host, both=both)
        if with_registry:
            self._world.cut_from_registry(broker.host)
        await asyncio.sleep(self._a_while())
        for other in others:
            self._world.network.mend(broker.host, other.host)
        self._world.mend_registry(broker.host)

    async def _cut_from_registry(self, broker: SimulatedBroker) -> None:
        there, back = self._rng.choice([(True, True), (True, False), (False, True)])
        self._world.cut_from_registry(broker.host, there=there, back=back)
        await asyncio.sleep(self._a_while())
        self._world.mend_registry(broker.host)

    async def _slow(self, broker: SimulatedBroker) -> None:
        """What it sends to another broker, or to all others, comes late."""
        others = [each for each in self._brokers if each is not broker]
        slow = others if self._rng.random() < 0.5 else [self._rng.choice(others)]
        for other in slow:
            self._world.network.slow_down(broker.host, other.host, self._rng.uniform(0.05, 2.0))
        await asyncio.sleep(self._a_while())
        for other in slow:
            self._world.network.slow_down(broker.host, other.host, 0.0)

    async def _depose(self, broker: SimulatedBroker) -> None:
        """It loses what it leads while its followers are behind and producers wait."""
        others = [each for each in self._brokers if each is not broker]
        for other in others:
            self._world.network.slow_down(broker.host, other.host, 1.0)
        await asyncio.sleep(self._rng.uniform(0.5, 1.5))
        self._world.registry.notice_death(broker.name)
        await asyncio.sleep(self._rng.uniform(0.0, 0.5))
        for other in others:
            self._world.network.slow_down(broker.host, other.host, 0.0)

    async def _reset(self, broker: SimulatedBroker) -> None:
        self._world.network.reset(broker.host)

    # -- the registry ---------------------------------------------------------------------------------

    async def _expire(self, broker: SimulatedBroker) -> None:
        self._world.registry.notice_death(broker.name)

    async def _ambiguous(self, broker: SimulatedBroker) -> None:
        self._world.registry.ambiguous = self._rng.uniform(0.1, 0.6)
        await asyncio.sleep(self._a_while())
        self._world.registry.ambiguous = 0.0

    # -- disks ----------------------------------------------------------------------------------------

    async def _fail_disk(self, broker: SimulatedBroker) -> None:
        """A disk that refuses some of its work; then it is repaired.

        The broker is started again where a log is offline, and sometimes without need.
        """
        broker.disk.fail(self._rng.choice(["write", "sync", "read"]), name=".log")
        await asyncio.sleep(self._a_while())
        broker.disk.heal()
        if has_failed_log(broker) or self._rng.random() < 0.5:
            self.crash(broker)
            await self._start_again(broker)

    async def _fill_disk(self, broker: SimulatedBroker) -> None:
        """A disk that is full, or nearly so, for a while."""
        broker.disk.free_bytes = self._rng.choice([0, 2_000, 20_000])
        await asyncio.sleep(self._a_while())
        broker.disk.free_bytes = None

    async def break_disk(self, broker: SimulatedBroker) -> None:
        """Until `mend`."""
        kind = self._rng.choice(["full", "write", "sync", "read"])
        logger.warning("the disk of %s breaks: %s", broker.name, kind)
        if kind == "full":
            broker.disk.free_bytes = 0
        else:
            broker.disk.fail(kind, name=".log")

    async def _slow_down_disk(self, broker: SimulatedBroker) -> None:
        """Its writes go to threads, and are done there after a while."""
        loop = self._world.loop
        loop.longest_thread_start = self._rng.uniform(0.05, 1.0)
        end = loop.time() + self._a_while()
        while loop.time() < end:
            replicas: Replicas | None = getattr(broker.broker, "replicas", None)
            if replicas is not None:
                for replica in replicas:
                    replicas.disk.wrote(replica.log.name, 0, 1.0, loop.time())
            await asyncio.sleep(1.0)
        loop.longest_thread_start = _THREAD_START

    # -- clocks ---------------------------------------------------------------------------------------

    async def _set_clock(self, broker: SimulatedBroker) -> None:
        """Its wall clock jumps, and stays wrong."""
        broker.skew_ms = broker.host.skew_ms = self._rng.randint(-600_000, 600_000)

    # -- the end --------------------------------------------------------------------------------------

    async def mend(self) -> None:
        """All faults are over, and all brokers run."""
        self._world.network.mend()
        self._world.network.speed_up()
        self._world.registry.ambiguous = 0.0
        self._world.loop.longest_thread_start = _THREAD_START
        for broker in self._brokers:
            broker.disk.heal()
            self._world.resume(broker.host)
            if has_failed_log(broker):
                self.crash(broker)
        await asyncio.gather(*self._starts)
        await asyncio.gather(*map(self.start, self._brokers))
