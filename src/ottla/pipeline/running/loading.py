"""From a file, a module or a list of functions to a pipeline: its name and its stages.

    ottla pipeline run shop.py            a file
    ottla pipeline run shop.pipelines     a module that Python can import

The file is imported as Python would import it, with its own folder first on the path, so that it can import
what lies beside it. Its functions are sent to Spark's workers by value: a worker, here or on another machine,
needs no copy of the file.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from ottla.pipeline.declarations import Stage, StageError, Topic, nearest
from ottla.pipeline.running.causes import cause_of
from ottla.pipeline.stages import stages_of

PipelineLike: TypeAlias = "str | Path | ModuleType | Pipeline | Sequence[Callable[..., Any]]"

_EXAMPLE = '@stage(topic("clicks", json="id long"), to=topic("clicks.clean"))'


class CannotLoad(Exception):
    """There is no pipeline to be had from what was given: what is wrong, and what to do about it."""

    def __init__(self, what: str, advice: str = "", trace: str = "") -> None:
        super().__init__(f"{what}\n{advice}" if advice else what)
        self.what = what
        self.advice = advice
        self.trace = trace


class NeedsSpark(CannotLoad):
    """The file uses Spark while it is imported; loading it again when there is a session will do.

    PySpark asks the JVM for much that looks harmless: a UDF whose type is given as text, `F.col("x")`.
    """


@dataclass(frozen=True)
class Pipeline:
    """Stages that run together. The name is part of their groups, dead-letter topics and folders."""

    name: str
    stages: tuple[Stage, ...]
    origin: str = ""
    """The file or module that it was loaded from, as it was given."""
    module: ModuleType | None = None

    @classmethod
    def load(cls, source: PipelineLike, *, name: str | None = None) -> Pipeline:
        """`source` is the path of a file, the name of a module, a module, or functions that are stages."""
        if isinstance(source, Pipeline):
            return source
        if isinstance(source, ModuleType):
            return _of_module(source, name or source.__name__.rpartition(".")[2], source.__name__)
        if isinstance(source, str | Path):
            return _of_text(str(source), name)
        return _of_functions(source, name)

    @staticmethod
    def name_of(source: str | Path) -> str:
        """What the pipeline of this file or module will be called."""
        path = Path(source).expanduser()
        return _legal(path.stem) if path.is_file() else str(source).rpartition(".")[2]

    @property
    def names(self) -> list[str]:
        return [stage.name for stage in self.stages]

    def stage(self, name: str) -> Stage:
        for each in self.stages:
            if each.name == name:
                return each
        raise CannotLoad(
            f"{self.origin or self.name} has no stage {name!r}{nearest(name, self.names)}",
            f"Its stages are {', '.join(self.names)}.",
        )

    def only(self, names: Iterable[str]) -> Pipeline:
        """The same pipeline with these stages alone; all of them when no name is given."""
        wanted = {self.stage(name).name for name in names}
        if not wanted:
            return self
        chosen = tuple(each for each in self.stages if each.name in wanted)
        return Pipeline(self.name, chosen, self.origin, self.module)

    def feeders(self, stage: Stage) -> list[Stage]:
        """The stages of this pipeline that write a topic which `stage` reads, without those it feeds itself.

        In a ring of stages the one that is defined first goes first.
        """
        direct = {each.name: self._writers(each) for each in self.stages}
        found = []
        for feeder in direct[stage.name]:
            ring = stage.name in _reachable(direct, feeder)
            if not ring or self.names.index(feeder) < self.names.index(stage.name):
                found.append(self.stage(feeder))
        return found

    def written_by(self, stage: Stage) -> list[str]:
        """Names of the topics that `stage` writes, dead letters aside."""
        return [each.name for each in stage.outputs if isinstance(each, Topic) and each.name is not None]

    def _writers(self, stage: Stage) -> list[str]:
        return [
            other.name
            for other in self.stages
            if other.name != stage.name
            and any(source.reads(name) for source in stage.read_topics for name in self.written_by(other))
        ]


def _reachable(direct: dict[str, list[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = [start]
    while todo:
        for name in direct[todo.pop()]:
            if name not in seen:
                seen.add(name)
                todo.append(name)
    return seen


def _of_text(source: str, name: str | None) -> Pipeline:
    path = Path(source).expanduser()
    if path.is_dir():
        inside = sorted(each.name for each in path.glob("*.py"))[:5]
        raise CannotLoad(
            f"{source} is a folder", f"Name the file in it: {', '.join(inside)}." if inside else ""
        )
    if path.is_file():
        return _of_module(_import_file(path), name or Pipeline.name_of(path), source)
    if path.suffix == ".py" or os.sep in source:
        raise CannotLoad(f"there is no file {source}", _near_file(path))
    return _of_module(_import_module(source), name or Pipeline.name_of(source), source)


def _of_functions(functions: Iterable[Callable[..., Any]], name: str | None) -> Pipeline:
    stages: list[Stage] = []
    for function in functions:
        declared = getattr(function, "__stage__", None)
        if not isinstance(declared, Stage):
            called = getattr(function, "__name__", repr(function))
            raise CannotLoad(f"{called} is no stage", f"Declare it: {_EXAMPLE} above it.")
        stages.append(declared)
    if not stages:
        raise CannotLoad("no stages were given")
    for index, each in enumerate(stages):
        if each.name in (earlier.name for earlier in stages[:index]):
            raise CannotLoad(f"two stages are called {each.name}", 'Give one of them name="...".')
    module = sys.modules.get(stages[0].function.__module__)
    default = stages[0].function.__module__.rpartition(".")[2].strip("_")
    _send_by_value(module)
    return Pipeline(name or default, tuple(stages), "", module)


def _of_module(module: ModuleType, name: str, origin: str) -> Pipeline:
    try:
        stages = stages_of(module)
    except StageError as error:
        raise CannotLoad(str(error)) from None
    if not stages:
        raise CannotLoad(f"{origin} declares no stages", f"A stage is a function below {_EXAMPLE}.")
    return Pipeline(name, tuple(stages), origin, module)


def _import_file(path: Path) -> ModuleType:
    path = path.resolve()
    name = _module_name(path)
    folder = str(path.parent)
    # Once on the path of this process and of the workers it starts, for what the file imports beside it.
    if folder not in sys.path:
        sys.path.insert(0, folder)
    _offer_to_workers(folder)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CannotLoad(f"{path} is no Python file", "Its name should end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        raise _failed_import(str(path.name), error) from error
    _send_by_value(module)
    return module


def _import_module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(name=name)
    except (ModuleNotFoundError, ValueError):
        hint = f"{name}.py" if Path(f"{name}.py").is_file() else ""
        advice = f"Did you mean {hint}?" if hint else "Give the path of a .py file, or a module's name."
        raise CannotLoad(f"there is no file and no module {name!r}", advice) from None
    try:
        module = importlib.import_module(name)
    except BaseException as error:
        raise _failed_import(name, error) from error
    file = getattr(module, "__file__", None)
    if file and not _installed(file):
        _offer_to_workers(str(Path(file).resolve().parents[name.count(".")]))
    return module


def _failed_import(what: str, error: BaseException) -> CannotLoad | BaseException:
    """Why the file could not be imported: the user's own line, not the importer's."""
    if not isinstance(error, Exception):
        return error
    trace = "".join(traceback.format_exception(error))
    if _wants_session(error):
        return NeedsSpark(f"{what} uses Spark while it is imported ({cause_of(error).where})", trace=trace)
    if isinstance(error, StageError):
        return CannotLoad(f"{what}: {error}", trace=trace)
    if isinstance(error, SyntaxError):
        place = f"{Path(error.filename or what).name}:{error.lineno}"
        return CannotLoad(f"{what} is not valid Python: {error.msg} ({place})", trace=trace)
    if isinstance(error, ModuleNotFoundError):
        return CannotLoad(
            f"{what} imports {error.name!r}, which is not there: {cause_of(error).where or error}",
            f"Install it into the environment of {sys.executable}.",
            trace,
        )
    return CannotLoad(f"{what} fails when it is imported: {cause_of(error)}", trace=trace)


def _wants_session(error: Exception) -> bool:
    """Whether it failed for nothing but that there is no session yet."""
    from pyspark.errors import PySparkRuntimeError

    if isinstance(error, PySparkRuntimeError):
        return error.getCondition() == "SESSION_OR_CONTEXT_NOT_EXISTS"
    if not isinstance(error, AssertionError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "pyspark" in Path(frames[-1].filename).parts


def _send_by_value(module: ModuleType | None) -> None:
    """Functions of the module travel to the workers whole, not by the name of a module they do not have."""
    file = getattr(module, "__file__", None)
    if module is None or module.__name__ == "__main__" or file is None or _installed(file):
        return
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _offer_to_workers(folder: str) -> None:
    """Python workers of a session that is started from now on find modules in `folder` too."""
    before = os.environ.get("PYTHONPATH", "")
    if folder not in before.split(os.pathsep):
        os.environ["PYTHONPATH"] = folder + (os.pathsep + before if before else "")


def _installed(file: str) -> bool:
    parts = Path(file).parts
    return (
        "site-packages" in parts
        or "dist-packages" in parts
        or Path(file).is_relative_to(Path(__file__).parent.parent)
    )


def _module_name(path: Path) -> str:
    """The file's own name, unless that would hide a module that something else may want to import."""
    name = re.sub(r"\W", "_", path.stem)
    taken = sys.modules.get(name)
    if taken is not None and getattr(taken, "__file__", None) != str(path):
        return f"_ottla_pipeline_{name}"
    if taken is None and _exists_elsewhere(name, path):
        return f"_ottla_pipeline_{name}"
    return name


def _exists_elsewhere(name: str, path: Path) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin != str(path)


def _legal(stem: str) -> str:
    """As a part of names of topics and groups."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", stem)


def _near_file(path: Path) -> str:
    folder = path.parent
    names = [each.name for each in folder.glob("*.py")] if folder.is_dir() else []
    hint = nearest(path.name, names).removeprefix("; did you mean ").removesuffix("?")
    return f"Did you mean {folder / hint}?" if hint else ""
