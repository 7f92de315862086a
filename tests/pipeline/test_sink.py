"""The sink through Spark: batch and streams, Spark's own rules for columns, and what is refused."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.protocol.records import Record
from ottla.protocol_client import partitioner
from ottla.protocol_client.consume import Consumer
from ottla.protocol_client.offsets import spans
from ottla.protocol_client.wire import Wire
from ottla.testing.in_process import InProcessBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_topic(broker: InProcessBroker, topic: str, partitions: int) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = defaultdict(list)
    with Wire(broker.bootstrap_servers) as wire:
        span = spans(wire, topic, range(partitions))
        ends = {p: s.end for p, s in span.items()}
        for partition, record in Consumer(wire, topic, {p: s.start for p, s in span.items()}, ends):
            found[partition].append(record)
    return found


def save(broker: InProcessBroker, rows: DataFrame, topic: str | None, **options: str) -> None:
    writer = rows.write.format("ottla").mode("append")
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap_servers)
    if topic is not None:
        writer = writer.option("topic", topic)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save()


def refusal(broker: InProcessBroker, rows: DataFrame, topic: str | None = "refused", **options: str) -> str:
    with pytest.raises(Exception) as caught:  # Spark wraps it; the text is what counts
        save(broker, rows, topic, **options)
    return str(caught.value)


def test_a_dataframe_is_written_with_all_its_columns(spark: SparkSession, broker: InProcessBroker) -> None:
    broker.create_topic("sink-all", 3)
    rows = spark.range(0, 1_000, 1, 2).selectExpr(
        "if(id % 4 = 0, null, concat('key-', id % 10)) as key",
        "cast(concat('value ', id) as binary) as value",
        "if(id % 2 = 0, array(named_struct('key', 'id', 'value', binary(string(id)))), null) as headers",
        "if(id % 7 = 0, 1, null) as partition",
        "id as ignored",
    )
    save(broker, rows, "sink-all", **{"kafka.compression.type": "lz4"})
    found = read_topic(broker, "sink-all", 3)
    seen = []
    for partition, records in found.items():
        for record in records:
            assert record.value is not None
            n = int(record.value.removeprefix(b"value "))
            seen.append(n)
            key = None if n % 4 == 0 else f"key-{n % 10}".encode()
            assert record.key == key
            assert record.headers == ([("id", str(n).encode())] if n % 2 == 0 else [])
            if n % 7 == 0:
                assert partition == 1
            elif key is not None:
                assert partition == partitioner.partition_of(key, 3)
    assert sorted(seen) == list(range(1_000))


def test_rows_of_the_source_can_be_written_unchanged(spark: SparkSession, broker: InProcessBroker) -> None:
    broker.create_topic("sink-from", 2)
    broker.create_topic("sink-copy", 2)
    rows = spark.range(200).selectExpr("string(id % 9) as key", "string(id) as value")
    save(broker, rows, "sink-from")
    read = spark.read.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    copied = read.option("subscribe", "sink-from").option("includeHeaders", "true").load()
    save(broker, copied, "sink-copy")  # the option wins over the topic column
    first, second = (
        {p: [(r.key, r.value) for r in records] for p, records in read_topic(broker, name, 2).items()}
        for name in ("sink-from", "sink-copy")
    )
    assert first == second


def test_invalid_columns_are_refused_with_the_messages_of_spark(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    one = spark.range(1)
    assert "Required attribute 'value' not found" in refusal(broker, one.selectExpr("'k' as key"))
    said = refusal(broker, one.selectExpr("'v' as value"), None)
    assert "topic option required when no 'topic' attribute is present" in said
    said = refusal(broker, one.selectExpr("id as value"))
    assert "value attribute unsupported type bigint. value must be a(n) string or binary" in said
    said = refusal(broker, one.selectExpr("'v' as value", "id as partition"))
    assert "partition attribute unsupported type bigint. partition must be a(n) int" in said
    said = refusal(broker, one.selectExpr("'v' as value", "array('a') as headers"))
    assert "headers must be a(n) array<struct<key:string,value:binary>>" in said
    said = refusal(broker, one.selectExpr("'v' as value", "cast(null as string) as topic"), None)
    assert "contains a null topic" in said


def test_options_of_spark_itself_cause_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    from pyspark.sql.types import StringType, StructField, StructType

    from ottla.pipeline.topics.sink import StreamSink

    schema = StructType([StructField("value", StringType())])
    options = {"kafka.bootstrap.servers": "h:1", "topic": "t", "checkpointLocation": "/c", "tpoic": "x"}
    assert StreamSink(options, schema, False).options.topic == "t"
    assert "tpoic is unknown to this sink" in caplog.text
    assert "checkpoint" not in caplog.text


def test_overwriting_a_topic_is_refused(spark: SparkSession, broker: InProcessBroker) -> None:
    writer = spark.range(1).selectExpr("'v' as value").write.format("ottla").mode("overwrite")
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap_servers).option("topic", "t")
    with pytest.raises(Exception, match="Overwrite not allowed"):
        writer.save()


def test_a_record_too_large_fails_the_write_with_topic_and_size(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    broker.create_topic("sink-tiny", 1, {"max.message.bytes": 1_000})
    rows = spark.range(1).selectExpr("repeat('x', 5000) as value")
    assert "topic 'sink-tiny': a record of 50" in refusal(broker, rows, "sink-tiny")


def test_an_append_stream_continues_from_its_checkpoint(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    broker.create_topic("sink-stream", 2)

    def run(start: int) -> None:
        numbers = spark.range(start, start + 100).selectExpr("string(id) as value")
        numbers.coalesce(1).write.mode("append").text(str(source))
        query = (
            spark.readStream.text(str(source))
            .selectExpr("value as key", "value")
            .writeStream.format("ottla")
            .option("kafka.bootstrap.servers", broker.bootstrap_servers)
            .option("topic", "sink-stream")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        assert query.exception() is None

    run(0)
    run(100)
    found = read_topic(broker, "sink-stream", 2)
    assert sorted(int(r.value or b"") for records in found.values() for r in records) == list(range(200))


def test_a_stream_that_replaces_its_result_is_refused(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "words").write_text("one\n")
    counted: Any = spark.readStream.text(str(tmp_path / "in")).groupBy("value").count().select("value")
    writer = counted.writeStream.format("ottla").outputMode("complete")
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap_servers).option("topic", "t")
    with pytest.raises(Exception, match=r"cannot be replaced|complete"):
        writer.option("checkpointLocation", str(tmp_path / "c")).start().processAllAvailable()
