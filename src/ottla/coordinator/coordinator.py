"""The group coordinator of a broker: finds the shard of a group and runs commands there.

Groups are spread over the partitions of `__consumer_offsets` by the hash of their id, the same as in Kafka,
so that every broker and every tool agrees on who coordinates whom: the leader of that partition.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache, partial
from typing import Any

from ottla.clock import Clock
from ottla.coordinator.all_groups import AllGroups
from ottla.coordinator.consumer_state import Surroundings
from ottla.coordinator.effects import Effects, Reply
from ottla.coordinator.group import Group, GroupSettings
from ottla.coordinator.journal import Rebalance
from ottla.coordinator.member_memory import Account, MemberMemory
from ottla.coordinator.runtime import InThread, Runtime, Shard
from ottla.log_lines import ClientLog
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.leave_group import MemberIdentity
from ottla.replication.partition import Partition
from ottla.replication.purgatory import Purgatory
from ottla.scheduler import Scheduler

logger = logging.getLogger("ottla.groups")

OFFSETS_TOPIC = "__consumer_offsets"
_RECORDS_AT_A_TIME = 1000
"""Of what the coordinator removes by itself: a batch has a size limit, and others want their turn."""

Command = Callable[[AllGroups, Reply, Effects], None]


class GroupCoordinator:
    def __init__(
        self,
        settings: GroupSettings,
        *,
        surroundings: Surroundings,
        topic_id: Callable[[str], bytes | None],
        clock: Clock,
        scheduler: Scheduler,
        purgatory: Purgatory,
        in_thread: InThread,
        commit_timeout_ms: Callable[[], int],
        codec: int = 0,
        account: Account | None = None,
    ) -> None:
        self.settings = settings
        self._scheduler = scheduler
        self._topic_id = topic_id
        client_log = ClientLog(clock.monotonic, scheduler.call_later)  # shared by all shards
        self._runtime: Runtime[AllGroups] = Runtime(
            OFFSETS_TOPIC,
            lambda: AllGroups(
                settings,
                surroundings,
                client_log,
                MemberMemory(account, self._evict) if account is not None else None,
            ),
            clock=clock,
            scheduler=scheduler,
            purgatory=purgatory,
            in_thread=in_thread,
            commit_timeout_ms=commit_timeout_ms,
            codec=codec,
            on_loaded=self._loaded,
        )

    # -- asking -------------------------------------------------------------------------------------------

    def run(self, group_id: str, command: Command, reply: Reply) -> None:
        """Run a command where the group lives; `reply` gets the response or an ApiError, now or later."""
        try:
            shard = self._shard(group_id)
        except ApiError as error:
            reply(error)
            return
        shard.run(command, reply)

    def partition_for(self, group_id: str) -> int:
        """The partition that keeps the group; the topic exists."""
        return partition_of(group_id, self._runtime.partitions)

    def groups(self) -> list[Group]:
        """All groups that are coordinated here. COORDINATOR_LOAD_IN_PROGRESS while some are not known yet."""
        if self._runtime.is_loading:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return self.known_groups()

    def known_groups(self) -> list[Group]:
        """All groups of the shards that are loaded."""
        return [group for shard in self._runtime.loaded_shards() for group in shard.state]

    def group(self, group_id: str) -> Group | None:
        """The group as it is now; ApiError when it is not coordinated here."""
        return self._shard(group_id).state.get(group_id)

    def offset_count(self, group_id: str) -> int:
        """How many offsets the group has; ApiError when it is not coordinated here."""
        return self._shard(group_id).state.offsets.count(group_id)

    def rebalances(self, group_id: str) -> list[Rebalance]:
        """The journal of a group, the last rebalance first; ApiError when it is not coordinated here."""
        return self._shard(group_id).state.journal.of(group_id)

    def _shard(self, group_id: str) -> Shard[AllGroups]:
        return self._runtime.shard(partition_of(group_id, max(self._runtime.partitions, 1)))

    # -- members and memory -------------------------------------------------------------------------------

    def abandoned(self, group_id: str, member_id: str) -> None:
        """The client of a member has gone while it waited for an answer."""
        try:
            memory = self._shard(group_id).state.memory
        except ApiError:
            return  # there is no such member any more
        if memory is not None:
            memory.abandoned(group_id, member_id)

    def _evict(self, group_id: str, member_id: str) -> None:
        """Remove a member, not now: this may be called in the middle of another command."""
        self._scheduler.call_soon(self._remove_member, group_id, member_id)

    def _remove_member(self, group_id: str, member_id: str) -> None:
        def command(groups: AllGroups, reply: Reply, effects: Effects) -> None:
            reason = "evicted to make room in memory"
            groups.leave(group_id, [MemberIdentity(member_id=member_id, reason=reason)], effects)
            effects.answer(reply, None)

        def done(answer: Any) -> None:
            if isinstance(answer, ApiError):
                logger.warning("%r cannot remove an idle member: %s", shard, answer)

        try:
            shard = self._shard(group_id)
        except ApiError:
            return  # the groups of this shard are gone, and their memory is released
        shard.run(command, done)
        if shard.state.memory is not None:
            shard.state.memory.not_evicted(group_id, member_id)

    # -- life ---------------------------------------------------------------------------------------------

    def follow(self, partitions: int, led: Iterable[Partition]) -> None:
        self._runtime.follow(partitions, led)

    async def loading_done(self) -> None:
        await self._runtime.loading_done()

    async def stop(self) -> None:
        await self._runtime.stop()

    # -- what it does by itself ---------------------------------------------------------------------------

    def expire_offsets(self) -> None:
        """Forget what has been of no use for the retention time."""
        for shard in self._runtime.loaded_shards():
            for group in shard.state:
                self._by_itself(shard, partial(_expire, group))

    def forget_topics(self, topics: Collection[str]) -> None:
        """These topics are gone."""
        for shard in self._runtime.loaded_shards():
            while self._by_itself(
                shard, lambda groups, effects: groups.forget_topics(topics, effects, _RECORDS_AT_A_TIME)
            ):
                continue

    def _loaded(self, shard: Shard[AllGroups]) -> None:
        """Topics may have been deleted while nobody coordinated this shard."""
        while self._by_itself(
            shard, lambda groups, effects: groups.forget_stale(self._topic_id, effects, _RECORDS_AT_A_TIME)
        ):
            continue

    def _by_itself(self, shard: Shard[AllGroups], command: Callable[[AllGroups, Effects], None]) -> bool:
        """Run a command that nobody waits for; True when there may be more to do."""
        written = 0

        def limited(groups: AllGroups, reply: Reply, effects: Effects) -> None:
            nonlocal written
            command(groups, effects)
            effects.records[:] = itertools.islice(effects.records, _RECORDS_AT_A_TIME)
            written = len(effects.records)
            effects.answer(reply, None)

        def done(answer: Any) -> None:
            nonlocal written
            if isinstance(answer, ApiError):
                logger.warning("%r cannot remove offsets: %s; trying again later", shard, answer)
                written = 0

        shard.run(limited, done)
        return written == _RECORDS_AT_A_TIME


def _expire(group: Group, groups: AllGroups, effects: Effects) -> None:
    groups.expire(group, effects)


def partition_of(group_id: str, partitions: int) -> int:
    """Java's hash of the id, made positive as Kafka does it, over the partitions."""
    value = _hash_of_short(group_id) if len(group_id) <= _SHORT_ID else java_hash(group_id)
    if value >= 1 << 31:
        value = (1 << 32) - value
    return 0 if value == 1 << 31 else value % partitions


def java_hash(text: str) -> int:
    """Java's String.hashCode, as an unsigned number.

    It is a polynomial in 31, modulo 2^32, whose coefficients are the UTF-16 units. Ids can have 32,767
    characters, and a loop over them would take milliseconds. So all units are put into one large number, 64
    bits for each, and its upper half is multiplied and added to the lower one until one unit is left.
    """
    utf16 = text.encode("utf-16-be", "surrogatepass")
    units = len(utf16) // 2
    width = 1 << max(units - 1, 0).bit_length()
    spread = bytearray(8 * width)  # zeros in front change nothing
    first = 8 * (width - units)
    spread[first + 6 :: 8] = utf16[::2]
    spread[first + 7 :: 8] = utf16[1::2]
    value = int.from_bytes(spread, "big")
    while width > 1:
        width //= 2
        bits = 64 * width
        upper, lower = value >> bits, value & ((1 << bits) - 1)
        value = (upper * pow(31, width, 1 << 32) + lower) & int.from_bytes(_LOWER_32_OF_64 * width, "big")
    return value


_LOWER_32_OF_64 = bytes(4) + b"\xff" * 4
_SHORT_ID = 250
"""Ids of up to so many characters are remembered with their hash, so that the cache stays small."""
_hash_of_short = lru_cache(maxsize=1_000)(java_hash)
