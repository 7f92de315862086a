"""How far the stages are behind, looked up every few seconds while a pipeline runs.

Where a stage stands is known from its last batch; the broker says where its topics end and when the oldest
unread record was written. A broker that is away leaves the lag unknown and is asked again: the pipeline is
not held up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ottla.pipeline.running.progress import Board, Offsets, as_offsets
from ottla.protocol.errors import ApiError
from ottla.protocol_client.group_offsets import commit_offsets
from ottla.protocol_client.groups import Place
from ottla.protocol_client.lag import ends, lags, most_seconds, total_records
from ottla.protocol_client.wire import BrokerUnreachable, UnsupportedByBroker, Wire

if TYPE_CHECKING:
    from ottla.pipeline.checkpoints import Checkpoints, StageFolder
    from ottla.pipeline.declarations import Stage

EVERY = 2.0
TIMEOUT = 5.0


def lag_of(wire: Wire, positions: Mapping[Place, int], stage: Stage) -> tuple[int | None, float | None]:
    """Records and seconds that the stage at `positions` is behind; None where it cannot be known.

    What it cannot read yet, because a transaction is open, does not count.
    """
    if not positions:
        return None, None
    found = lags(wire, dict(positions), read_committed=stage.reads_committed)
    return total_records(found), most_seconds(found, time.time_ns() // 1_000_000)


def first_positions(stage: Stage, folder: StageFolder, wire: Wire) -> dict[Place, int]:
    """Where a stage without a batch will begin, if that is the beginning of its topics; else nothing."""
    if not begins_at_the_beginning(stage, folder.starting_options()):
        return {}
    wanted = [
        (topic.name, partition.partition_index)
        for topic in wire.metadata().topics
        if topic.name and not topic.is_internal and any(each.reads(topic.name) for each in stage.topics)
        for partition in topic.partitions
    ]
    return {place: span.start for place, span in ends(wire, wanted).items()}


def begins_at_the_beginning(stage: Stage, after_reset: Mapping[str, str]) -> bool:
    """What a reset says comes before what the inputs say; without either a stage reads its topics whole."""
    for options in [after_reset] if after_reset else [each.options for each in stage.topics]:
        starts = {
            name.lower(): value for name, value in options.items() if name.lower().startswith("starting")
        }
        if starts and starts != {"startingoffsets": "earliest"}:
            return False
    return True


def places(offsets: Offsets) -> dict[Place, int]:
    return {(topic, number): offset for topic, each in offsets.items() for number, offset in each.items()}


def positions_of(offsets: Mapping[str, Any] | None) -> dict[Place, int]:
    """Where all sources of a checkpoint continue: what every one of them has read."""
    found: dict[Place, int] = {}
    for value in (offsets or {}).values():
        for place, offset in places(as_offsets(value)).items():
            found[place] = min(found.get(place, offset), offset)
    return found


class LagWatch(threading.Thread):
    """Keeps the lag of all stages on the board."""

    def __init__(
        self,
        board: Board,
        broker: str,
        stages: Iterable[Stage],
        checkpoints: Checkpoints,
        every: float = EVERY,
    ) -> None:
        super().__init__(name="lag of stages", daemon=True)
        self._board = board
        self._broker = broker
        self._stages = {stage.name: stage for stage in stages}
        self._folders = {name: checkpoints.stage(name) for name in self._stages}
        # For stages that have no batch in this run; a checkpoint does not move without one.
        self._before = {name: positions_of(each.committed_offsets()) for name, each in self._folders.items()}
        self._every = every
        self._end = threading.Event()
        self._groups: Mapping[str, str] = {}

    def commit_to(self, groups: Mapping[str, str]) -> None:
        """Commit positions to these groups, by stage: for a connector that leaves its progress to itself."""
        self._groups = groups

    def run(self) -> None:
        with Wire(self._broker, connect_timeout=TIMEOUT, request_timeout=TIMEOUT) as wire:
            while not self._end.wait(self._every):
                self._look(wire)

    def end(self) -> None:
        self._end.set()

    def look_now(self, only: str | None = None) -> None:
        """Once more, for the last figures of a run or of one stage."""
        with Wire(self._broker, connect_timeout=TIMEOUT, request_timeout=TIMEOUT) as wire:
            self._look(wire, only)

    def _look(self, wire: Wire, only: str | None = None) -> None:
        for stage in self._board.snapshot():
            name = stage.stage
            if only not in (None, name):
                continue
            try:
                positions = places(stage.batch.offsets) if stage.batch else self._before[name]
                if not positions:
                    positions = first_positions(self._stages[name], self._folders[name], wire)
                elif name in self._groups:
                    commit_offsets(wire, self._groups[name], positions)
                found = lag_of(wire, positions, self._stages[name])
            except (BrokerUnreachable, UnsupportedByBroker, ApiError):
                found = None, None
            self._board.lag(name, *found)
