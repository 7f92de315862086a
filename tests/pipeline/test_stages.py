"""Declarations need no Spark: what they record, and the mistakes they refuse with what to write instead."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ottla.pipeline import StageError, lake, stage, stages_of, table, topic
from ottla.pipeline.declarations import Stage

CLICKS = topic("clicks", json="id long, user string")
AVRO = {"type": "record", "name": "Click", "fields": [{"name": "id", "type": "long"}]}


def same(frame: Any) -> Any:
    return frame


def both(one: Any, other: Any) -> Any:
    return one


def declared(*inputs: Any, function: Any = same, **arguments: Any) -> Stage:
    found = stage(*inputs, **arguments)(function)
    recorded: Stage = found.__stage__
    return recorded


def module_of(text: str, name: str = "shop") -> ModuleType:
    module = ModuleType(name)
    exec(compile(text, f"/somewhere/{name}.py", "exec"), vars(module))
    return module


def test_a_declared_function_stays_the_function_it_was() -> None:
    def clean(clicks: int) -> int:
        return clicks + 1

    assert stage(CLICKS, to=topic("clicks.clean"))(clean) is clean
    assert clean(1) == 2


def test_a_stage_records_what_was_declared() -> None:
    recorded = declared(
        CLICKS,
        to=[topic("clean", key="user"), lake("data/clean", partition_by="day", where="day is not null")],
        name="clean",
        mode="update",
        trigger="10 seconds",
        bad="drop",
        options={"spark.sql.shuffle.partitions": 4},
    )
    assert recorded.inputs == (CLICKS,)
    assert [each.title for each in recorded.outputs] == ["clean", "lake data/clean"]
    assert (recorded.name, recorded.mode, recorded.bad) == ("clean", "update", "drop")
    assert recorded.trigger_arguments == {"processingTime": "10 seconds"}
    assert recorded.options == {"spark.sql.shuffle.partitions": "4"}


def test_names_follow_from_the_pipeline_and_the_stage() -> None:
    recorded = declared(CLICKS, to=topic("clean"), name="clean")
    assert recorded.dead_letter_topic("shop") == "shop.clean.dead-letters"
    assert recorded.group("shop") == "ottla.shop.clean"
    assert (
        declared(CLICKS, to=topic("clean"), name="c", dead_letters="bad").dead_letter_topic("shop") == "bad"
    )


def test_importing_and_declaring_imports_no_spark() -> None:
    program = (
        "import sys, ottla.pipeline\n"
        "from ottla.pipeline import stage, topic\n"
        "@stage(topic('a', json='id long'), to=topic('b'))\n"
        "def f(x): return x\n"
        "assert not {'pyspark', 'pyarrow', 'fastavro'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_word_lake_stays_a_function_when_the_lake_is_imported() -> None:
    program = (
        "import ottla.pipeline.lakes.batches\n"
        "from ottla.pipeline import lake\n"
        "assert lake('x').path == 'x'\n"
        "from ottla.pipeline.lakes.batches import write_lake\n"
        "from ottla.pipeline import lake\n"
        "assert lake('x').path == 'x'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_real_time_trigger_has_an_interval() -> None:
    usual = declared(CLICKS, to=topic("b"), trigger="real-time", bad="drop")
    assert usual.trigger_arguments == {"realTime": "5 minutes"}
    exact = declared(CLICKS, to=topic("b"), trigger="real-time 30 seconds", bad="drop")
    assert exact.trigger_arguments == {"realTime": "30 seconds"}


class TestSchemas:
    def test_options_become_the_text_that_spark_takes(self) -> None:
        options = topic("a", string=True, options={"x": True, "y": 3, "z": {"a": {"0": 1}}}).options
        assert options == {"x": "true", "y": "3", "z": '{"a": {"0": 1}}'}

    def test_avro_comes_as_text_or_mapping_or_file(self, tmp_path: Path) -> None:
        text = json.dumps(AVRO)
        file = tmp_path / "click.avsc"
        file.write_text(text)
        for given in (text, AVRO, file, str(file)):
            assert json.loads(topic("a", avro=given).schema or "") == AVRO

    def test_an_avro_file_is_looked_for_beside_the_declaring_file(self, tmp_path: Path) -> None:
        (tmp_path / "click.avsc").write_text(json.dumps(AVRO))
        code = compile('found = topic("a", avro="click.avsc")', str(tmp_path / "pipeline.py"), "exec")
        scope: dict[str, Any] = {"topic": topic}
        exec(code, scope)
        assert json.loads(scope["found"].schema) == AVRO

    def test_json_takes_the_schema_of_a_frame(self) -> None:
        class Columns:
            def toDDL(self) -> str:
                return "id BIGINT"

        assert topic("a", json=Columns()).schema == "id BIGINT"


class TestStagesOf:
    def test_stages_of_gives_the_stages_in_order_of_definition(self) -> None:
        module = module_of(
            "from ottla.pipeline import stage, topic\n"
            "def make(n):\n"
            "    @stage(topic('a', string=True), to=topic(n), name=n)\n"
            "    def made(x): return x\n"
            "    return made\n"
            "@stage(topic('a', string=True), to=topic('b'))\n"
            "def second(x): return x\n"
            "first = make('first')\n"
            "@stage(topic('b', string=True), to=topic('c'))\n"
            "def alpha(x): return x\n"
        )
        assert [each.name for each in stages_of(module)] == ["second", "first", "alpha"]

    def test_stages_of_includes_imported_stages(self) -> None:
        module = ModuleType("other")

        def imported(x: Any) -> Any:
            return x

        module.imported = stage(CLICKS, to=topic("x"))(imported)  # type: ignore[attr-defined]
        assert [each.name for each in stages_of(module)] == ["imported"]

    def test_stages_of_refuses_a_second_stage_of_the_same_name(self) -> None:
        text = (
            "from ottla.pipeline import stage, topic\n"
            "@stage(topic('a', string=True), to=topic('b'))\n"
            "def clean(x): return x\n"
            "@stage(topic('b', string=True), to=topic('c'))\n"
            "def clean(x): return x\n"
        )
        with pytest.raises(StageError, match=r"two stages are called clean: .*shop.py:2 and .*shop.py:4"):
            module_of(text)

    def test_stages_of_refuses_two_generated_stages_of_the_same_name(self) -> None:
        def one(x: Any) -> Any:
            return x

        def other(x: Any) -> Any:
            return x

        module = ModuleType("made")
        module.one = stage(CLICKS, to=topic("x"), name="same")(one)  # type: ignore[attr-defined]
        module.other = stage(CLICKS, to=topic("y"), name="same")(other)  # type: ignore[attr-defined]
        with pytest.raises(StageError, match="two stages are called same"):
            stages_of(module)


AVSC = json.dumps(AVRO)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: topic(), "a name or a pattern"),
        (lambda: topic("a", pattern="b"), "a name or a pattern"),
        (lambda: topic("no spaces"), "is no name for a topic"),
        (lambda: topic(pattern="("), "is no regular expression"),
        (lambda: topic("a", json="id long", string=True), "one format, not json and string"),
        (lambda: topic("a", json=""), 'takes columns and types, such as "id long'),
        (lambda: topic("a", avro=True), "avro needs a schema"),  # type: ignore[arg-type]
        (lambda: topic("a", avro="{"), "is not JSON, which an Avro schema is"),
        (lambda: topic("a", avro="nowhere.avsc"), "no Avro schema at nowhere.avsc"),
        (lambda: topic("a", json="id long", framing="confluent"), "this one is json"),
        (lambda: topic("a", avro=AVSC, framing="confluence"), "did you mean confluent?"),  # type: ignore[arg-type]
        (lambda: topic("a", avro=AVSC, schema_id=3), 'needs framing="confluent"'),
        (lambda: topic("a", avro=AVSC, framing="confluent", schema_id=-1), "is no id of a registry"),
        (lambda: topic("a", drop_key=True), "drop_key=True needs key="),
        (lambda: topic("a", key=["user"]), "takes the name of a column"),  # type: ignore[arg-type]
        (lambda: topic("a", timestamp=3), "takes the name of a column"),  # type: ignore[arg-type]
        (lambda: topic("a", json_options={"timeFormat": "x"}), "did you mean timestampFormat"),
        (lambda: topic("a", json_options={"mode": "FAILFAST"}), "json_options has no mode"),
        (lambda: topic("a", string=True, json_options={"locale": "de"}), "is for JSON; this one is string"),
        (lambda: topic("a", where=""), "takes an SQL condition"),
        (lambda: topic("a", options=["x"]), "takes a dict"),  # type: ignore[arg-type]
        (lambda: lake(""), "a lake needs a path"),
        (lambda: lake("x", partition_by="a, b"), r"give the columns apart: \['a', 'b'\]"),
        (lambda: lake("x", partition_by=["a", "a"]), "names a column twice"),
        (lambda: lake("x", partition_by=["_source"]), "_source is dropped before writing"),
        (lambda: lake("x", partition_by=[3]), "takes names of columns, not 3"),  # type: ignore[list-item]
        (lambda: lake("x", format="parket"), "did you mean parquet?"),
        (lambda: table(""), "a table needs a path or a function"),
        (lambda: table(same, schema="id long"), "the function reads as it likes"),
        (lambda: declared(to=topic("b")), "nothing to read"),
        (lambda: declared(table("x"), to=topic("b")), "nothing to read"),
        (lambda: declared(lake("x"), to=topic("b")), "a lake is written, not read"),
        (lambda: declared("clicks", to=topic("b")), r"inputs are topic\(...\) and table\(...\)"),
        (lambda: declared(topic("a"), to=topic("b")), "how are the values of a to be read"),
        (lambda: declared(topic("a", json=True), to=topic("b")), "how are the values of a to be read"),
        (lambda: declared(topic("a", string=True, where="x"), to=topic("b")), "where= is for outputs"),
        (lambda: declared(CLICKS, to=[]), "nothing to write"),
        (lambda: declared(CLICKS, to=["b"]), r"to= takes topic\(...\), lake\(...\) and sink"),
        (lambda: declared(CLICKS, to=topic("clicks")), "read and written by the same stage"),
        (
            lambda: declared(topic(pattern="clicks.*", string=True), to=topic("clicks.clean")),
            "read and written by the same stage",
        ),
        (
            lambda: declared(topic(pattern="w", string=True), to=topic("w-clean")),
            "w-clean is read and written by the same stage",
        ),
        (
            lambda: declared(topic(pattern="w", string=True), to=topic("other"), dead_letters="bad-w"),
            "reads its own dead letters: bad-w",
        ),
        (lambda: declared(CLICKS, to=topic(pattern="x.*")), "writes to one topic by its name"),
        (lambda: declared(CLICKS, to=[lake("x"), lake("x")]), "writes lake x twice"),
        (lambda: declared(CLICKS, to=[lake("x"), lake("./y/../x")]), "writes lake ./y/../x twice"),
        (lambda: declared(CLICKS, to=topic("b"), mode="apend"), "did you mean append?"),
        (lambda: declared(CLICKS, to=lake("x"), mode="complete"), "a lake keeps every batch"),
        (lambda: declared(CLICKS, to=topic("b"), bad="ignore"), "is not one of dead-letter, fail, drop"),
        (lambda: declared(CLICKS, to=topic("b"), trigger="soon"), "is no interval"),
        (lambda: declared(CLICKS, to=topic("b"), trigger="real-time"), "has no dead letters"),
        (
            lambda: declared(CLICKS, to=lake("b"), trigger="real-time", bad="drop"),
            "to one topic and nothing else",
        ),
        (lambda: declared(CLICKS, to=topic("b"), name="a/b"), "letters, digits"),
        (lambda: declared(CLICKS, to=topic("b"), name="a.transactions"), "is that of the marks of stage a"),
        (lambda: declared(CLICKS, to=topic("b"), dead_letters="clicks"), "reads its own dead letters"),
        (lambda: declared(CLICKS, to=topic("b"), bad="drop", dead_letters="x"), "has no use with bad='drop'"),
        (
            lambda: declared(CLICKS, table("x"), to=topic("b")),
            "the function gets 2 DataFrames, but it is same",
        ),
        (lambda: declared(CLICKS, to=topic("b"), function=both), "missing a required argument: 'other'"),
    ],
)
def test_a_mistake_is_refused_with_what_to_write_instead(mistake: Any, words: str) -> None:
    with pytest.raises(StageError, match=words):
        mistake()
