"""The same stages through Spark's JVM connector: batches with dead letters, and real time without batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.testing.in_process import InProcessBroker
from pipeline.spark_programs import program, until
from pipeline.stage_runs import StageRuns

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = """
import sys
from ottla.pipeline import dead_letters, spark_session, stage, topic
from ottla.pipeline.building import RunContext, build
from ottla.pipeline.checkpoints import Checkpoints

bootstrap, folder, prefix = sys.argv[1:]
spark = spark_session("connector", "local[4]", {"spark.driver.memory": "1g"}, connector="kafka")
context = RunContext(prefix, bootstrap, Checkpoints(folder), connector="kafka")

def start(function, **how):
    built = build(spark, function.__stage__, context)
    checkpoint = context.checkpoints.stage(built.stage.name).spark_checkpoint
    return built.writer(**how).option("checkpointLocation", checkpoint).start()

def same(frame):
    return frame

source = topic(f"{prefix}.in", json="id long")
copy = stage(source, to=topic(f"{prefix}.out", key="id"), name="copy")(same)
start(copy, once=True).awaitTermination()
dead_letters.LARGEST = -1
again = stage(source, to=topic(f"{prefix}.again"), name="again")(same)
start(again, once=True).awaitTermination()
fast = stage(
    source, to=topic(f"{prefix}.fast"), name="fast", bad="drop", trigger="real-time 10 seconds"
)(same)
start(fast).awaitTermination()
"""


def test_stages_run_through_sparks_connector(broker: InProcessBroker, tmp_path: Path) -> None:
    runs = StageRuns(None, broker, tmp_path)  # type: ignore[arg-type]  # its session is in the other process
    source = runs.name("in")
    for name in ("out", "again", "fast"):
        runs.name(name)

    def values(name: str) -> list[bytes | None]:
        return [each.value for each in runs.records(f"{runs.prefix}.{name}")]

    def shown(name: str, rows: list[bytes]) -> bool:
        assert process.poll() is None, process.communicate()[1]
        return values(name) == rows

    runs.produce(source, [b'{"id": 1}', b"bad", b'{"id": 2}'])
    rows = [b'{"id":1}', b'{"id":2}']
    with program(PROGRAM, None, broker.bootstrap_servers, str(tmp_path / "c"), runs.prefix) as process:
        until(lambda: shown("fast", rows), "rows in real time", 400)
        runs.produce(source, [b'{"id": 3}'])
        until(lambda: shown("fast", [*rows, b'{"id":3}']), "a row that came later")
    assert values("out") == values("again") == rows
    for name in ("copy", "again"):
        (letter,) = runs.records(f"{runs.prefix}.{name}.dead-letters")
        assert (letter.value, letter.headers["ottla.offset"]) == (b"bad", b"1")
