"""What `ottla pipeline reset` does: the plan, the question, the checkpoint and the consumer group."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import typer

from ottla.cli.failure import Failure, usage
from ottla.cli.moments import parse_moment
from ottla.cli.offset_plan import Target
from ottla.cli.offset_steps import plan_steps, print_steps, step_document
from ottla.cli.output import count_text, print_json, say, size_text, write
from ottla.pipeline.checkpoints import CheckpointError
from ottla.pipeline.declarations import Lake
from ottla.pipeline.lakes.layout import LakeError
from ottla.pipeline.lakes.replacing import plan_replacement
from ottla.pipeline.running.lag_watch import positions_of
from ottla.protocol_client.group_offsets import commit_offsets, committed_offsets
from ottla.protocol_client.groups import Place
from ottla.protocol_client.offsets import EARLIEST, LATEST

if TYPE_CHECKING:
    from ottla.pipeline.checkpoints import Checkpoints, StageFolder
    from ottla.pipeline.declarations import Stage
    from ottla.pipeline.running.loading import Pipeline
    from ottla.protocol_client.wire import Wire

_WANTED = "earliest, latest, a time like 2026-11-15T10:00, or a span back like -1h"


def reset_stage(
    pipeline: Pipeline,
    stage: Stage,
    checkpoints: Checkpoints,
    wire: Wire,
    to: str,
    *,
    replace: bool,
    execute: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Show the plan and do it, if it is wanted."""
    try:
        moment = parse_moment(to, time.time_ns() // 1_000_000)
    except ValueError:
        raise usage(f"--to: {to!r} is no place to start from; wanted: {_WANTED}") from None
    folder = checkpoints.stage(stage.name)
    group = stage.group(pipeline.name)
    places = _places(stage, wire)
    in_group = {place: each.offset for place, each in committed_offsets(wire, group).items()}
    lakes = _lakes(stage) if replace else []
    steps = plan_steps(wire, Target(moment=moment), places, in_group | _in_checkpoint(folder))
    if not as_json:
        if steps:
            print_steps(steps)
        _warn(stage, folder, lakes)
        if replace:
            _warn_of_replacement(folder, lakes, {(each.topic, each.partition): each.to for each in steps})
    done = False
    try:
        # Held while the question is open, so that no run starts on what is about to be removed.
        with folder.lock():
            asks = not (execute or dry_run or as_json) and sys.stdin.isatty() and sys.stdout.isatty()
            done = execute or (asks and typer.confirm(f"Reset {stage.name} so?", abort=True, err=True))
            if done:
                folder.reset({EARLIEST: "earliest", LATEST: "latest"}.get(moment, moment), lakes)
                if steps:
                    commit_offsets(wire, group, {(each.topic, each.partition): each.to for each in steps})
    except CheckpointError as error:
        raise Failure(str(error)) from None
    if as_json:
        document = {"stage": stage.name, "group": group, "executed": done, "replaced": lakes}
        print_json({**document, "partitions": [step_document(each) for each in steps]})
    elif done:
        where = f", and moved {group} in {count_text(len(steps), 'partition')}" if steps else ""
        write(f"reset {stage.name}{where}\n")
    else:
        say("This was a dry run: nothing is changed. --execute does it.")


def _places(stage: Stage, wire: Wire) -> list[Place]:
    """All partitions of the topics that the stage reads."""
    return [
        (topic.name, partition.partition_index)
        for topic in wire.metadata().topics
        if topic.name and not topic.is_internal and any(each.reads(topic.name) for each in stage.topics)
        for partition in topic.partitions
    ]


def _in_checkpoint(folder: StageFolder) -> dict[Place, int]:
    """Where the checkpoint is; nothing when it is damaged, which is what a reset cures."""
    try:
        return positions_of(folder.committed_offsets())
    except CheckpointError as error:
        say(f"warning: {error}")
        return {}


def _lakes(stage: Stage) -> list[str]:
    """The lakes whose rows are replaced."""
    lakes = [each for each in stage.outputs if isinstance(each, Lake)]
    if not lakes:
        raise usage(f"--replace: stage {stage.name} writes no lake; what is on a topic cannot be taken back")
    for each in lakes:
        if each.format != "parquet":
            raise usage(
                f"--replace: {each.title} is a {each.format} table",
                "Take its rows out with the table's own tools, then reset with --to earliest.",
            )
    return [each.path for each in lakes]


def _warn_of_replacement(folder: StageFolder, lakes: list[str], starts: dict[Place, int]) -> None:
    """Which files go, and which rows would not come back."""
    queries = folder.queries()
    for path in lakes:
        try:
            plan = plan_replacement(path, queries)
        except LakeError as error:
            raise Failure(str(error)) from None
        others = f"; {count_text(plan.kept, 'file')} of others stay" if plan.kept else ""
        say(f"From lake {path} {count_text(len(plan.files), 'file')} go ({size_text(plan.bytes)}){others}.")
    for (topic, partition), start in sorted(starts.items()):
        if start > 0:
            say(
                f"warning: partition {partition} of {topic} begins at {start}: rows of earlier records go"
                " from the lake and do not come back"
            )


def _warn(stage: Stage, folder: StageFolder, replaced: list[str]) -> None:
    """What the plan does not show: state that goes, rows that come again."""
    status = folder.read_json("status.json") or {}
    if status.get("state_rows"):
        rows = count_text(status["state_rows"], "row")
        say(f"Its state goes too: {rows} of aggregations, joins or duplicates seen.")
    stay = [each for each in stage.outputs if not (isinstance(each, Lake) and each.path in replaced)]
    if stay:
        names = ", ".join(output.title for output in stay)
        say(f"What it has written to {names} stays; what it reads again it writes again.")
