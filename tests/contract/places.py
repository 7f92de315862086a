"""The back ends that must keep the registry's contract.

A back end is a `Place`: it opens sessions and can make one crash. To add one, write its place and name it in
`PLACES`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Protocol

from ottla.clock import SystemClock
from ottla.cluster.registry import Registry
from ottla.cluster.sqlite_registry import SqliteRegistry, SqliteStore
from ottla.cluster.zookeeper_registry import ZooKeeperRegistry
from ottla.testing.simulation.registry import SimulatedRegistry, SimulatedSession
from zookeeper_server import SESSION_SECONDS, drop_without_a_word, end_session, shared_server


class Place(Protocol):
    survives_restart: bool

    async def open(self) -> Registry:
        """A new session, as another broker would have it."""
        ...

    async def crash(self, registry: Registry) -> None:
        """The session's process dies without a word."""
        ...

    async def expire(self, registry: Registry, witness: Registry) -> None:
        """The session hangs for longer than it may, and the witness, another session, notices."""
        ...


class SqliteFile:
    """Each session has a connection of its own, as brokers in several processes have."""

    survives_restart = True

    def __init__(self, folder: Path) -> None:
        self._path = folder / "registry.sqlite"

    async def open(self) -> Registry:
        registry = SqliteRegistry(SqliteStore(self._path, durable=False), clock=SystemClock())
        await registry.open()
        return registry

    async def crash(self, registry: Registry) -> None:
        assert isinstance(registry, SqliteRegistry)
        await registry.abandon()

    async def expire(self, registry: Registry, witness: Registry) -> None:
        await _expire(registry, witness)


class SqliteMemory:
    """All sessions share one store, as brokers inside one process do."""

    survives_restart = False

    def __init__(self, folder: Path) -> None:
        self._store = SqliteStore(None)

    async def open(self) -> Registry:
        # Nothing but the lease shows a death here, so it is short.
        registry = SqliteRegistry(self._store, clock=SystemClock(), session_timeout=0.5)
        await registry.open()
        return registry

    async def crash(self, registry: Registry) -> None:
        assert isinstance(registry, SqliteRegistry)
        await registry.abandon()

    async def expire(self, registry: Registry, witness: Registry) -> None:
        await _expire(registry, witness)


class ZooKeeper:
    """A real server, shared by the tests of a worker; each test has a chroot of its own."""

    survives_restart = True

    def __init__(self, folder: Path) -> None:
        self._hosts = f"{shared_server().address}/{uuid.uuid4().hex}"

    async def open(self) -> Registry:
        registry = ZooKeeperRegistry(self._hosts, clock=SystemClock(), session_timeout=SESSION_SECONDS)
        await registry.open()
        return registry

    async def crash(self, registry: Registry) -> None:
        assert isinstance(registry, ZooKeeperRegistry)
        session = registry._current()
        client_id = session.client.client_id
        drop_without_a_word(session.client)
        session._end("it crashed")
        # The server would notice after the session timeout; another client ends the session now.
        await asyncio.to_thread(end_session, self._hosts, client_id)

    async def expire(self, registry: Registry, witness: Registry) -> None:
        """A second client that takes over the session and closes it."""
        assert isinstance(registry, ZooKeeperRegistry)
        await asyncio.to_thread(end_session, self._hosts, registry._current().client.client_id)
        await registry.lost.wait()


class Simulated:
    """The registry of simulations: one server in memory, calls that take time."""

    survives_restart = False

    def __init__(self, folder: Path) -> None:
        self._server = SimulatedRegistry(Random(1), session_timeout=0.5, delay=(0.0, 0.0005))

    async def open(self) -> Registry:
        session = self._server.connect()
        await session.open()
        return session

    async def crash(self, registry: Registry) -> None:
        assert isinstance(registry, SimulatedSession)
        await registry.abandon()

    async def expire(self, registry: Registry, witness: Registry) -> None:
        assert self._server.expire(registry.session_id)


async def _expire(registry: Registry, witness: Registry) -> None:
    assert isinstance(witness, SqliteRegistry)
    store = witness._store
    assert await store.change(store.tree.end_session, registry.session_id)


PLACES: dict[str, Callable[[Path], Place]] = {
    "sqlite-file": SqliteFile,
    "sqlite-memory": SqliteMemory,
    "simulated": Simulated,
    "zookeeper": ZooKeeper,
}
