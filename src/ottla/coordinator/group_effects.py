"""What a command of the group coordinator wants to happen, beyond what every coordinator has.

A command never changes a group in place: it works on a draft, which takes the place of the group when the log
has taken the records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from ottla.coordinator.records import Entry
from ottla.coordinator.runtime.effects import Effects

if TYPE_CHECKING:
    from ottla.coordinator.group import Group
    from ottla.coordinator.rebalance_history import Rebalance

TimerKey: TypeAlias = tuple[str, str, str]
"""Group id, kind of timer, and the member id where the timer is about one."""


@dataclass(frozen=True, slots=True)
class GroupTimer:
    """A timer of a group. `Group.on_timer` is called with it when it expires."""

    group_id: str
    kind: str
    member_id: str = ""
    generation: int = -1
    delay_ms: int = 0
    remaining_ms: int = 0
    """How much longer the first rebalance of a group may be delayed after this timer."""

    @property
    def key(self) -> TimerKey:
        return self.group_id, self.kind, self.member_id


@dataclass(slots=True)
class GroupEffects(Effects[Entry]):
    drafts: dict[str, Group] = field(default_factory=dict)
    """Changed groups; each takes the place of the one with its id."""
    client_host: str = ""
    """The client whose request it is, where a group is created for it."""
    rebalances: list[Rebalance] = field(default_factory=list)
    """For the rebalance history."""

    def write(self, key: Any, value: Any) -> None:
        self.records.append((key, value))

    def cancel(self, group_id: str, kind: str, member_id: str = "") -> None:
        self.cancel_timer((group_id, kind, member_id))
