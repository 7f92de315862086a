"""What a command wants to happen: write records, answer requests, set timers.

The state machines of a coordinator do no I/O. A command gets an `Effects` and fills it. The shard carries it
out once the log has taken the records, or drops it as a whole when the log refuses. That is why a command
never changes the state in place. A coordinator that keeps drafts of its objects until then adds them in a
subclass.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from ottla.completion import Completion

Reply: TypeAlias = Completion[Any]
"""What a client waits for: it is resolved with the response, or fails with an `ApiError`."""


class CoordinatorTimer(Protocol):
    """A timer that a command sets. When it expires, the state gets it back in `on_timer`."""

    @property
    def key(self) -> Hashable:
        """A new timer replaces the one with the same key."""

    @property
    def delay_ms(self) -> int: ...


R = TypeVar("R")


@dataclass(slots=True)
class Effects(Generic[R]):
    now_ms: int
    records: list[R] = field(default_factory=list)
    answers: list[tuple[Reply, Any]] = field(default_factory=list)
    timers: dict[Hashable, CoordinatorTimer | None] = field(default_factory=dict)
    """Timers to set; None cancels."""
    spare_bytes: int | None = 0
    """What the records must leave over of `max.message.bytes`. None: they are written whatever their size,
    because something could never end without them."""

    def answer(self, reply: Reply | None, response: Any) -> None:
        if reply is not None:
            self.answers.append((reply, response))

    def set_timer(self, timer: CoordinatorTimer) -> None:
        """Wait `timer.delay_ms` from now."""
        self.timers[timer.key] = timer

    def cancel_timer(self, key: Hashable) -> None:
        self.timers[key] = None
