"""Runs whole pipelines in the background of a test, and what such tests write, copy and wait for."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ottla.backoff import BackOff
from ottla.pipeline.running.loading import Pipeline
from ottla.pipeline.running.runner import Outcome, Runner
from ottla.pipeline.stages import stage, topic
from pipeline.stage_runs import StageRuns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LIMIT = 120.0
ID = "id long"


def write(runs: StageRuns, name: str, *ids: int) -> None:
    runs.produce(name, [json.dumps({"id": each}).encode() for each in ids])


def ids(runs: StageRuns, name: str) -> list[int]:
    return sorted(json.loads(each.value or b"")["id"] for each in runs.records(name))


def copy(source: str, to: str, name: str, **options: Any) -> Callable[..., Any]:
    """A stage that writes what it reads."""

    @stage(topic(source, json=ID), to=topic(to), name=name, **options)
    def copied(records: DataFrame) -> DataFrame:
        return records

    return copied


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline, f"not within {LIMIT:g} s: {what}"
        time.sleep(0.02)


class Running:
    """A run in the background. It is stopped at the end of the `with` block at the latest."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.outcome: Outcome | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.outcome = self.runner.run(once=False)

    def __getitem__(self, name: str) -> Any:
        return self.runner.board[name]

    def stop(self) -> Outcome:
        if not self.runner.stop.asked:  # asked again it would stop at once
            self.runner.stop.ask()
        self._thread.join(LIMIT)
        assert self.outcome is not None, "the run did not end"
        return self.outcome


@contextmanager
def running(runs: StageRuns, *functions: Callable[..., Any], **options: Any) -> Iterator[Running]:
    pipeline = Pipeline.load(list(functions), name=runs.prefix)
    quick = options.pop("back_off", lambda: BackOff(first=0.1, limit=0.2))
    started = Running(Runner(pipeline, runs.spark, runs.context(), back_off=quick, **options))
    try:
        yield started
    finally:
        started.stop()
