#!/usr/bin/env python3
"""`make bench-pipeline`: format("ottla") beside Spark's Kafka connector, in one session, as a table.

    python -m bench.pipeline [--quick] [--only NAME]... [--json FILE] [--without-connector] [--data DIR]

One broker (`ottla serve`, a process of its own) holds the topics, one Spark session with two tasks runs both
connectors. Every case is run once to be thrown away and then in rounds, the connectors taking turns and the
order turned round each time, so that a slow minute of the machine hits both; figures are medians. Exit code 1
when a budget is missed, 2 when something could not be measured.

The micro-batch is compared with what Spark does out of the box: its connector with its default checkpoint
files, beside ours as the launcher sets Spark up.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.pipeline import cases, topics
from bench.pipeline.cases import Connector
from bench.pipeline.deliveries import measure_deliveries
from bench.pipeline.starts import measure_starts
from bench.pipeline.table import Line, render
from bench.processes import MachineTime
from bench.sides import ottla_side
from ottla.pipeline.spark.connector_jars import ConnectorMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEASURES = ["starts", "read", "write", "pipelines", "delivery", "micro-batch", "idle"]
OURS, THEIRS = "ottla", "kafka"
SIZES = [("100b", "100 B", 100), ("1kb", "1 KB", 1000)]
_CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"
_SPARKS_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
)

Work = Callable[[Connector], Any]


class Bench:
    """The connectors and the figures: `results[connector][measure]` is a list, one per round."""

    def __init__(self, connectors: list[Connector], rounds: int, scale: float) -> None:
        self.connectors = connectors
        self.rounds = rounds
        self.scale = scale
        self.results: dict[str, dict[str, list[float]]] = {}
        self.steal: list[float] = []
        self.deliveries: list[Line] = []
        """Exactly once beside at least once: a table of its own."""

    def count(self, full: int) -> int:
        return max(1_000, int(full * self.scale))

    def note(self, connector: Connector, measure: str, value: float) -> None:
        self.results.setdefault(connector.name, {}).setdefault(measure, []).append(value)

    def figure(self, connector: str, measure: str) -> float | None:
        values = self.results.get(connector, {}).get(measure)
        return median(values) if values else None

    def turns(self) -> Iterator[tuple[bool, Connector]]:
        for turn in range(self.rounds + 1):
            for connector in self.connectors if turn % 2 == 0 else self.connectors[::-1]:
                yield turn > 0, connector

    def rate(self, measure: str, count: int, total: int, work: Work) -> None:
        """Rows and MB in a second."""
        for counts, connector in self.turns():
            before = MachineTime.now()
            work(connector)
            after = MachineTime.now()
            seconds = after.at - before.at
            self.steal.append((after.steal - before.steal) / seconds)
            if counts:
                self.note(connector, f"{measure} rows/s", count / seconds)
                self.note(connector, f"{measure} MB/s", total / 1e6 / seconds)

    def line(self, title: str, unit: str, measure: str, **budget: float) -> Line:
        return Line(title, unit, self.figure(OURS, measure), self.figure(THEIRS, measure), **budget)


def measure_reading(bench: Bench, bootstrap: str) -> list[Line]:
    lines = []
    for name, title, size in SIZES:
        count = bench.count(1_000_000)
        topic = f"read-{name}"
        topics.fill_plain(bootstrap, topic, count, size)
        bench.rate(f"read {name}", count, count * size, lambda c, t=topic: cases.read_all(c, t))  # type: ignore[misc]
        topics.drop_topic(bootstrap, topic)
        lines.append(bench.line(f"Read, {title}", "rows/s", f"read {name} rows/s", at_least=1.0))
        lines.append(bench.line(f"Read, {title}", "MB/s", f"read {name} MB/s"))
    count = bench.count(500_000)
    total = topics.fill_events(bootstrap, "read-events", count)
    bench.rate("read events", count, total, lambda c: cases.read_all(c, "read-events"))
    topics.drop_topic(bootstrap, "read-events")
    lines.append(bench.line("Read, keyed JSON of varying length", "rows/s", "read events rows/s"))
    return lines


def measure_writing(bench: Bench, bootstrap: str) -> list[Line]:
    lines = []
    for name, title, size in SIZES:
        count = bench.count(1_000_000 if size < 1000 else 400_000)

        def work(connector: Connector, count: int = count, size: int = size) -> None:
            with _target(connector) as target:
                cases.write_all(connector, target, count, size)

        bench.rate(f"write {name}", count, count * size, work)
        lines.append(bench.line(f"Write, {title}", "rows/s", f"write {name} rows/s", at_least=1.0))
        lines.append(bench.line(f"Write, {title}", "MB/s", f"write {name} MB/s"))
    return lines


def measure_pipelines(bench: Bench, bootstrap: str) -> list[Line]:
    count = bench.count(400_000)
    topics.fill_events(bootstrap, "events", count)
    topics.fill_events(bootstrap, "others", count, seed=2)

    def to_topic(connector: Connector) -> None:
        with _target(connector) as target:
            cases.to_topic(connector, "events", target)

    pipelines: list[tuple[str, int, Work]] = [
        ("JSON parse", count, lambda c: cases.parse(c, "events")),
        ("JSON to Parquet", count, lambda c: cases.to_parquet(c, "events")),
        ("Window aggregate", count, lambda c: cases.window_aggregate(c, "events")),
        ("Stream-stream join", 2 * count, lambda c: cases.join(c, "events", "others")),
        ("Dedup", count, lambda c: cases.dedup(c, "events")),
        ("To topic, at least once", count, to_topic),
    ]
    lines = []
    for title, rows, work in pipelines:
        _say(f"pipeline: {title}")
        bench.rate(title, rows, 0, work)
        lines.append(bench.line(title, "rows/s", f"{title} rows/s"))
    return lines


def measure_micro_batches(bench: Bench, bootstrap: str, count: int) -> list[Line]:
    """Ours as set up by the launcher, theirs as Spark comes, and theirs as set up by the launcher."""
    topics.make_topic(bootstrap, "small", 1)
    sides = [(c, c.name) for c in bench.connectors]
    sides += [
        (replace(c, settings={_CHECKPOINTS: _SPARKS_CHECKPOINTS}), f"{c.name}, Spark's defaults")
        for c in bench.connectors
    ]
    for turn in range(2):
        for connector, name in sides if turn % 2 == 0 else sides[::-1]:
            took, whole = cases.with_settings(
                connector, partial(cases.micro_batches, connector, "small", count)
            )
            named = replace(connector, name=name)
            bench.note(named, "micro-batch", took)
            bench.note(named, "record to batch done", whole)
    theirs = f"{THEIRS}, Spark's defaults"

    def line(title: str, measure: str, other: str, **budget: float) -> Line:
        return Line(title, "ms", bench.figure(OURS, measure), bench.figure(other, measure), **budget)

    return [
        line("Micro-batch, beside Spark's defaults", "micro-batch", theirs, at_most=0.5),
        line(
            "Record until its batch is done, beside Spark's defaults",
            "record to batch done",
            theirs,
            at_most=0.5,
        ),
        line("Micro-batch, both as the launcher sets Spark up", "micro-batch", THEIRS),
        line("Record until its batch is done, both so", "record to batch done", THEIRS),
    ]


def measure_rest(bench: Bench, bootstrap: str, seconds: float) -> list[Line]:
    topics.make_topic(bootstrap, "idle", 1)
    for connector in bench.connectors:
        bench.note(connector, "idle", cases.idle_cpu(connector, "idle", seconds))
    return [bench.line("Stream without data", "% of a core", "idle", own_at_most=5.0)]


@contextmanager
def _target(connector: Connector) -> Iterator[str]:
    name = connector.fresh_topic()
    try:
        yield name
    finally:
        topics.drop_topic(connector.bootstrap, name)


def run(arguments: argparse.Namespace, folder: Path) -> tuple[Bench, list[Line], list[Line]]:
    """The figures of the rounds, the lines of starts beside bare Spark, and those of both connectors."""
    wanted, quick = set(arguments.only or MEASURES), arguments.quick
    starts: list[Line] = []
    if "starts" in wanted:
        _say("starts")
        with ottla_side(folder / "broker-for-starts") as side:
            starts = measure_starts(side.bootstrap, folder, 1 if quick else 5)
    if wanted == {"starts"}:
        return Bench([], 0, 1.0), starts, []
    with ottla_side(folder / "broker") as side, _session(folder, arguments.without_connector) as spark:
        formats = [OURS] if arguments.without_connector else [OURS, THEIRS]
        connectors = [Connector(f, f, spark, side.bootstrap, folder) for f in formats]
        bench = Bench(connectors, rounds=2 if quick else 5, scale=0.2 if quick else 1.0)
        table: list[Line] = []
        if "read" in wanted:
            _say("reading")
            table += measure_reading(bench, side.bootstrap)
        if "write" in wanted:
            _say("writing")
            table += measure_writing(bench, side.bootstrap)
        if "pipelines" in wanted:
            bench.rounds = 1 if quick else 3
            table += measure_pipelines(bench, side.bootstrap)
        if "delivery" in wanted:
            _say("delivery")
            bench.deliveries = measure_deliveries(
                spark, side.bootstrap, folder, bench.count(400_000), 1 if quick else 3, 10 if quick else 30
            )
        if "micro-batch" in wanted:
            _say("micro-batches")
            table += measure_micro_batches(bench, side.bootstrap, 10 if quick else 30)
        if "idle" in wanted:
            _say("streams without data")
            table += measure_rest(bench, side.bootstrap, 8 if quick else 30)
        return bench, starts, table


@contextmanager
def _session(folder: Path, without_connector: bool) -> Iterator[SparkSession]:
    from ottla.pipeline.spark.session import spark_session

    settings = {"spark.local.dir": str(folder / "spark"), "ottla.archive": "off"}
    connector = OURS if without_connector else THEIRS
    spark = spark_session("bench-pipeline", "local[2]", settings, connector)
    try:
        yield spark
    finally:
        spark.stop()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.pipeline", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="less data and fewer rounds")
    parser.add_argument("--only", action="append", choices=MEASURES, metavar="NAME", help=", ".join(MEASURES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of every round there")
    parser.add_argument("--data", type=Path, help="a folder on the disk to use (default: a temporary one)")
    parser.add_argument(
        "--without-connector", action="store_true", help="only format('ottla'): figures, but no ratios"
    )
    return parser.parse_args()


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def main() -> int:
    arguments = _arguments()
    # Turned into SystemExit, so that broker and Spark are ended when this is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(
            prefix="ottla-bench-", dir=arguments.data, ignore_cleanup_errors=True
        ) as folder:
            bench, starts, table = run(arguments, Path(folder))
    except ConnectorMissing as missing:
        _say(f"Spark's Kafka connector cannot be measured here: {missing}")
        _say("with --without-connector ours is measured alone, and no ratio is judged")
        return 2
    except RuntimeError as problem:
        _say(f"could not be measured: {problem}")
        return 2
    steal = bench.steal or [0.0]
    conditions = (
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}, local[2], "
        f"{'quick' if arguments.quick else 'whole'} run of {time.monotonic() - began:.0f} s. "
        f"The hypervisor took {sum(steal) / len(steal):.2f} cores meanwhile."
    )
    for lines, ours, theirs in (
        (starts, "ottla pipeline", "bare Spark"),
        (table, 'format("ottla")', 'format("kafka")'),
        (bench.deliveries, "exactly once", "at least once"),
    ):
        if lines:
            print(render(lines, ours, theirs), end="\n\n")
    print(conditions)
    if arguments.json:
        report = {
            "conditions": conditions,
            "lines": [line.as_json() for line in (*starts, *table, *bench.deliveries)],
            "rounds": bench.results,
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    judged = [line for line in (*starts, *table) if line.budget]
    if any(line.verdict == "FAIL" for line in judged):
        missed = sum(line.verdict == "FAIL" for line in judged)
        print(f"{missed} of {len(judged)} budgets missed.")
        return 1
    return 2 if any(line.verdict.startswith("not") for line in judged) else 0


if __name__ == "__main__":
    raise SystemExit(main())
