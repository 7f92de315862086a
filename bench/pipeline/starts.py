"""How long commands take whose work is mostly the start of Spark: a whole process each, from the shell.

A pipeline of four stages (rows to a topic, windows to a lake, a join with a table, duplicates left out)
beside Spark as it comes (`bare_spark`), in turns. The archive of Java classes is made before anything is
measured, so that none is made beside it. Time on the clock depends on what else the machine does; CPU time of
the command and of all processes that came from it depends on that much less.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench.pipeline import topics
from bench.pipeline.table import Line
from bench.sides import ottla_command
from ottla.protocol_client.produce import Producer
from ottla.protocol_client.wire import Wire

ROWS = 20
IDLE_BUDGET = 3.0
"""Seconds for a run that has nothing to do: no Spark is started for it."""

_PIPELINE = """
from pyspark.sql import functions as F

from ottla.pipeline import lake, stage, table, topic

FOLDER = {folder!r}

@stage(topic("starts", json="id long, at timestamp"), to=topic("starts.clean", key="id"))
def clean(records):
    return records.where("id >= 0")

@stage(topic("starts", json="id long, at timestamp"), to=lake(FOLDER + "/lake"))
def windows(records):
    counted = records.withWatermark("at", "1 minute").groupBy(F.window("at", "1 minute")).count()
    return counted.select("window.start", "count")

@stage(
    topic("starts", json="id long, at timestamp"),
    table(FOLDER + "/names.json", format="json", schema="id long, name string"),
    to=topic("starts.named", key="id"),
)
def named(records, names):
    return records.join(names, "id")

@stage(topic("starts", json="id long, at timestamp"), to=topic("starts.unique", key="id"))
def unique(records):
    return records.withWatermark("at", "1 minute").dropDuplicatesWithinWatermark(["id"])
"""


def measure_starts(bootstrap: str, folder: Path, rounds: int) -> list[Line]:
    """Medians over the rounds. Every round begins without checkpoints."""
    file = folder / "starts.py"
    file.write_text(_PIPELINE.format(folder=str(folder)))
    (folder / "names.json").write_text(
        "".join(json.dumps({"id": n, "name": f"n{n}"}) + "\n" for n in range(ROWS))
    )
    for name in ("starts", "starts.clean", "starts.named", "starts.unique"):
        topics.make_topic(bootstrap, name, 1)  # the broker of a benchmark makes none by itself
    with Wire(bootstrap) as wire, Producer(wire, "starts") as producer:
        for number in range(ROWS):
            producer.add(None, json.dumps({"id": number, "at": "2026-01-01T00:00:00Z"}).encode())
    subprocess.run([*ottla_command(), "pipeline", "warm"], check=True, capture_output=True)
    seconds: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    for number in range(rounds):
        here = folder / f"starts-{number}"
        common = [str(file), "--bootstrap", bootstrap, "--checkpoints", str(here / "checkpoints")]
        pipeline = [*ottla_command(), "pipeline"]
        bare = [sys.executable, "-m", "bench.pipeline.bare_spark", str(here)]
        commands = {
            "session": [*bare, "session"],
            "check": [*pipeline, "check", *common],
            "query": [*bare, "query"],
            "queries": [*bare, "queries"],
            "rows": [*pipeline, "run", *common, "--once"],
            "nothing": [*pipeline, "run", *common, "--once"],
        }
        for name, command in commands.items():
            took, used = _cost(command)
            seconds.setdefault(name, []).append(took)
            cpu.setdefault(name, []).append(used)

    def lines(title: str, ours: str, bare: str | None, budget: float | None = None) -> list[Line]:
        return [
            Line(title, unit, median(found[ours]), median(found[bare]) if bare else None, own_at_most=most)
            for unit, found, most in (("s", seconds, budget), ("CPU s", cpu, None))
        ]

    return [
        *lines("`pipeline check`, beside a session", "check", "session"),
        *lines(f"`run --once`, {ROWS} rows, beside a session with one query", "rows", "query"),
        *lines(f"`run --once`, {ROWS} rows, beside four queries of the same kind", "rows", "queries"),
        *lines("`run --once`, nothing new", "nothing", None, IDLE_BUDGET),
    ]


def _cost(command: Sequence[str]) -> tuple[float, float]:
    """Seconds until the command ended, and CPU seconds of all processes that came from it."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.pipeline.cost", *command],
        capture_output=True,
        text=True,
        env={**os.environ, "OTTLA_SPARK_ARCHIVE": "use"},
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:4])} failed:\n{done.stderr}")
    found = json.loads(done.stdout)
    return found["seconds"], found["cpu"]
