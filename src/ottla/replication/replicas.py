"""All partitions that live on this broker, found by name or by topic id.

The cluster image says which replicas belong here; `prepare`, `adopt` and `drop` make it so: new ones get a
log, assignments reach their replicas, and what is no longer here goes. A caller that wants a partition gets
it here, or the error that the protocol has for the reason why not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.schema import ZERO_UUID
from ottla.replication.partition import IsFenced, Partition, RunInThread, WriteInThread, never
from ottla.replication.purgatory import Purgatory
from ottla.replication.replica_state import Assignment, ReplicaState
from ottla.replication.slow_disk import SlowDisk
from ottla.storage.checkpoints import differs_by_damage
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_directory import LogDirectory

logger = logging.getLogger("ottla.replicas")


class TopicAssignment(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def id(self) -> bytes: ...
    @property
    def partitions(self) -> tuple[Assignment, ...]: ...


_HANGING_WRITE_SECONDS = 5.0
"""So long a partition that goes waits for a write to it. One that hangs may not keep others from theirs."""


async def _end_writes(partitions: Iterable[Partition], seconds: float) -> list[Partition]:
    """Begin no further write to these logs, and return when those that threads are doing have ended.

    After so many seconds they are not waited for any longer; those partitions are returned.
    """
    loop = asyncio.get_running_loop()
    ends = {loop.create_task(p.writes_ended()): p for p in partitions if p.close()}
    if not ends:
        return []
    _, hanging = await asyncio.wait(ends, timeout=seconds)
    for end in hanging:
        end.cancel()
        partition = ends[end]
        logger.error(
            "%s-%d is taken out although a write to it hangs; is the disk in order?",
            partition.topic,
            partition.index,
        )
    return [ends[end] for end in hanging]


ConfigOf = Callable[[str], Mapping[str, Any]]
"""From a topic's name to the values of its settings, under Kafka's names."""


class Replicas:
    def __init__(
        self,
        local_id: int,
        directory: LogDirectory,
        purgatory: Purgatory,
        in_thread: RunInThread,
        write_in_thread: WriteInThread | None = None,
        *,
        is_fenced: IsFenced = never,
        may_be_deposed: IsFenced = never,
    ) -> None:
        """While `is_fenced` nothing is led here, whatever the cluster image says. `may_be_deposed`: the image
        may be old."""
        self._local_id = local_id
        self._directory = directory
        self._purgatory = purgatory
        self._in_thread = in_thread
        self._write_in_thread = write_in_thread
        self._is_fenced = is_fenced
        self._may_be_deposed = may_be_deposed
        self.disk = SlowDisk()
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._known: dict[str, TopicAssignment] = {}

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions)

    # -- look-ups -----------------------------------------------------------------------------------------

    def get(self, topic: str, index: int) -> Partition:
        """The replica held here, whichever broker leads it."""
        partition = self._partitions.get((topic, index))
        if partition is None:
            plan = self._known.get(topic)
            if plan is None or not 0 <= index < len(plan.partitions):
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if self._local_id in plan.partitions[index].replicas:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {topic}-{index} is not available")
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if partition.log.failure is not None:
            raise partition.log.failure
        return partition

    def held(self, topic: str, index: int) -> Partition | None:
        """The replica held here, if there is one."""
        return self._partitions.get((topic, index))

    def leader(self, topic: str, index: int, current_leader_epoch: int = -1) -> Partition:
        """The replica held here if this broker leads it in the epoch the client knows."""
        partition = self.get(topic, index)
        if current_leader_epoch >= 0:
            partition.check_epoch(current_leader_epoch)
        if not partition.state.is_leader or self._is_fenced():
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    def topic_id(self, topic: str) -> bytes | None:
        """The id of the topic whose partitions are found under this name; None when there is none."""
        plan = self._known.get(topic)
        return plan.id if plan is not None else None

    def led(self, topic: str) -> list[Partition]:
        """The partitions of a topic that this broker leads and has a sound log of."""
        if self._is_fenced():
            return []
        plan = self._known.get(topic)
        found = (self._partitions.get((topic, index)) for index in range(len(plan.partitions) if plan else 0))
        return [p for p in found if p is not None and p.state.is_leader and p.log.failure is None]

    # -- following the cluster image ----------------------------------------------------------------------

    def prepare(self, topics: Iterable[TopicAssignment], config_of: ConfigOf) -> None:
        """Make the logs that `topics` need here. Blocks on the disk, so it runs in a thread.

        What a crash left in a log without a flush that its topic asks for (`flush.messages`) is flushed now:
        no client may be told of it before.
        """
        for topic in topics:
            config = LogConfig.of(config_of(topic.name))
            for index, assignment in enumerate(topic.partitions):
                if self._local_id not in assignment.replicas:
                    continue
                try:
                    log = self._directory.create(topic.name, index, topic.id, config)
                    if (topic.name, index) not in self._partitions and log.flush_due():
                        log.flush()
                except OSError as error:
                    logger.error("%s-%d has no log: %s", topic.name, index, error)
                except ApiError as error:
                    logger.error("%s-%d: flush failed: %s", topic.name, index, error.message)

    def adopt(self, topics: Iterable[TopicAssignment], config_of: ConfigOf) -> None:
        """Take the topics as the image has them now; their logs have been prepared."""
        for topic in topics:
            self._known[topic.name] = topic
            values = config_of(topic.name)
            for index, assignment in enumerate(topic.partitions):
                if self._local_id in assignment.replicas:
                    self._assign(topic, index, assignment, values["min.insync.replicas"])
            self.configure(topic.name, values)

    async def drop(self, names: Iterable[str]) -> None:
        """These topics are gone: they are not found any more, their logs go, and waiting requests end."""
        gone = [
            (name, index)
            for name in names
            if (plan := self._known.pop(name, None)) is not None
            for index in range(len(plan.partitions))
        ]
        if gone:
            await self._remove(gone)

    def moved_away(self, topics: Iterable[TopicAssignment]) -> list[tuple[str, int]]:
        """Partitions that are here, and that these topics have on other brokers now."""
        return [
            (topic.name, index)
            for topic in topics
            for index, assignment in enumerate(topic.partitions)
            if self._local_id not in assignment.replicas and (topic.name, index) in self._partitions
        ]

    async def drop_moved(self, partitions: list[tuple[str, int]]) -> None:
        """These partitions have moved to other brokers: their logs go, and waiting requests end."""
        logger.info("%d replicas have moved to other brokers; their logs here are deleted", len(partitions))
        await self._remove(partitions)

    async def _remove(self, gone: list[tuple[str, int]]) -> None:
        """A write that hangs goes on in the file of a renamed folder, and its outcome is dropped."""
        partitions = [p for key in gone if (p := self._partitions.pop(key, None)) is not None]
        try:
            await _end_writes(partitions, _HANGING_WRITE_SECONDS)
            await self._in_thread(partial(self._delete, gone))
        finally:
            for partition in partitions:
                partition.wake_all()

    async def end_writes(self) -> list[tuple[str, int]]:
        """Let the writes that threads are doing end, and begin no other: the logs are about to be closed.

        The partitions to which a write hangs: their logs cannot be closed.
        """
        hanging = await _end_writes(self, _HANGING_WRITE_SECONDS)
        return [(partition.topic, partition.index) for partition in hanging]

    def set_strays_aside(self, topics: Mapping[str, TopicAssignment]) -> list[str]:
        """Take out logs that no topic of the image claims, and keep their folders for a while. Blocks."""
        strays = []
        for (name, index), log in list(self._directory.logs.items()):
            topic = topics.get(name)
            if (
                topic is None
                or index >= len(topic.partitions)
                or self._local_id not in topic.partitions[index].replicas
            ):
                strays.append((name, index))
                continue
            is_another = log.topic_id not in (topic.id, ZERO_UUID)
            if is_another and not differs_by_damage(log.topic_id, topic.id):
                strays.append((name, index))
        try:
            self._directory.set_aside(strays)
        except OSError as error:
            logger.error("the offsets of %d unknown partitions are still on disk: %s", len(strays), error)
        return [f"{name}-{index}" for name, index in strays]

    def _delete(self, partitions: list[tuple[str, int]]) -> int:
        try:
            self._directory.delete_all(partitions)
        except OSError as error:
            logger.error("the offsets of %d deleted partitions are still on disk: %s", len(partitions), error)
        return len(partitions)

    def missing(self) -> set[str]:
        """Topics with a partition that belongs here and has no log, because it could not be made."""
        return {
            topic.name
            for topic in self._known.values()
            for index, assignment in enumerate(topic.partitions)
            if self._local_id in assignment.replicas and (topic.name, index) not in self._partitions
        }

    def without_log(self) -> Iterator[tuple[bytes, int]]:
        """Replicas that belong here and have no sound log, by topic id and number."""
        for topic in self._known.values():
            for index, assignment in enumerate(topic.partitions):
                if self._local_id in assignment.replicas:
                    partition = self._partitions.get((topic.name, index))
                    if partition is None or partition.log.failure is not None:
                        yield topic.id, index

    def configure(self, topic: str, values: Mapping[str, Any]) -> None:
        """Let a topic's settings take effect at once."""
        config = LogConfig.of(values)
        for index in range(len(self._known[topic].partitions)):
            partition = self._partitions.get((topic, index))
            if partition is not None:
                partition.log.configure(config)
                partition.require_in_sync(values["min.insync.replicas"])

    def _assign(
        self, topic: TopicAssignment, index: int, assignment: Assignment, min_insync_replicas: int
    ) -> None:
        partition = self._partitions.get((topic.name, index))
        if partition is None:
            log = self._directory.logs.get((topic.name, index))
            if log is None:
                return
            partition = Partition(
                topic.name,
                index,
                topic.id,
                log,
                self._first_state(log, min_insync_replicas),
                self._purgatory,
                self._in_thread,
                write_in_thread=self._write_in_thread,
                disk=self.disk,
                is_fenced=self._is_fenced,
                may_be_deposed=self._may_be_deposed,
            )
            self._partitions[topic.name, index] = partition
        partition.require_in_sync(min_insync_replicas)
        partition.assign(assignment)

    def _first_state(self, log: Log, min_insync_replicas: int) -> ReplicaState:
        known = self._directory.high_watermarks.get((log.topic, log.partition), log.log_start_offset)
        mark, end = max(known, log.log_start_offset), log.end_offset
        if end - log.recovery_point >= log.config.flush_messages:
            # The flush failed (see `prepare`). The rest counts when a later one succeeds.
            end = max(log.recovery_point, min(mark, end))
        return ReplicaState(self._local_id, end, mark, min_isr=min_insync_replicas)
