"""The broker: connects the packages to a socket and a disk, and has a beginning and an end.

Start: open the logs (recovering what a crash left), register in the cluster's registry, stand for election as
controller, take over the cluster image from the controller, then let clients in. From then on the broker
follows the image: new topics get logs, deleted ones lose them, changed settings take effect. Stop: no new
requests, answer those under way, close the logs cleanly so that the next start has nothing to recover.

Everything from outside is handed in: configuration, clock, randomness, disk.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

from ottla.broker.backlog import Backlog
from ottla.broker.broker_metrics import BrokerMetrics
from ottla.broker.cleaning import Cleaning
from ottla.broker.client_memory import ClientMemory
from ottla.broker.creation_rate import CreationRate
from ottla.broker.data_folder import check_belongs_here, claim
from ottla.broker.disk_reports import DiskReports
from ottla.broker.dispatch import Dispatcher, RequestContext
from ottla.broker.fencing import Fencing
from ottla.broker.fetch_sessions import FetchSessions
from ottla.broker.group_environment import BrokerGroupEnvironment
from ottla.broker.group_projector import GroupProjector
from ottla.broker.handlers import BROKER_HANDLERS, HANDLERS, advertised_by
from ottla.broker.image_follower import ImageChange, ImageFollower
from ottla.broker.inspections import Inspections
from ottla.broker.isr_changes import IsrChanges
from ottla.broker.limits import (
    client_memory_limits,
    group_settings,
    inspection_memory,
    limits_of,
    topic_defaults,
)
from ottla.broker.local_partitions import LocalPartitions
from ottla.broker.log_starts import LogStarts
from ottla.broker.lookups import Lookups
from ottla.broker.maintenance import Maintenance
from ottla.broker.marker_writing import write_markers
from ottla.broker.membership import Membership
from ottla.broker.page_cache import Done
from ottla.broker.replica_fetching import PeerLeader, ReplicaFetching
from ottla.broker.request_scheduler import RequestScheduler, Steps
from ottla.broker.server import Server
from ottla.broker.sockets import Sockets, SystemSockets
from ottla.broker.space import Space
from ottla.broker.suspension import Suspension, max_gap
from ottla.broker.transaction_markers import TransactionMarkers
from ottla.broker.transaction_verification import VERIFICATION, TransactionVerification, coordinator_of
from ottla.broker.transactions import transaction_coordinator
from ottla.broker.watchdog import Watchdog
from ottla.clock import Clock, SystemClock
from ottla.cluster.image import (
    BROKER_CONFIG,
    FEATURES,
    NO_LEADER,
    TOPIC_CONFIG,
    BrokerNode,
    ClusterImage,
    Endpoint,
)
from ottla.cluster.registry import Registry, RegistryError
from ottla.cluster.registry_backends import registry_at
from ottla.cluster.topic_ids import id_text
from ottla.cluster.topic_rules import INTERNAL_TOPICS
from ottla.config.values import BrokerConfig, TopicConfig, topic_config
from ottla.coordinator.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from ottla.coordinator.transactions.coordinator import TRANSACTION_TOPIC
from ottla.log_lines import ClientLog
from ottla.peer.client import Connector
from ottla.peer.tcp import TcpConnector
from ottla.protocol.errors import ApiError
from ottla.replication.partition import Partition
from ottla.replication.purgatory import Purgatory
from ottla.replication.replicas import Replicas
from ottla.storage.files import Disk, RealDisk
from ottla.storage.log_config import LogConfig
from ottla.storage.log_directory import LogDirectory
from ottla.storage.results import NotInMemory

logger = logging.getLogger("ottla.broker")

_HAND_OVER_SECONDS = 10.0
"""So long a broker waits at its end until others lead its partitions."""
T = TypeVar("T")


class Broker:
    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        disk: Disk | None = None,
        sockets: Sockets | None = None,
        registry: Callable[[], Registry] | None = None,
        connector: Connector | None = None,
    ) -> None:
        """`registry` makes a session with the registry, in place of the one that the configuration names."""
        self._static_config = config
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.rng = rng or random.SystemRandom()
        self.disk: Disk = disk or RealDisk()
        self._sockets: Sockets = sockets or SystemSockets()
        self._make_registry = registry or self._configured_registry
        # Its registry is a file in its own folder: no other broker can take over from it.
        self._is_lone = registry is None and config.is_default("ottla.registry")
        self._connector: Connector = connector or TcpConnector()
        self.node_id: int = config["node.id"]
        self._advertise(ClusterImage())
        self.fetch_max_bytes: int = config["fetch.max.bytes"]
        self.endpoints: tuple[Endpoint, ...] = ()
        """Where it is found, by listener; the first one is for clients, the last one for other brokers."""
        self.follower = ImageFollower([], [])
        self._all_stop = False

    @property
    def bootstrap_servers(self) -> str:
        _, host, port = self.endpoints[0]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def client_log(self) -> ClientLog:
        """Where lines about clients go; it leaves some out when one client causes many."""
        return self._server.client_log

    # -- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Ready for clients when this returns. Whatever fails leaves nothing open behind."""
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="ottla-disk")
        self._writers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="ottla-slow-write")
        self.purgatory = Purgatory(self._loop)
        self.client_memory = ClientMemory(
            *client_memory_limits(self.config), self._loop.time, lambda: self.client_log
        )
        self.fetch_sessions = FetchSessions(
            self.config["max.incremental.fetch.session.cache.slots"],
            self.rng.randint,
            memory=self.client_memory,
        )
        self.watchdog = Watchdog(self._loop, self._loop.time, lambda: self.client_log)
        self._scheduler = RequestScheduler(self._loop, self._loop.time, self.watchdog)
        self.metrics = BrokerMetrics()
        dispatcher = Dispatcher(
            self,
            HANDLERS,
            BROKER_HANDLERS,
            self._scheduler,
            self.watchdog,
            self.metrics,
            lambda: self.client_log,
        )
        self._server = Server(dispatcher, limits_of(self.config), self._sockets, self.client_memory)
        self.creation_rate = CreationRate()
        self.inspections = Inspections(Backlog(inspection_memory(self.config)), self._loop.time)
        self.lookups = Lookups(self._loop.time)
        self._leaving = AsyncExitStack()
        path = Path(self.config.log_dir)
        # What topics say is known only when the cluster has been joined. Until then this must be right.
        at_start = LogConfig(
            producer_id_max_per_partition=self.config["producer.id.max.per.partition"],
            index_interval_bytes=self.config["log.index.interval.bytes"],
        )
        self.directory = LogDirectory(
            path,
            self.disk,
            self.clock,
            config_for=lambda _: at_start,
            flush_seconds=self.metrics.flush_seconds,
            on_trouble=lambda log: self._disk_reports.trouble(log),
        )
        self.log_starts = LogStarts(self.directory.checkpoint_log_starts, self.in_thread)
        self._fencing = Fencing(
            lambda: self._membership.is_fenced(), self.clock.monotonic, self._fencing_changed
        )
        self.replicas = Replicas(
            self.node_id,
            self.directory,
            self.purgatory,
            self.in_thread,
            self._write_in_thread,
            is_fenced=self._fencing.is_fenced,
            may_be_deposed=lambda: self._membership.may_be_deposed(),
        )
        self.isr_changes = IsrChanges(
            self.node_id,
            self.replicas,
            lambda: self.image,
            lambda: self.config["replica.lag.time.max.ms"],
            lambda request: self.channel.alter_partitions(request),
            self.clock,
        )
        self.metrics.add_gauges(self._server, self.watchdog.counts, self.purgatory, self.replicas)
        self.space = Space(
            path,
            self.clock,
            self.directory.space,
            lambda: self.config["log.dir.min.free.bytes"],
            lambda: self._maintenance.free_space(),
        )
        self._disk_reports = DiskReports(
            self.node_id,
            self.replicas,
            self.space,
            lambda: self.image,
            lambda report: self.channel.report_disk(report),
            self.clock,
        )
        self.space.changed = self._disk_reports.look
        self._server.on_read_error = self._disk_reports.refused
        self._maintenance = Maintenance(
            lambda: self.config, self.clock, self.replicas, self.directory, self.space, self.in_thread
        )
        self._maintenance.add("making missing logs", lambda: 5.0, self._make_missing_logs)
        self._maintenance.add(
            "forgetting offsets",
            self._maintenance.seconds("offsets.retention.check.interval.ms"),
            self._expire_offsets,
        )
        self.cleaning = Cleaning(
            lambda: self.config,
            self.directory,
            self.disk,
            self.clock,
            self.replicas,
            self.space.free_above_mark,
        )
        self.group_environment = BrokerGroupEnvironment(
            clock=self.clock,
            image=lambda: self.image,
            config=lambda: self.config,
            count_members=lambda: self.groups.consumer_member_count(),
        )
        session_seconds = self.config["broker.session.timeout.ms"] / 1000
        self._suspension = Suspension(
            self._loop.time, float("inf") if self._is_lone else max_gap(session_seconds)
        )
        self.groups = GroupCoordinator(
            group_settings(self.config),
            environment=self.group_environment,
            topic_id=lambda name: topic.id if (topic := self.image.topics.get(name)) else None,
            clock=self.clock,
            scheduler=self._scheduler,
            purgatory=self.purgatory,
            in_thread=self.in_thread,
            commit_timeout_ms=lambda: self.config["offsets.commit.timeout.ms"],
            compression=self.config["offsets.topic.compression.codec"],
            account=self.client_memory,
            rebalance_seconds=self.metrics.rebalance_seconds,
            may_be_replaced=self._may_be_replaced,
        )
        self._markers = TransactionMarkers(
            self.node_id,
            lambda: self.image,
            lambda: self._membership.peers,
            partial(write_markers, self),
            lambda: self._membership.has_newest_image(),
        )
        self.transactions = transaction_coordinator(
            self,
            self._markers,
            self._maintenance,
            scheduler=self._scheduler,
            in_thread=self.in_thread,
            may_be_replaced=self._may_be_replaced,
        )
        self._projector = GroupProjector(
            self.node_id,
            self.groups,
            lambda: self._membership.registry,
            self.topic_name,
            lambda: id_text(topic.id) if (topic := self.image.topics.get(OFFSETS_TOPIC)) else "",
        )
        self.verification = TransactionVerification(
            self.node_id,
            lambda transactional_id: coordinator_of(self.image, transactional_id),
            self.transactions,
            lambda broker_id: self._membership.peers.client(broker_id, VERIFICATION),
            self.clock.monotonic,
            lambda: self.config["transaction.partition.verification.enable"],
        )
        self._partitions = LocalPartitions(self.replicas, self.cleaning, self._topic_config, self.in_thread)
        self.fetching = ReplicaFetching(
            self.node_id,
            self.replicas,
            lambda leader: PeerLeader(self._membership.peers, leader),
            self._broker_epoch,
            lambda: self.config,
            self._admit_replicated,
        )
        self.follower = ImageFollower(
            [self._partitions.drop_deleted, self._take_settings, self._partitions.adopt_changed],
            [
                self._tell_peers,
                self.fetching.follow,
                self._tell_coordinators,
                self._tell_isr_changes,
                self._disk_reports.follow,
            ],
        )
        try:
            await self._start()
        except BaseException:
            await self.kill()
            raise

    async def _start(self) -> None:
        self._listen()
        for report in await self.in_thread(partial(self.directory.open, note_boot=False)):
            if report.is_remarkable:
                logger.log(logging.ERROR if report.failure else logging.INFO, "%s", report)
        await self._join_cluster()
        self.follower.start(self._membership)
        self._suspension.start(self._membership.has_newest_image)
        self._fencing.start()
        self.isr_changes.start()
        self._disk_reports.start()
        self._maintenance.start()
        self._projector.configure(is_wanted=self.config["group.registry.projection"])
        self.cleaning.start()
        self._server.serve()
        self.watchdog.start()
        logger.info(
            "broker %d of cluster %s serves %d partitions on %s",
            self.node_id,
            self.image.cluster_id,
            len(self.replicas),
            self.bootstrap_servers,
        )

    def _listen(self) -> None:
        """Bind all listeners, so that a start which cannot have its addresses fails before all else."""
        listeners, backlog = self.config.listeners, self.config["socket.listen.backlog.size"]
        endpoints = []
        for listener in listeners.all:
            bound = self._server.listen(
                *listener, backlog, for_brokers=listener.name == listeners.inter_broker.name
            )
            endpoints.append(Endpoint(listener.name, *self.config.advertised(listener, *bound)))
        self.endpoints = tuple(endpoints)

    def _configured_registry(self) -> Registry:
        return registry_at(self.config.registry, self.clock)

    async def _join_cluster(self) -> None:
        """Register, stand for election as controller, and take over the image that shows this broker."""
        _, host, port = self.endpoints[0]
        self._membership = member = Membership(
            BrokerNode(self.node_id, host, port, rack=self.config["broker.rack"], endpoints=self.endpoints),
            self._make_registry(),
            lambda: self.config,
            self.follower,
            connector=self._connector,
            clock=self.clock,
            rng=self.rng,
        )
        self.controller, self.channel, self.image_polls = (
            member.controller,
            member.channel,
            member.image_polls,
        )
        self.metrics.gauge("unclean_elections", lambda: member.controller.unclean_elections)
        self._leaving.push_async_callback(member.leave)
        await member.join(partial(check_belongs_here, self.directory, self.node_id))
        self._server.serve(self.config.listeners.inter_broker.name)  # brokers ask the controller first of all
        if member.waits_for_itself:
            logger.info("broker %d waits until the registry has ended an earlier session", self.node_id)
        while not member.is_shown(self.image):
            await self.follower.take_next(member)
        member.registration.accepted()
        await self.in_thread(partial(claim, self.directory, self.image.cluster_id, self.node_id))

    async def stop_electing(self) -> None:
        """All brokers are about to stop: none takes over from another, so that each leads what it led."""
        self._all_stop = True
        await self._membership.controller.stop()

    async def stop(self) -> None:
        """Answer what is under way, then close everything cleanly."""
        if not self._all_stop:
            await self._hand_over_leaderships()
        self.watchdog.stop()
        self._server.stop_reading()
        self._scheduler.finish()
        await self._suspension.stop()
        await self._fencing.stop()
        await self.isr_changes.stop()
        await self._disk_reports.stop()
        await self._maintenance.stop()
        await self.cleaning.stop()
        await self._projector.stop()
        await self.verification.stop()
        await self._markers.stop()
        await self.transactions.stop()
        await self.groups.stop()
        self.purgatory.expire_all()
        self._membership.end_waiting()
        self.lookups.close()
        await self._server.drain()
        await self.fetching.stop()
        await self._leave_cluster()
        self.inspections.close()
        if hanging := await self.replicas.end_writes():
            # Their logs have no clean end, and closing them would wait for the same disk.
            self.directory.abandon(hanging)
            self._threads.shutdown(wait=False)
            self._writers.shutdown(wait=False)
            logger.error("broker %d stopped while writes hang; its next start recovers logs", self.node_id)
            return
        marks = {(p.topic, p.index): p.high_watermark for p in self.replicas}
        await self.in_thread(partial(self.directory.close, marks))
        self._threads.shutdown()
        self._writers.shutdown()
        logger.info("broker %d stopped cleanly", self.node_id)

    async def _hand_over_leaderships(self) -> None:
        """Controlled shutdown: other brokers lead before this one stops, so that clients hardly notice."""
        if not self.config["controlled.shutdown.enable"] or len(self.image.brokers) < 2:
            return
        try:
            async with asyncio.timeout(_HAND_OVER_SECONDS):
                left = (await self.channel.begin_shutdown()).remaining
        except (ApiError, TimeoutError) as error:
            logger.warning("broker %d stops without a controlled shutdown: %s", self.node_id, error)
        else:
            if left:
                logger.info("broker %d stops; %d partitions have no other leader", self.node_id, left)

    async def kill(self) -> None:
        """Let go of everything without a clean end, as a crash would: files stay as they are."""
        self.watchdog.stop()
        self._server.abort()
        self._scheduler.clear()
        self.inspections.close()
        self.lookups.close()
        await self._suspension.stop()
        await self._fencing.stop()
        await self.isr_changes.stop()
        await self._disk_reports.stop()
        await self._maintenance.stop()
        await self.cleaning.stop()
        await self._projector.stop()
        await self.verification.stop()
        await self._markers.stop()
        await self.transactions.stop()
        await self.groups.stop()
        await self.fetching.stop()
        await self._leave_cluster()
        self._writers.shutdown(
            cancel_futures=True
        )  # a crash would end a write in the middle; here it ends first
        self.directory.abandon()
        self._threads.shutdown()

    async def _leave_cluster(self) -> None:
        await self.follower.stop()
        try:
            await self._leaving.aclose()
        except RegistryError as error:
            # The others notice by themselves that the session is over; the logs must be closed all the same.
            logger.error("left the cluster without saying so: %s", error)

    def in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run blocking disk work beside the loop."""
        return self._loop.run_in_executor(self._threads, work)

    def _write_in_thread(self, write: Callable[[], None]) -> asyncio.Future[None]:
        """Write to a slow disk beside the loop, in threads of their own: they may all be busy for long."""
        return self._loop.run_in_executor(self._writers, write)

    async def in_slices(self, steps: Steps[T], context: RequestContext) -> T:
        """Do long work between other requests, for a coroutine that answers `context`."""
        return await self._scheduler.in_slices(steps, context)

    # -- following the cluster image ----------------------------------------------------------------------

    @property
    def image(self) -> ClusterImage:
        return self.follower.image

    @property
    def fenced_leader(self) -> int:
        return self.node_id if self._fencing.is_fenced() else NO_LEADER

    async def caught_up(self, version: int) -> None:
        """Return when the image of `version` counts here, so that clients see its effect."""
        await self.follower.caught_up(version)

    def topic_name(self, topic_id: bytes) -> str | None:
        return self.follower.topic_name(topic_id)

    async def _tell_coordinators(self, change: ImageChange) -> None:
        self._follow_coordinators(change.image)
        if change.deleted_topics:
            await self.groups.forget_topics(change.deleted_topics)

    async def _tell_peers(self, change: ImageChange) -> None:
        await self._membership.peers.follow(change.image.brokers)

    async def _tell_isr_changes(self, change: ImageChange) -> None:
        if change.delta.brokers:
            self.isr_changes.brokers_changed()

    def _fencing_changed(self) -> None:
        """What waits here for a leader is answered, and groups end: or begin again, when the fencing ends."""
        for partition in self.replicas:
            partition.wake_all()
        self._follow_coordinators(self.image)

    def _broker_epoch(self) -> int:
        """Of this broker's registration, as the image has it; -1 when it does not."""
        node = self.image.brokers.get(self.node_id)
        return -1 if node is None else node.epoch

    def _follow_coordinators(self, image: ClusterImage) -> None:
        """Tell the coordinators which partitions of their topics are led here."""
        for name, coordinator in ((OFFSETS_TOPIC, self.groups), (TRANSACTION_TOPIC, self.transactions)):
            topic = image.topics.get(name)
            coordinator.follow(len(topic.partitions) if topic else 0, self.replicas.led(name))

    def _may_be_replaced(self) -> bool:
        """Whether others may lead what this broker believes to lead."""
        return self._suspension.is_suspected or self._fencing.is_fenced()

    async def _take_settings(self, change: ImageChange) -> None:
        if any(kind == FEATURES for kind, _ in change.delta.configs):
            self._advertise(change.image)
        if any(kind == BROKER_CONFIG for kind, _ in change.delta.configs):
            self._configure(change.image)

    def _advertise(self, image: ClusterImage) -> None:
        """Clients are told which features the cluster has switched on."""
        self.advertised = advertised_by(HANDLERS, image)
        self.advertised_to_brokers = advertised_by(HANDLERS | BROKER_HANDLERS, image)

    def _configure(self, image: ClusterImage) -> None:
        """Settings of all brokers or of this one were changed at run time, now or before this start."""
        layers = image.config(BROKER_CONFIG, ""), image.config(BROKER_CONFIG, str(self.node_id))
        if not self.image.version:
            self._static_config = self._static_config.over_stored(*layers)
        self.config = self._static_config.with_dynamic(*layers)
        self._server.limits = limits_of(self.config)
        self.client_memory.limit, self.client_memory.per_address = client_memory_limits(self.config)
        self.controller.defaults = topic_defaults(self.config)
        self.cleaning.configure()
        if self.image.version:
            self._projector.configure(is_wanted=self.config["group.registry.projection"])
        self.fetch_max_bytes = self.config["fetch.max.bytes"]
        self.fetch_sessions.limit = self.config["max.incremental.fetch.session.cache.slots"]

    def _topic_config(self, image: ClusterImage, topic: str) -> TopicConfig:
        return topic_config(self.config, image.config(TOPIC_CONFIG, topic))

    def read_ahead(self, missing: NotInMemory, done: Done) -> None:
        """Have a part of a file read into memory by a thread."""
        self._server.read_ahead(missing.file, missing.position, missing.length, done)

    async def _expire_offsets(self) -> None:
        await self.groups.expire_offsets()

    async def _make_missing_logs(self) -> None:
        async with self.follower.changing:  # a topic may not be deleted while its log is being made
            await self._partitions.make_missing(self.image)
            await self.fetching.place_missing(self.image)
            self._follow_coordinators(self.image)
            self._disk_reports.look()

    def _admit_replicated(self, partition: Partition, size: int) -> None:
        """Followers leave the last of the space to what groups and deletions need, as producers have to."""
        if partition.topic not in INTERNAL_TOPICS:
            self.space.admit(size)
