"""On a standalone cluster, a master with two workers: what runs on one machine runs there unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ottla.testing
from ottla.protocol_client.consume import Consumer
from ottla.protocol_client.offsets import spans
from ottla.protocol_client.produce import Producer
from ottla.protocol_client.wire import Wire
from pipeline.spark_programs import program
from pipeline.standalone import standalone

if TYPE_CHECKING:
    from ottla.testing.in_process import InProcessBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

READ_AND_WRITE = """
import sys
from ottla.pipeline.spark.session import spark_session

master, bootstrap, folder = sys.argv[1:]
spark = spark_session("cluster", master, {"spark.executor.memory": "1g", "spark.driver.memory": "1g"})
there = {"kafka.bootstrap.servers": bootstrap}
rows = spark.range(0, 20000, 1, 4).selectExpr("cast(id as string) key", "cast(2 * id as string) value")
rows.write.format("ottla").options(**there, topic="cluster.in").mode("append").save()

read = spark.read.format("ottla").options(**there, subscribe="cluster.in", minPartitions="4").load()
total = read.selectExpr("count(*)", "count(distinct partition)", "sum(cast(cast(value as string) as long))")
print(*total.collect()[0])

stream = spark.readStream.format("ottla").options(**there, subscribe="cluster.in", startingOffsets="earliest")
for _ in range(2):
    writer = stream.load().select("key", "value").writeStream.format("ottla")
    writer = writer.options(**there, topic="cluster.out").option("checkpointLocation", folder)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    print(sum(progress.numInputRows for progress in query.recentProgress))

print(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1, "executors")
"""

PIPELINE = """
from pyspark.sql import functions as f

from ottla.pipeline import lake, stage, topic


@stage(topic("orders", json="id long, who string"), to=topic("orders.loud", key="who"))
def loud(orders):
    return orders.select("id", f.upper("who").alias("who"))


@stage(topic("orders", json="id long, who string"), to=lake("LAKE", partition_by=["who"]))
def kept(orders):
    return orders.select("id", "who")
"""


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone(tmp_path_factory.mktemp("cluster")) as url:
        yield url


def test_a_cluster_reads_and_writes_topics_in_batches_and_streams(
    master: str, broker: InProcessBroker, tmp_path: Path
) -> None:
    for name in ("cluster.in", "cluster.out"):
        broker.create_topic(name, partitions=4)
    with program(READ_AND_WRITE, None, master, broker.bootstrap_servers, str(tmp_path / "check")) as process:
        output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    total = sum(2 * number for number in range(20000))
    # The second stream goes on where the first ended: nothing is left to read.
    assert output.splitlines() == [f"20000 4 {total}", "20000", "0", "2 executors"]


def test_the_command_runs_a_pipeline_on_a_cluster(
    master: str, broker: InProcessBroker, tmp_path: Path
) -> None:
    import pyarrow.dataset

    broker.create_topic("orders", partitions=2)
    broker.create_topic("orders.loud", partitions=2)
    file = tmp_path / "orders.py"
    file.write_text(PIPELINE.replace("LAKE", str(tmp_path / "lake")))
    with Wire(broker.bootstrap_servers) as wire, Producer(wire, "orders") as producer:
        for number in range(300):
            producer.add(None, json.dumps({"id": number, "who": f"w{number % 3}"}).encode())
    _ottla("pipeline", "run", str(file), "--once", "--master", master, broker=broker, folder=tmp_path)
    lake = pyarrow.dataset.dataset(tmp_path / "lake", format="parquet", partitioning="hive").to_table()
    assert sorted(lake.column("id").to_pylist()) == list(range(300))
    with Wire(broker.bootstrap_servers) as wire:
        ends = {partition: span.end for partition, span in spans(wire, "orders.loud", range(2)).items()}
        written = [record for _, record in Consumer(wire, "orders.loud", dict.fromkeys(ends, 0), ends)]
    assert sorted(json.loads(record.value or b"")["id"] for record in written) == list(range(300))
    assert {record.key for record in written} == {b"W0", b"W1", b"W2"}


def test_the_news_pipeline_runs_on_a_cluster_and_keeps_its_figures(master: str, tmp_path: Path) -> None:
    from ottla.examples.news.player import play
    from ottla.examples.news.results import figures
    from ottla.examples.news.world import make_world

    world = make_world(days=2)
    with ottla.testing.broker() as broker:
        play(world, tmp_path / "feeds", broker.bootstrap_servers)
        words = ("ottla.examples.news.news", "--once", "--master", master, "--set")
        # Two cores in all: Spark's 200 pieces of every shuffle would be 100 rounds for each batch.
        _ottla("pipeline", "run", *words, "spark.sql.shuffle.partitions=2", broker=broker, folder=tmp_path)
        found = figures(world, broker.bootstrap_servers)
    assert found.cleaning.entries == found.cleaning.clean + found.cleaning.rejected
    assert found.copies.recall > 0.8
    assert found.copies.precision > 0.8
    assert found.trends.found > 0
    assert found.recommended.hit_rate > 0
    assert list((tmp_path / "lake").rglob("*.parquet"))


def _ottla(*words: str, broker: InProcessBroker, folder: Path) -> str:
    done = subprocess.run(
        [Path(sys.executable).with_name("ottla"), *words, "--bootstrap", broker.bootstrap_servers],
        cwd=folder,
        env={**os.environ, "OTTLA_SPARK_ARCHIVE": "use", "NEWS_LAKE": str(folder / "lake")},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
