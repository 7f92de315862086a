"""How far the stages are behind, looked up every few seconds while a pipeline runs.

Where a stage stands is known from its last batch; the broker says where its topics end and when the oldest
unread record was written. A broker that is away leaves the lag unknown and is asked again: the pipeline is
not held up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from ottla.client.groups import Place
from ottla.client.lag import lags, most_seconds, total_records
from ottla.client.wire import BrokerUnreachable, Wire
from ottla.pipeline.progress import Board, Offsets
from ottla.protocol.errors import ApiError

EVERY = 2.0
TIMEOUT = 5.0


def lag_of(wire: Wire, positions: Mapping[Place, int]) -> tuple[int | None, float | None]:
    """Records and seconds that who stands at `positions` is behind; None where it cannot be known."""
    if not positions:
        return None, None
    found = lags(wire, dict(positions))
    return total_records(found), most_seconds(found, time.time_ns() // 1_000_000)


def places(offsets: Offsets) -> dict[Place, int]:
    return {(topic, number): offset for topic, each in offsets.items() for number, offset in each.items()}


class LagWatch(threading.Thread):
    """Keeps the lag of all stages on the board. `started_at` are the positions before the first batch."""

    def __init__(
        self,
        board: Board,
        bootstrap: str,
        started_at: Mapping[str, Mapping[Place, int]],
        every: float = EVERY,
    ) -> None:
        super().__init__(name="lag of stages", daemon=True)
        self._board = board
        self._broker = bootstrap
        self._started_at = started_at
        self._every = every
        self._end = threading.Event()

    def run(self) -> None:
        with Wire(self._broker, connect_timeout=TIMEOUT, request_timeout=TIMEOUT) as wire:
            while not self._end.wait(self._every):
                self._look(wire)

    def end(self) -> None:
        self._end.set()

    def look_now(self) -> None:
        """Once more, for the last figures of a run."""
        with Wire(self._broker, connect_timeout=TIMEOUT, request_timeout=TIMEOUT) as wire:
            self._look(wire)

    def _look(self, wire: Wire) -> None:
        for stage in self._board.snapshot():
            offsets = places(stage.batch.offsets) if stage.batch else {}
            try:
                found = lag_of(wire, offsets or self._started_at.get(stage.stage, {}))
            except (BrokerUnreachable, ApiError):
                found = None, None
            self._board.lag(stage.stage, *found)
