"""How long commands take whose work is mostly the start of Spark: a whole process each, from the shell."""

from __future__ import annotations

import json
import subprocess
import time
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
from ottla.pipeline import stage, topic

@stage(topic("starts", json="id long"), to=topic("starts.clean", key="id"))
def clean(records):
    return records.where("id >= 0")
"""


def measure_starts(bootstrap: str, folder: Path, rounds: int) -> list[Line]:
    """Medians over the rounds. Every round begins without checkpoints."""
    file = folder / "starts.py"
    file.write_text(_PIPELINE)
    for name in ("starts", "starts.clean"):  # the broker of a benchmark makes none by itself
        topics.make_topic(bootstrap, name, 1)
    with Wire(bootstrap) as wire, Producer(wire, "starts") as producer:
        for number in range(ROWS):
            producer.add(None, json.dumps({"id": number}).encode())
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        common = [str(file), "--bootstrap", bootstrap, "--checkpoints", str(folder / f"starts-{number}")]
        for title, arguments in (
            ("`pipeline check`, one stage", ["check", *common]),
            (f"`pipeline run --once`, {ROWS} rows", ["run", *common, "--once"]),
            ("`pipeline run --once`, nothing new", ["run", *common, "--once"]),
        ):
            found.setdefault(title, []).append(_seconds(["pipeline", *arguments]))
    return [
        Line(title, "s", median(each), None, own_at_most=IDLE_BUDGET if "nothing" in title else None)
        for title, each in found.items()
    ]


def _seconds(arguments: list[str]) -> float:
    began = time.monotonic()
    done = subprocess.run(
        [*ottla_command(), *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    took = time.monotonic() - began
    if done.returncode != 0:
        raise RuntimeError(f"ottla {' '.join(arguments[:2])} failed:\n{done.stdout}{done.stderr}")
    return took
