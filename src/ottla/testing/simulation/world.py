"""A simulated world: brokers, clients, network and registry on one loop, all from one seed.

    world = World(seed=7)
    broker = world.broker("broker-1", {"num.partitions": 3})

    async def scenario():
        await broker.start()
        client = world.client("client-1", broker)
        ...
        broker.crash(power=True)
        await broker.start()

    world.run(scenario())

The same seed gives the same run, byte for byte: `trace` is a digest of all that passed over the network, by
which two runs are compared. Each part of the world draws from a generator of its own, so that a change in one
does not shift the others.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Coroutine, Mapping
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from ottla.broker.broker import Broker
from ottla.config.values import BrokerConfig
from ottla.peer.client import PeerClient
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.memory_disk import MemoryDisk
from ottla.testing.simulation.loop import SimulatedLoop
from ottla.testing.simulation.network import SimulatedConnector, SimulatedNetwork, SimulatedSockets
from ottla.testing.simulation.registry import SimulatedRegistry
from ottla.testing.simulation.virtual_time import Host, SimulatedClock

T = TypeVar("T")

PORT = 9092
PEER_PORT = 9093
DATA = Path("/data")


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.loop = SimulatedLoop(self.rng("loop"))
        self.network = SimulatedNetwork(self.loop, self.rng("network"))
        self.registry = SimulatedRegistry(
            self.rng("registry"),
            delay=(0.0001, 0.002),
            is_cut=lambda name: self.network.is_cut(self.host(name), self._registry_host),
            is_cut_back=lambda name: self.network.is_cut(self._registry_host, self.host(name)),
        )
        self._registry_host = Host("registry")
        self._hosts: dict[str, Host] = {}
        self._digest = hashlib.sha256()
        self.network.on_delivery = self._note_delivery
        self.deliveries: Counter[str] = Counter()
        """How many pieces of bytes each host has received."""
        self._awaited: list[tuple[str, str, asyncio.Future[None]]] = []

    def rng(self, purpose: str) -> Random:
        """A generator for one purpose, which depends on the seed and on nothing else."""
        return Random(f"{self.seed}/{purpose}")

    def host(self, name: str) -> Host:
        """The living host of this name; made anew after a crash."""
        host = self._hosts.get(name)
        if host is None or not host.alive:
            host = self._hosts[name] = Host(name)
        return host

    def broker(self, name: str, settings: Mapping[str, object] | None = None) -> SimulatedBroker:
        return SimulatedBroker(self, name, settings or {})

    def client(self, host: str, broker: SimulatedBroker) -> PeerClient:
        """A client on `host` that speaks to `broker`, over its restarts too."""
        return PeerClient(
            broker.address,
            client_id=host,
            sockets=SimulatedConnector(self.network, self.host(host)),
            rng=self.rng(f"client {host}"),
        )

    async def delivery(self, sender: str, receiver: str) -> None:
        """Wait for the next bytes that one host gets from another: a moment that chance seldom meets."""
        arrived: asyncio.Future[None] = self.loop.create_future()
        self._awaited.append((sender, receiver, arrived))
        await arrived

    def cut_from_registry(self, host: Host, *, there: bool = True, back: bool = True) -> None:
        """Cut the link of a host to the registry: the way there, the way back, or both."""
        if there:
            self.network.cut(host, self._registry_host, both=False)
        if back:
            self.network.cut(self._registry_host, host, both=False)

    def mend_registry(self, host: Host) -> None:
        """Join the link of a host to the registry again."""
        self.network.mend(host, self._registry_host)

    def resume(self, host: Host) -> None:
        """Let a host go on that was paused with `Host.pause`."""
        self.loop.resume(host)
        self.network.resume(host)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run until `work` is done."""
        return self.loop.run_until_complete(work)

    def end(self) -> None:
        """Drop everything. To be called once, whatever the run came to."""
        self.loop.discard()

    @property
    def trace(self) -> str:
        """A digest of all deliveries so far: when, between which hosts, and what."""
        return self._digest.hexdigest()

    def _note_delivery(self, sender: Host, receiver: Host, data: bytes) -> None:
        self.deliveries[receiver.name] += 1
        if self._awaited:
            for awaited in [each for each in self._awaited if each[:2] == (sender.name, receiver.name)]:
                self._awaited.remove(awaited)
                if not awaited[2].done():
                    awaited[2].set_result(None)
        self._digest.update(f"{self.loop.time():.9f} {sender.name}>{receiver.name} {len(data)} ".encode())
        self._digest.update(data)


class SimulatedBroker:
    """A broker on a host of its own. Its disk outlives every crash."""

    def __init__(self, world: World, name: str, settings: Mapping[str, object]) -> None:
        self._world = world
        self.name = name
        self.address = (name, PORT)
        self.host = world.host(name)
        self.use_new_disk()
        self._config = BrokerConfig.load(
            overrides={
                "listeners": f"PLAINTEXT://{name}:{PORT},INTERNAL://{name}:{PEER_PORT}",
                "log.dirs": str(DATA),
                **{key: str(value) for key, value in settings.items()},
            }
        )
        self.node_id: int = self._config["node.id"]
        self._rng = world.rng(f"broker {name}")
        self._power = world.rng(f"power of {name}")
        self._crashed = asyncio.Event()
        self.broker: Broker | None = None
        self._starting: asyncio.Task[None] | None = None
        self.skew_ms = 0
        """How wrong its wall clock is from the next start on."""
        self.starts = 0

    @property
    def is_up(self) -> bool:
        return self.broker is not None

    def use_new_disk(self) -> None:
        """Put in an empty disk. Only while the broker does not run."""
        self._memory = MemoryDisk(SimulatedClock(self._world.loop, self.host))
        self._memory.make_folder(DATA)
        self.disk = FaultyDisk(self._memory)

    async def start(self) -> None:
        """Start the broker; it takes clients when this returns, unless it crashed or was stopped meanwhile.
        A start that fails is the end of its process."""
        if self.broker is not None:
            raise RuntimeError(f"{self.name} runs already")
        world = self._world
        self.host = world.host(self.name)
        self.host.skew_ms = self.skew_ms
        broker = Broker(
            self._config,
            clock=SimulatedClock(world.loop, self.host),
            rng=self._rng,
            disk=self.disk,
            sockets=SimulatedSockets(world.network, self.host),
            registry=lambda: world.registry.connect(self.name),
            connector=SimulatedConnector(world.network, self.host),
        )
        self.broker = broker
        self.starts += 1
        crashed = self._crashed = asyncio.Event()
        starting = self._starting = self.host.run(world.loop.create_task, broker.start())
        crash = world.loop.create_task(crashed.wait())
        await asyncio.wait([starting, crash], return_when=asyncio.FIRST_COMPLETED)
        crash.cancel()
        if starting.done() and not starting.cancelled() and not crashed.is_set():
            try:
                starting.result()
            except Exception:
                self.crash()
                raise

    async def stop(self) -> None:
        """Stop as on SIGTERM. Returns when the broker has stopped or crashed."""
        broker, starting = self.broker, self._starting
        if broker is None or starting is None:
            return
        world, crashed = self._world, self._crashed
        if starting.done():
            stopping = self.host.run(world.loop.create_task, broker.stop())
        else:
            starting.cancel()
            stopping = starting
        crash = world.loop.create_task(crashed.wait())
        await asyncio.wait([stopping, crash], return_when=asyncio.FIRST_COMPLETED)
        crash.cancel()
        if crashed.is_set():
            return
        if stopping is starting:
            self.crash()
        else:
            stopping.result()
            self.broker = None

    def crash(self, *, power: bool = False, noticed: bool = True) -> None:
        """End the broker as kill -9 does. With `power`, what was not synced may be gone as well.

        `noticed`: the registry learns of it at once, as on one machine, and not by the session timeout.
        """
        self.broker = None
        self._crashed.set()
        self.host.crash()
        self._world.network.crash(self.host)
        if noticed:
            self._world.registry.notice_death(self.name)
        if power:
            self._memory.lose_power(self._power)
        else:
            self._memory.release_locks()
