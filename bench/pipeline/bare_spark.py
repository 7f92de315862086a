"""Spark as it comes, without Ottla: `python -m bench.pipeline.bare_spark FOLDER session|query|queries`.

What the start of a pipeline is compared with: a session out of the box; in it one streaming query that reads
twenty lines of text with `availableNow` and writes them nowhere; and four queries like the stages of the
pipeline (`starts`), over files of JSON instead of a topic. The four get one setting that Spark does not come
with, shuffles in as many pieces as there are tasks: with its 200 they would be far slower. Java is the one
that pipelines run on.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.pipeline.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CORES = 2
_ROWS = 20
_AT = "2026-01-01T00:00:00Z"


def main(folder: Path, what: str) -> None:
    os.environ.update(find_java().environment())
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{_CORES}]")
    if what == "queries":
        builder = builder.config("spark.sql.shuffle.partitions", _CORES)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    if what == "query":
        _query(spark, folder)
    elif what == "queries":
        _queries(spark, folder)
    spark.stop()


def _query(spark: SparkSession, folder: Path) -> None:
    lines = folder / "lines"
    lines.mkdir(parents=True, exist_ok=True)
    (lines / "some.txt").write_text("".join(f'{{"id": {number}}}\n' for number in range(_ROWS)))
    writer = spark.readStream.text(str(lines)).writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    query.awaitTermination()


def _queries(spark: SparkSession, folder: Path) -> None:
    from pyspark.sql import functions as F

    events, names = folder / "events", folder / "names"
    for place, lines in (
        (events, [{"id": number, "at": _AT} for number in range(_ROWS)]),
        (names, [{"id": number, "name": f"n{number}"} for number in range(_ROWS)]),
    ):
        place.mkdir(parents=True, exist_ok=True)
        (place / "some.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    records = spark.readStream.json(str(events), schema="id long, at timestamp")
    timed = records.withWatermark("at", "1 minute")
    table = spark.read.json(str(names), schema="id long, name string")
    queries = []
    for name, rows, sink in (
        ("clean", records.where("id >= 0"), "noop"),
        (
            "windows",
            timed.groupBy(F.window("at", "1 minute")).count().select("window.start", "count"),
            "parquet",
        ),
        ("named", records.join(table, "id"), "noop"),
        ("unique", timed.dropDuplicatesWithinWatermark(["id"]), "noop"),
    ):
        writer = rows.writeStream.format(sink).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(folder / "checkpoints" / name))
        queries.append(writer.start(str(folder / "lake")) if sink == "parquet" else writer.start())
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
