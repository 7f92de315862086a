"""Topics to Spark to topics or a lake: stages as plain functions on DataFrames.

Here a stage is declared (`stages`, `declarations`, `sql`) and made into what Spark runs (`building`), with
its progress kept in `checkpoints`. The packages inside:

    spark/      Spark itself: a Java to run it, one launcher for the session
    topics/     topics as DataFrames: format("ottla"), reading and writing
    values/     the bytes of a record as columns: JSON, Avro, text
    tables/     topics as tables to join with: the latest value per key
    lakes/      batches as Parquet files or Delta tables, each once
    running/    all stages of a pipeline at work: watched, restarted, shown, stopped
    testing/    the test driver: a pipeline with topics and lakes in memory

The names below are looked up when they are first used, so that declaring a stage imports no Spark and
`import ottla.pipeline` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.pipeline.declarations import Lake, Sink, Stage, StageError, Table, Topic
    from ottla.pipeline.running.runner import run
    from ottla.pipeline.spark.session import spark_session
    from ottla.pipeline.stages import lake, sink, stage, stages_of, table, topic

_HOMES = {
    "Lake": "declarations",
    "Sink": "declarations",
    "Stage": "declarations",
    "StageError": "declarations",
    "Table": "declarations",
    "Topic": "declarations",
    "lake": "stages",
    "run": "running.runner",
    "spark_session": "spark.session",
    "sink": "stages",
    "stage": "stages",
    "stages_of": "stages",
    "table": "stages",
    "topic": "stages",
}

__all__ = [
    "Lake",
    "Sink",
    "Stage",
    "StageError",
    "Table",
    "Topic",
    "lake",
    "run",
    "sink",
    "spark_session",
    "stage",
    "stages_of",
    "table",
    "topic",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
