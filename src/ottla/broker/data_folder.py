"""Whether a data folder belongs to this broker and this cluster, and what may be lost of it.

The folder says which cluster and broker wrote it. The logs of another cluster would be taken for strays, and
set aside. A folder without that file is new, or its disk was replaced. The file is written when the
controller has acted on that: a start that is interrupted before is followed by one that says the same
(`claim`).
"""

from __future__ import annotations

import logging

from ottla.cluster import features, layout
from ottla.cluster.layout import Lost
from ottla.cluster.registry import Registry
from ottla.config.values import REGISTRY_FILE
from ottla.storage.checkpoints import META
from ottla.storage.leader_epochs import CorruptCheckpoint
from ottla.storage.log_directory import LogDirectory

logger = logging.getLogger("ottla.broker")


class WrongFolder(Exception):
    """The data folder was written by another cluster or another broker, or the cluster by a later release."""


async def check_belongs_here(directory: LogDirectory, node_id: int, registry: Registry) -> Lost:
    """Refuse the data of another cluster or broker. What may be lost of what it held."""
    levels = await registry.find(layout.config_path(features.RESOURCE))
    newer = None if levels is None else features.unsupported(layout.from_bytes(levels.data))
    if newer is not None:
        raise WrongFolder(
            f"the cluster uses {newer}, which this release of Ottla does not support; use the release that "
            "the other brokers run"
        )
    ours = _owner(await layout.cluster_id_of(registry), node_id)
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
    if not directory.logs and not found:
        return Lost.ALL
    if directory.logs and directory.may_have_lost:
        logger.warning(
            "the machine went off without a clean stop; records that had not reached the disk are gone, and "
            "partitions that no other broker can lead begin a new leader epoch"
        )
    return Lost.TAIL if directory.may_have_lost or not found else Lost.NOTHING


def claim(directory: LogDirectory, cluster_id: str, node_id: int) -> None:
    """The cluster knows what is in the folder: from now on its logs are this broker's. Blocks."""
    found, ours = directory.read_meta(), _owner(cluster_id, node_id)
    if not ours.items() <= found.items():
        directory.write_meta({"version": "1", **found, **ours})
    directory.note_boot()


def _owner(cluster_id: str, node_id: int) -> dict[str, str]:
    return {"cluster.id": cluster_id, "node.id": str(node_id)}
