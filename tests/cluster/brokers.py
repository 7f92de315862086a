"""Several brokers on one event loop, each with a data folder of its own, that share a registry.

    async with Cluster(tmp_path) as cluster:
        await cluster.start(1, 2, 3)
        answer = await cluster.call(2, CreateTopicsRequest(...))

They talk to each other over real sockets. `crash` ends a broker as kill -9 would: it says goodbye to nobody.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ottla.broker.broker import Broker
from ottla.clock import SystemClock
from ottla.cluster.image import ClusterImage
from ottla.cluster.registry import Operation, Registry, Stat, Unavailable
from ottla.cluster.sqlite_registry import SqliteRegistry, SqliteStore
from ottla.config.values import BrokerConfig
from ottla.peer.client import PeerClient
from ottla.peer.tcp import TcpConnector
from ottla.protocol.errors import ApiError, error_of
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic
from ottla.protocol.schema import Request
from ottla.storage.files import Disk

PATIENCE = 60.0
"""Seconds for what takes milliseconds on an idle machine."""


class Cluster:
    def __init__(
        self,
        folder: Path,
        *,
        registry: Callable[[], Registry] | None = None,
        settings: Mapping[str, object] | None = None,
        disks: Mapping[int, Disk] | None = None,
    ) -> None:
        """`registry` makes a session; without it all brokers share a SQLite file in `folder`. `disks` are
        those of some brokers, by their ids."""
        self._folder = folder
        self._make_registry = registry or self._sqlite
        self._settings = {key: str(value) for key, value in (settings or {}).items()}
        self._disks = disks or {}
        self._clients: dict[int, PeerClient] = {}
        self._registries: dict[int, Registry] = {}
        self.brokers: dict[int, Broker] = {}
        self._ports: dict[int, int] = {}
        """Where clients find the brokers, also after a restart: a client may know no other address."""

    def _sqlite(self) -> Registry:
        # A store of its own for each session, as in a process of its own.
        return SqliteRegistry(SqliteStore(self._folder / "shared.sqlite", durable=False), SystemClock())

    # -- life ---------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for broker_id in list(self.brokers):
            await self.stop(broker_id)

    async def start(self, *ids: int) -> None:
        """Start brokers, all at the same time; they take clients when this returns."""
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*map(self._start, ids))

    async def _start(self, broker_id: int) -> None:
        config = BrokerConfig.load(
            overrides={
                "node.id": str(broker_id),
                "listeners": f"PLAINTEXT://127.0.0.1:{self._ports.get(broker_id, 0)}",
                "log.dirs": str(self._folder / f"broker-{broker_id}"),
                "group.initial.rebalance.delay.ms": "100",
                **self._settings,
            }
        )

        def registry() -> Registry:
            self._registries[broker_id] = self._make_registry()
            return self._registries[broker_id]

        broker = Broker(config, registry=registry, disk=self._disks.get(broker_id))
        await broker.start()
        self.brokers[broker_id] = broker
        self._ports[broker_id] = broker.endpoints[0].port

    async def stop(self, broker_id: int) -> None:
        """As on SIGTERM."""
        await self._disconnect(broker_id)
        await asyncio.wait_for(self.brokers.pop(broker_id).stop(), PATIENCE)

    async def crash(self, broker_id: int) -> None:
        """As kill -9: the registry notices by itself that the session is over."""
        await self._disconnect(broker_id)
        registry = self._registries[broker_id]
        assert isinstance(registry, SqliteRegistry)

        async def refused(operations: list[Operation]) -> list[Stat | None]:
            raise Unavailable("this process is dead")

        registry.commit = refused  # type: ignore[method-assign, assignment]
        registry.close = registry.abandon  # type: ignore[method-assign]
        await asyncio.wait_for(self.brokers.pop(broker_id).kill(), PATIENCE)

    # -- what tests ask -----------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.bootstrap_servers for broker in self.brokers.values())

    @property
    def controller(self) -> int:
        """The active controller, by its own account."""
        (active,) = [broker_id for broker_id, broker in self.brokers.items() if broker.controller.active]
        return active

    @property
    def image(self) -> ClusterImage:
        """The newest that a broker acts on. There is one while the controller changes, too."""
        return max((broker.image for broker in self.brokers.values()), key=lambda image: image.version)

    @property
    def others(self) -> list[int]:
        return [broker_id for broker_id in self.brokers if broker_id != self.controller]

    async def call(self, broker_id: int, request: Request, version: int | None = None) -> Any:
        """Ask a broker as a client does."""
        client = self._clients.get(broker_id)
        if client is None:
            address = self.brokers[broker_id].endpoints[0]
            client = self._clients[broker_id] = client_of((address.host, address.port))
        return await client.call(request, timeout=PATIENCE, version=version)

    async def create_topic(self, through: int, name: str, partitions: int = 3, factor: int = 1) -> None:
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)
        (result,) = (await self.call(through, CreateTopicsRequest(topics=[topic]))).topics
        if result.error_code:
            raise ApiError(error_of(result.error_code), result.error_message)

    async def topic(self, of: int, name: str) -> MetadataResponseTopic:
        """A topic as a broker describes it."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        (found,) = (await self.call(of, request)).topics
        assert isinstance(found, MetadataResponseTopic)
        return found

    async def settled(self) -> None:
        """Returns when there is one controller, and all brokers show all brokers and the newest image."""
        await until(lambda: sum(broker.controller.active for broker in self.brokers.values()) == 1)
        newest = self.brokers[self.controller].controller
        await until(lambda: set(newest.image.brokers) == set(self.brokers))
        await until(lambda: all(b.image.version == newest.image.version for b in self.brokers.values()))

    async def _disconnect(self, broker_id: int) -> None:
        client = self._clients.pop(broker_id, None)
        if client is not None:
            await client.close()


def client_of(address: tuple[str, int]) -> PeerClient:
    return PeerClient(address, client_id="test", sockets=TcpConnector(), rng=random.Random(1))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)
