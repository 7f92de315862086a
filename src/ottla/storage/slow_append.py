"""An append whose bytes are written in a thread, because the disk is slow or they are many.

`Log.begin_append` or `Log.begin_replicated` makes it: the batches are checked, and have their offsets and a
place in a file. `write` may run in any thread; it touches nothing but the file. `Log.finish_append`
makes the batches part of the log.
"""

from __future__ import annotations

from ottla.clock import Clock
from ottla.storage.files import File
from ottla.storage.segment import Segment
from ottla.storage.validation import Validated


class SlowAppend:
    __slots__ = (
        "_clock",
        "_file",
        "_position",
        "leader_epoch",
        "now",
        "problem",
        "seconds",
        "segment",
        "validated",
    )

    def __init__(
        self, validated: Validated, leader_epoch: int, now: int, segment: Segment, file: File, clock: Clock
    ) -> None:
        self.validated = validated
        self.leader_epoch = leader_epoch  # of a leader's append; -1 where the epochs stand in the batches
        self.now = now
        self.segment = segment
        self.problem: OSError | None = None
        """Why the write failed."""
        self.seconds = 0.0
        """How long it took."""
        self._file = file
        self._position = segment.size
        self._clock = clock

    def write(self) -> None:
        """Write the bytes. An OSError is kept in `problem`, for `Log.finish_append`."""
        began = self._clock.monotonic()
        try:
            self._file.write_at(self._position, self.validated.data)
        except OSError as problem:
            self.problem = problem
        self.seconds = self._clock.monotonic() - began
