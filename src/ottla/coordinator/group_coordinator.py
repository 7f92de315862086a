"""The group coordinator of a broker: finds the shard of a group and runs commands on it.

Groups are spread over the partitions of `__consumer_offsets` by the hash of their id (`partitioning`). The
broker that leads a partition coordinates its groups. Every answer tells committed state, since the shard
holds it back until all that the command has read is below the high watermark.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any

from ottla.clock import Clock
from ottla.completion import Completion
from ottla.coordinator.consumer_group import ConsumerGroup
from ottla.coordinator.group import CONSUMER, GroupSettings
from ottla.coordinator.group_effects import GroupEffects
from ottla.coordinator.group_environment import GroupEnvironment
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.member_memory import Account, MemberMemory
from ottla.coordinator.partitioning import partition_of
from ottla.coordinator.records import GROUP_RECORDS
from ottla.coordinator.runtime.effects import Reply
from ottla.coordinator.runtime.loading import InThread
from ottla.coordinator.runtime.runtime import CoordinatorRuntime
from ottla.coordinator.runtime.shard import Shard, TransactionalProducer
from ottla.log_lines import ClientLog
from ottla.metrics import Histogram
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.leave_group import MemberIdentity
from ottla.replication.partition import Partition
from ottla.replication.purgatory import Purgatory
from ottla.scheduler import Scheduler

logger = logging.getLogger("ottla.groups")

OFFSETS_TOPIC = "__consumer_offsets"
_RECORDS_AT_A_TIME = 1000
"""Of what the coordinator removes by itself: the size of a batch is limited."""
_GROUPS_AT_A_TIME = 20
"""Groups whose offsets are checked before other work of the event loop is done."""

Command = Callable[[GroupShard, Reply, GroupEffects], None]
Chore = Callable[[GroupShard, str, GroupEffects], None]
"""(shard, group id, effects): removes offsets of a group, at most `_RECORDS_AT_A_TIME`."""


class GroupCoordinator:
    def __init__(
        self,
        settings: GroupSettings,
        *,
        environment: GroupEnvironment,
        topic_id: Callable[[str], bytes | None],
        clock: Clock,
        scheduler: Scheduler,
        purgatory: Purgatory,
        in_thread: InThread,
        commit_timeout_ms: Callable[[], int],
        compression: int = 0,
        account: Account | None = None,
        rebalance_seconds: Histogram | None = None,
        may_be_replaced: Callable[[], bool] = lambda: False,
    ) -> None:
        self.settings = settings
        self._scheduler = scheduler
        self._topic_id = topic_id
        self._deletions = 0  # how often topics were deleted
        client_log = ClientLog(clock.monotonic, scheduler.call_later)  # shared by all shards
        self._runtime: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(
            OFFSETS_TOPIC,
            GROUP_RECORDS,
            lambda: GroupShard(
                settings,
                environment,
                client_log,
                MemberMemory(account, self._evict) if account is not None else None,
                rebalance_seconds,
            ),
            clock=clock,
            scheduler=scheduler,
            purgatory=purgatory,
            in_thread=in_thread,
            commit_timeout_ms=commit_timeout_ms,
            compression=compression,
            on_loaded=self._forget_stale,
            may_be_replaced=may_be_replaced,
        )

    # -- commands -----------------------------------------------------------------------------------------

    def run(
        self, group_id: str, command: Command, producer: TransactionalProducer | None = None
    ) -> Completion[Any]:
        """Run a command on the shard of a group: it leads to a response, or fails with an ApiError.

        With a producer what it writes is part of the transaction of that producer.
        """
        try:
            shard = self._shard(group_id)
        except ApiError as error:
            return Completion.failed(error)
        return shard.run(command, producer)

    def partition(self, group_id: str) -> Partition:
        """Where the group is kept. ApiError when it is not coordinated here."""
        return self._shard(group_id).partition

    def end_transaction(
        self,
        index: int,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> Completion[None]:
        """A transaction has ended that may have committed offsets to a partition of the topic."""
        try:
            shard = self._runtime.shard(index)
        except ApiError as error:
            return Completion.failed(error)
        return shard.end_transaction(
            producer_id,
            producer_epoch,
            committed=committed,
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
        )

    def all_shards(self) -> list[Shard[GroupShard]]:
        """For a request about all groups. COORDINATOR_LOAD_IN_PROGRESS while some are not known yet."""
        if self._runtime.is_loading:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return self._runtime.active_shards()

    def active_shards(self) -> list[Shard[GroupShard]]:
        """Those that are loaded; none while this broker may have been replaced."""
        return self._runtime.active_shards()

    def partition_of(self, group_id: str) -> int:
        """The partition of `OFFSETS_TOPIC` that a group belongs to."""
        return partition_of(group_id, max(self._runtime.partitions, 1))

    def _shard(self, group_id: str) -> Shard[GroupShard]:
        return self._runtime.shard(self.partition_of(group_id))

    # -- hints, which may tell what is not committed yet --------------------------------------------------

    def offset_count(self, group_id: str) -> int:
        """How many offsets the group has; 0 when it is not coordinated here."""
        try:
            return self._shard(group_id).state.offsets.count(group_id)
        except ApiError:
            return 0

    def unchecked_expressions(self, group_id: str) -> set[str]:
        """The regular expressions whose topics the next heartbeat of a member will look up.

        ApiError when the group is not coordinated here.
        """
        group = self._shard(group_id).state.get(group_id)
        return group.unchecked_expressions() if isinstance(group, ConsumerGroup) else set()

    def consumer_member_count(self) -> int:
        """Members in all groups of the consumer protocol."""
        shards = self._runtime.active_shards()
        return sum(len(group.members) for shard in shards for group in shard.state if group.kind == CONSUMER)

    # -- members and memory -------------------------------------------------------------------------------

    def abandoned(self, group_id: str, member_id: str) -> None:
        """The client of a member has disconnected while it waited for an answer."""
        try:
            memory = self._shard(group_id).state.memory
        except ApiError:
            return  # there is no such member any more
        if memory is not None:
            memory.abandoned(group_id, member_id)

    def _evict(self, group_id: str, member_id: str) -> None:
        """Remove a member, but not now: this may be called in the middle of another command."""
        self._scheduler.call_soon(self._remove_member, group_id, member_id)

    def _remove_member(self, group_id: str, member_id: str) -> None:
        identity = MemberIdentity(member_id=member_id, reason="evicted to free memory")
        try:
            shard = self._shard(group_id)
        except ApiError:
            return  # the groups of this shard are gone, and their memory is released

        def leave(groups: GroupShard, effects: GroupEffects) -> None:
            groups.leave(group_id, [identity], effects)

        try:
            shard.execute(leave)
        except ApiError as error:
            logger.warning("%r cannot remove an idle member: %s", shard, error)
        if shard.state.memory is not None:
            shard.state.memory.not_evicted(group_id, member_id)

    # -- leadership ---------------------------------------------------------------------------------------

    def follow(self, partitions: int, led: Iterable[Partition]) -> None:
        self._runtime.follow(partitions, led)

    async def loading_done(self) -> None:
        await self._runtime.loading_done()

    async def stop(self) -> None:
        await self._runtime.stop()

    # -- what it does by itself ---------------------------------------------------------------------------

    async def expire_offsets(self) -> None:
        """Forget offsets that were not needed for the retention time."""

        def expire(groups: GroupShard, group_id: str, effects: GroupEffects) -> None:
            groups.expire(group_id, _RECORDS_AT_A_TIME, effects)

        for shard in self._runtime.active_shards():
            await self._each_group(shard, shard.state.group_ids(), expire)

    async def forget_topics(self, topics: Collection[str]) -> None:
        """These topics are deleted."""

        def forget(groups: GroupShard, group_id: str, effects: GroupEffects) -> None:
            groups.forget_topics(group_id, topics, _RECORDS_AT_A_TIME, effects)

        self._deletions += 1
        for shard in self._runtime.active_shards():
            await self._each_group(shard, shard.state.offsets.groups(), forget)

    async def _forget_stale(self, shard: Shard[GroupShard]) -> None:
        """A shard is loaded. Topics may have been deleted while it had no coordinator."""

        def forget(groups: GroupShard, group_id: str, effects: GroupEffects) -> None:
            groups.forget_stale(group_id, self._topic_id, _RECORDS_AT_A_TIME, effects)

        deletions = -1
        while deletions != self._deletions:  # more topics may be deleted while this runs
            deletions = self._deletions
            await self._each_group(shard, shard.state.offsets.groups(), forget)

    async def _each_group(self, shard: Shard[GroupShard], group_ids: Iterable[str], chore: Chore) -> None:
        """Do a chore for each group, in portions, so that requests are served in between."""
        for number, group_id in enumerate(group_ids, 1):
            while True:
                if shard.has_ended:
                    return
                try:
                    written = _do(shard, group_id, chore)
                except ApiError as error:
                    logger.warning("%r cannot remove offsets: %s; trying again later", shard, error)
                    return
                if written < _RECORDS_AT_A_TIME:
                    break
                await asyncio.sleep(0)
            if number % _GROUPS_AT_A_TIME == 0:
                await asyncio.sleep(0)


def _do(shard: Shard[GroupShard], group_id: str, chore: Chore) -> int:
    """How many records were written."""
    written = 0

    def command(groups: GroupShard, effects: Any) -> None:
        nonlocal written
        chore(groups, group_id, effects)
        written = len(effects.records)

    shard.execute(command)
    return written
