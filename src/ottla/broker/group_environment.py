"""What groups of the consumer protocol need to know about their broker, as the broker provides it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ottla.clock import Clock
from ottla.cluster.image import ClusterImage
from ottla.config.table import GROUP_KEYS
from ottla.config.values import BrokerConfig
from ottla.coordinator.assignors import ASSIGNORS
from ottla.coordinator.group_environment import ConsumerSettings
from ottla.coordinator.topic_matches import TopicMatches

GROUP_CONFIG = 32
"""The type of config resource that a group is."""
_COUNT_SECONDS = 1.0
"""How long a count of members is used."""
_MAX_CACHED = 10_000


class _Cached(NamedTuple):
    """Settings, and what they were read from."""

    own: Mapping[str, str]
    config: BrokerConfig
    settings: ConsumerSettings


class BrokerGroupEnvironment:
    """Implements `GroupEnvironment`."""

    def __init__(
        self,
        *,
        clock: Clock,
        image: Callable[[], ClusterImage],
        config: Callable[[], BrokerConfig],
        count_members: Callable[[], int],
    ) -> None:
        """`count_members` counts the members of all groups of the consumer protocol."""
        self.topic_matches = TopicMatches()
        self._clock = clock
        self._image = image
        self._config = config
        self._count_members = count_members
        self._members = 0
        self._counted = float("-inf")
        self._cached: dict[str, _Cached] = {}

    @property
    def image(self) -> ClusterImage:
        return self._image()

    def settings(self, group_id: str) -> ConsumerSettings:
        """The group's own values before the broker's; read again when either has changed."""
        own, config = self._image().config(GROUP_CONFIG, group_id), self._config()
        cached = self._cached.get(group_id)
        if cached is None or cached.own is not own or cached.config is not config:
            if len(self._cached) > _MAX_CACHED:
                self._cached.clear()
            cached = self._cached[group_id] = _Cached(own, config, _read(own, config))
        return cached.settings

    def member_count(self) -> int:
        now = self._clock.monotonic()
        if now - self._counted >= _COUNT_SECONDS:
            self._counted = now
            self._members = self._count_members()
        return self._members


def _read(own: Mapping[str, str], config: BrokerConfig) -> ConsumerSettings:
    policy = str(config["group.consumer.migration.policy"]).lower()

    def value(name: str) -> int:
        own_name = name.removeprefix("group.")
        text = own.get(own_name)
        return int(config[name] if text is None else GROUP_KEYS[own_name].parse(text))

    return ConsumerSettings(
        session_timeout_ms=value("group.consumer.session.timeout.ms"),
        heartbeat_interval_ms=value("group.consumer.heartbeat.interval.ms"),
        assignment_interval_ms=value("group.consumer.assignment.interval.ms"),
        max_size=config["group.consumer.max.size"],
        # Kafka accepts the names of Java classes too, which mean nothing here.
        assignors=tuple(name for name in config["group.consumer.assignors"] if name in ASSIGNORS)
        or tuple(ASSIGNORS),
        may_upgrade=policy in ("upgrade", "bidirectional"),
        may_downgrade=policy in ("downgrade", "bidirectional"),
    )
