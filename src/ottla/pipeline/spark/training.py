"""Typical work of a pipeline, done once so that Java can note which classes Spark needs for it.

Run by ottla.pipeline.spark.archive as `python -m ottla.pipeline.spark.training CLASSES OPTIONS`: both are
files to write. No broker is needed: the classes of the JVM are the same whichever Python data source it
talks to.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from ottla.pipeline.spark.session import spark_session

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"


class Sample(DataSource):
    """Ten records of JSON, as a batch and as a stream, in Arrow batches as the real source gives them."""

    @classmethod
    def name(cls) -> str:
        return "ottla_training"

    def schema(self) -> str:
        return _SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        return SampleReader()

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return SampleStreamReader()


def _records() -> Iterator[pyarrow.RecordBatch]:
    import datetime

    import pyarrow

    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    yield pyarrow.RecordBatch.from_arrays(
        [
            pyarrow.array([b"k"] * 10, pyarrow.binary()),
            pyarrow.array([b'{"id": %d, "name": "n"}' % n for n in range(10)], pyarrow.binary()),
            pyarrow.array(["t"] * 10),
            pyarrow.array([0] * 10, pyarrow.int32()),
            pyarrow.array(range(10), pyarrow.int64()),
            pyarrow.array([now] * 10, pyarrow.timestamp("us", "UTC")),
        ],
        names=["key", "value", "topic", "partition", "offset", "timestamp"],
    )


class SampleReader(DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _records()


class SampleStreamReader(DataSourceStreamReader):
    """One batch of records for each time Spark asks."""

    def initialOffset(self) -> dict[str, int]:
        return {"batch": 0}

    def latestOffset(self, start: dict[str, int] | None = None, limit: Any = None) -> dict[str, int]:
        return {"batch": (start or self.initialOffset())["batch"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _records()


def typical_work(spark: SparkSession, folder: Path) -> None:
    """Read, parse, aggregate, join, deduplicate and write, in a batch and in streams with state."""
    from pyspark.sql import functions as f

    spark.dataSource.register(Sample)

    def parsed(frame: DataFrame) -> DataFrame:
        value = f.from_json(f.col("value").cast("string"), "id long, name string")
        return frame.select(value.alias("v"), "timestamp", "topic").select("v.*", "timestamp", "topic")

    def counted(frame: DataFrame) -> DataFrame:
        windows = frame.groupBy(f.window("timestamp", "1 minute"), "name")
        return windows.agg(f.count("*").alias("n"), f.max("id"))

    batch = parsed(spark.read.format("ottla_training").load())
    lake = str(folder / "lake")
    batch.write.partitionBy("name").parquet(lake)
    joined = spark.read.parquet(lake).join(counted(batch), "name").orderBy("id")
    shout = f.udf(lambda text: text.upper(), "string")
    joined.select(shout(f.to_json(f.struct("id", "name", "n")))).collect()

    stream = parsed(spark.readStream.format("ottla_training").load()).withWatermark("timestamp", "1 minute")

    def write(frame: DataFrame, batch_id: int) -> None:
        frame.persist()
        frame.write.mode("append").parquet(str(folder / "out"))
        frame.write.format("noop").mode("append").save()
        frame.unpersist()

    queries = [
        (counted(stream), "update"),
        (stream.dropDuplicatesWithinWatermark(["id"]).observe("seen", f.count("*")), "append"),
    ]
    for number, (frame, mode) in enumerate(queries):
        writer = frame.writeStream.outputMode(mode).foreachBatch(write)
        query = writer.option("checkpointLocation", str(folder / f"checkpoint-{number}")).start()
        while not (query.lastProgress and query.lastProgress.batchId >= 2):
            if query.awaitTermination(1):
                raise RuntimeError("the training query ended by itself")
        query.stop()


def _options(jvm: Any) -> Iterator[str]:
    """The options that must be the same where the archive is written as where it is used."""
    yield "-cp"
    yield jvm.java.lang.System.getProperty("java.class.path")
    for option in jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments():
        if option.startswith(("--add-opens", "--enable-native-access")):
            yield option


def main(classes: str, options: str) -> None:
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-Xshare:off -XX:DumpLoadedClassList={classes}",
    }
    with tempfile.TemporaryDirectory() as folder:
        spark = spark_session("ottla training", "local[2]", settings)
        Path(options).write_text("\n".join(_options(spark._jvm)))
        typical_work(spark, Path(folder))
        spark.stop()


if __name__ == "__main__":
    # Spark's workers import the data source by the name of its module, which must not be __main__.
    from ottla.pipeline.spark import training

    training.main(*sys.argv[1:])
