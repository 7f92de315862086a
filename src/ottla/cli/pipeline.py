"""`ottla pipeline`: run, check, status, reset, compact, warm.

Spark is imported inside the commands that need it, when they need it: a missing topic, a mistake in the file
or a broker that is not there is told before Spark is started.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.failure import FAILED, INTERRUPTED, OK, Failure, usage
from ottla.cli.group import DEFAULT_EVERY, Every, Watch
from ottla.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT,
    Bootstrap,
    Json,
    Timeout,
    connect,
    parse_pairs,
)
from ottla.cli.output import print_json, say, seconds_text, size_text, write

if TYPE_CHECKING:
    from ottla.cli.blocks import View
    from ottla.pipeline.checkpoints import Checkpoints
    from ottla.pipeline.loading import Pipeline
    from ottla.pipeline.runner import Outcome

app = typer.Typer(
    help="Run stages that read topics, work on them with Spark, and write topics or a lake.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Connector(StrEnum):
    ottla = "ottla"
    kafka = "kafka"


File = Annotated[
    str, typer.Argument(metavar="FILE", help="The pipeline: a .py file, or the name of a module.")
]
StageNames = Annotated[
    list[str] | None,
    typer.Option("--stage", "-t", metavar="NAME", help="Only this stage; repeatable."),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        "-m",
        metavar="URL",
        envvar="OTTLA_SPARK_MASTER",
        help="Where Spark runs: local[2], spark://host:7077; else all cores of this machine.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="Any of Spark's settings, or kafka.* for all topics; repeatable.",
    ),
]
CheckpointFolder = Annotated[
    str | None,
    typer.Option(
        "--checkpoints",
        "-c",
        metavar="DIR",
        envvar="OTTLA_CHECKPOINTS",
        help="Folder or URL where progress and state are kept; else .ottla/<name of the file>.",
    ),
]
ConnectorOption = Annotated[
    Connector,
    typer.Option("--connector", help="What reads and writes topics: Ottla's own, or Spark's for the JVM."),
]


@app.command()
def run(
    file: File,
    once: Annotated[bool, typer.Option("--once", help="Work through what is there now, then end.")] = False,
    stage: StageNames = None,
    master: Master = None,
    set_: Settings = None,
    checkpoints: CheckpointFolder = None,
    connector: ConnectorOption = Connector.ottla,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Run a pipeline until Ctrl-C, which finishes the running batches; a second one stops at once.

    Each stage goes on where it ended the last time. A stage that fails is started again after a pause, the
    others go on meanwhile.
    """
    pipeline = load(file, stage)
    settings = _settings(set_ or [])
    _check_broker(pipeline, bootstrap, once=once)
    folder = checkpoints_of(pipeline, checkpoints)
    _check_free(pipeline, folder)
    raise typer.Exit(_run(pipeline, folder, settings, once, master, str(connector), bootstrap, as_json))


def _run(
    pipeline: Pipeline,
    folder: Checkpoints,
    settings: dict[str, str],
    once: bool,
    master: str | None,
    connector: str,
    bootstrap: str,
    as_json: bool,
) -> int:
    from ottla.pipeline.display import display_for
    from ottla.pipeline.runner import Runner, interrupts

    context, spark = start_spark(pipeline, folder, settings, master, connector, bootstrap)
    footer = f"{bootstrap} · {folder.root} · Ctrl-C stops"
    display = display_for(as_json=as_json, footer=footer)
    runner = Runner(pipeline, spark, context, display=display)
    try:
        with interrupts(runner.stop, display.say) as came:
            try:
                outcome = runner.run(once)
            finally:
                display.close()
            if outcome.at_once:
                _tell_end(outcome, folder)
                sys.stdout.flush()
                # The JVM follows: it reads from a pipe that closes now. What it was doing is done again.
                os._exit(INTERRUPTED if came.get("signal") == signal.SIGINT else FAILED)
            spark.stop()
    except Exception as error:
        known = as_pipeline_failure(error, pipeline)
        if known is None:
            raise
        raise known from None
    _tell_end(outcome, folder)
    if outcome.failed:
        return FAILED
    return INTERRUPTED if outcome.interrupted and came.get("signal") == signal.SIGINT else OK


def _tell_end(outcome: Outcome, folder: Checkpoints) -> None:
    from ottla.pipeline.display import count_text

    for each in outcome.failed:
        say(f"{each.stage} failed: {each.error}")
        say(f"  the whole of it is in {folder.stage(each.stage)}/errors.log")
    if outcome.interrupted:
        how = "stopped at once: what was being written is written again" if outcome.at_once else "stopped"
        say(f"{how}; the next run goes on from here ({folder.root})")
        for each in outcome.stages:
            last = f"batch {each.batch.number}" if each.batch else "no batch in this run"
            lag = f", lag {count_text(each.lag_records)}" if each.lag_records is not None else ""
            say(f"  {each.stage}: {last}, {count_text(each.rows)} rows{lag}")


@app.command()
def check(
    file: File,
    stage: StageNames = None,
    master: Master = None,
    set_: Settings = None,
    checkpoints: CheckpointFolder = None,
    connector: ConnectorOption = Connector.ottla,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Show what each stage reads and writes, and find what would keep it from running. Reads no data.

    The exit code is 1 when there is a problem.
    """
    from ottla.cli.blocks import show
    from ottla.cli.pipeline_check import check_pipeline

    pipeline = load(file, stage)
    folder = checkpoints_of(pipeline, checkpoints)
    there, problem = _topics_or_problem(bootstrap, timeout)
    context, spark = start_spark(pipeline, folder, _settings(set_ or []), master, str(connector), bootstrap)
    view, problems = check_pipeline(pipeline, spark, context, there, [problem] if problem else [])
    spark.stop()
    show(view, as_json=as_json)
    if problems:
        raise typer.Exit(FAILED)


@app.command()
def status(
    file: File,
    stage: StageNames = None,
    checkpoints: CheckpointFolder = None,
    watch: Watch = False,
    every: Every = DEFAULT_EVERY,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Show where each stage stands: its last batch, how far it is behind, its state and last error.

    Answers while the pipeline runs and when it does not.
    """
    from ottla.cli.blocks import show
    from ottla.cli.blocks import watch as watch_it
    from ottla.cli.pipeline_status import status_view

    pipeline = load(file, stage)
    folder = checkpoints_of(pipeline, checkpoints)
    with connect(bootstrap, min(timeout, 5.0)) as wire:

        def look() -> View:
            return status_view(pipeline, folder, wire)

        if watch:
            watch_it(look, every=every, as_json=as_json)
        show(look(), as_json=as_json)


@app.command()
def reset(
    file: File,
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="Name of the stage.")],
    to: Annotated[
        str, typer.Option("--to", metavar="WHERE", help="earliest, latest, a time, or a span back like -1h.")
    ],
    execute: Annotated[bool, typer.Option("--execute", help="Do it, without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan, without asking.")] = False,
    checkpoints: CheckpointFolder = None,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Forget a stage's progress and state, so that it starts elsewhere. Shows the plan first and asks.

    The stage must not be running. Its consumer group is moved too, so that its lag is right. What it has
    written stays, and records that it reads again are written again.
    """
    from ottla.cli.pipeline_reset import reset_stage

    if execute and dry_run:
        raise usage("--execute and --dry-run exclude each other")
    pipeline = load(file)
    folder = checkpoints_of(pipeline, checkpoints)
    with connect(bootstrap, timeout) as wire:
        reset_stage(
            pipeline,
            stage_of(pipeline, stage),
            folder,
            wire,
            to,
            execute=execute,
            dry_run=dry_run,
            as_json=as_json,
        )


@app.command()
def compact(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Folder or URL of the lake.")],
    target_size: Annotated[
        int, typer.Option("--target-size", metavar="MB", min=1, help="How large a file should become.")
    ] = 128,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    as_json: Json = False,
) -> None:
    """Put the small files of a lake together into large ones. A running pipeline goes on meanwhile."""
    from ottla.cli.pipeline_lake import compact_path

    need_spark()
    compact_path(path, target_size << 20, dry_run=dry_run, as_json=as_json)


@app.command()
def warm(as_json: Json = False) -> None:
    """Make the archive of Java classes with which Spark starts in half the time. It is made once.

    A pipeline makes it by itself in the background after its first run; this is for images of containers.
    """
    need_spark()
    from ottla.pipeline.archive import ArchiveFailed, warm
    from ottla.pipeline.java import JavaMissing

    try:
        made = warm(say if sys.stderr.isatty() or not as_json else None)
    except (ArchiveFailed, JavaMissing) as error:
        raise Failure(str(error)) from None
    if as_json:
        print_json({"path": str(made.path), "made": made.made, "seconds": round(made.seconds, 2)})
    elif made.made:
        size = size_text(made.path.stat().st_size)
        write(f"made {made.path}, {size}, in {seconds_text(made.seconds)}\n")
    else:
        write(f"{made.path} is there already\n")


# What the commands share


def load(file: str, stages: list[str] | None = None) -> Pipeline:
    """The pipeline in `file`, or the chosen stages of it."""
    need_spark()
    from ottla.pipeline.loading import CannotLoad, Pipeline

    try:
        return Pipeline.load(file).only(stages or [])
    except CannotLoad as error:
        raise usage(error.what, error.advice) from None


def stage_of(pipeline: Pipeline, name: str) -> Any:
    from ottla.pipeline.loading import CannotLoad

    try:
        return pipeline.stage(name)
    except CannotLoad as error:
        raise usage(error.what, error.advice) from None


def need_spark() -> None:
    from importlib.util import find_spec

    for name in ("pyspark", "pyarrow"):
        if find_spec(name) is None:
            raise Failure(
                f"pipelines need {name}, which is not installed",
                "`pip install 'ottla[spark]'` brings Spark and all that it needs.",
            )


def checkpoints_of(pipeline: Pipeline, given: str | None) -> Checkpoints:
    from ottla.pipeline.checkpoints import Checkpoints
    from ottla.pipeline.runner import default_checkpoints

    try:
        return Checkpoints(given or str(default_checkpoints(pipeline)))
    except (ValueError, OSError) as error:
        raise usage(f"--checkpoints {given}: {error}") from None


def start_spark(
    pipeline: Pipeline,
    folder: Checkpoints,
    settings: dict[str, str],
    master: str | None,
    connector: str,
    bootstrap: str,
) -> tuple[Any, Any]:
    """The context of the run, and a session for it."""
    from ottla.pipeline.building import RunContext
    from ottla.pipeline.java import JavaMissing
    from ottla.pipeline.runner import of_spark
    from ottla.pipeline.session import LOG_FILE, SparkFailed, spark_session

    if "://" not in folder.root:
        from pathlib import Path

        Path(folder.root).mkdir(parents=True, exist_ok=True)
        settings.setdefault(LOG_FILE, str(Path(folder.root) / "spark.log"))
    began = time.monotonic()
    if sys.stderr.isatty():
        say(f"starting Spark on {master or settings.get('spark.master') or 'this machine'} …")
    try:
        spark = spark_session(f"ottla {pipeline.name}", master, of_spark(settings), connector)
    except (SparkFailed, JavaMissing, ValueError) as error:
        raise Failure(str(error)) from None
    if sys.stderr.isatty():
        say(f"Spark is ready, in {seconds_text(time.monotonic() - began)}")
    context = RunContext(
        pipeline=pipeline.name,
        bootstrap=bootstrap,
        checkpoints=folder,
        connector=connector,
        settings=settings,
    )
    return context, spark


def as_pipeline_failure(error: Exception, pipeline: Pipeline) -> Failure | None:
    """What a person should read for an error of a run; None when it is nobody's fault but ours."""
    from ottla.pipeline.causes import cause_of
    from ottla.pipeline.checkpoints import CheckpointError
    from ottla.pipeline.declarations import StageError
    from ottla.pipeline.runner import Refused

    if isinstance(error, Refused):
        lines = [
            f"stage {each.stage} has changed in a way its checkpoint cannot follow:\n"
            + "\n".join(f"         {change}" for change in each.changes)
            for each in error.changes
        ]
        return Failure(
            "\n       ".join(lines),
            "Undo the change; or give the stage another name (name=...), so that it begins anew and the old\n"
            "       checkpoint stays; or forget its progress and state:\n"
            f"       ottla pipeline reset {pipeline.origin} {error.changes[0].stage} --to earliest",
        )
    if isinstance(error, CheckpointError | StageError):
        return Failure(str(error))
    if type(error).__module__.startswith(("pyspark.", "py4j.")):
        return Failure(str(cause_of(error)))
    return None


def _settings(pairs: list[str]) -> dict[str, str]:
    found = parse_pairs(pairs, "--set")
    for key in found:
        if not key.startswith(("spark.", "kafka.", "ottla.")):
            raise usage(
                f"--set {key}: settings are Spark's (spark.*), those of all topics (kafka.*) or ours (ottla.*)"
            )
    return found


def _check_broker(pipeline: Pipeline, bootstrap: str, *, once: bool) -> None:
    """A broker must be there at the start; so must the topics of a run that does not wait for them."""
    from ottla.pipeline.input_topics import missing_inputs, topic_names

    there = topic_names(bootstrap)
    for stage in pipeline.stages if once else ():
        missing = missing_inputs(stage, there)
        if missing and not pipeline.feeders(stage):
            raise Failure(
                f"stage {stage.name} reads {', '.join(missing)}, which is not there",
                "Without --once the pipeline waits for it. `ottla topic list` shows the topics there are.",
            )


def _check_free(pipeline: Pipeline, folder: Checkpoints) -> None:
    """That no other run has the stages; better told now than after Spark's start."""
    from ottla.pipeline.checkpoints import CheckpointError

    for stage in pipeline.stages:
        try:
            with folder.stage(stage.name).lock():
                pass
        except CheckpointError as error:
            raise Failure(str(error)) from None
        except OSError as error:
            raise Failure(f"cannot keep progress in {folder.root}: {error.strerror or error}") from None


def _topics_or_problem(bootstrap: str, timeout: float) -> tuple[set[str] | None, str]:
    from ottla.client.connection import BrokerUnreachable
    from ottla.pipeline.input_topics import topic_names

    try:
        return topic_names(bootstrap, timeout=min(timeout, 5.0)), ""
    except BrokerUnreachable as error:
        return None, f"cannot reach the broker at {error.address}: {error.reason}"
    except ValueError as error:
        raise usage(f"--bootstrap: {error}") from None
