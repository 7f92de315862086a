"""Stages that are one SQL query, and sinks that are functions: declared, checked, run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ottla.pipeline
from ottla.pipeline import StageError, sink, stage, topic
from ottla.pipeline.building import RunContext, build
from ottla.pipeline.checkpoints import Checkpoints
from ottla.pipeline.testing import PipelineDriver
from ottla.pipeline.testing.driver import START
from ottla.pipeline.testing.memory import MemoryConnection, MemoryTopics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

CLICKS = topic("clicks", json="id long, user string")
PAGE = Path(__file__).parents[2] / "docs/pipeline/index.md"


def test_the_query_of_the_docs_reads_its_inputs_by_the_names_of_the_parameters(spark: SparkSession) -> None:
    found = re.search(r"test_sql_stages.py runs this -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    scope: dict[str, Any] = {**vars(ottla.pipeline), "__name__": "shop"}
    exec(f"from ottla.pipeline import lake, stage, table, topic\n{found[1]}", scope)
    tables = {"readers.parquet": [{"user": "ada", "name": "Ada L."}]}
    with PipelineDriver([scope["named"]], tables=tables, spark=spark) as shop:
        shop.feed("clicks", {"id": 1, "user": "Ada"}, {"id": 2, "user": "Ben"})
        assert shop.values("clicks.named") == [{"id": 1, "user": "ada", "name": "Ada L."}]
    assert [view.name for view in spark.catalog.listTables() if view.isTemporary] == []


def test_a_query_comes_from_a_file_beside_the_declaration_and_can_be_called(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "odd.sql").write_text("-- only odd ones\nselect * from clicks where id % 2 = 1\n")
    text = (
        "from ottla.pipeline import stage, topic\n"
        "@stage(topic('clicks', json='id long'), to=topic('odd'), sql='odd.sql')\n"
        "def odd(clicks):\n"
        "    'Odd ones.'\n"
    )
    (tmp_path / "shop.py").write_text(text)
    frame = spark.createDataFrame([(1,), (2,), (3,)], "id long")
    with PipelineDriver(tmp_path / "shop.py", spark=spark) as shop:
        (declared,) = shop.pipeline.stages
        assert declared.place == f"{tmp_path / 'shop.py'}:2"
        assert declared.sql == "-- only odd ones\nselect * from clicks where id % 2 = 1"
        assert [row.id for row in declared.function(frame).collect()] == [1, 3]


def test_mistakes_in_a_query_are_found_when_it_is_built(spark: SparkSession, tmp_path: Path) -> None:
    def built(sql: str) -> Any:
        @stage(CLICKS, to=topic("x"), name="q", sql=sql)
        def q(clicks: DataFrame) -> DataFrame: ...  # type: ignore[empty-body]

        context = RunContext("p", "memory", Checkpoints(tmp_path))
        connection = MemoryConnection(MemoryTopics({}, START), ())
        return build(spark, q.__stage__, context, connection=connection)  # type: ignore[attr-defined]

    with pytest.raises(StageError, match=r"stage q: .*Syntax error.*\(line 2, pos 5\)"):
        built("select id\nform clicks")
    with pytest.raises(StageError, match=r"stage q: .*`usr` cannot be resolved.*"):
        built("select usr from clicks")
    with pytest.raises(StageError, match="Syntax error at or near 'drop'"):
        built("drop table clicks")
    spark.range(1).createOrReplaceTempView("clicks")
    try:
        with pytest.raises(StageError, match="the session has a view called clicks"):
            built("select * from clicks")
    finally:
        spark.catalog.dropTempView("clicks")


def empty(clicks: Any) -> Any: ...


def full(clicks: Any) -> Any:
    return clicks


def many(*frames: Any) -> Any: ...


def store(rows: Any, batch_id: int) -> None: ...


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: stage(CLICKS, to=topic("x"), sql="select 1")(full), "has both sql= and a function"),
        (lambda: stage(CLICKS, to=topic("x"), sql="select 1")(many), "write one for each"),
        (
            lambda: stage(CLICKS, CLICKS, to=topic("x"), sql="select 1")(empty),
            "2 inputs, and the function names 1",
        ),
        (lambda: stage(CLICKS, to=topic("x"), sql="none.sql")(empty), "no query at none.sql"),
        (lambda: stage(CLICKS, to=topic("x"), sql=" ")(empty), "takes a query or the path"),
        (lambda: sink("store"), "takes a function"),  # type: ignore[arg-type]
        (lambda: sink(full), "called with a DataFrame and the batch's number"),
        (lambda: sink(lambda rows, batch_id: None), 'give name="..."'),
        (lambda: sink(store, where=""), "takes an SQL condition"),
        (
            lambda: stage(CLICKS, to=sink(store), trigger="real-time", bad="drop")(full),
            "to one topic and nothing else",
        ),
    ],
)
def test_a_mistake_is_refused_with_what_to_write_instead(mistake: Any, words: str) -> None:
    with pytest.raises(StageError, match=words):
        mistake()


def test_a_sink_gets_the_rows_and_number_of_each_batch(spark: SparkSession) -> None:
    got: list[tuple[int, list[Any]]] = []

    def collect(rows: DataFrame, batch_id: int) -> None:
        got.append((batch_id, [row.asDict() for row in rows.collect()]))

    @stage(CLICKS, to=[sink(collect, where="id > 1"), topic("all")], name="collected")
    def collected(clicks: DataFrame) -> DataFrame:
        return clicks

    with PipelineDriver([collected], spark=spark) as shop:
        shop.feed("clicks", {"id": 1}, {"id": 2, "user": "b"})
        shop.run()
        shop.feed("clicks", {"id": 3})
        assert [each["id"] for each in shop.values("all")] == [1, 2, 3]
    assert got == [(0, [{"id": 2, "user": "b"}]), (1, [{"id": 3, "user": None}])]


def test_a_batch_that_fails_later_does_not_call_a_sink_again(spark: SparkSession, tmp_path: Path) -> None:
    calls: list[str] = []

    def first(rows: DataFrame, batch_id: int) -> None:
        calls.append("first")

    def second(rows: DataFrame, batch_id: int) -> None:
        calls.append("second")
        if len(calls) < 4:
            raise OSError("the database is away")

    @stage(CLICKS, to=[topic("out"), sink(first), sink(second)], name="stored")
    def stored(clicks: DataFrame) -> DataFrame:
        return clicks

    topics = MemoryTopics({}, START)
    connection = MemoryConnection(topics, stored.__stage__.outputs)  # type: ignore[attr-defined]
    context = RunContext("p", "memory", Checkpoints(tmp_path))
    built = build(spark, stored.__stage__, context, connection=connection)  # type: ignore[attr-defined]
    frame = spark.createDataFrame([(1, "a")], "id long, user string")
    for _ in range(2):
        with pytest.raises(OSError, match="away"):
            built.write_batch(frame, 0)
    assert (calls, topics.names()) == (["first", "second", "second"], [])
    built.write_batch(frame, 0)
    assert calls == ["first", "second", "second", "second"]
    assert len(topics.of("out")) == 1
