"""Stages whose work is one SQL query.

    @stage(topic("clicks", json="id long, user string"), to=topic("clean"), sql="clean.sql")
    def clean(clicks): ...

The query reads its inputs under the names of the function's parameters. It becomes a function like any
other, from DataFrames to a DataFrame, so building, checking, testing and running know no difference. Only
queries are taken: a statement that changes something would be run by the mere check of a pipeline.
"""

from __future__ import annotations

import dis
import functools
import inspect
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ottla.pipeline.declarations import StageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NOTHING = {"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST", "COPY_FREE_VARS"}
"""The instructions of a function whose body is `...`, `pass` or a docstring."""
_views = threading.Lock()
"""Held while inputs are views of the session, which all stages share."""


def as_function(what: str, query: str, declared: Callable[..., Any], inputs: int) -> Callable[..., Any]:
    """A function that runs the query on its arguments, called and named as the declared one."""
    names = _parameters(what, declared, inputs)
    if _has_body(declared):
        raise StageError(
            f"{what}: has both sql= and a function that does something; leave one of them (the function of a"
            " query only names its inputs: `def clean(clicks): ...`)"
        )

    @functools.wraps(declared)
    def run_query(*frames: DataFrame) -> DataFrame:
        return run(what, query, dict(zip(names, frames, strict=True)))

    return run_query


def run(what: str, query: str, inputs: dict[str, DataFrame]) -> DataFrame:
    """The result of the query, in which inputs are called by these names."""
    spark = next(iter(inputs.values())).sparkSession
    state = spark._jsparkSession.sessionState()
    state.sqlParser().parseQuery(query)  # refuses what is no query, before anything is run
    with _views:
        taken = [name for name in inputs if state.catalog().getTempView(name).isDefined()]
        if taken:
            raise StageError(
                f"{what}: the session has a view called {taken[0]}; give the parameter another name"
            )
        try:
            for name, frame in inputs.items():
                frame.createTempView(name)
            return spark.sql(query)  # resolved at once, so the views are needed no longer
        finally:
            for name in inputs:
                spark.catalog.dropTempView(name)


def _parameters(what: str, declared: Callable[..., Any], inputs: int) -> list[str]:
    parameters = list(inspect.signature(declared).parameters.values())
    if any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters):
        raise StageError(f"{what}: with sql= the parameters name the inputs; write one for each, not *args")
    names = [each.name for each in parameters]
    if len(names) != inputs:
        given = f"{inputs} input{'s' if inputs != 1 else ''}"
        raise StageError(
            f"{what}: it has {given}, and the function names {len(names)}: {', '.join(names) or 'none'}"
        )
    return names


def _has_body(declared: Callable[..., Any]) -> bool:
    code = getattr(declared, "__code__", None)
    return code is None or any(each.opname not in _NOTHING for each in dis.get_instructions(code))
