"""Spark's own JVM connector and format("ottla") on the same topics: same schema, same rows, same partitions.

The connector's jars come through Maven. A session cannot take jars once it runs, so the comparison is a
program of its own; it prints one line for each thing it found equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import ottla.testing
from ottla.pipeline.spark.connector_jars import jars
from ottla.protocol.compression import Codec
from ottla.protocol_client.produce import Producer
from ottla.protocol_client.wire import Wire
from ottla.testing.in_process import InProcessBroker
from pipeline.spark_programs import program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COMPARE = """
import json, sys
from ottla.pipeline.spark.session import spark_session

bootstrap, folder = sys.argv[1:]
spark = spark_session("both connectors", "local[2]", {"spark.driver.memory": "1g"}, "kafka")

def source(reader, connector, topic, **options):
    reader = reader.format(connector).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    return reader.options(**{"includeHeaders": "true", "startingOffsets": "earliest", **options}).load()

def rows(frame):
    found = sorted((r.asDict(True) for r in frame.collect()), key=lambda r: (r["partition"], r["offset"]))
    return [{name: str(value) for name, value in row.items()} for row in found]

def same(what, ours, theirs):
    assert ours == theirs, f"{what}: {str(ours)[:2000]} is not {str(theirs)[:2000]}"
    print(what, flush=True)

kafka, ottla = (source(spark.read, c, "mixed") for c in ("kafka", "ottla"))
same("schema", ottla.schema.json(), kafka.schema.json())
same("schema without headers", *(
    source(spark.read, c, "mixed", includeHeaders="false").schema.json() for c in ("ottla", "kafka")))
same("rows of a batch", rows(ottla), rows(kafka))
assert kafka.count() == 3000
part = [json.dumps({"mixed": p}) for p in (
    {"0": 17, "1": 400, "2": 0, "3": -2}, {"0": 91, "1": 401, "2": 0, "3": 5})]
limits = {"startingOffsets": part[0], "endingOffsets": part[1]}
same("rows of a range", *(rows(source(spark.read, c, "mixed", **limits)) for c in ("ottla", "kafka")))

def chosen(connector, pattern):
    reader = spark.read.format(connector).option("kafka.bootstrap.servers", bootstrap)
    found = reader.option("subscribePattern", pattern).load().select("topic").distinct()
    return sorted(row.topic for row in found.collect())

for pattern, topics in [("mixed", ["mixed", "mixed-eu", "my-mixed"]), ("^mixed$", ["mixed"]),
    (" ^mixed ", ["mixed", "mixed-eu"]), ("eu|^my", ["mixed-eu", "my-mixed"])]:
    same(f"topics of the pattern {pattern!r}", chosen("ottla", pattern), chosen("kafka", pattern))
    assert chosen("ottla", pattern) == topics, (pattern, chosen("ottla", pattern))

def run(connector, frame, topic, checkpoint):
    writer = frame.writeStream.format(connector).option("kafka.bootstrap.servers", bootstrap)
    query = writer.option("topic", topic).option("checkpointLocation", f"{folder}/{checkpoint}")
    query.trigger(availableNow=True).start().awaitTermination()

def contents(topic):
    found = {}
    for row in source(spark.read, "ottla", topic).orderBy("partition", "offset").collect():
        headers = None if row.headers is None else [(h.key, bytes(h.value)) for h in row.headers]
        key = None if row.key is None else bytes(row.key)
        found.setdefault(row.partition, []).append((key, bytes(row.value), headers))
    return found

frame = spark.range(0, 2000, 1, 1).selectExpr(
    "concat('key-', id % 97) as key", "concat('value ', id) as value",
    "if(id % 3 = 0, array(named_struct('key', 'h', 'value', binary(string(id)))), null) as headers",
    "if(id % 13 = 0, 2, null) as partition")
for connector in ("kafka", "ottla"):
    writer = frame.write.format(connector).mode("append").option("kafka.bootstrap.servers", bootstrap)
    writer.option("topic", f"by-{connector}").save()
same("rows written by a batch", contents("by-ottla"), contents("by-kafka"))
for connector in ("kafka", "ottla"):
    stream = source(spark.readStream, connector, "by-ottla").drop("topic", "partition")
    run(connector, stream, f"streamed-by-{connector}", connector)
# Tasks write side by side, so rows of two source partitions mix as it comes.
ours, theirs = ({p: sorted(r, key=str) for p, r in contents(f"streamed-by-{c}").items()}
    for c in ("ottla", "kafka"))
same("rows written by a stream", ours, theirs)
theirs = (rows(source(spark.read, c, "streamed-by-kafka")) for c in ("ottla", "kafka"))
same("rows read of what the other wrote", *theirs)

def refusal(connector, frame, **options):
    writer = frame.write.format(connector).mode("append").option("kafka.bootstrap.servers", bootstrap)
    try:
        writer.options(**options).save()
    except Exception as error:
        return str(error)
    raise AssertionError(f"{connector} took {frame.schema}")

one = spark.range(1)
for text, refused, options in [
    ("Required attribute 'value' not found", one.selectExpr("'k' as key"), {"topic": "t"}),
    ("topic option required when no 'topic' attribute is present", one.selectExpr("'v' as value"), {}),
    ("value attribute unsupported type", one.selectExpr("id as value"), {"topic": "t"}),
    ("contains a null topic", one.selectExpr("'v' as value", "cast(null as string) as topic"), {}),
]:
    for connector in ("kafka", "ottla"):
        said = refusal(connector, refused, **options)
        assert text in said, (connector, said)
    print("refused:", text, flush=True)
spark.stop()
"""


@pytest.fixture
def topics() -> Iterator[InProcessBroker]:
    """A broker with a topic of all codecs, null keys and values, headers, and one empty partition."""
    names = {"mixed": 4, "by-kafka": 3, "by-ottla": 3, "streamed-by-kafka": 3, "streamed-by-ottla": 3}
    names |= {"mixed-eu": 1, "my-mixed": 1}
    with ottla.testing.broker(topics=names) as running:
        with Wire(running.bootstrap_servers) as wire:
            for name in ("mixed-eu", "my-mixed"):
                with Producer(wire, name) as producer:
                    producer.add(None, b"1")
            for codec in Codec:
                with Producer(wire, "mixed", codec=codec, batch_bytes=3_000) as producer:
                    for n in range(600):
                        producer.add(
                            None if n % 5 == 0 else b"key %d" % n,
                            None if n % 11 == 0 else b"value %d" % n * (n % 40),
                            [("a", b"%d" % n), ("b", None)] if n % 4 == 0 else (),
                            timestamp=1_700_000_000_000 + 7 * n,
                            partition=(0, 1, 3)[n % 3],
                        )
        yield running


def test_both_connectors_give_the_same_schema_rows_and_partitions(
    topics: InProcessBroker, tmp_path: Path
) -> None:
    assert "spark-sql-kafka" in jars()
    with program(COMPARE, None, topics.bootstrap_servers, str(tmp_path)) as process:
        output, errors = process.communicate(timeout=500)
    assert process.returncode == 0, f"{output}\n{errors[-6000:]}"
    assert json.dumps(output.splitlines()) == json.dumps(
        [
            "schema",
            "schema without headers",
            "rows of a batch",
            "rows of a range",
            "topics of the pattern 'mixed'",
            "topics of the pattern '^mixed$'",
            "topics of the pattern ' ^mixed '",
            "topics of the pattern 'eu|^my'",
            "rows written by a batch",
            "rows written by a stream",
            "rows read of what the other wrote",
            "refused: Required attribute 'value' not found",
            "refused: topic option required when no 'topic' attribute is present",
            "refused: value attribute unsupported type",
            "refused: contains a null topic",
        ]
    )
