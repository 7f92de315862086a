"""What a command may ask of the world: write records, answer requests, wait for a while.

The state machines of this room do nothing by themselves. A command gets an `Effects` and fills it; the
runtime carries it out once the log has taken the records, or drops it whole when the log refuses. That is
why a command never changes the state in place: what it changes is a draft, kept here until then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from ottla.coordinator.records import Entry

if TYPE_CHECKING:
    from ottla.coordinator.group import Group
    from ottla.coordinator.journal import Rebalance

Reply: TypeAlias = Callable[[Any], None]
"""Who waits for an answer. It takes the response, or an `ApiError` if there is none."""

TimerKey: TypeAlias = tuple[str, ...]
"""A group, what is waited for and, where it is about one, the member."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """What happens to a group when a time is over: `Group.on_alarm` is called with it."""

    group_id: str
    kind: str
    member_id: str = ""
    generation: int = -1
    delay_ms: int = 0
    """How long it has been waited for."""
    remaining_ms: int = 0
    """How long it may be put off further; see the first rebalance of a group."""

    @property
    def key(self) -> TimerKey:
        return self.group_id, self.kind, self.member_id


@dataclass(slots=True)
class Effects:
    now_ms: int
    records: list[Entry] = field(default_factory=list)
    answers: list[tuple[Reply, Any]] = field(default_factory=list)
    alarms: dict[TimerKey, Alarm | None] = field(default_factory=dict)
    """Alarms to set, None for those to take back."""
    drafts: dict[str, Group] = field(default_factory=dict)
    """Groups as they shall be; each takes the place of the one with its id."""
    client_host: str = ""
    """Whose request it is, where a group is kept for it."""
    rebalances: list[Rebalance] = field(default_factory=list)
    """What the journal shall tell."""

    def write(self, key: Any, value: Any) -> None:
        self.records.append((key, value))

    def answer(self, reply: Reply | None, response: Any) -> None:
        if reply is not None:
            self.answers.append((reply, response))

    def set_alarm(self, alarm: Alarm) -> None:
        """Wait `alarm.delay_ms` from now; an alarm with the same key is replaced."""
        self.alarms[alarm.key] = alarm

    def cancel(self, group_id: str, kind: str, member_id: str = "") -> None:
        self.alarms[group_id, kind, member_id] = None
