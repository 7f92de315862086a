"""This broker's place in its cluster: its registration, its controller, and the ways to the active one.

`join` opens the registry, registers, stands for election as controller and finds the active one. From then on
the cluster's image can be followed (`after`), here or from another broker. The first image that is taken over
shows this registration: in it the controller has acted on what the broker lost, so that no broker leads with
records missing that others have. Clients are served when the image shows it unfenced (`is_shown`). `leave`
undoes all in the opposite order.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from ottla.broker.controller_channel import ControllerChannel
from ottla.broker.controller_location import ControllerLocation
from ottla.broker.image_follower import ImageFollower
from ottla.broker.image_polls import ImagePolls
from ottla.broker.image_source import ImageSource
from ottla.broker.limits import election_settings, topic_defaults
from ottla.broker.peers import Peers
from ottla.broker.suspension import ImageCheck
from ottla.clock import Clock
from ottla.cluster import layout
from ottla.cluster.controller import Controller
from ottla.cluster.image import BrokerNode, ClusterImage, ImageDelta
from ottla.cluster.layout import Lost
from ottla.cluster.registration import Registration
from ottla.cluster.registry import Registry
from ottla.config.values import BrokerConfig, validate_topic_config
from ottla.peer.client import Connector

_SESSION_END_SECONDS = 60.0
"""So long a broker waits at its start for the registration of its last run to end."""
_LEAST_HEARTBEAT_SECONDS = 0.1


class Membership:
    def __init__(
        self,
        node: BrokerNode,
        registry: Registry,
        config: Callable[[], BrokerConfig],
        follower: ImageFollower,
        *,
        connector: Connector,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """`config` gives the configuration of now."""
        self._node_id = node.id
        self.registry = registry
        self._follower = follower
        self._rng = rng
        self._leaving = AsyncExitStack()
        self.registration = Registration(registry, node)
        self.controller = Controller(
            registry,
            rng=rng,
            broker_id=node.id,
            check_topic_configs=validate_topic_config,
            defaults=topic_defaults(config()),
            clock=clock,
            elections=election_settings(config()),
        )
        self.peers = Peers(node.id, config().listeners.inter_broker.name, connector, rng)
        self.location = ControllerLocation(node.id, registry, self.peers)
        self.image_polls = ImagePolls(self.controller.feed)
        self.channel = ControllerChannel(
            node.id,
            self.controller,
            self.location,
            self.peers,
            self.image_polls,
            broker_epoch=self.broker_epoch,
            caught_up=follower.caught_up,
        )
        self.image_source = ImageSource(
            node.id,
            self.controller.feed,
            self.location,
            self.peers,
            follower,
            broker_epoch=self.broker_epoch,
            heartbeat_seconds=lambda: max(
                config()["broker.heartbeat.interval.ms"] / 1000, _LEAST_HEARTBEAT_SECONDS
            ),
        )

        self.has_newest_image = ImageCheck(
            node.id, registry, self.controller, self.location, self.peers, follower, self.broker_epoch
        )

    def broker_epoch(self) -> int:
        """Of the present registration."""
        return self.registration.broker.epoch

    async def join(self, check: Callable[[Registry], Awaitable[Lost]]) -> None:
        """`check` may refuse, before anything of this broker is in the registry, and says what it lost."""
        leaving = self._leaving
        await self.registry.open()
        leaving.push_async_callback(self.registry.close)
        await layout.prepare(self.registry, self._rng)
        lost = await check(self.registry)
        leaving.push_async_callback(self.registration.stop)
        await self.registration.start(lost=lost, patience=_SESSION_END_SECONDS)
        leaving.push_async_callback(self.controller.stop)
        await self.controller.start()
        leaving.push_async_callback(self.peers.close)
        leaving.push_async_callback(self.location.stop)
        await self.location.start()
        leaving.push_async_callback(self.image_source.stop)
        self.image_source.start()

    @property
    def waits_for_itself(self) -> bool:
        """An earlier session of this broker is the controller until the registry has noticed its end."""
        return not self.controller.active and self.location.remote is None

    async def after(self, version: int) -> ImageDelta | ClusterImage:
        """What is newer than `version`. To a broker that has none yet: an image that shows it."""
        while True:
            news = await self.image_source.after(version)
            if version or self._own_node(news) is not None:
                return news
            await self.image_source.after(news.version)

    def is_shown(self, image: ClusterImage) -> bool:
        """Whether the controller has taken in this registration, so that clients may come."""
        node = self._own_node(image)
        return node is not None and not node.fenced

    def is_fenced(self) -> bool:
        """Whether the registry may have given this broker's place to others since its image was made.

        So it is from the time when its session may be over until the image shows its new registration.
        """
        registration = self.registration
        if not registration.is_held:
            return True
        node = self._follower.image.brokers.get(self._node_id)
        return node is None or node.epoch != registration.broker.epoch

    def may_be_deposed(self) -> bool:
        """Whether others may lead, since its image was made, what this broker led: it hears of nothing."""
        return not self.controller.active and self.image_source.is_silent

    def _own_node(self, image: ClusterImage | ImageDelta) -> BrokerNode | None:
        node = image.brokers.get(self._node_id)
        return node if node is not None and node.epoch == self.broker_epoch() else None

    def end_waiting(self) -> None:
        """Let all requests that wait for the controller, or as its followers, be answered."""
        self.image_polls.close()
        self.channel.close()

    async def leave(self) -> None:
        self.end_waiting()
        await self._leaving.aclose()
