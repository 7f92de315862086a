"""What the two kinds of groups have in common.

There are classic groups and groups of the consumer protocol. One id names one group, of either kind; offsets
belong to the id and stay when the group changes its kind. `GroupShard` talks to both through `Group`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

from ottla.coordinator.group_effects import GroupEffects, GroupTimer
from ottla.coordinator.records import Entry
from ottla.coordinator.runtime.effects import Reply
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.leave_group import MemberIdentity
from ottla.protocol.messages.sync_group import SyncGroupRequest

CLASSIC = "classic"
CONSUMER = "consumer"

CONSUMER_PROTOCOL_TYPE = "consumer"
"""The protocol type by which consumers join; others (Connect, for one) have their own."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The broker's settings for groups, under the names of its configuration."""

    initial_rebalance_delay_ms: int = 3000
    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Caller:
    """The client that sent a request."""

    client_id: str
    client_host: str
    version: int
    """Of the request; the rules have changed over the versions."""


class Join(NamedTuple):
    """A JoinGroup request, and what the broker adds to it."""

    request: JoinGroupRequest
    protocols: tuple[tuple[str, bytes], ...]
    """Those of the request: names and metadata."""
    new_id: str
    """For a member that has no id yet."""
    caller: Caller
    reply: Reply


class NewOffset(NamedTuple):
    topic: str
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class OffsetCommit(NamedTuple):
    """A commit of offsets, by a member of a group or by a client that is none."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    """Or the member's epoch; negative for a client that is not a member."""
    offsets: Sequence[NewOffset]
    retention_ms: int = -1
    """How long old clients want it kept; -1 leaves it to the broker."""
    version: int = 9
    """Of the request."""
    transactional: bool = False
    """It is part of a transaction."""

    @property
    def names_no_member(self) -> bool:
        """It says nothing about who commits, as older clients do in transactions."""
        return self.generation < 0 and not self.member_id and self.instance_id is None


class Group(Protocol):
    """One group of either kind. Everything here is pure; see `Effects`."""

    group_id: str

    @property
    def kind(self) -> str:
        """CLASSIC or CONSUMER."""

    @property
    def state_name(self) -> str:
        """As in ListGroups and DescribeGroups."""

    @property
    def protocol_type(self) -> str | None: ...

    @property
    def members(self) -> Mapping[str, Any]:
        """By member id. They have at least name, client_id, client_host and metadata_size."""

    @property
    def pending(self) -> frozenset[str]:
        """Member ids that were given out and have not joined yet."""

    def draft(self) -> Self:
        """A copy that a command may change; it becomes the group when the log has taken the records."""

    # Requests of the classic protocol. All but `heartbeat` are called on a draft.

    def join(self, join: Join, effects: GroupEffects) -> None: ...

    def sync(self, request: SyncGroupRequest, reply: Reply, effects: GroupEffects) -> None: ...

    def heartbeat(self, request: HeartbeatRequest, effects: GroupEffects) -> ErrorCode:
        """Most heartbeats change nothing but a timer, so this makes a draft only if it needs one."""

    def leave(self, identities: Sequence[MemberIdentity], effects: GroupEffects) -> list[ErrorCode]:
        """Remove members; the outcome for each."""

    # Called on a draft as well

    def on_timer(self, timer: GroupTimer, effects: GroupEffects) -> None:
        """A timer of the group has expired."""

    def resume(self, effects: GroupEffects) -> None:
        """The group was read from the log by a new coordinator: start the timers of its members."""

    # Offsets

    def check_commit(self, commit: OffsetCommit, effects: GroupEffects) -> None:
        """ApiError unless this member may commit these offsets now."""

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """ApiError unless this member may read offsets. A client without a member id may."""

    def check_delete(self) -> None:
        """ApiError unless the group may be deleted."""

    def check_offset_delete(self) -> None:
        """ApiError unless offsets of topics without subscription may be deleted."""

    def is_subscribed(self, topic: str) -> bool: ...

    def offsets_unused_since(self, topic: str, committed_ms: int) -> int | None:
        """Since when the group does not need an offset of `topic`; None while it may need it."""

    @property
    def is_deletable(self) -> bool:
        """It has no members and expects none, so it may be removed with its last offset."""

    def tombstones(self) -> Sequence[Entry]:
        """Records that remove the group (not its offsets) from the log."""
