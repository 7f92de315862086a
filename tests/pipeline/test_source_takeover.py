"""From Spark's JVM connector to format("ottla") and back on one checkpoint, and the same batches from both.

A session cannot take the connector's jars once it runs, so the queries are a program of their own; it prints
what it found, and the test judges.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ottla.testing
from ottla.pipeline.spark.connector_jars import jars
from pipeline.spark_programs import program
from source_topics import write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

QUERIES = """
import glob, json, sys
from ottla.protocol_client.produce import Producer
from ottla.protocol_client.wire import Wire
from ottla.pipeline.spark.session import spark_session

bootstrap, folder = sys.argv[1:]
spark = spark_session("takeover", "local[2]", {"spark.driver.memory": "1g"}, "kafka")

def produce(values):
    with Wire(bootstrap) as wire, Producer(wire, "taken", create=False) as producer:
        for value in values:
            producer.add(None, value.encode(), partition=0)

def run(connector, checkpoint, topic, **options):
    seen = []
    reader = spark.readStream.format(connector).option("kafka.bootstrap.servers", bootstrap)
    frame = reader.option("subscribe", topic).option("startingOffsets", "earliest").options(**options).load()
    writer = frame.writeStream.option("checkpointLocation", f"{folder}/{checkpoint}")
    take = lambda batch, number: seen.extend(bytes(r.value).decode() for r in batch.collect())
    writer = writer.foreachBatch(take)
    writer.trigger(availableNow=True).start().awaitTermination()
    return seen

def offsets(checkpoint):
    logs = sorted(glob.glob(f"{folder}/{checkpoint}/offsets/[0-9]*"), key=lambda p: int(p.rsplit("/", 1)[1]))
    return [json.loads(open(log).read().splitlines()[-1]) for log in logs]

taken = []
for connector, values in [("kafka", "ab"), ("ottla", "cd"), ("kafka", "ef"), ("ottla", "g")]:
    produce(values)
    taken.append(run(connector, "shared", "taken"))
print(json.dumps(taken), flush=True)
for connector in ("kafka", "ottla"):
    file = f"{folder}/{connector}/sources/ottla-0.json"  # without it the first batch of ours is empty
    run(connector, connector, "uneven", maxOffsetsPerTrigger="50", offsetsFile=file)
print(json.dumps([offsets("kafka"), offsets("ottla")]), flush=True)
tasks = []
# Offsets by number: the JVM connector does not split what it knows only as earliest to latest.
limits = {
    "startingOffsets": '{"uneven":{"0":0,"1":0,"2":0}}', "endingOffsets": '{"uneven":{"0":100,"1":30,"2":7}}'
}
for connector in ("kafka", "ottla"):
    for options in ({"minPartitions": "7"}, {"maxRecordsPerPartition": "40"}):
        reader = spark.read.format(connector).option("kafka.bootstrap.servers", bootstrap)
        frame = reader.option("subscribe", "uneven").options(**options, **limits).load()
        sizes = frame.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect()
        tasks.append(sorted(sizes))
print(json.dumps(tasks), flush=True)
spark.stop()
"""


def test_a_checkpoint_goes_from_one_connector_to_the_other_and_both_plan_the_same(tmp_path: Path) -> None:
    jars()  # resolved here, where a failure says why
    with ottla.testing.broker(topics={"taken": 1, "uneven": 3}) as broker:
        for partition, count in enumerate([100, 30, 7]):
            write(broker.bootstrap_servers, "uneven", map(str, range(count)), partition=partition)
        with program(QUERIES, None, broker.bootstrap_servers, str(tmp_path)) as running:
            printed, errors = running.communicate(timeout=580)
    assert running.returncode == 0, errors[-4000:]
    taken, batches, tasks = map(json.loads, printed.splitlines()[-3:])
    assert taken == [["a", "b"], ["c", "d"], ["e", "f"], ["g"]]
    assert batches[0] == batches[1], "the same share of maxOffsetsPerTrigger for every partition"
    assert tasks[:2] == tasks[2:], "the same tasks for minPartitions and maxRecordsPerPartition"
