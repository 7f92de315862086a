"""Shows the groups that this broker coordinates in the registry, where `group.registry.projection` is true.

Never on the path of a request: shards note which groups have changed, and once in a while a task takes these,
reads them as a describing request would (so that only committed state is shown), and writes what has changed.
Changes of many groups go into one commit, the next commit comes after a pause, and what all groups take is
bounded (`MAX_BYTES`): those beyond are left out, which the log says.

Two brokers may take themselves for the coordinator for a moment. The one with the later leader epoch claims
the node of the group (`Claim`), and every commit of a group checks the version that its node had then. So the
other's commits fail, it reads the node and leaves the group alone. Whatever else fails, the nodes of the
group are read again and brought to what they should be. When coordination moves away, the nodes of members
and owners are removed, unless the next coordinator was faster; offsets stay, and are its own from then on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ottla.broker.group_projection import (
    Claim,
    GroupSnapshot,
    Present,
    TopicName,
    Wanted,
    apply,
    changes,
    claimed_over,
    group_of,
    group_path,
    is_ephemeral,
    nodes_of,
    present_from,
    snapshot_of,
)
from ottla.broker.portions import in_portions
from ottla.cluster.layout import CONSUMERS
from ottla.cluster.registry import (
    Ambiguous,
    Check,
    Create,
    Delete,
    NodeError,
    NodeExists,
    NoNode,
    Operation,
    Registry,
    RegistryError,
    operation_bytes,
)
from ottla.coordinator.group_coordinator import GroupCoordinator
from ottla.coordinator.group_effects import GroupEffects
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.runtime.effects import Reply
from ottla.coordinator.runtime.shard import Shard
from ottla.printable import shown as shown_name
from ottla.protocol.errors import ApiError

logger = logging.getLogger("ottla.groups")

INTERVAL_SECONDS = 1.0
_RETRY_SECONDS = 5.0
"""After the registry did not answer."""
_PAUSE_SECONDS = 0.02
"""Between two commits, so that those of the controller come in between."""
_COMMIT_OPERATIONS = 500
_COMMIT_BYTES = 400_000
_GROUPS_AT_A_TIME = 20
_NODES_AT_A_TIME = 500
"""Made before other work of the event loop is done."""
MAX_BYTES = 16_000_000
"""What all groups of a broker take at most, as `operation_bytes` counts it: more than 100,000 nodes."""

GroupsShard = Shard[GroupShard]


@dataclass(slots=True)
class _Shown:
    """A group that is in the registry, as this broker knows it."""

    group_id: str
    shard: GroupsShard
    claim: Operation | None
    """What makes it this broker's; None once that is committed."""
    version: int
    """Of its node, once the claim is committed."""
    present: Present
    size: int = 0

    @property
    def path(self) -> str:
        return group_path(self.group_id)

    @property
    def fence(self) -> Operation:
        """What a commit must contain that changes something of this group."""
        return self.claim or Check(self.path, self.version)


@dataclass(slots=True)
class _Commit:
    """Operations of one or more groups that are committed together."""

    operations: list[Operation] = field(default_factory=list)
    groups: dict[str, tuple[_Shown, list[Operation]]] = field(default_factory=dict)
    size: int = 0

    def is_full(self, more: int) -> bool:
        return bool(self.operations) and (
            len(self.operations) >= _COMMIT_OPERATIONS or self.size + more > _COMMIT_BYTES
        )

    def add(self, shown: _Shown, operation: Operation | None) -> None:
        """None: only what claims the group."""
        if shown.group_id not in self.groups:
            self.groups[shown.group_id] = shown, []
            self._put(shown.fence)
        if operation is not None:
            self.groups[shown.group_id][1].append(operation)
            self._put(operation)

    def _put(self, operation: Operation) -> None:
        self.operations.append(operation)
        self.size += operation_bytes(operation)


class GroupProjector:
    def __init__(
        self,
        node_id: int,
        groups: GroupCoordinator,
        registry: Callable[[], Registry],
        topic_name: TopicName,
        offsets_topic_id: Callable[[], str],
        *,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._node_id = node_id
        self._groups = groups
        self._registry = registry
        self._topic_name = topic_name
        self._offsets_topic_id = offsets_topic_id
        self._max_bytes = max_bytes
        self._task: asyncio.Task[None] | None = None
        self._is_wanted = False
        self._session = 0
        self._shards: set[GroupsShard] = set()
        self._shown: dict[str, _Shown] = {}
        self._left_out: set[str] = set()
        self._bytes = 0
        self._commit = _Commit()

    # -- life ---------------------------------------------------------------------------------------------

    def configure(self, *, is_wanted: bool) -> None:
        """At the start, and when the setting changes: show the groups, or remove what is shown."""
        self._is_wanted = is_wanted
        if is_wanted and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="groups in the registry")

    async def stop(self) -> None:
        """The nodes of members and owners go with the session of the broker."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        logger.info("broker %d shows its groups in the registry, below %s", self._node_id, CONSUMERS)
        failing = is_removed = False
        while True:
            try:
                if self._is_wanted:
                    await self.write_changes()
                else:
                    is_removed = await self._remove_all()
                failing = False
            except RegistryError as error:
                if not failing:
                    logger.warning("groups cannot be shown in the registry: %s; trying again", error)
                failing = True
            except Exception:
                logger.exception("groups could not be shown in the registry; trying again")
                failing = True
            if failing:
                self._forget_all()
            if is_removed and not self._is_wanted:
                break
            await asyncio.sleep(_RETRY_SECONDS if failing else INTERVAL_SECONDS)
        self._task = None
        logger.info("broker %d does not show its groups in the registry any more", self._node_id)

    # -- one round ----------------------------------------------------------------------------------------

    async def write_changes(self) -> None:
        """Bring the registry to what the groups are now."""
        session = self._registry().session_id
        if session != self._session:
            self._session = session
            self._forget_all()
        active = self._groups.active_shards()
        await self._hand_over([shard for shard in self._shards if shard.has_ended], active)
        await self._begin([shard for shard in active if shard not in self._shards])
        for shard in active:
            for group_ids in in_portions(_taken(shard), _GROUPS_AT_A_TIME):
                if not shard.has_ended:
                    await self._show(shard, group_ids)
        await self._flush()

    def _forget_all(self) -> None:
        """What is in the registry is not known any more: all groups are read and written again."""
        self._shards.clear()
        self._shown.clear()
        self._left_out.clear()
        self._bytes = 0
        self._commit = _Commit()

    async def _begin(self, shards: Sequence[GroupsShard]) -> None:
        """All groups of these shards are to be shown, and what is left of others is to be removed."""
        if not shards:
            return
        names: dict[int, set[str]] = {}
        for name in await self._shown_by_anybody():
            names.setdefault(self._groups.partition_of(name), set()).add(name)
        for shard in shards:
            shard.state.changed = {*shard.state.group_ids(), *names.get(shard.partition.index, ())}
            self._shards.add(shard)

    async def _shown_by_anybody(self) -> list[str]:
        registry = self._registry()
        while True:
            try:
                return [group_of(node) for node in await registry.children(CONSUMERS)]
            except NoNode:
                with suppress(NodeExists, Ambiguous):  # read again: it is there, or is made again
                    await registry.commit([Create(CONSUMERS)])

    async def _show(self, shard: GroupsShard, group_ids: Sequence[str]) -> None:
        try:
            found: dict[str, GroupSnapshot] = await shard.run(_snapshots(group_ids)).as_future()
        except ApiError as error:
            logger.debug("%r: its groups are shown later: %s", shard, error)
            _give_back(shard, group_ids)
            return
        for group_id in group_ids:
            shown = self._shown.get(group_id) or await self._claimed(
                shard, group_id, exists=group_id in found
            )
            if shown is not None:
                await self._write(shown, await self._wanted(shown, found.get(group_id)))

    async def _claimed(self, shard: GroupsShard, group_id: str, *, exists: bool) -> _Shown | None:
        """What is there of a group, to be this broker's; None if it is another's, or if there is nothing."""
        registry, path = self._registry(), group_path(group_id)
        claim = Claim(self._node_id, self._offsets_topic_id(), shard.partition.index, shard.leader_epoch)
        node = await registry.find(path)
        if node is None and not exists:
            return None
        present: Present = {}
        if node is not None:
            if claim.yields_to(node):
                logger.debug("%r: group %s is shown by a later coordinator", shard, shown_name(group_id))
                return None
            present = present_from(await registry.subtree(path), self._session)
        operation, version = claimed_over(node, path, claim)
        shown = self._shown[group_id] = _Shown(group_id, shard, operation, version, present)
        return shown

    async def _wanted(self, shown: _Shown, group: GroupSnapshot | None) -> dict[str, Wanted] | None:
        """The nodes of a group; None if it is gone, or if there is no space for it."""
        wanted: dict[str, Wanted] = {}
        self._bytes -= shown.size
        shown.size = 0
        self._left_out.discard(shown.group_id)
        if group is None:
            return None
        size, free = len(shown.path), self._max_bytes - self._bytes
        for number, (path, node) in enumerate(nodes_of(shown.path, group, self._topic_name), 1):
            wanted[path] = node
            size += operation_bytes(Create(path, node.data))
            if size > free:
                self._leave_out(shown.group_id)
                return None
            if number % _NODES_AT_A_TIME == 0:
                await asyncio.sleep(0)
        self._bytes += size
        shown.size = size
        return wanted

    def _leave_out(self, group_id: str) -> None:
        if not self._left_out:
            logger.warning(
                "the groups of broker %d take more than %d MB in the registry: group %s is not shown there, "
                "and others may not be",
                self._node_id,
                self._max_bytes // 1_000_000,
                shown_name(group_id),
            )
        self._left_out.add(group_id)

    # -- writing ------------------------------------------------------------------------------------------

    async def _write(self, shown: _Shown, wanted: dict[str, Wanted] | None) -> None:
        """Have the nodes of a group committed that differ from what is wanted; None removes all."""
        if wanted is not None and shown.claim is not None:
            await self._add(shown, None)
        for operation in changes(shown.present.copy(), wanted or {}):
            if not await self._add(shown, operation):
                return
        if wanted is None:
            if isinstance(shown.claim, Create):  # it was never there
                self._forget(shown)
            elif await self._add(shown, Delete(shown.path)):
                self._shown.pop(shown.group_id)

    async def _add(self, shown: _Shown, operation: Operation | None) -> bool:
        """False when the group is not known any more, since an earlier commit has failed."""
        size = operation_bytes(shown.fence) + (operation_bytes(operation) if operation is not None else 0)
        if self._commit.is_full(size):
            await self._flush()
            await asyncio.sleep(_PAUSE_SECONDS)
            if self._shown.get(shown.group_id) is not shown:
                return False
        self._commit.add(shown, operation)
        return True

    async def _flush(self) -> None:
        commit, self._commit = self._commit, _Commit()
        if not commit.operations:
            return
        try:
            await self._registry().commit(commit.operations)
        except (NodeError, Ambiguous) as error:
            # Another broker has claimed a group, or somebody has changed its nodes: look at them again.
            logger.debug("groups in the registry are not what they were: %r", error)
            for shown, _ in commit.groups.values():
                self._forget(shown)
                _give_back(shown.shard, [shown.group_id])
            return
        for shown, operations in commit.groups.values():
            shown.claim = None
            for operation in operations:
                apply(shown.present, operation)

    def _forget(self, shown: _Shown) -> None:
        self._shown.pop(shown.group_id, None)
        self._bytes -= shown.size
        shown.size = 0

    # -- the end ------------------------------------------------------------------------------------------

    async def _hand_over(self, ended: Sequence[GroupsShard], active: Sequence[GroupsShard]) -> None:
        """Other brokers coordinate these groups now, or this one does again: remove members and owners."""
        again = {shard.partition.index for shard in active}
        for shown in [each for each in self._shown.values() if each.shard in ended]:
            if shown.shard.partition.index not in again and shown.claim is None:
                for path in [path for path in shown.present if is_ephemeral(shown.path, path)]:
                    if not await self._add(shown, Delete(path)):
                        break
        await self._flush()
        for shown in [each for each in self._shown.values() if each.shard in ended]:
            self._forget(shown)
        self._shards.difference_update(ended)

    async def _remove_all(self) -> bool:
        """The setting was changed: nothing of this broker's groups stays. True when nothing was there."""
        found = False
        active = {shard.partition.index: shard for shard in self._groups.active_shards()}
        for each in active.values():
            each.state.changed = None
        self._forget_all()
        for group_id in await self._shown_by_anybody():
            shard = active.get(self._groups.partition_of(group_id))
            shown = await self._claimed(shard, group_id, exists=False) if shard is not None else None
            if shown is not None:
                found = True
                await self._write(shown, None)
        await self._flush()
        return not found


def _taken(shard: GroupsShard) -> list[str]:
    """The groups that have changed, which are not among them any more."""
    changed, shard.state.changed = shard.state.changed, set()
    return sorted(changed or ())


def _give_back(shard: GroupsShard, group_ids: Sequence[str]) -> None:
    if shard.state.changed is not None:
        shard.state.changed.update(group_ids)


def _snapshots(group_ids: Sequence[str]) -> Callable[[GroupShard, Reply, GroupEffects], None]:
    def command(groups: GroupShard, reply: Reply, effects: GroupEffects) -> None:
        effects.answer(
            reply,
            {
                group_id: snapshot_of(group, groups.offsets.of(group_id))
                for group_id in group_ids
                if (group := groups.get(group_id)) is not None
            },
        )

    return command
