"""The replicas that a broker hosts: their logs in its data folder, and the work that goes on around them.

Logs are opened at the start, which recovers what a crash left, and closed at the end so that the next start
has nothing to recover. In between the replicas follow the cluster image and the leaders that it names, those
that lead report who is in sync, retention and compaction free space, and a disk that is full or fails is
reported. Work that blocks on the disk runs in threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from ottla.broker.cleaning import Cleaning
from ottla.broker.disk_reports import DiskReports
from ottla.broker.image_follower import ImageChange
from ottla.broker.isr_changes import IsrChanges
from ottla.broker.local_partitions import LocalPartitions
from ottla.broker.log_starts import LogStarts
from ottla.broker.maintenance import Maintenance
from ottla.broker.membership import Membership
from ottla.broker.ports import ChannelAccess, Configuration, ImageAccess, Time, WaitingForOffsets
from ottla.broker.replica_fetching import PeerLeader, ReplicaFetching
from ottla.broker.space import Space
from ottla.cluster.image import TOPIC_CONFIG, ClusterImage
from ottla.cluster.topic_rules import INTERNAL_TOPICS
from ottla.config.values import TopicConfig, topic_config
from ottla.metrics import SharedHistogram
from ottla.replication.partition import Partition
from ottla.replication.replicas import Replicas
from ottla.storage.files import Disk
from ottla.storage.log_config import LogConfig
from ottla.storage.log_directory import LogDirectory

logger = logging.getLogger("ottla.broker")

T = TypeVar("T")


class ReplicaHost(ChannelAccess, Configuration, ImageAccess, Time, WaitingForOffsets, Protocol):
    """What replicas use of their broker."""


class HostedReplicas:
    def __init__(
        self,
        node_id: int,
        broker: ReplicaHost,
        disk: Disk,
        *,
        membership: Callable[[], Membership],
        flush_seconds: SharedHistogram,
        is_fenced: Callable[[], bool],
    ) -> None:
        """`membership` is asked for when the broker joins its cluster."""
        self._node_id = node_id
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="ottla-disk")
        self._writers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="ottla-slow-write")
        path = Path(broker.config.log_dir)
        # What topics say is known only when the cluster has been joined. Until then this must be right.
        at_start = LogConfig(
            producer_id_max_per_partition=broker.config["producer.id.max.per.partition"],
            index_interval_bytes=broker.config["log.index.interval.bytes"],
        )
        self.directory = LogDirectory(
            path,
            disk,
            broker.clock,
            config_for=lambda _: at_start,
            flush_seconds=flush_seconds,
            on_trouble=lambda log: self.disk_reports.trouble(log),
        )
        self.log_starts = LogStarts(self.directory.checkpoint_log_starts, self.in_thread)
        self.replicas = Replicas(
            node_id,
            self.directory,
            broker.purgatory,
            self.in_thread,
            self._write_in_thread,
            is_fenced=is_fenced,
            may_be_deposed=lambda: membership().may_be_deposed(),
        )
        self.isr_changes = IsrChanges(
            node_id,
            self.replicas,
            lambda: broker.image,
            lambda: broker.config["replica.lag.time.max.ms"],
            lambda request: broker.channel.alter_partitions(request),
            broker.clock,
        )
        self.space = Space(
            path,
            broker.clock,
            self.directory.space,
            lambda: broker.config["log.dir.min.free.bytes"],
            lambda: self.maintenance.free_space(),
        )
        self.disk_reports = DiskReports(
            node_id,
            self.replicas,
            self.space,
            lambda: broker.image,
            lambda report: broker.channel.report_disk(report),
            broker.clock,
        )
        self.space.changed = self.disk_reports.look
        self.maintenance = Maintenance(
            lambda: broker.config, broker.clock, self.replicas, self.directory, self.space, self.in_thread
        )
        self.cleaning = Cleaning(
            lambda: broker.config,
            self.directory,
            disk,
            broker.clock,
            self.replicas,
            self.space.free_above_mark,
        )
        self.partitions = LocalPartitions(self.replicas, self.cleaning, self._topic_config, self.in_thread)
        self.fetching = ReplicaFetching(
            node_id,
            self.replicas,
            lambda leader: PeerLeader(membership().peers, leader),
            self._broker_epoch,
            lambda: broker.config,
            self._admit_replicated,
        )

    # -- life ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the logs; what was remarkable about one of them is logged."""
        for report in await self.in_thread(partial(self.directory.open, note_boot=False)):
            if report.is_remarkable:
                logger.log(logging.ERROR if report.failure else logging.INFO, "%s", report)

    def start(self) -> None:
        """Begin what goes on by itself, when the broker has joined its cluster."""
        self.isr_changes.start()
        self.disk_reports.start()
        self.maintenance.start()
        self.cleaning.start()

    async def stop(self) -> None:
        """End what goes on by itself, but for fetching from leaders."""
        await self.isr_changes.stop()
        await self.disk_reports.stop()
        await self.maintenance.stop()
        await self.cleaning.stop()

    async def close(self) -> bool:
        """Close all logs; False when writes hang, so that the next start has to recover logs."""
        hanging = await self.replicas.end_writes()
        if hanging:
            # Their logs have no clean end, and closing them would wait for the same disk.
            self.directory.abandon(hanging)
        else:
            marks = {(p.topic, p.index): p.high_watermark for p in self.replicas}
            await self.in_thread(partial(self.directory.close, marks))
        self._threads.shutdown(wait=not hanging)
        self._writers.shutdown(wait=not hanging)
        return not hanging

    def abandon(self) -> None:
        """Leave the files as they are, as a crash would; but a write that a crash would cut is finished."""
        self._writers.shutdown(cancel_futures=True)
        self.directory.abandon()
        self._threads.shutdown()

    def in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run blocking disk work beside the loop."""
        return self._loop.run_in_executor(self._threads, work)

    def _write_in_thread(self, write: Callable[[], None]) -> asyncio.Future[None]:
        """Write to a slow disk beside the loop, in threads of their own: they may all be busy for long."""
        return self._loop.run_in_executor(self._writers, write)

    # -- following the cluster image ----------------------------------------------------------------------

    async def brokers_changed(self, change: ImageChange) -> None:
        if change.delta.brokers:
            self.isr_changes.brokers_changed()

    async def make_missing(self, image: ClusterImage) -> None:
        """Try again to make logs that could not be made."""
        await self.partitions.make_missing(image)
        await self.fetching.place_missing(image)

    def wake_all(self) -> None:
        """Whether this broker is fenced has changed: what waits here for a leader is looked at again."""
        for partition in self.replicas:
            partition.wake_all()

    def _topic_config(self, image: ClusterImage, topic: str) -> TopicConfig:
        return topic_config(self._broker.config, image.config(TOPIC_CONFIG, topic))

    def _broker_epoch(self) -> int:
        """Of this broker's registration, as the image has it; -1 when it does not."""
        node = self._broker.image.brokers.get(self._node_id)
        return -1 if node is None else node.epoch

    def _admit_replicated(self, partition: Partition, size: int) -> None:
        """Followers leave the last of the space to what groups and deletions need, as producers have to."""
        if partition.topic not in INTERNAL_TOPICS:
            self.space.admit(size)
