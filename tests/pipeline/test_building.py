"""Stages on a real Spark and a real broker: what they read, write and refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ottla.pipeline import StageError, building, lake, run, stage, table, topic
from ottla.pipeline.building import needed_settings, shape_of
from ottla.pipeline.connectors import Connection
from ottla.pipeline.testing import PipelineDriver
from ottla.testing.in_process import InProcessBroker
from pipeline.stage_runs import StageRuns

CLICK = "id long, user string"


@pytest.fixture
def runs(spark: SparkSession, broker: InProcessBroker, tmp_path: Path) -> StageRuns:
    return StageRuns(spark, broker, tmp_path)


def clicks(*rows: tuple[int, str]) -> list[bytes]:
    return [json.dumps({"id": id, "user": user}).encode() for id, user in rows]


def values(runs: StageRuns, name: str) -> list[Any]:
    return [json.loads(each.value or b"null") for each in runs.records(name)]


def test_a_stage_continues_from_its_checkpoint(runs: StageRuns) -> None:
    source, target = runs.name("clicks", 2), runs.name("clean")

    @stage(topic(source, json=CLICK), to=topic(target, key="user"))
    def clean(clicks: DataFrame) -> DataFrame:
        return clicks.where("id > 1")

    runs.produce(source, clicks((1, "a"), (2, "b"), (3, "c")))
    runs.run(clean)
    got = runs.records(target)
    assert sorted((each.key, each.value) for each in got) == [
        (b"b", b'{"id":2,"user":"b"}'),
        (b"c", b'{"id":3,"user":"c"}'),
    ]
    runs.produce(source, clicks((4, "d")))
    runs.run(clean)
    assert [each["id"] for each in values(runs, target)][2:] == [4]


def test_a_stage_function_is_tested_as_a_function(spark: SparkSession) -> None:
    @stage(topic("clicks", json=CLICK), to=topic("clean"))
    def clean(clicks: DataFrame) -> DataFrame:
        return clicks.where("id > 1").withColumn("user", F.upper("user"))

    frame = spark.createDataFrame([(1, "a"), (2, "b")], CLICK)
    assert clean(frame).collect() == [(2, "B")]


def test_the_source_column_is_visible_to_the_function_and_never_written(
    runs: StageRuns, tmp_path: Path
) -> None:
    source, target = runs.name("clicks"), runs.name("out")

    @stage(
        topic(source, string=True),
        to=[topic(target), lake(tmp_path / "lake")],
        name="keep",
    )
    def keep(frame: DataFrame) -> DataFrame:
        return frame.withColumn("place", F.col("_source.offset")).withColumn(
            "k", F.col("_source.key").cast("string")
        )

    runs.produce(source, [(b"k0", b"x"), (None, b"y")])
    built = runs.build(keep)
    assert [schema.fieldNames() for schema in built.output_schemas] == [["value", "place", "k"]] * 2
    runs.run(keep)
    assert values(runs, target) == [{"value": "x", "place": 0, "k": "k0"}, {"value": "y", "place": 1}]
    assert sorted(runs.spark.read.parquet(str(tmp_path / "lake")).columns) == ["k", "place", "value"]


def test_several_outputs_get_the_rows_of_one_batch(runs: StageRuns, tmp_path: Path) -> None:
    source, odd, all_of_them = runs.name("n"), runs.name("odd"), runs.name("all")

    @stage(
        topic(source, json="id long"),
        to=[
            topic(odd, where="id % 2 = 1"),
            topic(all_of_them, json="id long"),
            lake(tmp_path / "lake", partition_by="Kind", where="id > 2"),
        ],
        name="split",
    )
    def split(frame: DataFrame) -> DataFrame:
        return frame.withColumn("kind", F.when(F.col("id") % 2 == 1, "odd").otherwise("even"))

    runs.produce(source, [b'{"id": %d}' % id for id in range(1, 5)])
    runs.run(split)
    assert [each["id"] for each in values(runs, odd)] == [1, 3]
    assert values(runs, all_of_them) == [{"id": id} for id in range(1, 5)]
    written = runs.spark.read.parquet(str(tmp_path / "lake")).orderBy("id").collect()
    assert [(row.id, row.kind) for row in written] == [(3, "odd"), (4, "even")]


def test_two_topics_are_joined_in_order_of_declaration(runs: StageRuns) -> None:
    orders, payments, target = runs.name("orders"), runs.name("payments"), runs.name("paid")

    @stage(
        topic(orders, json="id long, item string"),
        topic(payments, json="order long, sum double"),
        to=topic(target),
    )
    def paid(orders: DataFrame, payments: DataFrame) -> DataFrame:
        return payments.join(orders, F.expr("id = order")).select("id", "item", "sum")

    runs.produce(orders, [b'{"id": 1, "item": "pen"}', b'{"id": 2, "item": "ink"}'])
    runs.produce(payments, [b'{"order": 2, "sum": 1.5}'])
    runs.run(paid)
    assert values(runs, target) == [{"id": 2, "item": "ink", "sum": 1.5}]


def test_static_tables_are_paths_or_functions(runs: StageRuns, tmp_path: Path) -> None:
    source, target = runs.name("clicks"), runs.name("named")
    runs.spark.createDataFrame([("a", "Anna")], "user string, name string").write.parquet(
        str(tmp_path / "users")
    )

    def levels(spark: SparkSession) -> DataFrame:
        return spark.createDataFrame([("a", 3)], "user string, level int")

    @stage(topic(source, json=CLICK), table(tmp_path / "users"), table(levels), to=topic(target))
    def named(clicks: DataFrame, users: DataFrame, levels: DataFrame) -> DataFrame:
        return clicks.join(users, "user", "left").join(levels, "user", "left")

    runs.produce(source, clicks((1, "a"), (2, "b")))
    runs.run(named)
    found = sorted(values(runs, target), key=lambda each: int(each["id"]))
    assert found == [{"user": "a", "id": 1, "name": "Anna", "level": 3}, {"user": "b", "id": 2}]


@pytest.mark.parametrize(("mode", "expected"), [("update", [("a", 3)]), ("complete", [("a", 3), ("b", 1)])])
def test_aggregates_are_written_in_update_or_complete_mode(
    runs: StageRuns, mode: str, expected: list[tuple[str, int]]
) -> None:
    source, target = runs.name(f"clicks.{mode}"), runs.name(f"counts.{mode}")

    @stage(topic(source, json=CLICK), to=topic(target, key="user"), mode=mode)
    def counts(clicks: DataFrame) -> DataFrame:
        return clicks.groupBy("user").count()

    runs.produce(source, clicks((1, "a"), (2, "b")))
    runs.run(counts)
    before = len(values(runs, target))
    runs.produce(source, clicks((3, "a"), (4, "a")))
    runs.run(counts)
    assert sorted((each["user"], each["count"]) for each in values(runs, target)[before:]) == expected


def test_windows_close_when_the_watermark_passes(runs: StageRuns) -> None:
    source, target = runs.name("ticks"), runs.name("perminute")

    @stage(topic(source, json="at timestamp"), to=topic(target))
    def per_minute(ticks: DataFrame) -> DataFrame:
        return ticks.withWatermark("at", "10 seconds").groupBy(F.window("at", "1 minute")).count()

    times = ["12:00:01", "12:00:02", "12:05:00"]
    runs.produce(source, [f'{{"at": "2026-01-01T{time}Z"}}'.encode() for time in times])
    runs.run(per_minute)
    assert [each["count"] for each in values(runs, target)] == [2]


def test_headers_key_and_partition_come_from_columns(runs: StageRuns) -> None:
    source, target = runs.name("in"), runs.name("out", 3)

    @stage(
        topic(source, json="id long"),
        to=topic(target, key="id", drop_key=True, headers="tags", partition="where_to"),
    )
    def route(frame: DataFrame) -> DataFrame:
        return frame.select(
            "id",
            (F.col("id") % 3).alias("where_to"),
            F.create_map(F.lit("kind"), F.lit("test")).alias("tags"),
            F.lit("v").alias("v"),
        )

    runs.produce(source, [b'{"id": 4}', b'{"id": 5}'])
    runs.run(route)
    got = [(each.partition, each.key, each.value, each.headers) for each in runs.records(target)]
    assert got == [(1, b"4", b'{"v":"v"}', {"kind": b"test"}), (2, b"5", b'{"v":"v"}', {"kind": b"test"})]


def test_a_pattern_reads_all_matching_topics(runs: StageRuns) -> None:
    one, other, target = runs.name("in.one"), runs.name("in.other"), runs.name("out")

    @stage(topic(pattern=rf"{runs.prefix}\.in\..*", string=True), to=topic(target))
    def gather(frame: DataFrame) -> DataFrame:
        return frame.select("value", F.col("_source.topic").alias("topic"))

    runs.produce(one, [b"1"])
    runs.produce(other, [b"2"])
    runs.run(gather)
    assert sorted((each["topic"], each["value"]) for each in values(runs, target)) == [
        (one, "1"),
        (other, "2"),
    ]


def test_a_reset_stage_starts_at_the_given_position(runs: StageRuns) -> None:
    source, target = runs.name("in"), runs.name("out")

    @stage(topic(source, string=True), to=topic(target, string=True))
    def copy(frame: DataFrame) -> DataFrame:
        return frame

    runs.produce(source, [b"old"])
    runs.context().checkpoints.stage("copy").reset("latest")
    runs.run(copy)
    runs.produce(source, [b"new"])
    runs.run(copy)
    assert [each.value for each in runs.records(target)] == [b"new"]


def test_the_first_stage_of_the_page_runs(
    runs: StageRuns,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ottla_pipeline: Callable[..., PipelineDriver],
) -> None:
    page = Path(__file__).parents[2] / "docs" / "pipeline" / "index.md"
    code, test = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)[:2]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(code)
    runs.broker.create_topic("clicks")
    runs.produce("clicks", [b'{"id": 1, "user": "Ada"}', b'{"user": "x"}'])
    run("shop.py", bootstrap=runs.broker.bootstrap_servers, once=True, spark=runs.spark)
    assert [(each.key, each.value) for each in runs.records("clicks.clean")] == [
        (b"ada", b'{"id":1,"user":"ada"}')
    ]
    assert runs.spark.read.parquet(str(tmp_path / "data" / "clicks")).collect() == [(1, "ada")]
    scope: dict[str, Any] = {}
    exec(code + test, scope)
    scope["test_users_are_written_in_lower_case"](ottla_pipeline)


def test_progress_is_shown_by_the_group_of_the_stage(runs: StageRuns) -> None:
    built = runs.build(stage(topic("clicks", json=CLICK), to=topic("b"), name="shown")(lambda frame: frame))
    assert built.inputs[0].options["kafka.group.id"] == f"ottla.{runs.prefix}.shown"
    assert built.inputs[0].options["startingOffsets"] == "earliest"


def test_settings_for_kafka_reach_sources_and_other_settings_do_not(runs: StageRuns) -> None:
    runs.settings = {"kafka.client.id": "me", "spark.x": "1"}
    built = runs.build(stage(topic("clicks", json=CLICK), to=topic("b"), name="set")(lambda frame: frame))
    assert built.inputs[0].options["kafka.client.id"] == "me"
    assert "spark.x" not in built.inputs[0].options


def test_a_function_with_state_keeps_it_in_rocksdb_unless_the_stage_says_otherwise() -> None:
    store = "spark.sql.streaming.stateStore.providerClass"
    stateful = [{"operator": "Aggregate [id]"}, {"operator": "TransformWithStateInPySpark count(id)"}]
    assert "RocksDB" in needed_settings(stateful, {})[store]
    assert needed_settings(stateful, {store: "my.Provider"}) == {}
    assert needed_settings(stateful[:1], {}) == {}


def test_a_function_with_state_says_what_it_needs(runs: StageRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pandas Spark refuses it; without protobuf it starts a process that dies."""
    from pyspark.sql.streaming import StatefulProcessor

    class Nothing(StatefulProcessor):
        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:
            return iter(())

        def close(self) -> None:
            pass

    @stage(topic("clicks", json=CLICK), to=topic("b"), mode="update")
    def nothing(frame: DataFrame) -> DataFrame:
        grouped = frame.groupBy("user")
        return grouped.transformWithState(Nothing(), "user string", "Update", "None")

    monkeypatch.setattr(building, "_is_installed", lambda module: False)
    with pytest.raises(StageError, match=r"stage nothing: .*pip install 'ottla\[stateful\]'"):
        runs.build(nothing)


def test_a_pipeline_over_spark_connect_is_refused_with_what_to_do(runs: StageRuns) -> None:
    declared = stage(topic("clicks", json=CLICK), to=topic("b"), name="f")(lambda frame: frame)
    connected: Any = object()  # a session of Spark Connect has no JVM
    with pytest.raises(StageError, match=r"does not run over Spark Connect .* such as local"):
        building.build(connected, declared.__stage__, runs.context())  # type: ignore[attr-defined]


def keep_all(frame: DataFrame) -> DataFrame:
    return frame


def counted(frame: DataFrame) -> DataFrame:
    return frame.groupBy("user").count()


IN = topic("clicks", json=CLICK)


@pytest.mark.parametrize(
    ("declare", "function", "words"),
    [
        (
            stage(IN, to=topic("b", key="usr")),
            keep_all,
            r"key for b: there is no column usr; did you mean user\?",
        ),
        (stage(IN, to=topic("b", json="id long, name string")), keep_all, "there is no column name"),
        (
            stage(IN, to=topic("b", json="id int")),
            keep_all,
            'id is bigint, its schema says int; cast .*cast."int"',
        ),
        (stage(IN, to=topic("b", headers="user")), keep_all, "headers are array"),
        (stage(IN, to=topic("b", partition="user")), keep_all, "a partition is a whole number"),
        (stage(IN, to=topic("b", string=True)), keep_all, "one column; call it value"),
        (stage(IN, to=topic("b", where="usr = 1")), keep_all, "stage f: .*`usr` cannot be resolved"),
        (
            stage(IN, to=lake("x", partition_by="usr")),
            keep_all,
            "partition_by for lake x: .*did you mean user",
        ),
        (stage(IN, to=lake("x", partition_by=["id", "user"])), keep_all, "nothing is left to write"),
        (stage(IN, to=lake("x", partition_by=["User", "user"])), keep_all, "a column is named twice"),
        (
            stage(IN, to=lake("x", options={"compresion": "zstd"})),
            keep_all,
            r"unknown option compresion; did you mean compression\?",
        ),
        (stage(IN, to=lake("x", options={"file_bytes": "1m"})), keep_all, "a number of bytes is wanted"),
        (
            stage(IN, to=lake("x")),
            lambda f: f.selectExpr("array(interval '1' month) as spans"),
            "lake x: column spans is array<interval month>, which the Parquet files of a lake cannot hold",
        ),
        (stage(IN, to=topic("b")), lambda f: None, "returned nothing; does it end with return"),
        (stage(IN, to=topic("b")), lambda f: 3, "returned int, not a DataFrame"),
        (
            stage(IN, to=topic("b")),
            lambda f: f.sparkSession.range(3),
            "does not come from clicks, it is static",
        ),
        (stage(IN, to=topic("b")), lambda f: f.select("usr"), "stage f: .*`usr` cannot be resolved"),
        (stage(IN, to=topic("b")), lambda f: f.select("id", "id"), "two columns of the result are called id"),
        (stage(IN, to=topic("b")), counted, "stage f, mode='append': .*watermark"),
        (stage(IN, to=topic("b"), mode="complete"), keep_all, "stage f, mode='complete': .*[Cc]omplete"),
        (stage(topic("a", json="id lnog"), to=topic("b")), keep_all, "topic a: 'id lnog' is no schema"),
        (stage(topic("a", json="bigint"), to=topic("b")), keep_all, "topic a: 'bigint' is"),
        (stage(topic("a", json="_source int"), to=topic("b")), keep_all, "cannot be called _source"),
        (stage(topic("a", json="id int, ID int"), to=topic("b")), keep_all, "two columns are called ID"),
        (stage(IN, table("nowhere/x"), to=topic("b")), lambda f, t: f, "table nowhere/x cannot be read"),
        (stage(IN, table(lambda s: 1), to=topic("b")), lambda f, t: f, "gave int, not a DataFrame"),
    ],
)
def test_an_invalid_stage_is_refused_before_it_runs(
    runs: StageRuns, declare: Any, function: Any, words: str
) -> None:
    def f(*frames: DataFrame) -> Any:
        return function(*frames)

    with pytest.raises(StageError, match=words):
        runs.build(declare(f))


class TestShape:
    def shape(self, runs: StageRuns, function: Any, schema: str = CLICK, **arguments: Any) -> dict[str, Any]:
        arguments = {"to": topic("b"), "mode": "update", **arguments}
        built = runs.build(
            stage(topic("clicks", json=schema), name="f", **arguments)(lambda frame: function(frame))
        )
        assert built.fingerprint.shape == shape_of(built.stage, built.frame)
        return shape_of(built.stage, built.frame)

    def test_the_shape_is_the_same_for_the_same_stage(self, runs: StageRuns) -> None:
        assert self.shape(runs, counted) == self.shape(runs, counted)
        assert len(self.shape(runs, counted)["stateful"]) == 1

    def test_the_shape_of_state_ignores_result_names(self, runs: StageRuns) -> None:
        renamed = self.shape(runs, lambda frame: frame.groupBy("user").agg(F.count(F.lit(1)).alias("n")))
        assert renamed == self.shape(runs, counted)

    def test_the_shape_changes_with_what_state_depends_on(self, runs: StageRuns) -> None:
        before = self.shape(runs, counted)["stateful"]
        by_id = self.shape(runs, lambda frame: frame.groupBy("id").count())["stateful"]
        summed = self.shape(runs, lambda frame: frame.groupBy("user").agg(F.sum("id")))["stateful"]
        other_type = self.shape(runs, counted, "id long, user int")["stateful"]
        assert len({json.dumps(each) for each in (before, by_id, summed, other_type)}) == 4

    def test_a_join_with_a_table_has_no_state(self, runs: StageRuns) -> None:
        joined = self.shape(runs, lambda frame: frame.join(frame.sparkSession.range(3), "id"))
        assert joined["stateful"] == []

    def test_the_shape_includes_deduplication(self, runs: StageRuns) -> None:
        once = self.shape(runs, lambda frame: frame.dropDuplicates(["id"]))
        assert [each["operator"] for each in once["stateful"]] == ["Deduplicate [id]"]


def test_batches_have_a_limit_unless_the_declaration_gives_one() -> None:
    connection = Connection("ottla", "b:1")

    def limits(*, bounded: bool = True, **options: Any) -> dict[str, str]:
        source = topic("a", string=True, options=options)
        found = connection.source_options(source, "g", {}, "f", bounded=bounded)
        return {name: value for name, value in found.items() if "PerTrigger" in name}

    assert limits() == {"maxOffsetsPerTrigger": "1000000"}
    assert limits(maxOffsetsPerTrigger=5) == {"maxOffsetsPerTrigger": "5"}
    assert limits(maxBytesPerTrigger="1g") == {"maxBytesPerTrigger": "1g"}
    assert limits(bounded=False) == {}
