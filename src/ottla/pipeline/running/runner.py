"""Runs a pipeline: all its stages in one Spark session, each a query of its own with its own checkpoint.

Before anything starts, every stage is built and its shape is held against the checkpoint it would go on
with; one that does not fit refuses the start as a whole, so that a pipeline never runs in halves. Then each
stage has a thread that watches over it (`supervision`), the board collects where they stand (`progress`),
and the caller's display shows it. `run` does all of it for notebooks, tests and programs:

    from ottla.pipeline import run
    run("shop.py", bootstrap="127.0.0.1:9092", once=True)
    run([clean, score], name="shop")
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ottla.backoff import BackOff
from ottla.pipeline.checkpoints import Checkpoints
from ottla.pipeline.fingerprint import IncompatibleChange
from ottla.pipeline.running.display import Display, PlainDisplay, SilentDisplay
from ottla.pipeline.running.input_topics import is_idle
from ottla.pipeline.running.lag_watch import LagWatch, positions_of
from ottla.pipeline.running.loading import NeedsSpark, Pipeline, PipelineLike
from ottla.pipeline.running.progress import Board, Phase, StageProgress
from ottla.pipeline.running.status import StatusFiles
from ottla.pipeline.running.supervision import ATTEMPTS, RunEnvironment, StageWatch, StopRequest
from ottla.protocol.errors import ApiError
from ottla.protocol_client.group_offsets import commit_offsets
from ottla.protocol_client.wire import BrokerUnreachable, UnsupportedByBroker, Wire

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.pipeline.building import BuiltStage, RunContext

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
REFRESH = 0.25
"""Seconds between two looks at the stages."""


class Refused(Exception):
    """Stages have changed in ways that their checkpoints cannot follow; nothing was started."""

    def __init__(self, changes: Sequence[IncompatibleChange]) -> None:
        self.changes = list(changes)
        super().__init__("\n".join(str(change) for change in changes))


class PipelineFailed(Exception):
    """Stages failed for good. `outcome` has the last of every stage."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        failed = (f"stage {each.stage} failed: {each.error}" for each in outcome.failed)
        super().__init__("; ".join(failed))


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    stages: tuple[StageProgress, ...]
    interrupted: bool
    """It was asked to stop before it was done."""
    at_once: bool = False
    """It was asked twice, so batches were left in the middle."""

    def __getitem__(self, name: str) -> StageProgress:
        return next(each for each in self.stages if each.stage == name)

    @property
    def failed(self) -> list[StageProgress]:
        return [each for each in self.stages if each.phase == Phase.failed]

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.stages)


class Runner:
    """One run of a pipeline. `stop.ask()` ends it after the batches that run, asked again at once."""

    def __init__(
        self,
        pipeline: Pipeline,
        spark: SparkSession,
        context: RunContext,
        *,
        display: Display | None = None,
        stop: StopRequest | None = None,
        board: Board | None = None,
        attempts: int = ATTEMPTS,
        back_off: Callable[[], BackOff] = BackOff,
    ) -> None:
        self.pipeline = pipeline
        self.spark = spark
        self.context = context
        self.display = display or SilentDisplay()
        self.stop = stop or StopRequest()
        self.board = board or Board(pipeline.names, time.time)
        self._attempts = attempts
        self._back_off = back_off

    def run(self, once: bool) -> Outcome:
        """Run until done (`once`) or asked to stop.

        Raises Refused, StageBusy or StageError before anything is started.
        """
        with ExitStack() as held:
            for stage in self.pipeline.stages:
                held.enter_context(self.context.checkpoints.stage(stage.name).lock())
            built = self.prepare()
            environment = RunEnvironment(
                self.spark,
                self.context,
                self.board,
                self.stop,
                once,
                attempts=self._attempts,
                back_off=self._back_off,
            )
            self.board.observe(self.display.event)
            try:
                return self._watch(environment, built)
            finally:
                environment.remove_listeners()

    def prepare(self) -> dict[str, BuiltStage]:
        """Build all stages and check that their checkpoints can go on with them."""
        from ottla.pipeline.building import build

        built: dict[str, BuiltStage] = {}
        refused = []
        for stage in self.pipeline.stages:
            built[stage.name] = build(self.spark, stage, self.context)
            try:
                changes = self.context.checkpoints.stage(stage.name).check_fingerprint(
                    built[stage.name].fingerprint
                )
            except IncompatibleChange as error:
                refused.append(error)
            else:
                for change in changes:
                    self.display.say(f"{stage.name}: {change}")
        if refused:
            raise Refused(refused)
        return built

    def _watch(self, environment: RunEnvironment, built: Mapping[str, BuiltStage]) -> Outcome:
        watches: dict[str, StageWatch] = {}
        for stage in in_order(self.pipeline):
            feeders = [watches[each.name] for each in self.pipeline.feeders(stage) if each.name in watches]
            # A stage with settings of its own is built again, in the session that has them.
            settings = {**built[stage.name].settings, **stage.options}
            first = None if settings else built[stage.name]
            watches[stage.name] = StageWatch(stage, first, environment, feeders, settings)
        checkpoints = self.context.checkpoints
        lag = LagWatch(self.board, self.context.bootstrap, self.pipeline.stages, checkpoints)
        if self.context.connector != "ottla":  # our own source tells its group by itself
            lag.commit_to({stage.name: stage.group(self.pipeline.name) for stage in self.pipeline.stages})
        environment.look_at_lag = lambda name: _quietly(lambda: lag.look_now(name))
        status = StatusFiles(checkpoints, self.board)
        told = False
        try:
            for watch in watches.values():
                watch.start()
            lag.start()
            status.start()
            while not all(watch.over.wait(0) for watch in watches.values()) and not self.stop.at_once:
                if self.stop.asked and not told:
                    told = True
                    self.display.say("stopping after the running batches; once more stops at once")
                self.display.show(self.board.snapshot())
                self._pause(watches.values())
        finally:
            lag.end()
            if not self.stop.at_once:
                _commit_groups(self.pipeline, checkpoints, self.context.bootstrap)
                _quietly(lag.look_now)
            status.end()
            self.display.show(self.board.snapshot())
        return Outcome(tuple(self.board.snapshot()), self.stop.asked, self.stop.at_once)

    def _pause(self, watches: Iterable[StageWatch]) -> None:
        """Until the next look; a run that ends is not kept waiting."""
        until = time.monotonic() + REFRESH
        for watch in watches:
            watch.over.wait(max(until - time.monotonic(), 0))


def idle_outcome(
    pipeline: Pipeline, checkpoints: Checkpoints, bootstrap: str, board: Board, display: Display
) -> Outcome:
    """What a run with `once` comes to that has nothing to do (`input_topics.is_idle`), without Spark."""
    _commit_groups(pipeline, checkpoints, bootstrap)
    board.observe(display.event)
    for stage in pipeline.stages:
        board.lag(stage.name, 0, 0.0)
        board.enter(stage.name, Phase.finished)
    return Outcome(tuple(board.snapshot()), interrupted=False)


def _commit_groups(pipeline: Pipeline, checkpoints: Checkpoints, bootstrap: str) -> None:
    """Let the groups say what the checkpoints say. The source tells its group one batch late."""
    with Wire(bootstrap, connect_timeout=2.0, request_timeout=5.0) as wire:
        for stage in pipeline.stages:
            positions = positions_of(checkpoints.stage(stage.name).committed_offsets())
            if positions:
                group = stage.group(pipeline.name)
                _quietly(lambda g=group, p=positions: commit_offsets(wire, g, p))  # type: ignore[misc]


def in_order(pipeline: Pipeline) -> list[Any]:
    """Stages after those that feed them."""
    done: list[Any] = []
    left = list(pipeline.stages)
    while left:
        free = [each for each in left if not any(f in left for f in pipeline.feeders(each))] or left[:1]
        done += free
        left = [each for each in left if each not in free]
    return done


def _quietly(work: Callable[[], None]) -> None:
    """For what is good to have at the end of a run: a broker that is away does not make the run fail."""
    try:
        work()
    except (BrokerUnreachable, UnsupportedByBroker, ApiError):
        return


@contextmanager
def interrupts(stop: StopRequest) -> Iterator[dict[str, int]]:
    """While entered, Ctrl-C and SIGTERM ask `stop`; what came is noted under "signal".

    Only the main thread of a program can take signals; elsewhere nothing happens here. A handler runs in the
    middle of anything, a half-written line too, so it says nothing: the run does.
    """
    came: dict[str, int] = {}
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def handle(number: int, frame: FrameType | None) -> None:
        came["signal"] = number
        if (
            stop.at_once
        ):  # a third one: what should end the run is stuck, in a terminal that is halted perhaps
            raise KeyboardInterrupt
        stop.ask()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def default_checkpoints(pipeline: str) -> Path:
    """Where progress of the pipeline called so is kept by default: `.ottla/<name>` here."""
    return Path.cwd() / ".ottla" / pipeline


def of_spark(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings of the session; those called `kafka.*` are for topics."""
    return {name: value for name, value in settings.items() if not name.startswith("kafka.")}


def run(
    pipeline: PipelineLike,
    *,
    bootstrap: str = DEFAULT_BOOTSTRAP,
    once: bool = True,
    name: str | None = None,
    stages: Iterable[str] = (),
    checkpoints: str | Path | None = None,
    connector: str = "ottla",
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    show: bool = False,
) -> Outcome:
    """Run a pipeline: a file, a module or stage functions. Returns when all is read, or was interrupted.

    With `once=False` it runs until Ctrl-C. `spark` takes a session that is there; otherwise one is made, or
    the one of this process is used. Raises PipelineFailed when a stage failed for good, Refused when a
    checkpoint cannot go on with a stage as it is now.
    """
    from ottla.pipeline.building import RunContext
    from ottla.pipeline.spark.session import spark_session

    wanted = dict(settings or {})
    display = PlainDisplay(sys.stdout, sys.stderr) if show else SilentDisplay()
    try:
        loaded = Pipeline.load(pipeline, name=name).only(stages)
        if once and spark is None:
            folder = Checkpoints(str(checkpoints or default_checkpoints(loaded.name)))
            if is_idle(loaded, folder, bootstrap):
                return idle_outcome(loaded, folder, bootstrap, Board(loaded.names, time.time), display)
        session = spark or spark_session(f"ottla {loaded.name}", master, of_spark(wanted), connector)
    except NeedsSpark:
        session = spark or spark_session("ottla pipeline", master, of_spark(wanted), connector)
        loaded = Pipeline.load(pipeline, name=name).only(stages)
    context = RunContext(
        pipeline=loaded.name,
        bootstrap=bootstrap,
        checkpoints=Checkpoints(str(checkpoints or default_checkpoints(loaded.name))),
        connector=connector,
        settings=wanted,
    )
    runner = Runner(loaded, session, context, display=display)
    with interrupts(runner.stop):
        outcome = runner.run(once)
    if outcome.failed:
        raise PipelineFailed(outcome)
    if outcome.at_once:
        raise KeyboardInterrupt
    return outcome
