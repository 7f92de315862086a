"""Where each stage of a run stands, as plain values.

Spark tells about every micro-batch in a JSON object; `Batch` keeps what people ask for. `StageProgress` is a
snapshot of one stage: its phase, last batch, rate, lag, state, restarts and last error. `Board` holds the
newest snapshot of each stage; threads that watch over the stages put changes in, the display and the status
file read. Its size does not grow with the time that a pipeline runs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias

Offsets: TypeAlias = dict[str, dict[int, int]]
"""The next offset to read, by topic and partition."""

INPUT_METRIC = "ottla.input."
"""How the metrics are called in which inputs count their records (`dead_letters`)."""

RATE_WINDOW = 10.0
"""Seconds over which rows per second are counted."""


class Phase(StrEnum):
    """What a stage is doing."""

    waiting = "waiting"
    starting = "starting"
    running = "running"
    restarting = "restarting"
    stopping = "stopping"
    stopped = "stopped"
    finished = "finished"
    failed = "failed"

    @property
    def over(self) -> bool:
        return self in (Phase.stopped, Phase.finished, Phase.failed)


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch, as Spark reported it."""

    number: int
    rows: int
    seconds: float
    state_rows: int | None = None
    state_bytes: int | None = None
    watermark: str | None = None
    offsets: Offsets = field(default_factory=dict)
    bad: int = 0
    """Records that could not be decoded."""
    late: int = 0
    """Rows that came after the watermark and were dropped by operators with state."""


def read_batch(progress: Mapping[str, Any]) -> Batch:
    """The batch of Spark's progress JSON."""
    durations = progress.get("durationMs") or {}
    milliseconds = progress.get("batchDuration", durations.get("triggerExecution", 0)) or 0
    # A long poll of the source for new data is waiting, not work.
    waited = durations.get("latestOffset", 0) or 0
    operators = progress.get("stateOperators") or []
    return Batch(
        number=int(progress.get("batchId", -1)),
        rows=int(progress.get("numInputRows") or 0),
        seconds=max(milliseconds - waited, 0) / 1000,
        state_rows=sum(int(each.get("numRowsTotal") or 0) for each in operators) if operators else None,
        state_bytes=sum(int(each.get("memoryUsedBytes") or 0) for each in operators) if operators else None,
        watermark=(progress.get("eventTime") or {}).get("watermark"),
        offsets=read_offsets(progress.get("sources") or []),
        bad=_bad_records(progress.get("observedMetrics") or {}),
        late=sum(int(each.get("numRowsDroppedByWatermark") or 0) for each in operators),
    )


def read_offsets(sources: Iterable[Mapping[str, Any]]) -> Offsets:
    """How far all sources have read; where two read the same partition, what both have read."""
    found: Offsets = {}
    for source in sources:
        for topic, partitions in as_offsets(source.get("endOffset")).items():
            mine = found.setdefault(topic, {})
            for partition, offset in partitions.items():
                mine[partition] = min(mine.get(partition, offset), offset)
    return found


def as_offsets(value: Any) -> Offsets:
    """`{"topic": {"0": 12}}` as Kafka's source writes it, parsed or as text; empty for anything else."""
    if isinstance(value, str):
        import json

        try:
            value = json.loads(value)
        except ValueError:
            return {}
    if not isinstance(value, Mapping):
        return {}
    found: Offsets = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, Mapping):
            return {}
        try:
            found[str(topic)] = {int(number): int(offset) for number, offset in partitions.items()}
        except (TypeError, ValueError):
            return {}
    return found


def _bad_records(observed: Mapping[str, Any]) -> int:
    """What the inputs have counted; metrics of the stage's own are none of ours."""
    return sum(
        int(metrics.get("bad") or 0)
        for name, metrics in observed.items()
        if name.startswith(INPUT_METRIC) and isinstance(metrics, Mapping)
    )


@dataclass(frozen=True, slots=True)
class StageProgress:
    """A snapshot of one stage. None is not known (yet)."""

    stage: str
    phase: Phase = Phase.starting
    note: str = ""
    """What it waits for, or what happens next."""
    batch: Batch | None = None
    batch_at: float | None = None
    """When the last batch was done, in seconds since 1970."""
    batches: int = 0
    seconds: float = 0.0
    """What all batches of this run took."""
    rows: int = 0
    bad: int = 0
    late: int = 0
    rows_per_second: float = 0.0
    lag_records: int | None = None
    lag_seconds: float | None = None
    state_rows: int | None = None
    restarts: int = 0
    error: str = ""
    error_at: float | None = None

    def document(self) -> dict[str, Any]:
        """As JSON for programs; times are in seconds."""
        batch = self.batch
        return {
            "stage": self.stage,
            "phase": str(self.phase),
            "note": self.note or None,
            "batch": batch.number if batch else None,
            "batch_rows": batch.rows if batch else None,
            "batch_seconds": batch.seconds if batch else None,
            "batch_at": self.batch_at,
            "batches": self.batches,
            "rows": self.rows,
            "bad": self.bad,
            "late": self.late,
            "rows_per_second": round(self.rows_per_second, 1),
            "lag_records": self.lag_records,
            "lag_seconds": self.lag_seconds,
            "state_rows": self.state_rows,
            "state_bytes": batch.state_bytes if batch else None,
            "watermark": batch.watermark if batch else None,
            "offsets": batch.offsets if batch else {},
            "restarts": self.restarts,
            "error": self.error or None,
            "error_at": self.error_at,
        }


class _Rate:
    """Rows per second over the last seconds. The rows of a batch count evenly over the time it took."""

    def __init__(self) -> None:
        self._done: deque[tuple[float, int, float]] = deque()
        self._since: float | None = None

    def add(self, now: float, rows: int, seconds: float) -> None:
        if self._since is None:
            self._since = now - seconds
        self._done.append((now, rows, seconds))
        self._forget(now)

    def value(self, now: float) -> float:
        self._forget(now)
        if self._since is None or not self._done:
            return 0.0
        window = now - RATE_WINDOW
        counted = 0.0
        for end, rows, seconds in self._done:
            inside = end - max(window, end - seconds)
            counted += rows * (inside / seconds if seconds > 0 else 1.0)
        # A stage that began two seconds ago is not judged by ten.
        return counted / max(min(now - self._since, RATE_WINDOW), 1.0)

    def _forget(self, now: float) -> None:
        while self._done and now - self._done[0][0] > RATE_WINDOW:
            self._done.popleft()


Observer: TypeAlias = Callable[[StageProgress, str], None]
"""Called with the new snapshot and what happened: `progress`, or the name of the new phase."""


class Board:
    """The newest snapshot of every stage. Safe for threads; the one that changes it calls the observers."""

    def __init__(self, stages: Iterable[str], clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._now = {name: StageProgress(name) for name in stages}
        self._rates = {name: _Rate() for name in self._now}
        self._observers: list[Observer] = []

    def observe(self, observer: Observer) -> None:
        self._observers.append(observer)

    def snapshot(self) -> list[StageProgress]:
        """All stages, in their order, with rates as of now."""
        now = self._clock()
        with self._lock:
            return [
                replace(each, rows_per_second=self._rates[name].value(now))
                for name, each in self._now.items()
            ]

    def __getitem__(self, stage: str) -> StageProgress:
        with self._lock:
            return self._now[stage]

    def batch_done(self, stage: str, batch: Batch) -> None:
        """A batch was committed. Batches without rows (a timeout, a watermark) count too."""
        now = self._clock()
        with self._lock:
            before = self._now[stage]
            self._rates[stage].add(now, batch.rows, batch.seconds)
            after = replace(
                before,
                batch=batch if batch.offsets or before.batch is None else _with_offsets(batch, before.batch),
                batch_at=now,
                batches=before.batches + 1,
                seconds=before.seconds + batch.seconds,
                rows=before.rows + batch.rows,
                bad=before.bad + batch.bad,
                late=before.late + batch.late,
                state_rows=batch.state_rows if batch.state_rows is not None else before.state_rows,
                rows_per_second=self._rates[stage].value(now),
            )
            self._now[stage] = after
        self._tell(after, "progress")

    def enter(self, stage: str, phase: Phase, note: str = "") -> None:
        """The stage is in another phase; nothing happens when it was in it already with the same note."""
        with self._lock:
            before = self._now[stage]
            if before.phase == phase and before.note == note:
                return
            after = self._now[stage] = replace(before, phase=phase, note=note)
        self._tell(after, str(phase))

    def failed(self, stage: str, error: str, phase: Phase, note: str, *, restart: bool) -> None:
        """The stage failed with `error` and is now in `phase`."""
        with self._lock:
            before = self._now[stage]
            after = self._now[stage] = replace(
                before,
                phase=phase,
                note=note,
                error=error,
                error_at=self._clock(),
                restarts=before.restarts + restart,
            )
        self._tell(after, str(phase))

    def lag(self, stage: str, records: int | None, seconds: float | None) -> None:
        with self._lock:
            self._now[stage] = replace(self._now[stage], lag_records=records, lag_seconds=seconds)

    def _tell(self, progress: StageProgress, event: str) -> None:
        for observer in self._observers:
            observer(progress, event)


def _with_offsets(batch: Batch, before: Batch) -> Batch:
    return replace(batch, offsets=before.offsets)
