"""The test driver: what a test feeds is what stages read, and what they write is what it finds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from ottla.pipeline import StageError, lake, stage, table, topic
from ottla.pipeline.testing import PipelineDriver, record
from ottla.pipeline.testing.records import as_span
from ottla.pipeline.topics.partitioning import partitions_by_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)
pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[2] / "docs/pipeline/testing.md"

AVRO = {"type": "record", "name": "User", "fields": [{"name": "id", "type": "long"}]}


@stage(
    topic("clicks", json="id long NOT NULL, user string"),
    to=[
        topic("clicks.clean", key="user"),
        topic("clicks.odd", where="id % 2 = 1"),
        lake("data/clicks", partition_by="user"),
    ],
)
def clean(clicks: DataFrame) -> DataFrame:
    return clicks.withColumn("user", F.lower("user"))


@stage(topic("clicks.clean", json="id long, user string"), to=topic("clicks.count"), mode="update")
def count(clean: DataFrame) -> DataFrame:
    return clean.groupBy("user").count()


@stage(topic("clicks.clean", json="id long, user string"), to=lake("data/windows"))
def windows(clean: DataFrame) -> DataFrame:
    at = clean.withColumn("at", F.col("_source.timestamp")).withWatermark("at", "1 minute")
    return (
        at.groupBy(F.window("at", "1 minute")).count().select(F.col("window.start").alias("start"), "count")
    )


def test_rows_topics_lake_and_dead_letters_of_one_stage(spark: SparkSession) -> None:
    with PipelineDriver([clean], spark=spark) as shop:
        shop.feed("clicks", {"id": 1, "user": "Ada"}, {"id": 2, "user": "Ben"}, key="k")
        shop.feed("clicks", b"not json", headers={"trace": "7"}, key=b"\x00")
        assert shop.rows("clean") == [{"id": 1, "user": "ada"}, {"id": 2, "user": "ben"}]
        assert [(each.key, each.data) for each in shop.topic("clicks.clean")] == [
            (b"ada", {"id": 1, "user": "ada"}),
            (b"ben", {"id": 2, "user": "ben"}),
        ]
        assert shop.values("clicks.odd") == [{"id": 1, "user": "ada"}]
        assert shop.lake("data/clicks") == [{"id": 1, "user": "ada"}, {"id": 2, "user": "ben"}]
        (letter,) = shop.dead_letters("clean")
        assert (letter.key, letter.value, letter.header("trace")) == (b"\x00", b"not json", "7")
        assert letter.header("ottla.reason") == "not JSON: expecting value at character 0"
        assert (letter.header("ottla.topic"), letter.header("ottla.offset")) == ("clicks", "2")
        # The next batch adds to what is there, and does not write the letter again.
        shop.feed("clicks", {"id": 3, "user": "Ada"})
        assert [row["id"] for row in shop.rows("clean")] == [1, 2, 3]
        assert len(shop.dead_letters("clean")) == 1


def test_more_bad_records_than_travel_with_the_count_all_become_dead_letters(spark: SparkSession) -> None:
    with PipelineDriver([clean], spark=spark) as shop:
        shop.feed("clicks", *(f"bad {number}" for number in range(300)), "x" * 5000, {"id": 1, "user": "a"})
        letters = shop.dead_letters("clean")
        assert len(letters) == 301
        assert sorted(int(each.header("ottla.offset") or "") for each in letters) == list(range(301))
        assert shop.rows("clean") == [{"id": 1, "user": "a"}]


def test_a_record_goes_from_end_to_end_and_state_is_kept_between_runs(spark: SparkSession) -> None:
    with PipelineDriver([count, clean], spark=spark) as shop:
        shop.feed("clicks", {"id": 1, "user": "Ada"}, {"id": 2, "user": "ADA"})
        assert shop.values("clicks.count") == [{"user": "ada", "count": 2}]
        shop.feed("clicks", {"id": 3, "user": "ada"}, {"id": 4, "user": "Ben"})
        assert sorted(row["count"] for row in shop.rows("count")[1:]) == [1, 3]


def test_windows_close_when_records_move_the_watermark(spark: SparkSession) -> None:
    with PipelineDriver([clean, windows], now="2026-05-01T10:00:00Z", spark=spark) as shop:
        shop.feed("clicks", {"id": 1, "user": "a"}, {"id": 2, "user": "b"}, at="2026-05-01T09:59:10Z")
        shop.feed("clicks", record({"id": 3, "user": "c"}, at=datetime(2026, 5, 1, 9, 59, 20)))
        assert shop.lake("data/windows") == []
        shop.advance("5 minutes")
        assert shop.lake("data/windows") == []  # time alone closes no window, as in production
        assert shop.watermark("windows") == datetime(2026, 5, 1, 9, 59, tzinfo=UTC)
        shop.feed("clicks", {"id": 4, "user": "d"})
        assert shop.lake("data/windows") == [{"start": datetime(2026, 5, 1, 10, tzinfo=UTC), "count": 3}]
        assert shop.watermark("windows") == datetime(2026, 5, 1, 10, 4, tzinfo=UTC)


def test_both_sides_of_a_join_come_in_one_batch_and_tables_are_rows(spark: SparkSession) -> None:
    @stage(
        topic("orders", json="id long, item string"),
        topic(pattern="^paid-", json="order long"),
        table("names.parquet"),
        to=topic("done", string=True),
    )
    def done(orders: DataFrame, paid: DataFrame, names: DataFrame) -> DataFrame:
        return (
            paid.join(orders, F.expr("id = order")).join(names, "item").select(F.col("name").alias("value"))
        )

    tables = {"names.parquet": [{"item": "p", "name": "pen"}, {"item": "i", "name": "ink"}]}
    with PipelineDriver([done], tables=tables, spark=spark) as shop:
        shop.feed("orders", {"id": 1, "item": "p"}, {"id": 2, "item": "i"})
        shop.feed("paid-eu", {"order": 2})
        assert shop.values("done") == ["ink"]
        shop.feed("paid-us", {"order": 1})
        assert shop.values("done") == ["ink", "pen"]


def test_avro_and_partitions_and_the_clock(spark: SparkSession) -> None:
    @stage(
        topic("in", avro=AVRO, framing="confluent", schema_id=3),
        to=topic("out", avro=AVRO, key="id"),
        name="users",
    )
    def users(frame: DataFrame) -> DataFrame:
        late = F.current_timestamp() >= F.lit("2026-01-01 01:00:00").cast("timestamp")
        return frame.withColumn("id", F.when(late, -F.col("id")).otherwise(F.col("id")))

    with PipelineDriver([users], partitions={"in": 2, "out": 4}, spark=spark) as shop:
        shop.feed("in", {"id": 7}, partition=1)
        shop.feed("in", {"id": 8}, b"\x00\x00\x00\x00\x03", partition=0)
        assert sorted(each["id"] for each in shop.values("out")) == [7, 8]
        assert shop.dead_letters("users")[0].header("ottla.partition") == "0"
        shop.advance(timedelta(hours=1))
        shop.feed("in", {"id": 9})
        assert -9 in [each["id"] for each in shop.values("out")]
        found = {each.key: each.partition for each in shop.topic("out")}
        keys = pa.array(found, pa.binary())
        assert found == dict(zip(found, partitions_by_key(keys, 4).to_pylist(), strict=True))
        assert len(set(found.values())) > 1
        with pytest.raises(ValueError, match="has partitions 0 to 1, not 2"):
            shop.feed("in", {"id": 1}, partition=2)


def test_json_has_formats_of_its_own_and_records_the_time_of_a_column(spark: SparkSession) -> None:
    german = {"timestampFormat": "dd.MM.yyyy HH:mm"}

    @stage(
        topic("in", json="id long, at timestamp", json_options=german),
        to=[topic("out", timestamp="at", json_options=german), topic("plain")],
        name="timed",
    )
    def timed(frame: DataFrame) -> DataFrame:
        return frame

    with PipelineDriver([timed], spark=spark) as shop:
        shop.feed("in", {"id": 1, "at": "24.12.2025 18:00"}, {"id": 2, "at": "2025-12-24"}, {"id": "x"})
        (written,) = shop.topic("out")
        assert written.data == {"id": 1, "at": "24.12.2025 18:00"}
        assert written.timestamp == datetime(2025, 12, 24, 18, tzinfo=UTC)
        assert shop.topic("plain")[0].timestamp == shop.now
        assert [each.header("ottla.reason") for each in shop.dead_letters("timed")] == [
            "does not fit the schema, or a date or time is not in its format",
            'wrong type for field id: text "x" where bigint is expected',
        ]

    @stage(topic("in", json="id long"), to=topic("out", timestamp="id"), name="untimed")
    def untimed(frame: DataFrame) -> DataFrame:
        return frame

    with pytest.raises(StageError, match="column id is bigint; the time of a record is a timestamp"):
        PipelineDriver([untimed], spark=spark)

    @stage(topic("in", json="id long", json_options={"dateFormat": "QQQQQQ"}), to=topic("out"), name="odd")
    def odd(frame: DataFrame) -> DataFrame:
        return frame

    with pytest.raises(StageError, match="dateFormat='QQQQQQ' is no format: Too many pattern letters"):
        PipelineDriver([odd], spark=spark)


def test_a_failing_stage_raises_in_the_test(spark: SparkSession) -> None:
    @stage(topic("in", json="id long NOT NULL"), to=topic("out"), bad="fail", name="strict")
    def strict(frame: DataFrame) -> DataFrame:
        return frame

    with PipelineDriver([strict], spark=spark) as shop:
        shop.feed("in", b"{}")
        with pytest.raises(
            StageError, match="bad record in in, partition 0, offset 0: missing required field id"
        ):
            shop.run()

    def angry(number: int) -> int:
        raise ValueError(f"cannot stand {number}")

    @stage(topic("in", json="id long"), to=topic("out"), name="choking")
    def choking(frame: DataFrame) -> DataFrame:
        return frame.select(F.udf(angry, "long")("id").alias("id"))

    with PipelineDriver([choking], spark=spark) as shop:
        shop.feed("in", {"id": 1})
        with pytest.raises(Exception, match="cannot stand 1"):
            shop.rows("choking")


def test_unknown_names_are_refused_with_a_similar_name(spark: SparkSession) -> None:
    with PipelineDriver([clean], spark=spark) as shop:
        with pytest.raises(StageError, match="no stage reads topic click; did you mean clicks"):
            shop.feed("click", {})
        with pytest.raises(StageError, match=r"nothing has been written to topic clicks.clear; did you mean"):
            shop.topic("clicks.clear")
        with pytest.raises(StageError, match="no stage writes a lake data/click; did you mean"):
            shop.lake("data/click")
        assert shop.topic("clicks.clean") == []


@pytest.mark.parametrize(
    ("text", "seconds"), [("10 minutes", 600), ("1.5 hours", 5400), ("20ms", 0.02), ("2 d", 172800), (3, 3)]
)
def test_durations_are_parsed(text: Any, seconds: float) -> None:
    assert as_span(text).total_seconds() == seconds


def test_an_invalid_duration_is_refused() -> None:
    with pytest.raises(ValueError, match="no length of time"):
        as_span("soon")


def test_the_examples_of_the_docs_pass(pytester: pytest.Pytester, spark: SparkSession) -> None:
    """In this process, where the session that runs is the one that the fixture finds and leaves running."""
    files = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in files] == ["shop.py", "test_shop.py"]
    for name, text in files:
        (pytester.path / name).write_text(text)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=len(re.findall(r"^def test_", files[1][1], re.MULTILINE)))
    assert spark.range(1).count() == 1
