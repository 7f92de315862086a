"""A registry copied into another one, of any back end, while no broker uses either.

All nodes are copied but three kinds. Ephemeral ones belong to a session, and a broker that has one is
running: that refuses the copy. The marks in `/brokers/unclean` name broker epochs, which are creation ids of
the old registry. They are about registrations that have ended, and in the new registry a registration could
get the same number by chance. Groups in `/consumers` are shown by their coordinators, which do so again.

The target has to be empty. Until everything is written and was read back, its `/cluster/id` says that it is
an unfinished copy: no broker starts on it, and the next copy clears it and begins again. So a copy may be
interrupted at any point. The source is only read.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.cluster import layout
from ottla.cluster.changes import batches
from ottla.cluster.registry import Create, Delete, Node, Operation, Registry, RegistryError, Set, parent_of


class CannotCopy(Exception):
    """Nothing was copied, or what was copied is not usable; the message says why."""


async def copy_registry(source: Registry, target: Registry) -> int:
    """Copies all that lasts; how many nodes. Both sessions are open. `CannotCopy`, or `RegistryError`."""
    wanted = await _lasting_nodes(source)
    await _clear_unfinished(target)
    cluster_id = wanted[layout.CLUSTER_ID]
    folder = parent_of(layout.CLUSTER_ID)
    await target.commit([Create(folder, wanted[folder]), Create(layout.CLUSTER_ID, layout.unfinished_copy())])
    rest = [Create(path, data) for path, data in wanted.items() if path not in (folder, layout.CLUSTER_ID)]
    for batch in batches(rest):
        await target.commit(batch)
    await _compare(wanted, target)
    if await _lasting_nodes(source) != wanted:
        raise CannotCopy("the registry changed while it was copied: a broker was started on it")
    await target.commit([Set(layout.CLUSTER_ID, cluster_id)])
    return len(wanted)


async def _lasting_nodes(source: Registry) -> Mapping[str, bytes]:
    """What to copy, parents before children."""
    nodes = await source.subtree("/")
    if layout.CLUSTER_ID not in nodes:
        raise CannotCopy("no cluster has its state there")
    if layout.is_unfinished_copy(nodes[layout.CLUSTER_ID]):
        raise CannotCopy("it is an unfinished copy itself")
    _refuse_running(nodes)
    return {path: node.data for path, node in nodes.items() if _is_lasting(path)}


def _is_lasting(path: str) -> bool:
    return parent_of(path) != layout.UNCLEAN and not f"{path}/".startswith(f"{layout.CONSUMERS}/")


def _refuse_running(nodes: Mapping[str, Node]) -> None:
    start = f"{layout.BROKER_IDS}/"
    running = [path.removeprefix(start) for path in nodes if path.startswith(start)]
    if running:
        who = f"broker {running[0]} is" if len(running) == 1 else f"brokers {', '.join(running)} are"
        raise CannotCopy(f"{who} registered and may be running")
    held = [path for path, node in nodes.items() if node.owner]
    if held:
        raise CannotCopy(f"{held[0]} belongs to a broker that may be running")


async def _clear_unfinished(target: Registry) -> None:
    nodes = await target.subtree("/")
    if not nodes:
        return
    cluster_id = nodes.get(layout.CLUSTER_ID)
    if cluster_id is None or not layout.is_unfinished_copy(cluster_id):
        raise CannotCopy("the target is not empty")
    _refuse_running(nodes)
    # The mark goes last, with its parent.
    last = (layout.CLUSTER_ID, parent_of(layout.CLUSTER_ID))
    others: list[Operation] = [Delete(path) for path in sorted(nodes, reverse=True) if path not in last]
    for batch in batches(others):
        await target.commit(batch)
    await target.commit([Delete(path) for path in last])


async def _compare(wanted: Mapping[str, bytes], target: Registry) -> None:
    found = {path: node.data for path, node in (await target.subtree("/")).items()}
    expected = {**wanted, layout.CLUSTER_ID: layout.unfinished_copy()}
    for path in sorted(expected.keys() | found.keys()):
        if expected.get(path) != found.get(path):
            raise RegistryError(f"{path} was read back otherwise than it was written")
