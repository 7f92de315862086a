"""What is known of one log's cleaning: for the choice of the next log, and for display."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.storage.cleaning.swap import Swap


class Overtaken(Exception):
    """The log is not any more what the pass was made over."""


class LastCleaning(NamedTuple):
    """A cleaning that came to its end."""

    finished_ms: int
    seconds: float
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int


@dataclass(slots=True)
class CleaningState:
    """One log. `bytes_read` of `bytes_to_read` while a pass runs."""

    running: bool = False
    bytes_read: int = 0
    bytes_to_read: int = 0
    uncleanable: str | None = None  # why it is left alone, until it is asked for or the broker restarts
    problem: str | None = None  # why the last attempt came to nothing, if it did
    not_before: float = float("-inf")  # monotonic: after a failure other logs are compacted first
    asked_for: bool = False  # compact it now, whatever the ratio and the lag
    stopping: bool = False  # the log is about to be deleted: the pass ends at its next step
    passes: int = 0
    failures: int = 0  # attempts that came to nothing
    last: LastCleaning | None = None
    unfinished: list[Swap] = field(default_factory=list)  # in use, but the disk refused to give them names

    def note_progress(self, done: int, total: int) -> None:
        """Called by the pass, in its thread. Overtaken when it shall end."""
        self.bytes_read, self.bytes_to_read = done, total
        if self.stopping:
            raise Overtaken("the log is being deleted")
