"""From the address of a registry to a session with it.

A back end is imported when it is named: ZooKeeper's needs a package that a broker on its own does not.
"""

from __future__ import annotations

from pathlib import Path

from ottla.clock import Clock
from ottla.cluster.layout import frees_space
from ottla.cluster.registry import Registry, RegistryError
from ottla.config.registry_url import SQLITE, RegistryUrl


class BackendMissing(RegistryError):
    """What the back end needs is not installed."""


def registry_at(url: RegistryUrl, clock: Clock) -> Registry:
    """A session with that registry, not opened yet."""
    if url.kind == SQLITE:
        from ottla.cluster.sqlite_registry import SqliteRegistry, SqliteStore

        return SqliteRegistry(SqliteStore(Path(url.place), frees_space=frees_space), clock=clock)
    try:
        from ottla.cluster.zookeeper_registry import ZooKeeperRegistry
    except ModuleNotFoundError as error:
        raise BackendMissing(f"a registry in ZooKeeper needs the package {error.name}") from error
    return ZooKeeperRegistry(url.place, clock=clock)
