"""What groups of the consumer protocol see of their broker: topics, settings and how much is going on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.cluster.image import ClusterImage
from ottla.config.table import GROUP_KEYS
from ottla.config.values import BrokerConfig
from ottla.coordinator.assignors import ASSIGNORS
from ottla.coordinator.consumer_group import ConsumerGroup
from ottla.coordinator.consumer_state import ConsumerSettings
from ottla.coordinator.topic_matches import TopicMatches

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

GROUP_CONFIG = 32
"""The type of config resource that a group is."""
_COUNT_SECONDS = 1.0
"""How long a count of members is good for."""


class _Known(NamedTuple):
    """Settings, and what they were read from."""

    own: Mapping[str, str]
    config: BrokerConfig
    settings: ConsumerSettings


class GroupSurroundings:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.topic_matches = TopicMatches()
        self._members = 0
        self._counted = float("-inf")
        self._settings: dict[str, _Known] = {}

    @property
    def image(self) -> ClusterImage:
        return self._broker.image

    def settings(self, group_id: str) -> ConsumerSettings:
        """The group's own values before the broker's; looked up anew when either changed."""
        own = self._broker.image.config(GROUP_CONFIG, group_id)
        known = self._settings.get(group_id)
        if known is None or known.own is not own or known.config is not self._broker.config:
            if len(self._settings) > 10_000:
                self._settings.clear()
            known = self._settings[group_id] = _Known(own, self._broker.config, self._read(own))
        return known.settings

    def _read(self, own: Mapping[str, str]) -> ConsumerSettings:
        config = self._broker.config
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
            # Kafka takes the names of Java classes too, which mean nothing here.
            assignors=tuple(name for name in config["group.consumer.assignors"] if name in ASSIGNORS)
            or tuple(ASSIGNORS),
            may_upgrade=policy in ("upgrade", "bidirectional"),
            may_downgrade=policy in ("downgrade", "bidirectional"),
        )

    def member_count(self) -> int:
        now = self._broker.clock.monotonic()
        if now - self._counted >= _COUNT_SECONDS:
            self._counted = now
            self._members = sum(
                len(group.members)
                for group in self._broker.groups.known_groups()
                if isinstance(group, ConsumerGroup)
            )
        return self._members
