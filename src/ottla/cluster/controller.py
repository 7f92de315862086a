"""The controller: the one writer of cluster state.

Every broker has a `Controller`; the one that wins the election is active and the others stand by. The active
one holds the current image, decides each request against it (`topic_rules`), commits the outcome to the
registry under its epoch (`leadership`), and only then publishes the delta to its feed (`image_writer`).
Requests are taken one at a time, so a decision is never made on an image that changes under it. All items of
one request share commits. Beside requests the controller follows which brokers are there, and elects leaders
(`elections`).

Each operation returns an `Outcome`: the results in the order of the request, and the version of the image
that shows them, which a handler waits for before it answers.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ottla.clock import Clock, SystemClock
from ottla.cluster import layout
from ottla.cluster.changes import batches, config_change, creation, deletion, growth
from ottla.cluster.config_rules import GroupConfigLimit
from ottla.cluster.disk_states import DiskReport
from ottla.cluster.elections import Elections, ElectionSettings, RegisteredBroker
from ottla.cluster.feed import ImageFeed
from ottla.cluster.image import (
    TOPIC_CONFIG,
    ClusterImage,
    ConfigResource,
    PartitionState,
    TopicImage,
    first_version,
)
from ottla.cluster.image_writer import ImageWriter, not_written
from ottla.cluster.leadership import Leadership, NotController, Term
from ottla.cluster.reassignment import Reassignment
from ottla.cluster.registry import Delete, Registry, RegistryError, SessionLost, Set, Unavailable
from ottla.cluster.topic_rules import (
    ConfigCheck,
    MorePartitions,
    NewTopic,
    PlannedTopic,
    TopicDefaults,
    plan_more_partitions,
    plan_topics,
)
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse

_log = logging.getLogger(__name__)

PRODUCER_ID_BLOCK = 1_000
_RETRY_SECONDS = 0.5

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """`results` stand in the order of the request; an `ApiError` is the refusal of that item."""

    version: int
    results: list[T | ApiError]


ConfigChange = Mapping[str, str | None] | Callable[[Mapping[str, str]], Mapping[str, str | None]]
"""Keys to set, or with None to remove; or a function that makes these from the present configuration."""


class Controller:
    def __init__(
        self,
        registry: Registry,
        *,
        rng: random.Random,
        broker_id: int,
        check_topic_configs: ConfigCheck,
        defaults: TopicDefaults | None = None,
        clock: Clock | None = None,
        elections: ElectionSettings | None = None,
    ) -> None:
        self._registry = registry
        self._rng = rng
        self._broker_id = broker_id
        self._check_topic_configs = check_topic_configs
        self.defaults = defaults or TopicDefaults()
        self.feed = ImageFeed()
        self._leadership = Leadership(registry, broker_id)
        self._writer = ImageWriter(self._leadership, self.feed)
        self._clock = clock or SystemClock()
        self._settings = elections or ElectionSettings()
        self._elections = Elections(
            broker_id, self._writer, self._clock, self._settings, lambda: self.defaults
        )
        self._stands_aside_until = 0.0
        self._look_again = asyncio.Event()
        self._lock = asyncio.Lock()
        self._follower: asyncio.Task[None] | None = None

    # Lifecycle

    @property
    def active(self) -> bool:
        return self._leadership.term is not None and not self._registry.may_be_over()

    @property
    def unclean_elections(self) -> int:
        """So many leaders were elected by this broker that may lack acknowledged records."""
        return self._elections.unclean_elections

    @property
    def image(self) -> ClusterImage:
        return self.feed.current

    async def start(self) -> None:
        """Stands for election once, then stands by in the background. The registry must be open."""
        await layout.prepare(self._registry, self._rng)
        await self._campaign(at_start=True)
        self._follower = asyncio.create_task(self._follow(), name="controller")

    async def stop(self) -> None:
        """Gives up the controllership; the registry stays open, since it belongs to the caller."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
            self._follower = None
        async with self._lock:
            await self._leadership.hand_over()

    async def _campaign(self, *, at_start: bool = False) -> bool:
        async with self._lock:
            term = await self._leadership.campaign()
            if term is None:
                return False
            try:
                loaded = await layout.load_image(
                    self._registry, version=first_version(term.epoch), controller_id=self._broker_id
                )
                await self._clear_leftovers(loaded.leftovers)
            except BaseException:
                self._leadership.resign("it could not read the cluster's state")
                raise
            # Others that are registered have just come, too: one from before would be the controller.
            self.feed.reset(self._elections.begin(loaded, cluster_is_starting=at_start))
            return True

    async def _clear_leftovers(self, paths: Sequence[str]) -> None:
        if paths:
            _log.warning("clearing %d nodes left by an interrupted change of topics", len(paths))
        for batch in batches([Delete(path) for path in paths]):
            await self._leadership.write(batch)

    async def _follow(self) -> None:
        """Stands by for election, or as the controller follows which brokers are there."""
        while True:
            try:
                term = self._leadership.term
                if term is None:
                    await self._stand_by()
                else:
                    self._look_again.clear()
                    watch = await self._registry.watch(layout.BROKER_IDS)
                    await self._take_in_brokers(term)
                    events = self._registry.lost, term.over, self._look_again
                    await _first_of(watch, *events, timeout=self._elections.next_look())
                if self._registry.lost.is_set():
                    raise SessionLost
            except SessionLost:
                self._leadership.resign("its registry session is lost")
                await self._renew()
            except NotController:
                continue
            except RegistryError as error:
                _log.warning("the controller cannot read the registry: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
            except Exception:  # noqa: BLE001 - a cluster without a controller is worse than one that tries again
                _log.exception("the controller failed; it resigns and stands for election again")
                self._leadership.resign("it failed")
                await asyncio.sleep(_RETRY_SECONDS)

    async def _renew(self) -> None:
        try:
            await self._registry.renew()
        except RegistryError as error:
            _log.warning("cannot begin a new registry session: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _stand_by(self) -> None:
        watch = await self._registry.watch(layout.CONTROLLER)
        aside = self._stands_aside_until - self._clock.monotonic()
        if aside > 0:
            await _first_of(watch, self._registry.lost, timeout=aside)
        elif await self._campaign():
            watch.cancel()
        else:
            await _first_of(watch, self._registry.lost)

    async def _take_in_brokers(self, term: Term) -> None:
        nodes = await self._registry.subtree(layout.BROKER_IDS)
        present: dict[int, RegisteredBroker] = {}
        for path, node in nodes.items():
            broker_id = int(path.rpartition("/")[2])
            present[broker_id] = RegisteredBroker(layout.broker_from(broker_id, node), layout.lost_from(node))
        async with self._lock:
            if self._leadership.term is not term:
                return
            if self._elections.should_resign():
                await self._resign_for_silence()
                return
            await self._elections.take_in(present)
            await self._elections.balance()

    async def _resign_for_silence(self) -> None:
        _log.warning("broker %d does not hear from most brokers and resigns as controller", self._broker_id)
        self._elections.resigned_for_silence()
        self._stands_aside_until = self._clock.monotonic() + self._settings.session_timeout / 2
        await self._leadership.hand_over()

    # Brokers

    def polled(self, broker_id: int, broker_epoch: int, version: int) -> None:
        """A broker asks for what is newer than `version`, which it has taken over: it is alive.

        ApiError: NOT_CONTROLLER, or STALE_BROKER_EPOCH when the broker has registered anew since. A broker
        whose registration this controller has not seen yet is served like the others.
        """
        if not self.active:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        if self._elections.polled(broker_id, broker_epoch, version):
            self._look_again.set()

    def check_broker(self, broker_id: int, broker_epoch: int) -> None:
        """Refuses requests of brokers to which this is not the controller, or of an earlier broker epoch."""
        if not self.active:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        self._elections.check_broker(broker_id, broker_epoch)

    def silence_of(self, broker_id: int) -> float | None:
        """Seconds since a broker asked for the image; None if it has not asked in this term."""
        return self._elections.silence_of(broker_id)

    async def alter_partitions(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Gives partitions the in-sync sets that their leader asks for."""
        try:
            response = await self._elect(lambda: self._elections.alter_partitions(request))
        except ApiError as refusal:
            return AlterPartitionResponse(error_code=refusal.code)
        self._settle_soon()
        return response

    async def take_disk_report(self, broker_id: int, broker_epoch: int, report: DiskReport) -> int:
        """Moves what a broker cannot lead any more, because of its disk. ApiError if that cannot be done.

        The controller epoch in which it was heard: the next controller has to be told again.
        """
        try:
            await self._elect(lambda: self._elections.take_disk_report(broker_id, broker_epoch, report))
        finally:
            self._look_again.set()  # what could not be written is decided again
        return self.image.controller_epoch

    def _settle_soon(self) -> None:
        if self._elections.partitions_changed():
            self._look_again.set()

    async def begin_shutdown(self, broker_id: int, broker_epoch: int) -> tuple[int, int]:
        """Moves the leaderships of a broker away that is about to stop. ApiError if that cannot be done.

        The version of the image that shows it, and how many partitions it still leads, as nobody else may.
        """
        led = await self._elect(lambda: self._elections.begin_shutdown(broker_id, broker_epoch))
        return self.image.version, led

    async def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None, *, unclean: bool = False
    ) -> tuple[int, Mapping[tuple[str, int], ApiError | None]]:
        """Elects the preferred leaders, or (`unclean`) any replica where there is no leader; None:
        everywhere.

        The version of the image that shows it, and what came of each. Partitions that need no election are
        left out when all were asked for. ApiError if nothing could be done.
        """
        results = await self._elect(lambda: self._elections.elect_leaders(partitions, unclean=unclean))
        return self.image.version, results

    async def reassign(
        self, wanted: Sequence[Reassignment], *, same_factor: bool = False
    ) -> Outcome[PartitionState]:
        """Gives partitions more replicas, or others in front. ApiError if nothing could be done."""
        results = await self._elect(lambda: self._elections.reassign(wanted, same_factor=same_factor))
        return Outcome(self.image.version, results)

    async def _elect(self, work: Callable[[], Awaitable[T]]) -> T:
        async with self._lock:
            if self._leadership.term is None:
                raise ApiError(ErrorCode.NOT_CONTROLLER)
            try:
                return await work()
            except NotController:
                raise ApiError(ErrorCode.NOT_CONTROLLER) from None
            except Unavailable as error:
                raise not_written(error) from error

    # Topics

    async def create_topics(
        self, requests: Sequence[NewTopic], *, validate_only: bool = False
    ) -> Outcome[PlannedTopic]:
        async def decide() -> list[PlannedTopic | ApiError]:
            plans = plan_topics(
                requests,
                self._elections.image_for_placement(),
                defaults=self.defaults,
                check_configs=self._check_topic_configs,
                rng=self._rng,
            )
            return await self._writer.write_all(plans, creation) if not validate_only else plans

        outcome = await self._as_controller(decide, len(requests))
        self._settle_soon()
        return outcome

    async def delete_topics(self, topics: Sequence[str | bytes]) -> Outcome[TopicImage]:
        """Deletes by name or by id (bytes); the results are the topics as they were."""

        async def decide() -> list[TopicImage | ApiError]:
            found: list[TopicImage | ApiError] = []
            ids: set[bytes] = set()
            for topic in topics:
                if isinstance(topic, bytes):
                    image = self.image.topics_by_id.get(topic)
                    missing = ErrorCode.UNKNOWN_TOPIC_ID
                else:
                    image = self.image.topics.get(topic)
                    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if image is None:
                    found.append(ApiError(missing))
                elif image.id in ids:
                    found.append(ApiError(ErrorCode.INVALID_REQUEST, "The topic is named twice."))
                else:
                    ids.add(image.id)
                    found.append(image)
            return await self._writer.write_all(found, lambda topic: deletion(topic, self.image))

        return await self._as_controller(decide, len(topics))

    async def create_partitions(
        self, requests: Sequence[MorePartitions], *, validate_only: bool = False
    ) -> Outcome[TopicImage]:
        """Grows topics; the results are the topics as they became (or would become)."""

        async def decide() -> list[TopicImage | ApiError]:
            plans: list[TopicImage | ApiError] = []
            for request in requests:
                try:
                    added = plan_more_partitions(
                        request, self._elections.image_for_placement(), defaults=self.defaults, rng=self._rng
                    )
                    plans.append(self.image.topics[request.name].with_partitions(added))
                except ApiError as error:
                    plans.append(error)
            return (
                await self._writer.write_all(plans, lambda topic: growth(topic, self.image))
                if not validate_only
                else plans
            )

        outcome = await self._as_controller(decide, len(requests))
        self._settle_soon()
        return outcome

    # Configuration and producer ids

    async def write_configs(self, changes: Mapping[ConfigResource, ConfigChange]) -> Outcome[ConfigResource]:
        """Changes dynamic configurations; a value None removes the key.

        A change may be a function of the present configuration. It runs while no other request can change
        it, so that appending to a list loses nothing; it may raise `ApiError` to refuse.
        """

        async def decide() -> list[ConfigResource | ApiError]:
            wanted: dict[ConfigResource, Mapping[str, str]] = {}
            results: list[ConfigResource | ApiError] = []
            groups = GroupConfigLimit(self.defaults.max_configured_groups, self.image.configs)
            for resource, change in changes.items():
                present = self.image.config(*resource)
                try:
                    if resource[0] == TOPIC_CONFIG and resource[1] not in self.image.topics:
                        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    new = change(present) if callable(change) else change
                    merged: dict[str, str | None] = {**present, **new}
                    kept = {key: value for key, value in merged.items() if value is not None}
                    if kept and not present:
                        groups.take(resource)
                except ApiError as error:
                    results.append(error)
                    continue
                wanted[resource] = kept
                results.append(resource)
            await self._elections.before_configs(wanted)
            return await self._writer.write_all(
                results, lambda resource: config_change(resource, wanted[resource], self.image)
            )

        outcome = await self._as_controller(decide, len(changes))
        self._look_again.set()  # elections may be unclean now, or in-sync sets be enough
        return outcome

    async def allocate_producer_ids(self) -> tuple[int, int]:
        """A block of producer ids that were never given out: the first, and how many. Durable when it
        returns."""
        async with self._lock:
            try:
                node = await self._registry.get(layout.PRODUCER_IDS)
                first = int(layout.from_bytes(node.data)["next"])
                data = layout.to_bytes({"next": first + PRODUCER_ID_BLOCK})
                await self._leadership.write([Set(layout.PRODUCER_IDS, data, node.version)])
            except (NotController, SessionLost):
                raise ApiError(ErrorCode.NOT_CONTROLLER) from None
            except RegistryError as error:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        return first, PRODUCER_ID_BLOCK

    # Writing

    async def _as_controller(
        self, decide: Callable[[], Awaitable[list[T | ApiError]]], items: int
    ) -> Outcome[T]:
        """Runs one request alone, as the controller; without the controllership every item is refused."""
        async with self._lock:
            if self._leadership.term is None:
                return Outcome(self.image.version, [ApiError(ErrorCode.NOT_CONTROLLER)] * items)
            try:
                results = await decide()
            except NotController:
                results = [ApiError(ErrorCode.NOT_CONTROLLER)] * items
            except Unavailable as error:
                results = [not_written(error)] * items
            return Outcome(self.image.version, results)


async def _first_of(
    watch: asyncio.Future[None], *events: asyncio.Event, timeout: float | None = None
) -> None:
    """Waits for the first of these, or so many seconds, and lets go of the rest."""
    waiting: list[asyncio.Future[Any]] = [watch, *(asyncio.ensure_future(event.wait()) for event in events)]
    try:
        await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in waiting:
            future.cancel()
