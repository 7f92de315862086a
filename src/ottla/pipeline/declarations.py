"""What a stage is, once declared: plain values that every part of the pipeline reads.

`stages` makes them and `refusals` judges them; nothing here knows Spark, so they cost nothing to import.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ottla.pipeline.patterns import matches

Format = Literal["json", "avro", "string", "bytes"]
Framing = Literal["plain", "confluent"]

MODES = ("append", "update", "complete")
BAD_RECORDS = ("dead-letter", "fail", "drop")
DELIVERIES = ("exactly-once", "at-least-once")
LAKE_FORMATS = ("parquet", "delta")
FRAMINGS = ("plain", "confluent")
SOURCE_COLUMN = "_source"

REAL_TIME = re.compile(r"real-time(?:\s+(?P<interval>.+))?", re.IGNORECASE)


class StageError(ValueError):
    """A stage cannot be what its declaration or its DataFrame says; the text tells what to write instead."""


@dataclass(frozen=True)
class Topic:
    """A topic to read or to write. Made by `topic`, whose arguments these are."""

    name: str | None
    pattern: str | None
    format: Format
    schema: str | None  # DDL for json, the schema's JSON text for avro
    framing: Framing = "plain"
    schema_id: int = 0
    schemas: tuple[tuple[int, str], ...] = ()  # what records were written with: ids of the registry and texts
    key: str | None = None
    headers: str | None = None
    partition: str | None = None
    drop_key: bool = False
    timestamp: str | None = None
    json_options: Mapping[str, str] = field(default_factory=dict)
    where: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What a person calls it."""
        return self.name if self.name is not None else f"topics like {self.pattern}"

    def reads(self, topic_name: str) -> bool:
        """Whether this input takes records of the topic called so."""
        if self.pattern is not None:
            return matches(self.pattern, topic_name)
        return self.name == topic_name


@dataclass(frozen=True)
class Lake:
    """A folder of Parquet files, or a Delta table, to write. Made by `lake`."""

    path: str
    partition_by: tuple[str, ...] = ()
    format: str = "parquet"
    where: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"lake {self.path}"


@dataclass(frozen=True)
class Sink:
    """A function that is called with each batch. Made by `sink`."""

    function: Callable[..., Any]
    name: str
    where: str | None = None

    @property
    def title(self) -> str:
        return f"sink {self.name}"


Output = Topic | Lake | Sink


@dataclass(frozen=True)
class Table:
    """A table that does not stream: read when the stage starts. Made by `table`."""

    source: str | Callable[..., Any]
    format: str = "parquet"
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        if isinstance(self.source, str):
            return f"table {self.source}"
        return f"table {getattr(self.source, '__name__', 'function')}"


@dataclass(frozen=True)
class Changelog:
    """A table that is the latest value per key of a topic. Made by `table(topic=...)`."""

    topic: Topic
    key: str | None = None

    @property
    def title(self) -> str:
        return f"table of topic {self.topic.name}"

    @property
    def fingerprint(self) -> str:
        """What the rows of the table depend on."""
        source = self.topic
        read_as = [source.format, source.schema, source.framing, source.schemas, dict(source.json_options)]
        return json.dumps([source.name, self.key, *read_as], sort_keys=True)


Input = Topic | Table | Changelog


@dataclass(frozen=True)
class Stage:
    """A declared stage. Made by `stage`, whose arguments these are; `place` is where its function stands.

    With `sql` the function is one that runs this statement.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    mode: str = "append"
    trigger: str = "0 seconds"
    bad: str = "dead-letter"
    dead_letters: str | None = None
    delivery: str | None = None  # to topics; None: exactly once if the broker can
    options: Mapping[str, str] = field(default_factory=dict)
    place: str = ""
    sql: str | None = None

    @property
    def topics(self) -> tuple[Topic, ...]:
        """The inputs that stream, in order."""
        return tuple(each for each in self.inputs if isinstance(each, Topic))

    @property
    def changelogs(self) -> tuple[Changelog, ...]:
        """The tables that are made of topics, in order."""
        return tuple(each for each in self.inputs if isinstance(each, Changelog))

    @property
    def read_topics(self) -> tuple[Topic, ...]:
        """All topics that are read, as a stream or as a table."""
        return (*self.topics, *(each.topic for each in self.changelogs))

    @property
    def reads_committed(self) -> bool:
        """Whether its inputs end at the last stable offset for it, as they do unless an option says no."""
        given = [options for each in self.read_topics for options in each.options.items()]
        return not any(
            name.lower() == "kafka.isolation.level" and value.lower() == "read_uncommitted"
            for name, value in given
        )

    def dead_letter_topic(self, pipeline: str) -> str:
        """Where bad records of this stage go in the pipeline called so."""
        return self.dead_letters or f"{pipeline}.{self.name}.dead-letters"

    def group(self, pipeline: str) -> str:
        """The consumer group that shows this stage's progress."""
        return f"ottla.{pipeline}.{self.name}"

    @property
    def real_time(self) -> bool:
        """Whether rows are to be written as they come, without batches."""
        return REAL_TIME.fullmatch(self.trigger) is not None

    @property
    def trigger_arguments(self) -> dict[str, str]:
        """The trigger as `DataStreamWriter.trigger` takes it."""
        real_time = REAL_TIME.fullmatch(self.trigger)
        if real_time:
            return {"realTime": real_time["interval"] or "5 minutes"}
        return {"processingTime": self.trigger}


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean x?` for the name most like it, or nothing."""
    known = list(names)
    match = difflib.get_close_matches(name.lower(), [each.lower() for each in known], n=1, cutoff=0.6)
    if not match:
        return ""
    return f"; did you mean {next(each for each in known if each.lower() == match[0])}?"
