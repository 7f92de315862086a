"""Topics to Spark to topics or a lake: stages as plain functions on DataFrames.

The names below are looked up when they are first used, so that declaring a stage imports no Spark and
`import ottla.pipeline` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.pipeline.session import spark_session
    from ottla.pipeline.stages import (
        Lake,
        Stage,
        StageError,
        Table,
        Topic,
        lake,
        stage,
        stages_of,
        table,
        topic,
    )

__all__ = [
    "Lake",
    "Stage",
    "StageError",
    "Table",
    "Topic",
    "lake",
    "spark_session",
    "stage",
    "stages_of",
    "table",
    "topic",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "ottla.pipeline.session" if name == "spark_session" else "ottla.pipeline.stages"
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
