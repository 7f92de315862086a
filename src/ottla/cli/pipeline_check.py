"""What `ottla pipeline check` finds out: inputs, outputs, schemas, and whether a run could start. Reads no
data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.cli.blocks import Block, Fields, View
from ottla.pipeline.checkpoints import CheckpointError, Fingerprint
from ottla.pipeline.declarations import Changelog, Stage, StageError, Topic
from ottla.pipeline.running.causes import cause_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.pipeline.building import BuiltStage, RunContext
    from ottla.pipeline.checkpoints import StageFolder
    from ottla.pipeline.running.loading import Pipeline


def check_pipeline(
    pipeline: Pipeline,
    spark: SparkSession,
    context: RunContext,
    there: set[str] | None,
    problems: Sequence[str],
) -> tuple[View, list[str]]:
    """The view, and the problems in it. `there` are the topics of the broker, None when it is away."""
    found = list(problems)
    documents: list[dict[str, Any]] = []
    blocks: list[Block] = []
    for stage in pipeline.stages:
        document = _check_stage(stage, pipeline, spark, context, there)
        documents.append(document)
        blocks.append(Fields(_fields(document)))
        found += [f"stage {stage.name}: {problem}" for problem in document["problems"]]
    blocks.append("\n".join(["Problems", *(f"  {each}" for each in found)]) if found else "No problems.")
    view = {
        "pipeline": pipeline.name,
        "checkpoints": context.checkpoints.root,
        "stages": documents,
        "problems": found,
    }
    return View(view, blocks), found


def _check_stage(
    stage: Stage, pipeline: Pipeline, spark: SparkSession, context: RunContext, there: set[str] | None
) -> dict[str, Any]:
    from ottla.pipeline.building import build

    problems: list[str] = []
    fed = {name for feeder in pipeline.feeders(stage) for name in pipeline.written_by(feeder)}
    inputs = [_input(each, there, fed, problems) for each in stage.inputs]
    built: BuiltStage | None = None
    try:
        built = build(spark, stage, context)
    except StageError as error:
        problems.append(str(error).removeprefix(f"stage {stage.name}: "))
    except Exception as error:  # noqa: BLE001 - a user's function may raise anything: that is the finding
        problems.append(str(cause_of(error)))
    outputs = [
        {
            "name": output.title,
            "kind": type(output).__name__.lower(),
            "there": None if there is None or not isinstance(output, Topic) else output.name in there,
            "where": output.where,
            "schema": None if built is None else built.output_schemas[index].simpleString(),
        }
        for index, output in enumerate(stage.outputs)
    ]
    return {
        "stage": stage.name,
        "place": stage.place,
        "inputs": inputs,
        "outputs": outputs,
        "dead_letters": stage.dead_letter_topic(pipeline.name) if stage.bad == "dead-letter" else None,
        "bad": stage.bad,
        "mode": stage.mode,
        "trigger": stage.trigger,
        "group": stage.group(pipeline.name),
        "checkpoint": _checkpoint(context.checkpoints.stage(stage.name), built, problems),
        "problems": problems,
    }


def _input(source: Any, there: set[str] | None, fed: set[str], problems: list[str]) -> dict[str, Any]:
    document: dict[str, Any] = {"name": source.title}
    if isinstance(source, Changelog):
        return _input(source.topic, there, fed, problems) | document | {"kind": "table"}
    if not isinstance(source, Topic):
        return document | {"kind": "table"}
    topics = None if there is None else sorted(name for name in there if source.reads(name))
    from_stage = any(source.reads(name) for name in fed)
    if topics == [] and not from_stage:
        problems.append(f"{source.title} is not there; a run waits for it, and --once fails")
    return document | {
        "kind": "topic",
        "format": source.format,
        "schema": source.schema,
        "topics": topics,
        "from_stage": from_stage,
    }


def _checkpoint(folder: StageFolder, built: BuiltStage | None, problems: list[str]) -> dict[str, Any]:
    """Whether the stage can go on where it is, without writing anything down."""
    try:
        last = folder.last_committed()
        stored = folder.read_json("fingerprint.json")
    except CheckpointError as error:
        problems.append(str(error))
        return {"folder": str(folder), "batch": None, "changes": []}
    changes: list[str] = []
    if built is not None and stored is not None and folder.query_id() is not None:
        for change in built.fingerprint.changes_from(Fingerprint(stored["shape"])):
            changes.append(str(change))
            if not change.harmless:
                problems.append(f"its checkpoint cannot follow a change: {change}")
    return {"folder": str(folder), "batch": last.batch_id if last else None, "changes": changes}


def _fields(document: dict[str, Any]) -> list[tuple[str, str]]:
    fields = [("Stage", f"{document['stage']}  ({document['place']})")]
    fields += [("Reads", _input_text(source)) for source in document["inputs"]]
    for output in document["outputs"]:
        fields.append(("Writes", _output_text(output)))
        if output["schema"]:
            fields.append(("", output["schema"]))
    bad = {"dead-letter": f"to {document['dead_letters']}", "fail": "stop the stage", "drop": "are dropped"}
    fields.append(("Bad records", bad[document["bad"]]))
    fields.append(("Mode", f"{document['mode']}, every {document['trigger']}"))
    fields.append(("Group", document["group"]))
    checkpoint = document["checkpoint"]
    state = "begins anew" if checkpoint["batch"] is None else f"goes on after batch {checkpoint['batch']}"
    fields.append(("Checkpoint", f"{state}, in {checkpoint['folder']}"))
    fields += [("", change) for change in checkpoint["changes"]]
    fields += [("Problem", problem) for problem in document["problems"]]
    return fields


def _input_text(source: dict[str, Any]) -> str:
    if source["kind"] == "table":
        return str(source["name"])
    text = f"{source['name']} as {source['format']}"
    if source["schema"] and source["format"] == "json":
        text += f" ({source['schema']})"
    if source["topics"] is None:
        return text
    if not source["topics"]:
        return text + (", written by a stage before" if source["from_stage"] else ", which is not there")
    return text if source["topics"] == [source["name"]] else f"{text}: {', '.join(source['topics'])}"


def _output_text(output: dict[str, Any]) -> str:
    text = str(output["name"])
    if output["where"]:
        text += f" where {output['where']}"
    return text + (", which will be made" if output["there"] is False else "")
