"""Leaders and in-sync sets, as the active controller keeps them: which brokers there are, and what follows.

The rules are in `partition_rules` and `liveness`; here they are applied to all partitions of the image, and
the outcome is written in few commits. `Controller` calls everything here under its lock, so the image does
not change meanwhile. Looking at many partitions takes long, so it is done in portions between which others
are served.

What follows for partitions is written before the brokers in the image change: a broker that came back with
records missing is shown only when it is out of all in-sync sets. When a write fails, the brokers in the
image are still the old ones, and the next attempt decides everything again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from ottla.clock import Clock
from ottla.cluster import layout
from ottla.cluster.disk_states import DiskReport, DiskStates
from ottla.cluster.election_reports import broker_news, report_elections
from ottla.cluster.image import (
    BROKER_CONFIG,
    TOPIC_CONFIG,
    BrokerNode,
    ClusterImage,
    ConfigResource,
    PartitionState,
)
from ottla.cluster.image_writer import ImageWriter
from ottla.cluster.isr_requests import answer_alter_partition
from ottla.cluster.layout import Loaded, Lost
from ottla.cluster.liveness import Liveness
from ottla.cluster.partition_decisions import AT_A_TIME, Decision, decisions
from ottla.cluster.partition_rules import Brokers, prefer, settle, without_stale_elr
from ottla.cluster.reassignment import Reassignment, reassigned
from ottla.cluster.registry import Create, Operation, Set
from ottla.cluster.topic_rules import TopicDefaults
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse

_log = logging.getLogger(__name__)

MIN_ISR = "min.insync.replicas"
UNCLEAN_ELECTION = "unclean.leader.election.enable"


@dataclass(frozen=True, slots=True)
class ElectionSettings:
    session_timeout: float = 9.0
    """Seconds after which a broker that does not ask for the image is fenced."""
    balance_interval: float | None = 300.0
    """How often the preferred leaders are elected, in seconds; None: never."""


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """As a broker's registration says."""

    node: BrokerNode
    lost: Lost


class Elections:
    def __init__(
        self,
        broker_id: int,
        writer: ImageWriter,
        clock: Clock,
        settings: ElectionSettings,
        defaults: Callable[[], TopicDefaults],
    ) -> None:
        self._broker_id = broker_id
        self._writer = writer
        self._clock = clock
        self._settings = settings
        self._defaults = defaults
        self.unclean_elections = 0
        """So many leaders were elected here that may lack acknowledged records."""
        self._liveness = Liveness(broker_id, settings.session_timeout)
        self._stopping: dict[int, int] = {}
        """Brokers that are about to stop, and their epochs."""
        self._lost: dict[int, Lost] = {}
        self._unclean_epochs: dict[int, int] = {}
        self._disks = DiskStates()
        self._seen: set[int] = set()
        """Brokers that were in service in this term."""
        self._waiting_until = 0.0
        self._balance_at = 0.0
        self._settled: Brokers | None = None
        """With the brokers like this all partitions are as they have to be."""

    @property
    def _image(self) -> ClusterImage:
        return self._writer.image

    @property
    def _now(self) -> float:
        return self._clock.monotonic()

    # A term

    def begin(self, loaded: Loaded, *, cluster_is_starting: bool) -> ClusterImage:
        """A term begins. The image to begin it with, which does not show brokers with losses to act on.

        While a cluster starts, its brokers come one after the other. The first one would take the lead of
        everything that it has in sync. So for the length of a session nothing is taken from absent brokers.
        """
        now = self._now
        image = loaded.image
        self._stopping = {}
        self._disks = DiskStates()
        self._lost = dict(loaded.lost)
        self._unclean_epochs = dict(loaded.unclean_epochs)
        brokers = {
            id_: broker
            for id_, broker in image.brokers.items()
            if id_ not in loaded.lost or self._acted_on(broker)
        }
        self._seen = set(brokers)
        self._liveness.begin({broker.id: broker.epoch for broker in brokers.values()}, now)
        self._waiting_until = now + self._settings.session_timeout if cluster_is_starting else now
        self._balance_at = now + (self._settings.balance_interval or 0)
        self._settled = None
        return replace(image, brokers=brokers)

    def next_look(self) -> float:
        """Seconds until time alone may change something; at most an hour."""
        now = self._now
        moments = [
            self._liveness.next_deadline(now),
            self._waiting_until if self._waiting_until > now else None,
        ]
        if self._settings.balance_interval is not None:
            moments.append(self._balance_at)
        return max(min((at - now for at in moments if at is not None), default=3600.0), 0.0)

    def should_resign(self) -> bool:
        return self._liveness.should_resign(self._now)

    def resigned_for_silence(self) -> None:
        self._liveness.resigned()

    # Brokers

    def polled(self, broker_id: int, broker_epoch: int, version: int) -> bool:
        """A broker that has taken over `version` asks for what is newer; whether `take_in` has to follow."""
        known = self._liveness.epoch(broker_id)
        if known is not None and broker_epoch < known:
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH)
        return self._liveness.polled(broker_id, broker_epoch, version, self._now)

    def silence_of(self, broker_id: int) -> float | None:
        return self._liveness.silence_of(broker_id, self._now)

    def check_broker(self, broker_id: int, broker_epoch: int) -> None:
        """Refuses what a broker asks under an epoch that is not its present one."""
        broker = self._image.brokers.get(broker_id)
        if broker is None or broker.epoch != broker_epoch:
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH)

    async def take_in(self, present: Mapping[int, RegisteredBroker]) -> None:
        """These brokers are registered: find out who came, left, fell silent or is back, and what follows."""
        now = self._now
        known = self._image.brokers
        for broker_id in known.keys() - present.keys():
            self._liveness.left(broker_id)
            self._forget_disk(broker_id)
            self._lost.pop(broker_id, None)
        fresh = [id_ for id_, each in present.items() if self._is_fresh(each.node)]
        for broker_id in fresh:
            self._liveness.registered(broker_id, present[broker_id].node.epoch, now)
            self._forget_disk(broker_id)
            self._lost[broker_id] = present[broker_id].lost
        self._seen |= {id_ for id_ in present if not self._liveness.is_fenced(id_, now)}
        self._stopping = {
            id_: epoch
            for id_, epoch in self._stopping.items()
            if id_ in present and present[id_].node.epoch == epoch
        }
        unclean = {
            id_
            for id_, each in present.items()
            if each.lost is not Lost.NOTHING and not self._acted_on(each.node)
        }
        await self._settle(present.keys(), {id_: present[id_].node.epoch for id_ in unclean})
        self._show({id_: each.node for id_, each in present.items()}, now)
        for broker_id in fresh:
            self._liveness.shown(broker_id, self._image.version)

    async def take_disk_report(self, broker_id: int, broker_epoch: int, report: DiskReport) -> None:
        """A broker says how its disk is: others lead what it cannot, and it is shown to all."""
        self.check_broker(broker_id, broker_epoch)
        if self._disks.report(broker_id, report):
            self._settled = None
        await self._settle(self._image.brokers, {})
        self._show(self._image.brokers, self._now)

    def partitions_changed(self) -> bool:
        """Others than the rules have changed partitions; whether `take_in` has to follow.

        A new partition, or one with more replicas in sync, may be led by a broker whose disk is impaired.
        """
        if self._disks:
            self._settled = None
        return bool(self._disks)

    def _forget_disk(self, broker_id: int) -> None:
        if self._disks.forget(broker_id):
            self._settled = None

    def _is_fresh(self, node: BrokerNode) -> bool:
        shown = self._image.brokers.get(node.id)
        return shown is None or shown.epoch != node.epoch

    def _acted_on(self, node: BrokerNode) -> bool:
        return self._unclean_epochs.get(node.id) == node.epoch

    def _show(self, nodes: Mapping[int, BrokerNode], now: float) -> None:
        """Makes the brokers in the image what they are."""
        shown = self._image.brokers
        changed: dict[int, BrokerNode | None] = {id_: None for id_ in shown if id_ not in nodes}
        for broker_id, node in nodes.items():
            fenced = self._liveness.is_fenced(broker_id, now)
            node = replace(node, fenced=fenced, disk=self._disks.of(broker_id))
            if shown.get(broker_id) != node:
                changed[broker_id] = node
        for broker_id, new in changed.items():
            _log.info("%s", broker_news(broker_id, shown.get(broker_id), new))
        if changed:
            self._writer.publish_brokers(changed)

    def _brokers(self, registered: Iterable[int] | None = None, unclean: Iterable[int] = ()) -> Brokers:
        now = self._now
        present = frozenset(self._image.brokers if registered is None else registered)
        alive = {broker for broker in present if not self._liveness.is_fenced(broker, now)}
        stopping = frozenset(alive & self._stopping.keys())
        waiting = now < self._waiting_until
        return Brokers(
            active=frozenset(alive - stopping),
            stopping=stopping,
            unclean=frozenset(unclean),
            emptied=frozenset(id_ for id_, lost in self._lost.items() if lost is Lost.ALL),
            impaired=self._disks.impaired,
            seen=frozenset(self._seen) if waiting else frozenset(),
            waiting=waiting,
        )

    # Elections

    async def _settle(self, registered: Iterable[int], unclean: Mapping[int, int]) -> None:
        """Makes all partitions what they have to be; `unclean`: brokers with new losses, and their epochs."""
        brokers = self._brokers(registered, unclean)
        if brokers == self._settled:
            return

        def decide(
            state: PartitionState, min_isr: int, unclean_allowed: bool, failed: frozenset[int]
        ) -> PartitionState:
            return settle(state, brokers, min_isr=min_isr, unclean_allowed=unclean_allowed, failed=failed)

        self._settled = None
        changed = await self._decisions(decide)
        marks = [self._mark_unclean(broker, epoch) for broker, epoch in unclean.items()]
        before = self._image
        await self._writer.write_partitions(changed, marks)
        self._unclean_epochs.update(unclean)
        self._settled = replace(brokers, unclean=frozenset())
        self.unclean_elections += await report_elections(before, changed, brokers)

    def _mark_unclean(self, broker_id: int, epoch: int) -> Operation:
        path, data = layout.unclean_path(broker_id), layout.to_bytes({"epoch": epoch})
        return Set(path, data) if broker_id in self._unclean_epochs else Create(path, data)

    async def _decisions(
        self, decide: Decision, topics: Iterable[str] | None = None
    ) -> dict[str, dict[int, PartitionState]]:
        return await decisions(self._image, decide, self._rules_of, self._disks.failed_at, topics)

    def _rules_of(self, topic: str) -> tuple[int, bool]:
        own, defaults = self._image.config(TOPIC_CONFIG, topic), self._defaults()
        min_isr = int(own.get(MIN_ISR, defaults.min_insync_replicas))
        unclean = own.get(UNCLEAN_ELECTION)
        return min_isr, defaults.unclean_elections if unclean is None else unclean.strip().lower() == "true"

    async def balance(self) -> None:
        """Once in a while: lead each partition from its preferred replica again, if that is in sync."""
        interval = self._settings.balance_interval
        if interval is None or self._now < self._balance_at:
            return
        self._balance_at = self._now + interval
        brokers = self._brokers()
        changed = await self._decisions(lambda state, min_isr, *_: prefer(state, brokers, min_isr=min_isr))
        if changed:
            await self._writer.write_partitions(changed)
            count = sum(map(len, changed.values()))
            _log.info("%d partitions are led by their preferred replica again", count)

    async def begin_shutdown(self, broker_id: int, broker_epoch: int) -> int:
        """Moves leadership and in-sync membership away from a broker; how many partitions it still leads."""
        self.check_broker(broker_id, broker_epoch)
        self._stopping[broker_id] = broker_epoch
        await self._settle(self._image.brokers, {})
        led = 0
        for looked_at, topic in enumerate(self._image.topics.values()):
            led += sum(state.leader == broker_id for state in topic.partitions)
            if looked_at % AT_A_TIME == 0:
                await asyncio.sleep(0)
        _log.info("broker %d is about to stop; nobody else may lead %d of its partitions", broker_id, led)
        return led

    async def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None, *, unclean: bool
    ) -> dict[tuple[str, int], ApiError | None]:
        """Elects the preferred leaders, or any leader at all; None: of all partitions that need it."""
        brokers = self._brokers()
        named = partitions is not None
        wanted = list(partitions) if partitions is not None else self._all_partitions()
        results: dict[tuple[str, int], ApiError | None] = {}
        changed: dict[str, dict[int, PartitionState]] = {}
        for looked_at, (name, index) in enumerate(wanted):
            if looked_at % AT_A_TIME == 0:
                await asyncio.sleep(0)
            try:
                new = self._election(name, index, brokers, unclean)
            except ApiError as refusal:
                if named or refusal.code is not ErrorCode.ELECTION_NOT_NEEDED:
                    results[name, index] = refusal
            else:
                changed.setdefault(name, {})[index] = new
                results[name, index] = None
        before = self._image
        await self._writer.write_partitions(changed)
        self.unclean_elections += await report_elections(before, changed, brokers)
        return results

    def _all_partitions(self) -> list[tuple[str, int]]:
        topics = self._image.topics.values()
        return [(topic.name, index) for topic in topics for index in range(len(topic.partitions))]

    def _election(self, name: str, index: int, brokers: Brokers, unclean: bool) -> PartitionState:
        topic = self._image.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
        state = self._image.partition(name, index)
        if state is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
        min_isr, _ = self._rules_of(name)
        if unclean:
            if state.leader in brokers.active | brokers.stopping:
                raise ApiError(ErrorCode.ELECTION_NOT_NEEDED)
            failed = self._disks.failed_at(topic.id, index)
            new = settle(state, brokers, min_isr=min_isr, unclean_allowed=True, failed=failed)
            if new.leader not in brokers.active:
                raise ApiError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
        else:
            if state.leader == state.replicas[0] and state.leader in brokers.active | brokers.stopping:
                raise ApiError(ErrorCode.ELECTION_NOT_NEEDED)
            new = prefer(state, brokers, min_isr=min_isr)
            if new is state:
                raise ApiError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
        return new

    # Replicas

    async def reassign(
        self, wanted: Iterable[Reassignment], *, same_factor: bool
    ) -> list[PartitionState | ApiError]:
        """Gives partitions more replicas; what each became, or why not."""
        results: list[PartitionState | ApiError] = []
        changed: dict[str, dict[int, PartitionState]] = {}
        for looked_at, each in enumerate(wanted):
            if looked_at % AT_A_TIME == 0:
                await asyncio.sleep(0)
            try:
                min_isr, _ = self._rules_of(each.topic)
                new = reassigned(each, self._image, min_isr=min_isr, same_factor=same_factor)
            except ApiError as refusal:
                results.append(refusal)
                continue
            results.append(new)
            if new is not self._image.topics[each.topic].partitions[each.partition]:
                changed.setdefault(each.topic, {})[each.partition] = new
        if changed:
            self._settled = None  # where elections are unclean, a new replica may lead
        await self._writer.write_partitions(changed)
        count = sum(map(len, changed.values()))
        if count:
            _log.info("%d partitions have other replicas now; those that are new catch up", count)
        return results

    # In-sync sets

    async def alter_partitions(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Gives partitions the in-sync sets that their leader asks for, each or the reason why not."""
        self.check_broker(request.broker_id, request.broker_epoch)
        answer = await answer_alter_partition(
            request,
            self._image,
            self._brokers(),
            lambda topic: self._rules_of(topic)[0],
            self._disks.failed_at,
        )
        await self._writer.write_partitions(answer.changed)
        return answer.response

    async def before_configs(self, configs: Mapping[ConfigResource, Mapping[str, str]]) -> None:
        """These configurations are about to be written, whole.

        With a lower `min.insync.replicas` the high watermark may advance without the replicas that are
        eligible under the higher one. So they are forgotten before a leader learns of it.
        """
        image = self._image
        changes = {
            resource: new
            for resource, new in configs.items()
            if any(image.config(*resource).get(key) != new.get(key) for key in (MIN_ISR, UNCLEAN_ELECTION))
        }
        if not changes:
            return
        self._settled = None
        every = changes.get((BROKER_CONFIG, ""))
        # What brokers have without a value for all of them is not known here.
        default = self._defaults().min_insync_replicas if every is None else int(every.get(MIN_ISR, 1))
        for (kind, name), new in changes.items():
            if kind == TOPIC_CONFIG and name in image.topics:
                await self._forget_eligible([name], int(new.get(MIN_ISR, default)))
        if every is not None:
            inheriting = [name for name in image.topics if MIN_ISR not in image.config(TOPIC_CONFIG, name)]
            await self._forget_eligible(inheriting, default)

    async def _forget_eligible(self, topics: Iterable[str], min_isr: int) -> None:
        changed = await self._decisions(lambda state, *_: without_stale_elr(state, min_isr), topics)
        await self._writer.write_partitions(changed)

    def image_for_placement(self) -> ClusterImage:
        """The image with brokers that are about to stop shown as fenced: they get no new partitions."""
        image = self._image
        stopping = {
            id_: replace(broker, fenced=True)
            for id_, broker in image.brokers.items()
            if self._stopping.get(id_) == broker.epoch
        }
        return replace(image, brokers={**image.brokers, **stopping}) if stopping else image
