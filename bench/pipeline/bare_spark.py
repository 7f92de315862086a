"""Spark as it comes, without Ottla: `python -m bench.pipeline.bare_spark FOLDER [session|query]`.

What the start of a pipeline is compared with: a session out of the box, and in it one streaming query that
reads twenty lines of text with `availableNow` and writes them nowhere. Java is the one that pipelines run on.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ottla.pipeline.spark.java import find_java


def main(folder: Path, what: str) -> None:
    os.environ.update(find_java().environment())
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    if what == "query":
        lines = folder / "lines"
        lines.mkdir(parents=True, exist_ok=True)
        (lines / "some.txt").write_text("".join(f'{{"id": {number}}}\n' for number in range(20)))
        writer = spark.readStream.text(str(lines)).writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
