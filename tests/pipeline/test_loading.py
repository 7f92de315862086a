"""From a file, a module or functions to a pipeline, and what a person reads when there is none in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.pipeline.running.loading import CannotLoad, Pipeline
from ottla.pipeline.stages import stage, topic

HEAD = "from ottla.pipeline.stages import stage, topic\n"
CLEAN = """
@stage(topic("clicks", json="id long"), to=topic("clean"))
def clean(clicks):
    return clicks
"""
SCORE = """
@stage(topic("clean", json="id long"), to=topic("scores"))
def score(clean):
    return clean
"""


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Loading changes the path and the modules of the process."""
    modules = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    yield
    for name in set(sys.modules) - modules:
        if name.startswith(("shop", "beside", "_ottla_pipeline", "inside")):
            del sys.modules[name]


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str, name: str = "shop.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    return write


def test_a_file_is_a_pipeline_with_its_name_and_stages_in_order(write: Any) -> None:
    pipeline = Pipeline.load(write(HEAD + CLEAN + SCORE))
    assert pipeline.name == "shop"
    assert pipeline.names == ["clean", "score"]


def test_a_file_can_import_what_lies_beside_it(write: Any, tmp_path: Path) -> None:
    import os

    write("WORD = 'clicks'\n", "beside_it.py")
    pipeline = Pipeline.load(write(HEAD + "import beside_it\n" + CLEAN.replace('"clicks"', "beside_it.WORD")))
    assert pipeline.stage("clean").topics[0].name == "clicks"
    assert str(tmp_path) in os.environ["PYTHONPATH"].split(os.pathsep)


def test_functions_of_the_file_travel_by_value(write: Any) -> None:
    from pyspark import cloudpickle

    pipeline = Pipeline.load(write(HEAD + "def twice(x):\n    return 2 * x\n" + CLEAN))
    packed = cloudpickle.dumps(pipeline.module.twice)  # type: ignore[union-attr, no-untyped-call]
    del sys.modules["shop"]
    assert cloudpickle.loads(packed)(21) == 42


def test_a_file_named_like_a_module_does_not_hide_it(write: Any) -> None:
    pipeline = Pipeline.load(write(HEAD + CLEAN, "json.py"))
    assert pipeline.name == "json"
    import json

    assert json.loads("1") == 1
    assert pipeline.module is not json


def test_a_module_is_found_by_its_name(write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(HEAD + CLEAN, "inside/flows.py")
    monkeypatch.chdir(tmp_path)
    pipeline = Pipeline.load("inside.flows")
    assert pipeline.name == "flows"
    assert pipeline.names == ["clean"]


def test_functions_are_a_pipeline_too() -> None:
    @stage(topic("a", string=True), to=topic("b", string=True))
    def copy(a: Any) -> Any:
        return a

    pipeline = Pipeline.load([copy], name="mine")
    assert (pipeline.name, pipeline.names) == ("mine", ["copy"])
    with pytest.raises(CannotLoad, match="print is no stage"):
        Pipeline.load([print])
    with pytest.raises(CannotLoad, match="two stages are called copy"):
        Pipeline.load([copy, copy])


def test_stages_can_be_chosen_by_name(write: Any) -> None:
    pipeline = Pipeline.load(write(HEAD + CLEAN + SCORE))
    assert pipeline.only(["score"]).names == ["score"]
    assert pipeline.only([]).names == ["clean", "score"]
    with pytest.raises(CannotLoad, match="has no stage 'scoer'; did you mean score"):
        pipeline.only(["scoer"])


def test_a_stage_knows_its_upstream_stages(write: Any) -> None:
    pipeline = Pipeline.load(write(HEAD + SCORE + CLEAN))
    assert [each.name for each in pipeline.feeders(pipeline.stage("score"))] == ["clean"]
    assert pipeline.feeders(pipeline.stage("clean")) == []


def test_in_a_cycle_the_first_declared_stage_has_no_upstream(write: Any) -> None:
    back = SCORE.replace('to=topic("scores")', 'to=topic("clicks")')
    pipeline = Pipeline.load(write(HEAD + CLEAN + back))
    assert pipeline.feeders(pipeline.stage("clean")) == []
    assert [each.name for each in pipeline.feeders(pipeline.stage("score"))] == ["clean"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "declares no stages"),
        ("def f(:\n", "is not valid Python.*shop.py:1"),
        ("import no_such_thing\n", "imports 'no_such_thing', which is not there"),
        (
            "def f():\n    return {}['x']\nf()\n",
            r"fails when it is imported: KeyError: 'x' \(.*shop.py:2, in f\)",
        ),
        (
            HEAD + "@stage(topic('a', json='id long'), to=topic('b'), mode='apend')\ndef f(a): return a\n",
            "append",
        ),
    ],
)
def test_errors_in_a_file_are_reported(write: Any, text: str, said: str) -> None:
    with pytest.raises(CannotLoad, match=said):
        Pipeline.load(write(text))


def test_a_missing_file_is_reported_with_a_similar_name(write: Any, tmp_path: Path) -> None:
    write(HEAD + CLEAN)
    with pytest.raises(CannotLoad, match=r"there is no file.*\n.*shop.py"):
        Pipeline.load(str(tmp_path / "shpo.py"))
    with pytest.raises(CannotLoad, match=r"is a folder\nName the file in it: shop.py"):
        Pipeline.load(str(tmp_path))
    with pytest.raises(CannotLoad, match="no file and no module 'nothing_here'"):
        Pipeline.load("nothing_here")
