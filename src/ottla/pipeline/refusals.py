"""The mistakes that a declaration alone shows, each told with what to write instead.

All are raised where the declaration stands, when its file is imported, so neither `ottla pipeline check` nor
a test needs a broker or Spark for them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ottla.pipeline.declarations import (
    BAD_RECORDS,
    DELIVERIES,
    FRAMINGS,
    MODES,
    REAL_TIME,
    Changelog,
    Lake,
    Output,
    Sink,
    Stage,
    StageError,
    Table,
    Topic,
    nearest,
)
from ottla.pipeline.patterns import compiled
from ottla.pipeline.topics.batch_marks import MARKS

_JSON_OPTIONS = (
    "allowBackslashEscapingAnyCharacter",
    "allowComments",
    "allowNonNumericNumbers",
    "allowNumericLeadingZeros",
    "allowSingleQuotes",
    "allowUnquotedControlChars",
    "allowUnquotedFieldNames",
    "dateFormat",
    "ignoreNullFields",
    "locale",
    "primitivesAsString",
    "timestampFormat",
    "timestampNTZFormat",
    "timeZone",
)
_LEGAL_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_INTERVAL = re.compile(
    r"\d+(\.\d+)?\s*(ms|milliseconds?|seconds?|minutes?|hours?|days?)(\s+\d.*)?", re.IGNORECASE
)


def check_stage(what: str, declared: Stage) -> None:
    inputs, outputs = declared.inputs, declared.outputs
    if not _LEGAL_NAME.fullmatch(declared.name) or declared.name in (".", ".."):
        raise StageError(
            f"{what}: a stage's name is used for a folder and for topics, so letters, digits, . _ - only;"
            ' give name="..."'
        )
    if declared.name.endswith(MARKS):
        other = declared.name.removesuffix(MARKS)
        raise StageError(
            f"{what}: its consumer group is that of the marks of stage {other}, which say what is committed;"
            ' give another name="..."'
        )
    for each in inputs:
        if isinstance(each, Lake):
            raise StageError(f"{what}: a lake is written, not read; join with table({each.path!r}) instead")
        if not isinstance(each, Topic | Table | Changelog):
            raise StageError(f"{what}: inputs are topic(...) and table(...), not {each!r}")
    if not declared.topics:
        raise StageError(
            f'{what}: nothing to read: name at least one topic, @stage(topic("clicks", json="..."), ...)'
        )
    for each in declared.read_topics:
        _check_input(what, each)
    _check_changelogs(what, declared)
    if not outputs:
        raise StageError(f'{what}: nothing to write: to=topic("clean") or to=lake("data/clean")')
    for output in outputs:
        if not isinstance(output, Output):
            raise StageError(f"{what}: to= takes topic(...), lake(...) and sink(function), not {output!r}")
        _check_output(what, declared, output)
    paths: set[str] = set()
    for lake in (output for output in outputs if isinstance(output, Lake)):
        folder = lake.path if "://" in lake.path else str(Path(lake.path).expanduser().resolve())
        if folder in paths:
            raise StageError(f"{what}: writes {lake.title} twice; one would replace the other's files")
        paths.add(folder)
    check_choice(what, "mode", declared.mode, MODES)
    check_choice(what, "bad", declared.bad, BAD_RECORDS)
    if declared.delivery is not None:
        check_choice(what, "delivery", declared.delivery, DELIVERIES)
    if declared.delivery == "exactly-once" and not any(isinstance(each, Topic | Lake) for each in outputs):
        raise StageError(
            f'{what}: delivery="exactly-once" is for topics. {outputs[0].title} is called again with the same'
            " batch until it returns; it may keep the number of its last batch to know"
        )
    _check_trigger(what, declared.trigger)
    if declared.real_time:
        _check_real_time(what, declared)
    if declared.dead_letters is not None:
        if declared.bad != "dead-letter":
            raise StageError(f"{what}: dead_letters= has no use with bad={declared.bad!r}")
        check_topic_name(declared.dead_letters)
        for each in declared.read_topics:
            if each.reads(declared.dead_letters):
                raise StageError(
                    f"{what}: reads its own dead letters: {declared.dead_letters} is {each.title}"
                )
    _check_signature(what, declared.function, len(inputs))


def _check_input(what: str, source: Topic) -> None:
    if source.format in ("json", "avro") and source.schema is None:
        raise StageError(
            f"{what}: how are the values of {source.title} to be read? Give a schema,"
            f' topic("{source.name or "..."}", json="id long, user string") or avro="schema.avsc",'
            " or string=True, bytes=True"
        )
    if source.where is not None:
        raise StageError(f"{what}: where= is for outputs; filter {source.title} in the function")


def _check_changelogs(what: str, declared: Stage) -> None:
    names = [each.topic.name for each in declared.changelogs]
    for each in declared.changelogs:
        if each.topic.name is None:
            raise StageError(f"{what}: a table is one topic; it cannot be {each.topic.title}")
        if names.count(each.topic.name) > 1:
            raise StageError(f"{what}: the {each.title} is named twice; its frame can be used twice")
    if names and declared.real_time:
        raise StageError(
            f'{what}: trigger="real-time" has no batches for which the table of topic {names[0]} could be'
            " brought up to date"
        )


def _check_output(what: str, declared: Stage, output: Output) -> None:
    if isinstance(output, Sink):
        return
    if isinstance(output, Lake):
        if declared.mode == "complete":
            raise StageError(
                f"{what}: mode='complete' gives the whole result every batch and a lake keeps every batch;"
                " use mode='append' with a watermark, or write to a topic"
            )
        return
    if output.name is None:
        raise StageError(
            f"{what}: writes to one topic by its name; a pattern ({output.pattern}) can only be read"
        )
    if output.format == "avro" and output.schema is None:
        raise StageError(f"{what}: avro needs a schema to write {output.name}")
    for each in declared.read_topics:
        if each.reads(output.name):
            raise StageError(
                f"{what}: {output.name} is read and written by the same stage: it would feed itself for ever"
                f"{anchor_hint(each)}"
            )


def anchor_hint(source: Topic) -> str:
    """What to write when a pattern takes more topics than it should."""
    if source.pattern is None:
        return ""
    whole = f"^{source.pattern.strip()}$"
    return f"; a pattern matches anywhere in a name, so write pattern={whole!r} to match whole names"


def _check_real_time(what: str, declared: Stage) -> None:
    """Without batches there is nothing to hang several outputs, a lake's files or dead letters on."""
    (output, *more) = declared.outputs
    if more or not isinstance(output, Topic):
        raise StageError(
            f'{what}: trigger="real-time" writes each row as it comes, to one topic and nothing else'
        )
    if declared.bad == "dead-letter":
        raise StageError(f'{what}: trigger="real-time" has no dead letters; say bad="drop" or bad="fail"')


def _check_signature(what: str, function: Callable[..., Any], frames: int) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # something callable that does not tell; calling it will
    try:
        signature.bind(*range(frames))
    except TypeError as problem:
        own = f"{getattr(function, '__name__', '')}{signature}"
        plural = "s" if frames != 1 else ""
        raise StageError(
            f"{what}: with {frames} input{plural} the function gets {frames} DataFrame{plural},"
            f" but it is {own}: {problem}"
        ) from None


def check_sink(function: object, name: object) -> None:
    if not callable(function):
        raise StageError(
            f"sink(...) takes a function, sink(store) with `def store(rows, batch_id)`, not {function!r}"
        )
    if not isinstance(name, str) or not _LEGAL_NAME.fullmatch(name):
        raise StageError(f'a sink is called by the name of its function, not {name!r}; give name="..."')
    try:
        inspect.signature(function).bind("rows", "batch_id")
    except TypeError as problem:
        raise StageError(
            f"sink {name}: the function is called with a DataFrame and the batch's number, but: {problem}"
        ) from None
    except ValueError:
        return  # something callable that does not tell; calling it will


def check_framing(what: str, format: str, framing: str, schema_id: int) -> None:
    check_choice(what, "framing", framing, FRAMINGS)
    if framing == "confluent" and format != "avro":
        raise StageError(
            f'{what}: framing="confluent" is the registry prefix of Avro values; this one is {format}'
        )
    if schema_id and framing != "confluent":
        raise StageError(
            f'{what}: schema_id= is written in the registry prefix; it needs framing="confluent"'
        )
    if not 0 <= schema_id < 2**31:
        raise StageError(f"{what}: schema_id={schema_id} is no id of a registry (0 to 2147483647)")


def check_json_options(what: str, format: str, given: dict[str, str]) -> dict[str, str]:
    """The options with Spark's own spelling of their names."""
    if given and format != "json":
        raise StageError(f"{what}: json_options= is for JSON; this one is {format}")
    known = {name.lower(): name for name in _JSON_OPTIONS}
    for name in given:
        if name.lower() not in known:
            raise StageError(
                f"{what}: json_options has no {name}{nearest(name, _JSON_OPTIONS)}; there are"
                f" {', '.join(_JSON_OPTIONS)}"
            )
    return {known[name.lower()]: value for name, value in given.items()}


def check_topic_name(name: object) -> None:
    if not isinstance(name, str):
        raise StageError(f"a topic's name is text, not {name!r}")
    if not _LEGAL_NAME.fullmatch(name) or name in (".", ".."):
        raise StageError(
            f"{name!r} is no name for a topic: 1 to 249 letters, digits, . _ - (or use pattern=)"
        )


def check_pattern(pattern: str) -> None:
    try:
        compiled(pattern)
    except (re.error, TypeError, AttributeError) as problem:
        raise StageError(f"pattern={pattern!r} is no regular expression: {problem}") from None


def check_choice(what: str, argument: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        hint = nearest(value, choices) if isinstance(value, str) else ""
        raise StageError(f"{what}: {argument}={value!r} is not one of {', '.join(choices)}{hint}")


def _check_trigger(what: str, trigger: object) -> None:
    text = trigger.strip() if isinstance(trigger, str) else ""
    real_time = REAL_TIME.fullmatch(text)
    interval = (real_time["interval"] or "5 minutes") if real_time else text
    if not _INTERVAL.fullmatch(interval):
        raise StageError(
            f'{what}: trigger={trigger!r} is no interval; write "10 seconds", "0 seconds" (as data comes)'
            ' or "real-time" (with the connector kafka)'
        )
