"""What the kinds of groups have in common: whose commits count, when offsets expire, what admins see.

There are two kinds, the classic group and the group of the consumer protocol. One id names one group, of
either kind; offsets belong to the id and outlive the change from one kind to the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from ottla.coordinator.effects import Alarm, Effects
from ottla.coordinator.records import Entry

CLASSIC = "classic"
CONSUMER = "consumer"

CONSUMER_PROTOCOL_TYPE = "consumer"
"""The protocol type by which consumers join; others (Connect, for one) have their own."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The broker's say over groups, under the names of its configuration."""

    initial_rebalance_delay_ms: int = 3000
    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: what a member is known by besides its id."""

    client_id: str
    client_host: str
    version: int
    """Of the request; the rules have changed over the versions."""


class Group(Protocol):
    """One group, whatever its kind. Everything here is pure; see `Effects`."""

    group_id: str

    @property
    def kind(self) -> str:
        """CLASSIC or CONSUMER."""

    @property
    def state_name(self) -> str:
        """As ListGroups and DescribeGroups tell it."""

    @property
    def protocol_type(self) -> str | None: ...

    def draft(self) -> Self:
        """A copy that a command may change; it becomes the group when the log has taken the records."""

    def on_alarm(self, alarm: Alarm, effects: Effects) -> None:
        """A time is over."""

    def resume(self, effects: Effects) -> None:
        """The group was read from the log by a new coordinator: wait for its members again."""

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, effects: Effects
    ) -> None:
        """ApiError unless this member may commit offsets now. A commit is a sign of life."""

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """ApiError unless this member may read offsets; no member id is the right of everybody."""

    def check_delete(self) -> None:
        """ApiError unless the group may be deleted."""

    def check_offset_delete(self) -> None:
        """ApiError unless offsets of topics that nobody subscribes to may be deleted."""

    def is_subscribed(self, topic: str) -> bool: ...

    def offsets_unused_since(self, topic: str, committed_ms: int) -> int | None:
        """Since when an offset of `topic` is of no use to the group; None while it may be."""

    @property
    def is_deletable(self) -> bool:
        """Nobody is in it or about to be, so that it may go with its last offset."""

    def tombstones(self) -> Sequence[Entry]:
        """Records that remove the group (not its offsets) from the log."""
