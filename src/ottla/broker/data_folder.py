"""Whether a data folder belongs to this broker and this cluster.

The folder says which cluster and broker wrote it. The logs of another cluster would be taken for strays, and
set aside.
"""

from __future__ import annotations

from ottla.cluster import layout
from ottla.cluster.registry import Registry
from ottla.config.values import REGISTRY_FILE
from ottla.storage.checkpoints import META
from ottla.storage.leader_epochs import CorruptCheckpoint
from ottla.storage.log_directory import LogDirectory


class WrongFolder(Exception):
    """The data folder was written by another cluster or another broker."""


async def check_belongs_here(directory: LogDirectory, node_id: int, registry: Registry) -> None:
    """Refuse the data of another cluster or broker; a new folder becomes this one's."""
    ours = {"cluster.id": await layout.cluster_id_of(registry), "node.id": str(node_id)}
    try:
        found = directory.read_meta()
    except CorruptCheckpoint as damage:
        raise WrongFolder(
            f"{damage}; if this is the right data folder, delete that file: the broker writes a new one "
            f"when the {REGISTRY_FILE} beside it knows the logs in the folder"
        ) from damage
    if not found:
        topics = set(await registry.children(layout.TOPICS))
        unclaimed = [log.name for log in directory.logs.values() if log.size and log.topic not in topics]
        if unclaimed:
            raise WrongFolder(
                f"the data folder {directory.path} holds {len(unclaimed)} logs of topics that the "
                f"registry does not know, among them {unclaimed[0]}; use another folder, or put back the "
                f"{META} and the {REGISTRY_FILE} that go with them"
            )
    for key, value in ours.items():
        if found.get(key, value) != value:
            raise WrongFolder(
                f"the data folder {directory.path} belongs to {key} {found[key]}, not to {value}; "
                f"use another folder, or put back the {REGISTRY_FILE} that goes with it"
            )
    if not ours.items() <= found.items():
        directory.write_meta({"version": "1", **found, **ours})
