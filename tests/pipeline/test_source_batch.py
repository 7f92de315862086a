"""`spark.read.format("ottla")` on a real Spark and a real broker: rows, schema, every option for batches."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from ottla.protocol_client.group_offsets import commit_offsets
from ottla.protocol_client.wire import Wire
from source_topics import delete_before, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ottla.testing.in_process import InProcessBroker

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def topic(broker: InProcessBroker) -> str:
    """Partition 0 holds a0 to a9 at 1000, 2000, ... ms, partition 1 holds b0 with a key and headers."""
    name = f"batch-{uuid4().hex[:8]}"
    broker.create_topic(name, 2)
    for number in range(10):
        write(broker.bootstrap_servers, name, [f"a{number}"], timestamp=1000 * (number + 1))
    headers = [("h", b"1"), ("none", None)]
    write(broker.bootstrap_servers, name, ["b0"], partition=1, key="k", headers=headers, timestamp=1000)
    return name


def read(spark: SparkSession, broker: InProcessBroker, **options: str) -> DataFrame:
    reader = spark.read.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    return reader.options(**{name.replace("_", "."): value for name, value in options.items()}).load()


def values(frame: DataFrame) -> list[str]:
    return sorted(row.value.decode() for row in frame.select("value").collect())


def test_rows_and_schema_are_those_of_sparks_kafka_source(
    spark: SparkSession, broker: InProcessBroker, topic: str
) -> None:
    from pyspark.sql.types import _parse_datatype_string

    frame = read(spark, broker, subscribe=topic, includeHeaders="true")
    assert frame.schema == _parse_datatype_string(
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
        "timestampType int, headers array<struct<key: string, value: binary>>"
    )
    (row,) = frame.where("partition = 1").collect()
    assert row.asDict(recursive=True) == {
        "key": b"k",
        "value": b"b0",
        "topic": topic,
        "partition": 1,
        "offset": 0,
        "timestamp": datetime.fromtimestamp(1, UTC).astimezone().replace(tzinfo=None),
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"1"}, {"key": "none", "value": None}],
    }
    assert read(spark, broker, subscribe=topic).columns == frame.columns[:-1]


def test_a_range_of_offsets_and_a_range_of_times(
    spark: SparkSession, broker: InProcessBroker, topic: str
) -> None:
    by_offsets = read(
        spark,
        broker,
        subscribe=topic,
        startingOffsets=f'{{"{topic}":{{"0":8,"1":-2}}}}',
        endingOffsets=f'{{"{topic}":{{"0":-1,"1":1}}}}',
    )
    by_times = read(
        spark,
        broker,
        assign=f'{{"{topic}":[0]}}',
        startingTimestamp="2500",
        endingOffsetsByTimestamp=f'{{"{topic}":{{"0":4000}}}}',
    )
    tagged = by_offsets.selectExpr("'offsets' as by", "value").unionAll(
        by_times.selectExpr("'times' as by", "value")
    )
    assert sorted((row.by, row.value.decode()) for row in tagged.collect()) == [
        ("offsets", "a8"),
        ("offsets", "a9"),
        ("offsets", "b0"),
        ("times", "a2"),
    ]


def test_a_batch_from_where_a_group_left_off(
    spark: SparkSession, broker: InProcessBroker, topic: str
) -> None:
    group = f"{topic}-group"
    with Wire(broker.bootstrap_servers) as wire:
        commit_offsets(wire, group, {(topic, 0): 9})
    frame = read(spark, broker, subscribePattern=f"^{topic}$", startingOffsets="group", kafka_group_id=group)
    assert values(frame) == ["a9", "b0"]


def test_large_partitions_are_split_for_more_tasks(
    spark: SparkSession, broker: InProcessBroker, topic: str
) -> None:
    assert read(spark, broker, subscribe=topic).rdd.getNumPartitions() == 1, "small ranges go together"
    split = read(spark, broker, subscribe=topic, minPartitions="5")
    assert split.rdd.getNumPartitions() == 5
    assert values(split) == [*(f"a{n}" for n in range(10)), "b0"]
    assert read(spark, broker, subscribe=topic, maxRecordsPerPartition="4").rdd.getNumPartitions() == 4


def test_an_empty_range_has_no_rows(spark: SparkSession, broker: InProcessBroker, topic: str) -> None:
    nothing = f'{{"{topic}":{{"0":3,"1":0}}}}'
    frame = read(spark, broker, subscribe=topic, startingOffsets=nothing, endingOffsets=nothing)
    assert frame.count() == 0


def test_bad_options_are_refused_in_plain_words(
    spark: SparkSession, broker: InProcessBroker, topic: str
) -> None:
    with pytest.raises(Exception, match="one of them is needed"):
        read(spark, broker)
    with pytest.raises(Exception, match="startingOffsets cannot be latest in a batch query"):
        read(spark, broker, subscribe=topic, startingOffsets="latest").count()
    with pytest.raises(Exception, match="topic 'no-such-topic' does not exist"):
        read(spark, broker, subscribe="no-such-topic").count()
    reader = spark.read.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    with pytest.raises(Exception, match="a schema cannot be given"):
        reader.option("subscribe", topic).schema("id long").load().count()


def test_deleted_records_end_a_batch_or_are_left_out(spark: SparkSession, broker: InProcessBroker) -> None:
    name = f"batch-{uuid4().hex[:8]}"
    broker.create_topic(name)
    write(broker.bootstrap_servers, name, "abcd")
    delete_before(broker.bootstrap_servers, name, 2)
    options = {"subscribe": name, "startingOffsets": f'{{"{name}":{{"0":1}}}}'}
    with pytest.raises(Exception, match=r"offsets 1 to 1 were deleted .* set failOnDataLoss to false"):
        read(spark, broker, **options).count()
    assert values(read(spark, broker, **options, failOnDataLoss="false")) == ["c", "d"]
