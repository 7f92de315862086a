"""The shape of a stage: what its checkpoint depends on, as plain JSON for `fingerprint` to compare.

Inputs and outputs come from the declaration. What keeps state comes from the plan: the operators of Spark's
optimised plan that remember rows between batches, with what they group, join or tell apart by, and the types
they keep. Names that Spark numbers anew for each run, and names given to results, are left out, because state
does not depend on them.
"""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import DataFrame

from ottla.pipeline.declarations import Lake, Output, Sink, Stage, Table, Topic

_STATEFUL = (
    "Aggregate",
    "Join",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "GlobalLimit",
    "FlatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState",
    "TransformWithState",
    "TransformWithStateInPandas",
    "TransformWithStateInPySpark",
)
_WITH_TYPES = ("Aggregate", "Join")
_NUMBER = re.compile(r"#\d+L?")
_ALIAS = re.compile(r" AS (`[^`]+`|[\w.]+(\([^)]*\))?)")
_ALL_FIELDS = 10_000


def shape_of(stage: Stage, frame: DataFrame) -> dict[str, Any]:
    """What a checkpoint of this stage depends on."""
    return {
        "inputs": [_input(each) for each in stage.inputs],
        "outputs": [_output(each) for each in stage.outputs],
        "mode": stage.mode,
        "stateful": stateful_operators(frame),
    }


def stateful_operators(frame: DataFrame) -> list[dict[str, Any]]:
    """The operators of a streaming frame that keep state, from the result down."""
    found: list[dict[str, Any]] = []
    # Asking the frame for its optimised plan is refused for streams, so the optimiser is asked.
    optimizer = frame.sparkSession._jsparkSession.sessionState().optimizer()
    _walk(optimizer.execute(frame._jdf.queryExecution().analyzed()), found)
    return found


def _walk(node: Any, found: list[dict[str, Any]]) -> None:
    children = _items(node.children())
    name = node.nodeName()
    streams = [child for child in children if child.isStreaming()]
    # A join keeps rows only when both sides stream; a table is there as a whole.
    if name in _STATEFUL and streams and (name != "Join" or len(streams) > 1):
        operator: dict[str, Any] = {"operator": _plain(node.simpleString(_ALL_FIELDS))}
        if name in _WITH_TYPES:
            kept = streams if name == "Join" else [node]
            operator["types"] = [
                [field.dataType().simpleString() for field in _items(each.schema())] for each in kept
            ]
        found.append(operator)
    for child in children:
        _walk(child, found)


def _plain(text: str) -> str:
    return _NUMBER.sub("", _ALIAS.sub("", text)).strip().removeprefix("~")  # Spark's mark for what streams


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(place) for place in range(sequence.length())]


def _input(declared: Topic | Table) -> dict[str, Any]:
    if isinstance(declared, Table):
        return {"kind": "table", "options": {"table": declared.title, "format": declared.format}}
    named = {"topic": declared.name} if declared.name is not None else {"pattern": declared.pattern}
    return {"kind": "topic", **named, "format": declared.format, "schema": declared.schema}


def _output(declared: Output) -> dict[str, Any]:
    if isinstance(declared, Sink):
        return {"kind": "sink", "name": declared.name}
    if isinstance(declared, Lake):
        return {
            "kind": "lake",
            "path": declared.path,
            "format": declared.format,
            "partition_by": list(declared.partition_by),
        }
    return {"kind": "topic", "topic": declared.name, "format": declared.format, "schema": declared.schema}
