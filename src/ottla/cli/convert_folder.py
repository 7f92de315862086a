"""The data folder of a single broker made into that of a cluster on one machine, in place.

Before, the folder holds the broker's logs, checkpoints and `registry.sqlite`. After, `cluster.sqlite` is the
registry that all brokers share, and `broker-N` holds all else, N being the id that the broker has. What is in
the registry stays, the cluster's id included. The steps:

1. The registry is copied to `cluster.sqlite.new`, read back, and renamed to `cluster.sqlite`. From now on
   the folder is refused for a single broker.
2. All else moves to `.converting`, entry by entry, `meta.properties` last. While either is there, the folder
   is refused for a cluster. No partition has a folder of that name, but one may have `broker-1`.
3. The old registry is removed.
4. `.converting` becomes `broker-N`.

Each step is renames within the folder, hence within one file system, and is done again or skipped when the
command runs again after it was interrupted. Directories are synced between the steps, so that this holds for
a loss of power, too. A lock keeps brokers out.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from ottla.cli.failure import Failure
from ottla.cli.local_cluster import CONVERTING, REGISTRY_FILE, SINGLE_BROKER_FILE
from ottla.cli.registry import copied
from ottla.cli.serve import MOST_BROKERS
from ottla.config.registry_url import SQLITE, RegistryUrl
from ottla.config.values import REGISTRY_FILE as OLD_REGISTRY_FILE
from ottla.storage.checkpoints import decode_properties
from ottla.storage.files import Disk, LockHeld, RealDisk
from ottla.storage.leader_epochs import CorruptCheckpoint
from ottla.storage.log_directory import LOCK_FILE

_BESIDE_REGISTRY = ("", "-wal", "-shm", ".reserve", ".sessions")
"""What belongs to a registry in SQLite: the ends of the names."""


def convert(folder: Path, disk: Disk | None = None) -> tuple[int, str]:
    """Converts; the id of the broker and the name of its new folder. `Failure` says why not."""
    disk = disk or RealDisk()
    if not folder.is_dir():
        raise Failure(f"there is no folder {folder}")
    if not (folder / SINGLE_BROKER_FILE).exists() and not (folder / CONVERTING).exists():
        raise _not_of_a_single_broker(folder)
    try:
        lock = disk.lock(folder / LOCK_FILE, f"pid {os.getpid()}")
    except LockHeld as held:
        raise Failure(
            f"the data folder {folder} is used by a broker ({held.holder or 'unknown process'})",
            "Stop it first.",
        ) from None
    try:
        return _convert(folder, disk)
    finally:
        lock.release()


def _convert(folder: Path, disk: Disk) -> tuple[int, str]:
    staging = folder / CONVERTING
    node_id, cluster_id = _owner(folder)
    if not (folder / REGISTRY_FILE).exists():
        _copy_registry(folder, cluster_id, disk)
    disk.make_folder(staging)
    kept = {
        LOCK_FILE,
        CONVERTING,
        SINGLE_BROKER_FILE,
        *_names_of(REGISTRY_FILE),
        *_names_of(OLD_REGISTRY_FILE),
    }
    for name in sorted(disk.list(folder)):
        if name not in kept:
            disk.rename(folder / name, staging / name)
    _sync(disk, folder, staging)
    if (folder / SINGLE_BROKER_FILE).exists():
        disk.rename(folder / SINGLE_BROKER_FILE, staging / SINGLE_BROKER_FILE)
        _sync(disk, folder, staging)
    _remove_registry(folder / OLD_REGISTRY_FILE)
    name = f"broker-{node_id}"
    disk.rename(staging, folder / name)
    disk.sync_folder(folder)
    return node_id, name


def _not_of_a_single_broker(folder: Path) -> Failure:
    if (folder / REGISTRY_FILE).exists():
        return Failure(
            f"the data folder {folder} belongs to a cluster already",
            f"Start it with: ottla serve --brokers N --data {folder}",
        )
    return Failure(f"{folder} is not the data folder of a broker: it has no {SINGLE_BROKER_FILE}")


def _owner(folder: Path) -> tuple[int, str]:
    """The ids of the broker and its cluster, from `meta.properties`, wherever that is by now."""
    places = [path / SINGLE_BROKER_FILE for path in (folder, folder / CONVERTING)]
    place = next((path for path in places if path.exists()), places[0])
    try:
        meta = decode_properties(place.read_bytes())
        node_id, cluster_id = int(meta["node.id"]), meta["cluster.id"]
    except (OSError, CorruptCheckpoint, LookupError, ValueError) as error:
        raise Failure(f"{place} does not say which broker it belongs to: {error!r}") from None
    if not 1 <= node_id <= MOST_BROKERS:
        raise Failure(
            f"the broker has the id {node_id}; brokers that share a folder have ids from 1 to {MOST_BROKERS}",
            "Start more brokers by themselves, with --registry and --node-id.",
        )
    return node_id, cluster_id


def _copy_registry(folder: Path, cluster_id: str, disk: Disk) -> None:
    old, new = folder / OLD_REGISTRY_FILE, folder / f"{REGISTRY_FILE}.new"
    if not old.exists():
        raise Failure(
            f"the registry of the broker is not in {folder}",
            "A broker with a registry elsewhere is part of a cluster: start more with the same --registry.",
        )
    _remove_registry(new)
    _, found = asyncio.run(copied(RegistryUrl(SQLITE, str(old)), RegistryUrl(SQLITE, str(new))))
    if found != cluster_id:
        raise Failure(f"{old} belongs to cluster {found}, but the logs beside it to {cluster_id}")
    with new.open("rb") as file:
        os.fsync(file.fileno())
    for end in _BESIDE_REGISTRY[1:]:
        _remove(new.with_name(new.name + end))
    disk.sync_folder(folder)
    disk.rename(new, folder / REGISTRY_FILE)
    disk.sync_folder(folder)


def _names_of(registry: str) -> list[str]:
    return [f"{registry}{end}" for end in _BESIDE_REGISTRY]


def _remove_registry(file: Path) -> None:
    for name in _names_of(file.name):
        _remove(file.with_name(name))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(disk: Disk, *folders: Path) -> None:
    for folder in folders:
        disk.sync_folder(folder)
