"""Stages as they are declared: a function from DataFrames to a DataFrame, what it reads and where it writes.

`@stage(topic("clicks", json="id long, user string"), to=topic("clicks.clean"))` only takes a note: the
function stays the function it was, so a test calls it with any DataFrame and no pipeline runs. The note, a
`Stage`, is what `ottla pipeline` builds and runs. This module knows no Spark; a mistake that can be seen in
the declaration alone is refused at the line that makes it. What needs Spark to see (columns, types) is
checked by `building`.
"""

from __future__ import annotations

import inspect
import json as json_text
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from ottla.pipeline.declarations import (
    LAKE_FORMATS,
    SOURCE_COLUMN,
    Changelog,
    Format,
    Framing,
    Input,
    Lake,
    Output,
    Sink,
    Stage,
    StageError,
    Table,
    Topic,
    nearest,
)
from ottla.pipeline.refusals import (
    check_choice,
    check_framing,
    check_json_options,
    check_pattern,
    check_sink,
    check_stage,
    check_topic_name,
)
from ottla.pipeline.sql import as_function

__all__ = [
    "Lake",
    "Sink",
    "Stage",
    "StageError",
    "Table",
    "Topic",
    "lake",
    "sink",
    "stage",
    "stages_of",
    "table",
    "topic",
]

_NOTES = (
    "__ottla_stages__"  # the stages of a module, in its own globals: a redefined name is then not lost unseen
)

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def topic(
    name: str | None = None,
    *,
    pattern: str | None = None,
    json: Any = None,
    avro: str | Path | Mapping[str, Any] | None = None,
    string: bool = False,
    bytes: bool = False,
    framing: Framing = "plain",
    schema_id: int = 0,
    schemas: str | Path | None = None,
    key: str | None = None,
    headers: str | None = None,
    partition: str | None = None,
    drop_key: bool = False,
    timestamp: str | None = None,
    json_options: Mapping[str, Any] | None = None,
    where: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Topic:
    """A topic to read or to write, and how its values are encoded.

    One declaration may serve both ways: what one stage writes the next one reads. To read, a schema is needed
    (`json="id long, user string"`, `avro=` text or file) or `string=True`, `bytes=True`; to write, none is
    (JSON of all columns), and one that is given is kept to. `key`, `headers`, `partition`, `timestamp` name
    columns and speak of writing; `where` is an SQL condition on the rows that are written here.
    """
    if (name is None) == (pattern is None):
        raise StageError('a topic has a name or a pattern: topic("clicks") or topic(pattern="clicks\\\\..*")')
    what = f"topic {name if name is not None else pattern!r}"
    if name is not None:
        check_topic_name(name)
    else:
        assert pattern is not None
        check_pattern(pattern)
    format, schema = _format_of(what, json, avro, string, bytes)
    check_framing(what, format, framing, schema_id)
    written_with = () if schemas is None else _schemas_in(what, schemas, framing)
    if drop_key and key is None:
        raise StageError(f"{what}: drop_key=True needs key=, the column to leave out of the value")
    columns = {"key": key, "headers": headers, "partition": partition, "timestamp": timestamp}
    for argument, column in columns.items():
        if column is not None and not _is_text(column):
            raise StageError(f"{what}: {argument}= takes the name of a column, not {column!r}")
    return Topic(
        name=name,
        pattern=pattern,
        format=format,
        schema=schema,
        framing=framing,
        schema_id=schema_id,
        schemas=written_with,
        key=key,
        headers=headers,
        partition=partition,
        drop_key=drop_key,
        timestamp=timestamp,
        json_options=check_json_options(what, format, _texts(what, json_options)),
        where=_condition(what, where),
        options=_texts(what, options),
    )


def lake(
    path: str | Path,
    *,
    partition_by: str | Iterable[str] = (),
    format: str = "parquet",
    where: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Lake:
    """A folder that receives the rows as Parquet files, or as a Delta table, each batch exactly once."""
    if not _is_text(str(path)):
        raise StageError('a lake needs a path: lake("data/clicks") or lake("s3://bucket/clicks")')
    what = f"lake {path}"
    columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    for column in columns:
        if not _is_text(column):
            raise StageError(f"{what}: partition_by takes names of columns, not {column!r}")
        if "," in column:
            names = ", ".join(repr(part.strip()) for part in column.split(","))
            raise StageError(
                f"{what}: partition_by={column!r} is one text; give the columns apart: [{names}]"
            )
        if column == SOURCE_COLUMN:
            raise StageError(f"{what}: {SOURCE_COLUMN} is dropped before writing; name a column of your own")
    if len(set(columns)) != len(columns):
        raise StageError(f"{what}: partition_by names a column twice: {', '.join(columns)}")
    check_choice(what, "format", format, LAKE_FORMATS)
    return Lake(str(path), columns, format, _condition(what, where), _texts(what, options))


def sink(function: Callable[..., Any], *, name: str | None = None, where: str | None = None) -> Sink:
    """A function of yours that takes each batch: `function(rows, batch_id)`, with a DataFrame and its number.

    It is called until it returns: a batch that fails comes again, with the same number and the same records.
    """
    called = name if name is not None else getattr(function, "__name__", "")
    check_sink(function, called)
    return Sink(function, called, _condition(f"sink {called}", where))


_topic = topic  # `table` has an argument of this name


def table(
    source: str | Path | Callable[..., Any] | None = None,
    *,
    format: str = "parquet",
    schema: Any = None,
    topic: str | Topic | None = None,
    key: str | None = None,
    options: Mapping[str, Any] | None = None,
    **values: Any,
) -> Table | Changelog:
    """A table to join with: a path in a format Spark reads, a function from session to DataFrame, or a topic.

    A path or function is read when the stage starts (and starts again). `topic` is a compacted topic, or a
    declared one: the table has the latest value per key, as of the start of each batch. `key` names the
    column that holds the record's key; `values` say how values are read, as in `topic`.
    """
    if topic is not None:
        if source is not None or schema is not None or format != "parquet":
            raise StageError("table(topic=...): a path, format= and schema= are for tables in files")
        return _changelog(topic, key, options, values)
    if values or key is not None:
        names = ", ".join([*(["key"] if key is not None else []), *values])
        raise StageError(f'table(...): {names} needs topic=, as in table(topic="customers", key="id", ...)')
    if source is None:
        raise StageError('a table needs a path, a function or a topic: table("readers.parquet")')
    if callable(source):
        if schema is not None or options:
            raise StageError(
                "table(function): the function reads as it likes; schema= and options= are for paths"
            )
        return Table(source)
    if not _is_text(str(source)):
        raise StageError('a table needs a path or a function: table("readers.parquet")')
    ddl = None if schema is None else _ddl(f"table {source}", "schema", schema)
    return Table(str(source), format, ddl, _texts(f"table {source}", options))


def _changelog(
    source: str | Topic, key: str | None, options: Mapping[str, Any] | None, values: Mapping[str, Any]
) -> Changelog:
    if isinstance(source, Topic):
        if values or options:
            raise StageError("table(topic=topic(...)): say how its values are read inside topic(...)")
        declared = source
    else:
        known = ("json", "avro", "string", "bytes", "framing", "schemas", "json_options")
        for name in values:
            if name not in known:
                hint = nearest(name, known)
                raise StageError(f"table(topic={source!r}): there is no argument {name}={hint}")
        declared = _topic(source, options=options, **values)
    if key is not None and not _is_text(key):
        raise StageError(f"table of {declared.title}: key= takes the name of a column, not {key!r}")
    return Changelog(declared, key if key is not None else declared.key)


def stage(
    *inputs: Input,
    to: Output | Iterable[Output],
    name: str | None = None,
    mode: str = "append",
    trigger: str = "0 seconds",
    bad: str = "dead-letter",
    dead_letters: str | Topic | None = None,
    delivery: str | None = None,
    options: Mapping[str, Any] | None = None,
    sql: str | Path | None = None,
) -> Callable[[AnyFunction], AnyFunction]:
    """Declare the function as a stage: it gets a DataFrame for each input and returns what is written.

    Topics are written exactly once, each batch in one transaction, if the broker has transactions, and at
    least once if not; with `delivery="exactly-once"` the stage does not run then. `delivery="at-least-once"`
    does without transactions.
    With `sql`, a query or the path of a `.sql` file, the query is the stage. The function then has no body;
    its parameters are the names by which the query calls the inputs.
    """
    outputs = (to,) if isinstance(to, Output) else tuple(to)
    query = None if sql is None else _query_text(sql)

    def declare(function: AnyFunction) -> AnyFunction:
        stage_name = name if name is not None else getattr(function, "__name__", "stage")
        what = f"stage {stage_name}"
        letters = dead_letters.name if isinstance(dead_letters, Topic) else dead_letters
        place = _place_of(function)
        if query is not None:
            function = cast(AnyFunction, as_function(what, query, function, len(inputs)))
        declared = Stage(
            name=stage_name,
            function=function,
            inputs=inputs,
            outputs=outputs,
            mode=mode,
            trigger=trigger,
            bad=bad,
            dead_letters=letters,
            delivery=delivery,
            options=_texts(what, options),
            place=place,
            sql=query,
        )
        check_stage(what, declared)
        _take_note(declared)
        function.__stage__ = declared  # type: ignore[attr-defined]
        return function

    return declare


def stages_of(module: ModuleType) -> list[Stage]:
    """The stages of a module in order of definition, with those it imported by name."""
    found: list[Stage] = []
    named = [getattr(value, "__stage__", None) for value in vars(module).values()]
    for declared in [*named, *vars(module).get(_NOTES, ())]:
        if isinstance(declared, Stage) and not any(each.function is declared.function for each in found):
            found.append(declared)
    seen: dict[str, Stage] = {}
    for each in found:
        if each.name in seen:
            raise _named_twice(each, seen[each.name])
        seen[each.name] = each
    return found


def _take_note(declared: Stage) -> None:
    scope = getattr(inspect.unwrap(declared.function), "__globals__", None)
    if scope is None or "<locals>" in getattr(declared.function, "__qualname__", ""):
        return  # made by a function, which may make many: known by the name it is given in the module, if any
    notes: list[Stage] = scope.setdefault(_NOTES, [])
    for index, earlier in enumerate(notes):
        if earlier.name == declared.name:
            # In a shell or a notebook a cell is run again; in a file a second one would hide the first.
            if earlier.place != declared.place and not declared.place.startswith("<"):
                raise _named_twice(declared, earlier)
            notes[index] = declared
            return
    notes.append(declared)


def _named_twice(later: Stage, earlier: Stage) -> StageError:
    return StageError(
        f"two stages are called {later.name}: {earlier.place} and {later.place}. Progress is kept under this"
        ' name, so each needs its own: rename one function or give name="..."'
    )


def _format_of(what: str, json: Any, avro: Any, string: bool, bytes: bool) -> tuple[Format, str | None]:
    given = [
        format
        for format, value in (("json", json), ("avro", avro), ("string", string), ("bytes", bytes))
        if value is not None and value is not False
    ]
    if len(given) > 1:
        raise StageError(f"{what}: values have one format, not {' and '.join(given)}")
    if string:
        return "string", None
    if bytes:
        return "bytes", None
    if avro is not None and avro is not False:
        return "avro", _avro_text(what, avro)
    if json is None or json is False or json is True:
        return "json", None
    return "json", _ddl(what, "json", json)


def _ddl(what: str, argument: str, schema: Any) -> str:
    if hasattr(schema, "toDDL"):  # a StructType; not named here, to import no Spark
        return str(schema.toDDL())
    if not isinstance(schema, str) or not schema.strip():
        raise StageError(
            f'{what}: {argument}= takes columns and types, such as "id long, user string", not {schema!r}'
        )
    return schema.strip()


def _avro_text(what: str, schema: Any) -> str:
    if schema is True:
        raise StageError(f'{what}: avro needs a schema: avro="schema.avsc" or the text of one')
    if isinstance(schema, Mapping):
        return json_text.dumps(schema)
    if isinstance(schema, str) and schema.lstrip()[:1] in ("{", "[", '"'):
        text, origin = schema, "the schema's text"
    elif isinstance(schema, str | Path) and str(schema).strip():
        path = _beside_the_caller(Path(schema))
        if path is None:
            raise StageError(
                f"{what}: no Avro schema at {schema} (looked beside the declaring file and in {Path.cwd()})"
            )
        text, origin = path.read_text(encoding="utf-8"), str(path)
    else:
        raise StageError(f"{what}: avro= takes a schema's text or the path of its file, not {schema!r}")
    try:
        json_text.loads(text)
    except ValueError as problem:
        raise StageError(f"{what}: {origin} is not JSON, which an Avro schema is: {problem}") from None
    return text


def _schemas_in(what: str, folder: str | Path, framing: Framing) -> tuple[tuple[int, str], ...]:
    """The schemas of a folder by the id in the names of their files: `7.avsc`, `user-7.avsc`."""
    if framing != "confluent":
        raise StageError(
            f'{what}: schemas= are chosen by the id before each value; it needs framing="confluent"'
        )
    path = _beside_the_caller(Path(folder), Path.is_dir)
    if path is None:
        raise StageError(
            f"{what}: no folder of schemas at {folder} (looked beside the declaring file and in {Path.cwd()})"
        )
    found: dict[int, Path] = {}
    for file in sorted(each for each in path.iterdir() if each.suffix in (".avsc", ".json")):
        number = file.stem.rpartition("-")[2]
        if not number.isdecimal():
            raise StageError(f"{what}: {file} does not say its id; call it like {file.stem}-7{file.suffix}")
        if int(number) in found:
            raise StageError(f"{what}: {found[int(number)].name} and {file.name} are both schema {number}")
        found[int(number)] = file
    if not found:
        raise StageError(f"{what}: {path} has no schemas; their files are called like user-7.avsc")
    return tuple((number, _avro_text(what, file)) for number, file in sorted(found.items()))


def _query_text(sql: str | Path) -> str:
    """The query itself, read from its file if a file is named."""
    if not isinstance(sql, str | Path) or not str(sql).strip():
        raise StageError(f"sql= takes a query or the path of a .sql file, not {sql!r}")
    if isinstance(sql, str) and not (sql.strip().endswith(".sql") and len(sql.split()) == 1):
        return sql.strip()
    path = _beside_the_caller(Path(sql))
    if path is None:
        raise StageError(f"no query at {sql} (looked beside the declaring file and in {Path.cwd()})")
    return path.read_text(encoding="utf-8").strip()


def _beside_the_caller(path: Path, exists: Callable[[Path], bool] = Path.is_file) -> Path | None:
    """The file, looked for beside the file that declares the stage first: a pipeline runs from any folder."""
    folders = [Path.cwd()]
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is not None and not frame.f_code.co_filename.startswith("<"):
        folders.insert(0, Path(frame.f_code.co_filename).resolve().parent)
    for folder in folders:
        if exists(folder / path):
            return folder / path
    return None


def _condition(what: str, where: str | None) -> str | None:
    if where is not None and not _is_text(where):
        raise StageError(
            f"{what}: where= takes an SQL condition on the columns, such as \"kind = 'order'\", not {where!r}"
        )
    return where


def _texts(what: str, options: Mapping[str, Any] | None) -> dict[str, str]:
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise StageError(f"{what}: options= takes a dict of names and values, not {options!r}")
    return {str(name): _text(value) for name, value in options.items()}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json_text.dumps(value) if isinstance(value, dict | list) else str(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _place_of(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(function)
