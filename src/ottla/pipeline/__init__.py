"""Topics to Spark to topics or a lake: stages as plain functions on DataFrames.

The names below are looked up when they are first used, so that declaring a stage imports no Spark and
`import ottla.pipeline` costs next to nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.pipeline.declarations import Lake, Stage, StageError, Table, Topic
    from ottla.pipeline.runner import run
    from ottla.pipeline.session import spark_session
    from ottla.pipeline.stages import lake, stage, stages_of, table, topic

_HOMES = {
    "Lake": "declarations",
    "Stage": "declarations",
    "StageError": "declarations",
    "Table": "declarations",
    "Topic": "declarations",
    "lake": "stages",
    "run": "runner",
    "spark_session": "session",
    "stage": "stages",
    "stages_of": "stages",
    "table": "stages",
    "topic": "stages",
}

__all__ = [
    "Lake",
    "Stage",
    "StageError",
    "Table",
    "Topic",
    "lake",
    "run",
    "spark_session",
    "stage",
    "stages_of",
    "table",
    "topic",
]


class _Package(ModuleType):
    """Importing `ottla.pipeline.lake` would put that module in the place of the function `lake`; not here."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
