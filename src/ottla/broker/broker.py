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
from contextlib import AsyncExitStack
from functools import partial
from typing import TypeVar

from ottla.broker.backlog import Backlog
from ottla.broker.broker_metrics import BrokerMetrics
from ottla.broker.client_memory import ClientMemory
from ottla.broker.coordinators import Coordinators
from ottla.broker.creation_rate import CreationRate
from ottla.broker.data_folder import check_belongs_here, claim
from ottla.broker.dispatch import Dispatcher, RequestContext
from ottla.broker.fencing import Fencing
from ottla.broker.fetch_sessions import FetchSessions
from ottla.broker.handlers import BROKER_HANDLERS, HANDLERS, advertised_by
from ottla.broker.hosted_replicas import HostedReplicas
from ottla.broker.image_follower import ImageChange, ImageFollower
from ottla.broker.inspections import Inspections
from ottla.broker.limits import (
    client_memory_limits,
    inspection_memory,
    limits_of,
    topic_defaults,
)
from ottla.broker.lookups import Lookups
from ottla.broker.membership import Membership
from ottla.broker.page_cache import Done
from ottla.broker.request_scheduler import RequestScheduler, Steps
from ottla.broker.server import Server
from ottla.broker.sockets import Sockets, SystemSockets
from ottla.broker.suspension import Suspension, max_gap
from ottla.broker.watchdog import Watchdog
from ottla.clock import Clock, SystemClock
from ottla.cluster import features
from ottla.cluster.image import (
    BROKER_CONFIG,
    FEATURES,
    NO_LEADER,
    BrokerNode,
    ClusterImage,
    Endpoint,
)
from ottla.cluster.registry import Registry, RegistryError
from ottla.cluster.registry_backends import registry_at
from ottla.config.values import BrokerConfig
from ottla.log_lines import ClientLog
from ottla.peer.client import Connector
from ottla.peer.tcp import TcpConnector
from ottla.protocol.errors import ApiError
from ottla.replication.purgatory import Purgatory
from ottla.storage.files import Disk, RealDisk
from ottla.storage.results import NotInMemory

logger = logging.getLogger("ottla.broker")

_HAND_OVER_SECONDS = 10.0
"""So long a broker waits at its end until others lead its partitions."""
_FENCED_LOOK_SECONDS = 0.25
"""How often it looks meanwhile whether it is fenced: then nobody hears it."""
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
        self._fencing = Fencing(
            lambda: self._membership.is_fenced(), self.clock.monotonic, self._fencing_changed
        )
        hosted = self._hosted = HostedReplicas(
            self.node_id,
            self,
            self.disk,
            membership=lambda: self._membership,
            flush_seconds=self.metrics.flush_seconds,
            is_fenced=self._fencing.is_fenced,
        )
        self.in_thread = hosted.in_thread
        self.directory, self.log_starts, self.space = hosted.directory, hosted.log_starts, hosted.space
        self.replicas, self.isr_changes = hosted.replicas, hosted.isr_changes
        self.fetching, self.cleaning = hosted.fetching, hosted.cleaning
        hosted.maintenance.add("making missing logs", lambda: 5.0, self._make_missing_logs)
        self._server.on_read_error = hosted.disk_reports.refused
        self.metrics.add_gauges(self._server, self.watchdog.counts, self.purgatory, self.replicas)
        session_seconds = self.config["broker.session.timeout.ms"] / 1000
        self._suspension = Suspension(
            self._loop.time, float("inf") if self._is_lone else max_gap(session_seconds)
        )
        coordinators = self._coordinators = Coordinators(
            self.node_id,
            self,
            membership=lambda: self._membership,
            maintenance=hosted.maintenance,
            scheduler=self._scheduler,
            in_thread=self.in_thread,
            account=self.client_memory,
            rebalance_seconds=self.metrics.rebalance_seconds,
            may_be_replaced=self._may_be_replaced,
        )
        self.groups, self.group_environment = coordinators.groups, coordinators.group_environment
        self.transactions, self.verification = coordinators.transactions, coordinators.verification
        self.follower = ImageFollower(
            [hosted.partitions.drop_deleted, self._take_settings, hosted.partitions.adopt_changed],
            [
                self._tell_peers,
                hosted.fetching.follow,
                self._look_at_fencing,
                coordinators.image_changed,
                hosted.brokers_changed,
                hosted.disk_reports.follow,
            ],
        )
        try:
            await self._start()
        except BaseException:
            await self.kill()
            raise

    async def _start(self) -> None:
        self._listen()
        await self._hosted.open()
        await self._join_cluster()
        self.follower.start(self._membership)
        self._suspension.start(self._membership.has_newest_image)
        self._fencing.start()
        self._hosted.start()
        self._coordinators.configure()
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
            BrokerNode(
                self.node_id,
                host,
                port,
                rack=self.config["broker.rack"],
                endpoints=self.endpoints,
                features=features.REGISTERED,
            ),
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
        self._membership.registry.leave_soon()
        await self._membership.controller.stop()

    async def stop(self) -> None:
        """Answer what is under way, then close everything cleanly."""
        if not self._all_stop:
            await self._hand_over_leaderships()
        self.watchdog.stop()
        self._server.stop_reading()
        self._scheduler.finish()
        await self._stop_background_work()
        self.purgatory.expire_all()
        self._membership.end_waiting()
        self.lookups.close()
        await self._server.drain()
        await self.fetching.close()
        await self._leave_cluster()
        self.inspections.close()
        if await self._hosted.close():
            logger.info("broker %d stopped cleanly", self.node_id)
        else:
            logger.error("broker %d stopped while writes hang; its next start recovers logs", self.node_id)

    async def _hand_over_leaderships(self) -> None:
        """Controlled shutdown: other brokers lead before this one stops, so that clients hardly notice."""
        registry = self._membership.registry
        if not self.config["controlled.shutdown.enable"] or len(self.image.brokers) < 2:
            registry.leave_soon()
            return
        handing_over = asyncio.create_task(self.channel.begin_shutdown(), name="hand-over")
        deadline = self.clock.monotonic() + _HAND_OVER_SECONDS
        while not handing_over.done() and self.clock.monotonic() < deadline and not self._fencing.is_fenced():
            await asyncio.wait([handing_over], timeout=_FENCED_LOOK_SECONDS)
        registry.leave_soon()  # a registry that is locked may be what it waits for
        handing_over.cancel()
        (outcome,) = await asyncio.gather(handing_over, return_exceptions=True)
        if isinstance(outcome, asyncio.CancelledError | ApiError):
            why = "no answer in time" if isinstance(outcome, asyncio.CancelledError) else outcome
            logger.warning("broker %d stops without a controlled shutdown: %s", self.node_id, why)
        elif isinstance(outcome, BaseException):
            raise outcome
        elif outcome.remaining:
            logger.info(
                "broker %d stops; %d partitions have no other leader", self.node_id, outcome.remaining
            )

    async def kill(self) -> None:
        """Let go of everything without a clean end, as a crash would: files stay as they are."""
        self.watchdog.stop()
        self._server.abort()
        self._scheduler.clear()
        self.inspections.close()
        self.lookups.close()
        await self._stop_background_work()
        await self.fetching.close()
        await self._leave_cluster()
        self._hosted.abandon()

    async def _stop_background_work(self) -> None:
        await self._suspension.stop()
        await self._fencing.stop()
        await self._hosted.stop()
        await self._coordinators.stop()

    async def _leave_cluster(self) -> None:
        await self.follower.stop()
        try:
            await self._leaving.aclose()
        except RegistryError as error:
            # The others notice by themselves that the session is over; the logs must be closed all the same.
            logger.error("left the cluster without saying so: %s", error)

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

    async def _tell_peers(self, change: ImageChange) -> None:
        await self._membership.peers.follow(change.image.brokers)

    def _fencing_changed(self) -> None:
        """What waits here for a leader is answered, and groups end: or begin again, when the fencing ends."""
        self._hosted.wake_all()
        self._coordinators.follow(self.image)

    async def _look_at_fencing(self, change: ImageChange) -> None:
        """Before coordinators begin again: what they write while they load is refused as long as they are
        held back."""
        self._fencing.look()

    def _may_be_replaced(self) -> bool:
        """Whether others may lead what this broker believes to lead, or did so a moment ago."""
        return self._suspension.is_suspected or self._fencing.holds_back()

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
            self._coordinators.configure()
        self.fetch_max_bytes = self.config["fetch.max.bytes"]
        self.fetch_sessions.limit = self.config["max.incremental.fetch.session.cache.slots"]

    def read_ahead(self, missing: NotInMemory, done: Done) -> None:
        """Have a part of a file read into memory by a thread."""
        self._server.read_ahead(missing.file, missing.position, missing.length, done)

    async def _make_missing_logs(self) -> None:
        async with self.follower.changing:  # a topic may not be deleted while its log is being made
            await self._hosted.make_missing(self.image)
            self._fencing.look()
            self._coordinators.follow(self.image)
            self._hosted.disk_reports.look()
