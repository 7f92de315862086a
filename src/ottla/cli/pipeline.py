"""`ottla pipeline`: run, check, graph, status, reset, compact, warm.

Spark is imported inside the commands that need it, when they need it: a missing topic, a mistake in the file
or a broker that is not there is reported before Spark is started.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
)
from ottla.cli.output import print_json, say, seconds_text, size_text, write
from ottla.cli.pipeline_launch import (
    Connector,
    Launch,
    as_pipeline_failure,
    check_broker,
    check_free,
    log_to,
    need_spark,
    stage_of,
    stop_spark,
    topics_or_problem,
)

if TYPE_CHECKING:
    from ottla.cli.blocks import View
    from ottla.pipeline.checkpoints import Checkpoints
    from ottla.pipeline.running.loading import Pipeline
    from ottla.pipeline.running.progress import Board
    from ottla.pipeline.running.runner import Outcome

app = typer.Typer(
    help="Run stages that read topics, work on them with Spark, and write topics or a lake.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


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
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="[HOST:]PORT",
            envvar="OTTLA_PIPELINE_METRICS",
            help="Serve the figures of the stages to Prometheus at /metrics; without a host to this machine.",
        ),
    ] = None,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Run a pipeline until Ctrl-C, which finishes the running batches; a second one stops at once.

    Each stage goes on where it ended the last time. A stage that fails is started again after a pause, the
    others go on meanwhile.
    """
    launch = Launch(file, checkpoints, master, set_, connector)
    pipeline = launch.load(stage)
    check_broker(pipeline, bootstrap, once=once)
    check_free(pipeline, launch.checkpoints)
    with _metrics(metrics, pipeline) as board:
        code = _run(launch, pipeline, once, bootstrap, as_json, board)
    raise typer.Exit(code)


@contextmanager
def _metrics(address: str | None, pipeline: Pipeline) -> Iterator[Board]:
    """The board of the run, which Prometheus reads if that is wanted. An address in use is found out now."""
    from ottla.pipeline.running.metrics import metrics_server
    from ottla.pipeline.running.progress import Board

    board = Board(pipeline.names, time.time)
    with ExitStack() as stack:
        if address is not None:
            try:
                port = stack.enter_context(metrics_server(address, pipeline.name, board))
            except ValueError as error:
                raise usage(f"--metrics: {error}") from None
            except OSError as error:
                raise Failure(f"--metrics {address}: {error.strerror or error}") from None
            if sys.stderr.isatty():
                say(f"figures for Prometheus on port {port}, at /metrics")
        yield board


def _run(launch: Launch, pipeline: Pipeline, once: bool, bootstrap: str, as_json: bool, board: Board) -> int:
    from ottla.pipeline.running.display import display_for
    from ottla.pipeline.running.input_topics import has_little_to_read, is_idle
    from ottla.pipeline.running.runner import Runner, idle_outcome, interrupts

    folder = launch.checkpoints
    footer = f"{bootstrap} · {folder.root} · Ctrl-C stops"
    if once and not launch.started and is_idle(pipeline, folder, bootstrap):
        display = display_for(as_json=as_json, footer=footer)
        display.show(idle_outcome(pipeline, folder, bootstrap, board, display).stages)
        display.close()
        return OK
    spark = launch.spark(little_to_do=once and has_little_to_read(pipeline, folder, bootstrap))
    context = launch.context(pipeline, bootstrap)
    display = display_for(as_json=as_json, footer=footer)
    log_to(display.say)
    runner = Runner(pipeline, spark, context, display=display, board=board)
    try:
        with interrupts(runner.stop) as came:
            try:
                outcome = runner.run(once)
            finally:
                display.close()
            if outcome.at_once:
                _tell_end(outcome, folder)
                sys.stdout.flush()
                # The JVM follows: it reads from a pipe that closes now. What it was doing is done again.
                os._exit(INTERRUPTED if came.get("signal") == signal.SIGINT else FAILED)
            stop_spark(spark)
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
    from ottla.pipeline.running.display import count_text

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

    launch = Launch(file, checkpoints, master, set_, connector)
    pipeline = launch.load(stage)
    there, problem = topics_or_problem(bootstrap, timeout)
    spark, context = launch.spark(little_to_do=True), launch.context(pipeline, bootstrap)
    view, problems = check_pipeline(pipeline, spark, context, there, [problem] if problem else [])
    stop_spark(spark)
    show(view, as_json=as_json)
    if problems:
        raise typer.Exit(FAILED)


@app.command()
def graph(
    file: File,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="PATH", help="Write the picture to this file.")
    ] = None,
    stage: StageNames = None,
    as_json: Json = False,
) -> None:
    """Show which stages read and write what: as text, as an SVG picture, or as JSON. Needs no broker."""
    from ottla.pipeline.graph import graph_of, svg_of, text_of

    pipeline = Launch(file, None).load(stage)
    if svg is not None:
        try:
            svg.write_text(svg_of(pipeline), encoding="utf-8")
        except OSError as error:
            raise Failure(f"cannot write {svg}: {error.strerror}") from None
    if as_json:
        print_json(graph_of(pipeline).document())
    elif svg is None:
        write(text_of(pipeline))


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

    launch = Launch(file, checkpoints)
    pipeline, folder = launch.load(stage), launch.checkpoints
    with connect(bootstrap, min(timeout, 5.0), waits_for_start=False) as wire:

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
        str | None,
        typer.Option("--to", metavar="WHERE", help="earliest, latest, a time, or a span back like -1h."),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Start at earliest, and take out of its lakes what it has written."),
    ] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it, without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan, without asking.")] = False,
    checkpoints: CheckpointFolder = None,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Forget a stage's progress and state, so that it starts elsewhere. Shows the plan first and asks.

    The stage must not be running. Its consumer group is moved too, so that its lag is right. What it has
    written stays, and records that it reads again are written again; with --replace its lakes end as if it
    had run once.
    """
    from ottla.cli.pipeline_reset import reset_stage

    if execute and dry_run:
        raise usage("--execute and --dry-run exclude each other")
    if to is None and not replace:
        raise usage("where shall it start? Give --to earliest, latest or a time; or --replace")
    if replace and to not in (None, "earliest"):
        raise usage("--replace starts at earliest: a lake that begins later would not be whole")
    launch = Launch(file, checkpoints)
    pipeline, folder = launch.load(), launch.checkpoints
    with connect(bootstrap, timeout) as wire:
        reset_stage(
            pipeline,
            stage_of(pipeline, stage),
            folder,
            wire,
            to or "earliest",
            replace=replace,
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
    from ottla.pipeline.spark.archive import ArchiveFailed, warm
    from ottla.pipeline.spark.java import JavaMissing

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
