"""The shape of a stage, and whether a checkpoint begun with one shape can go on with another.

Spark's checkpoint knows its sources only by their place in the query and its state only by the operator that
wrote it. Change either and it fails with a message about offsets or field counts, or, worse, goes on with the
wrong data. So the shape of a stage is kept beside its checkpoint as plain JSON and compared at every start.
The rules below say for each part what a change does, in words for the person who made it:

    inputs      which topics or tables, in which order, how they are decoded
    outputs     where results go
    stateful    operators that keep state, with keys and schema: aggregations, joins, dedup
    mode        append, update or complete

A part that no rule knows is refused: better one reset too many than a checkpoint read wrongly.

`shape_of` makes the shape. Inputs and outputs come from the declaration. What keeps state comes from the
plan: the operators of Spark's optimised plan that remember rows between batches, with what they group, join
or tell apart by, and the types they keep. Names that Spark numbers anew for each run, and names given to
results, are left out, because state does not depend on them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.pipeline.declarations import Changelog, Input, Lake, Output, Sink, Stage, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ABSENT: Final = "(none)"
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


@dataclass(frozen=True)
class Change:
    """One difference between the stage as it is and as it was when its checkpoint was begun."""

    path: str
    before: str
    after: str
    harmless: bool
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.before} became {self.after}; {self.why}"


class IncompatibleChange(Exception):
    """The stage's checkpoint cannot go on with the stage as it is now."""

    def __init__(self, stage: str, changes: list[Change]) -> None:
        self.stage = stage
        self.changes = changes
        lines = "\n".join(f"  {change}" for change in changes)
        super().__init__(
            f"stage {stage} has changed in a way its checkpoint cannot follow:\n{lines}\n{self.advice}"
        )

    @property
    def advice(self) -> str:
        return (
            f"Either undo the change; or give the stage another name (name=...), so that it begins a"
            f" checkpoint of its own and the old one stays; or forget its progress and state with"
            f" `ottla pipeline reset {self.stage} --to earliest` (or latest, or a time)."
        )


@dataclass(frozen=True)
class _Rule:
    pattern: re.Pattern[str]
    harmless: bool
    why: str


def _rule(pattern: str, why: str, *, harmless: bool) -> _Rule:
    return _Rule(re.compile(pattern), harmless, why)


_RULES = (
    _rule(
        r"inputs\[\d+\]\.(options|schema|format|columns|value|decode|headers|key)\b.*",
        "it counts from the next batch on",
        harmless=True,
    ),
    _rule(
        r"inputs.*",
        "the checkpoint's offsets belong to the inputs it was begun with, in their order",
        harmless=False,
    ),
    _rule(
        r"outputs.*",
        "what is written from the next batch on goes there; what is written stays",
        harmless=True,
    ),
    _rule(
        r"(trigger|bad|dead_letters|options|description|name|pipeline)\b.*",
        "it counts from now on",
        harmless=True,
    ),
    _rule(
        r"stateful.*",
        "the state in the checkpoint was written by the old operators and the new ones cannot read it",
        harmless=False,
    ),
    _rule(
        r"mode",
        "rows that were held back or sent under the old mode would be lost or sent twice",
        harmless=False,
    ),
    _rule(r".*", "nothing is known about how a checkpoint follows such a change", harmless=False),
)


@dataclass(frozen=True)
class Fingerprint:
    """A stage's shape: JSON objects, lists and values."""

    shape: Mapping[str, Any]

    def __post_init__(self) -> None:
        # As it will be read back, so that a tuple and the list it becomes are no change.
        object.__setattr__(self, "shape", json.loads(json.dumps(self.shape, sort_keys=True)))

    def changes_from(self, before: Fingerprint) -> list[Change]:
        """Every difference to an earlier shape, each with what it means, the refused ones first."""
        old, new = dict(_leaves(before.shape)), dict(_leaves(self.shape))
        stateless = not before.shape.get("stateful") and not self.shape.get("stateful")
        changes = []
        for path in sorted(old.keys() | new.keys()):
            if old.get(path, _ABSENT) == new.get(path, _ABSENT):
                continue
            rule = next(rule for rule in _RULES if rule.pattern.fullmatch(path))
            harmless, why = rule.harmless, rule.why
            if path == "mode" and stateless:
                harmless, why = True, "without state every mode writes the same rows"
            changes.append(Change(path, old.get(path, _ABSENT), new.get(path, _ABSENT), harmless, why))
        return sorted(changes, key=lambda change: (change.harmless, change.path))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{place}]")
    else:
        yield path, json.dumps(value) if not isinstance(value, str) else value


def shape_of(stage: Stage, frame: DataFrame) -> dict[str, Any]:
    """What a checkpoint of this stage depends on."""
    return {**declared_shape(stage), "stateful": stateful_operators(frame)}


def declared_shape(stage: Stage) -> dict[str, Any]:
    """The part of it that the declaration alone says."""
    return {
        "inputs": [_input(each) for each in stage.inputs],
        "outputs": [_output(each) for each in stage.outputs],
        "mode": stage.mode,
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


def _input(declared: Input) -> dict[str, Any]:
    if isinstance(declared, Changelog):
        return {"kind": "table", "options": {"table": declared.title, "key": declared.key}}
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
