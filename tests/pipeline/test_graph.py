"""The graph of a pipeline: what leads where, as text, as a picture and as JSON."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from conformance.command import Command
from ottla.pipeline import lake, sink, stage, table, topic
from ottla.pipeline.graph import graph_of, svg_of, text_of
from ottla.pipeline.running.loading import Pipeline


def store(rows: Any, batch_id: int) -> None: ...


@stage(
    topic("clicks", string=True),
    table("readers.parquet"),
    to=[topic("clean"), lake("data/clicks")],
    bad="drop",
)
def clean(clicks: Any, readers: Any) -> Any: ...


@stage(topic(pattern="^cle", string=True), to=lake("a<b"), name="named")
def named(frame: Any) -> Any: ...


@stage(topic("clean", string=True), to=topic("ring"), bad="drop", name="one")
def one(frame: Any) -> Any: ...


@stage(topic("ring", string=True), to=topic("clean"), bad="drop", name="two")
def two(frame: Any) -> Any: ...


TEXT = """\
               clicks --> clean --> clean
table readers.parquet -->       --> lake data/clicks

                clean --> count --> sink store
                                --> shop.count.dead-letters  (bad records)
"""


def count() -> Any:
    @stage(topic(pattern="^cle", string=True), to=sink(store), name="count")
    def made(frame: Any) -> Any: ...

    return made


def test_the_text_has_inputs_on_the_left_and_outputs_on_the_right() -> None:
    assert text_of(Pipeline.load([clean, count()], name="shop")) == TEXT


def test_the_picture_is_svg_with_every_node_right_of_what_leads_to_it() -> None:
    pipeline = Pipeline.load([clean, count()], name="shop")
    root = ET.fromstring(svg_of(pipeline))
    svg = "{http://www.w3.org/2000/svg}"
    places = {text.text: float(text.get("x") or 0) for text in root.iter(f"{svg}text")}
    assert set(places) == {
        "clicks", "table readers.parquet", "clean", "lake data/clicks", "count", "sink store",
        "shop.count.dead-letters",
    }  # fmt: skip
    assert places["clicks"] < places["lake data/clicks"] < places["sink store"]
    assert len(list(root.iter(f"{svg}path"))) == len(graph_of(pipeline).edges) + 1  # and the arrow's head


@pytest.mark.parametrize("stages", [(one, two), (named,)], ids=["stages in a ring", "names to escape"])
def test_every_pipeline_has_a_picture(stages: Any) -> None:
    document = svg_of(Pipeline.load(list(stages), name="shop"))
    ET.fromstring(document)
    assert ("a&lt;b" in document) == (stages == (named,))


def test_the_command_prints_text_or_json_or_writes_a_picture(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(
        "from ottla.pipeline import stage, topic\n"
        "@stage(topic('a', json='id long'), to=topic('b'), bad='drop')\n"
        "def copy(frame):\n    return frame\n"
    )
    ottla = Command("127.0.0.1:1")  # no broker is asked
    assert ottla("pipeline", "graph", str(file)).out == "a --> copy --> b\n"
    document = json.loads(ottla("pipeline", "graph", str(file), "--json").out)
    assert [each["kind"] for each in document["nodes"]] == ["topic", "stage", "topic"]
    assert ottla("pipeline", "graph", str(file), "--svg", str(tmp_path / "shop.svg")).code == 0
    assert re.match(r"<svg .*</svg>\n\Z", (tmp_path / "shop.svg").read_text(), re.DOTALL)
    assert ottla("pipeline", "graph", str(file), "--svg", str(tmp_path / "no" / "x.svg")).code == 1
