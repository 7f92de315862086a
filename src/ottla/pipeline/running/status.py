"""Where a pipeline stands, as seen from outside: by another command, on another day.

A run writes `status.json` into the folder of each stage every few seconds. `look` joins that with what does
not depend on a run: Spark's checkpoint (the last batch that counts, where its sources continue) and the
broker (the stage's consumer group, and how far the topics have grown since). So it answers while the
pipeline runs, when it has ended, and when its machine was switched off in the middle.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from ottla.pipeline.checkpoints import CheckpointError, Checkpoints
from ottla.pipeline.running.lag_watch import first_positions, lag_of, positions_of
from ottla.pipeline.running.loading import Pipeline
from ottla.pipeline.running.progress import Board, StageProgress
from ottla.protocol.errors import ApiError
from ottla.protocol_client.group_offsets import committed_offsets
from ottla.protocol_client.groups import Place
from ottla.protocol_client.wire import BrokerUnreachable, UnsupportedByBroker, Wire

log = logging.getLogger("ottla.pipeline")

NAME = "status.json"
LOOK = 0.25
EVERY = 2.0
"""Seconds between two writes while something happens."""
HEARTBEAT = 5.0
"""Seconds between two writes while nothing does."""
_OF_THE_LAST_BATCH = ("batch", "batch_rows", "batch_seconds", "batch_at", "state_rows", "state_bytes")
STALE = 30.0
"""Seconds without a write after which a run on another machine is taken for dead."""


class StatusFiles(threading.Thread):
    """Writes the status of a run, on a thread of its own: no display can hold it up."""

    def __init__(self, checkpoints: Checkpoints, board: Board) -> None:
        super().__init__(name="status of stages", daemon=True)
        self._end = threading.Event()
        self._checkpoints = checkpoints
        self._board = board
        self._about = {"pid": os.getpid(), "host": socket.gethostname(), "started_at": time.time()}
        self._written: dict[str, tuple[float, StageProgress]] = {}
        self._before: dict[str, dict[str, Any]] = {}
        """What the last run with batches knew, for a stage that has none in this run."""
        self._unwritable: set[str] = set()

    def run(self) -> None:
        while not self._end.wait(LOOK):
            self._write(final=False)

    def end(self) -> None:
        """Write the last one."""
        self._end.set()
        if self.ident is not None:
            self.join()
        self._write(final=True)

    def _write(self, *, final: bool) -> None:
        now = time.monotonic()
        for stage in self._board.snapshot():
            at, before = self._written.get(stage.stage, (0.0, None))
            changed = before is None or _essence(before) != _essence(stage)
            if final or now - at >= (EVERY if changed else HEARTBEAT):
                self._written[stage.stage] = now, stage
                document = {**stage.document(), "run": {**self._about, "seen_at": time.time(), "over": final}}
                if stage.batch is None:
                    document |= self._known_before(stage.stage)
                self._write_one(stage.stage, document)

    def _known_before(self, stage: str) -> dict[str, Any]:
        """The last batch of an earlier run, and the state it left."""
        if stage not in self._before:
            told = self._checkpoints.stage(stage).read_json(NAME) or {}
            self._before[stage] = {name: told[name] for name in _OF_THE_LAST_BATCH if name in told}
        return self._before[stage]

    def _write_one(self, stage: str, document: dict[str, Any]) -> None:
        """A disk that is full keeps people from seeing how the stage is, not the stage from running."""
        try:
            self._checkpoints.stage(stage).write_json(NAME, document)
        except OSError as problem:
            if stage not in self._unwritable:
                log.warning("%s of stage %s cannot be written: %s", NAME, stage, problem)
            self._unwritable.add(stage)
        else:
            self._unwritable.discard(stage)


def _essence(stage: StageProgress) -> tuple[Any, ...]:
    return stage.phase, stage.note, stage.batches, stage.error_at, stage.lag_records


@dataclass(frozen=True)
class StageStatus:
    """What is known about one stage from outside. None is not known, or never was."""

    stage: str
    running: bool
    phase: str
    pid: int | None
    note: str | None
    batch: int | None
    batch_rows: int | None
    batch_seconds: float | None
    batch_at: float | None
    rows_per_second: float | None
    offsets: dict[str, dict[int, int]]
    """Where it continues."""
    lag_records: int | None
    lag_seconds: float | None
    state_rows: int | None
    bad: int
    """Records that could not be decoded, and below rows dropped by a watermark: of the last run."""
    late: int
    restarts: int
    error: str | None
    error_at: float | None
    group: str
    partitions: list[dict[str, Any]] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True)
class PipelineStatus:
    stages: list[StageStatus]
    broker_problem: str | None
    """Why nothing is known about the lag; None when the broker answered."""


def look(pipeline: Pipeline, checkpoints: Checkpoints, wire: Wire) -> PipelineStatus:
    """The stages as they stand now. A broker that is away is no reason not to tell the rest."""
    problem = None
    try:
        wire.metadata([])
    except BrokerUnreachable as error:
        problem = f"cannot reach the broker at {error.address}: {error.reason}"
    asked = None if problem else wire
    return PipelineStatus(
        [_stage_status(pipeline, stage.name, checkpoints, asked) for stage in pipeline.stages], problem
    )


def _stage_status(pipeline: Pipeline, name: str, checkpoints: Checkpoints, wire: Wire | None) -> StageStatus:
    folder = checkpoints.stage(name)
    stage = pipeline.stage(name)
    group = stage.group(pipeline.name)
    told: dict[str, Any] = folder.read_json(NAME) or {}
    run = told.get("run") or {}
    running = is_running(run)
    committed = None
    error = told.get("error")
    try:
        committed = folder.last_committed()
    except CheckpointError as problem:
        error = str(problem)
    in_checkpoint = positions_of(committed.offsets if committed else None)
    in_group = _group_positions(wire, group) if wire is not None else {}
    # Spark's own log is what counts; the group follows it, and is all there is with a lost checkpoint.
    positions = in_checkpoint or in_group
    records, seconds = None, None
    if wire is not None:
        records, seconds = lag_of(wire, positions or first_positions(stage, folder, wire), stage)
    if running:
        phase = told.get("phase") or "running"
    elif run and not run.get("over"):
        phase = "ended without saying so"
    else:
        phase = told.get("phase") or ("stopped" if committed else "never ran")
    return StageStatus(
        stage=name,
        running=running,
        phase=phase,
        pid=run.get("pid") if running else None,
        note=told.get("note") if running else None,
        batch=committed.batch_id if committed else told.get("batch"),
        batch_rows=told.get("batch_rows"),
        batch_seconds=told.get("batch_seconds"),
        batch_at=told.get("batch_at"),
        rows_per_second=told.get("rows_per_second") if running else None,
        offsets=_nested(positions),
        lag_records=records,
        lag_seconds=seconds,
        state_rows=told.get("state_rows"),
        bad=int(told.get("bad") or 0),
        late=int(told.get("late") or 0),
        restarts=int(told.get("restarts") or 0),
        error=error,
        error_at=told.get("error_at"),
        group=group,
        partitions=[
            {
                "topic": topic,
                "partition": number,
                "offset": in_checkpoint.get((topic, number)),
                "group_offset": in_group.get((topic, number)),
            }
            for topic, number in sorted({*in_checkpoint, *in_group})
        ],
    )


def is_running(run: dict[str, Any]) -> bool:
    """Whether the run that wrote this still lives: by its process here, by its heartbeat elsewhere."""
    if not run or run.get("over"):
        return False
    age = time.time() - float(run.get("seen_at") or 0)
    if run.get("host") == socket.gethostname():
        # The number of a process that was killed is given to another one some day, long after the heartbeat.
        return _process_lives(int(run.get("pid") or 0)) and age < 10 * STALE
    return age < STALE


def _process_lives(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _group_positions(wire: Wire, group: str) -> dict[Place, int]:
    try:
        return {place: each.offset for place, each in committed_offsets(wire, group).items()}
    except (ApiError, UnsupportedByBroker):
        return {}


def _nested(positions: dict[Place, int]) -> dict[str, dict[int, int]]:
    nested: dict[str, dict[int, int]] = {}
    for (topic, number), offset in sorted(positions.items()):
        nested.setdefault(topic, {})[number] = offset
    return nested
