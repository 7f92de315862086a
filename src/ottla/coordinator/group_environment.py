"""What groups of the consumer protocol need to know about their broker: topics, settings and load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ottla.cluster.image import ClusterImage
from ottla.coordinator.topic_matches import TopicMatches


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The configuration of one group: its own values, and the broker's where it has none."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    may_upgrade: bool = True
    """Classic groups may become groups of the consumer protocol while they run, ..."""
    may_downgrade: bool = True
    """... and the other way."""


class GroupEnvironment(Protocol):
    @property
    def image(self) -> ClusterImage:
        """The present cluster image: which topics exist."""

    @property
    def topic_matches(self) -> TopicMatches:
        """Which topics match the regular expressions of subscriptions."""

    def settings(self, group_id: str) -> ConsumerSettings: ...

    def member_count(self) -> int:
        """Members in all groups of this broker. It may be some seconds old."""
