#!/usr/bin/env python3
"""`make bench`: Ottla and Apache Kafka side by side in one run, as a table with ratios, budgets and verdicts.

    python -m bench [--quick] [--only NAME]... [--json FILE] [--without-kafka | --calibrate] [--data DIR]

The whole run takes about 35 minutes, `--quick` (no late passes) about ten. `--calibrate` puts Kafka on both
sides: every ratio should then be 1, and how far it is from 1 is what this machine's noise is worth today.
Exit code 1 when a budget is missed, 2 when something could not be measured. docs/benchmarks.md says what the
lines mean.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

if not __package__:  # run as a script: `python bench/run.py`
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from confluent_kafka import KafkaException

import ottla
from bench import attacks, cleaner, client, groups, transactions
from bench.measure import BULKS, Bench, Pass, Start
from bench.peers.kafka import VERSION, classpath
from bench.peers.maven import PeerMissing
from bench.sides import kafka_side, ottla_command, ottla_side
from bench.table import Line, lines, render

MEASURES = [
    "start-up",
    "idle",
    "single",
    "end-to-end",
    *(f"bulk-{b.name}" for b in BULKS),
    "cleaner",
    "groups",
    "transactions",
    "client",
    "attacks",
]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="less data and fewer rounds")
    parser.add_argument("--only", action="append", choices=MEASURES, metavar="NAME", help=", ".join(MEASURES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of every round there")
    parser.add_argument("--data", type=Path, help="a folder on the disk to use (default: a temporary one)")
    parser.add_argument("--attack", default="", metavar="TEXT", help="of the attacks only those named so")
    sides = parser.add_mutually_exclusive_group()
    sides.add_argument("--without-kafka", action="store_true", help="only Ottla: figures, but no ratios")
    sides.add_argument("--calibrate", action="store_true", help="Kafka on both sides: how noisy is it here?")
    return parser.parse_args()


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def run(arguments: argparse.Namespace, folder: Path) -> tuple[Bench, list[Line], tuple[str, str]]:
    ours, theirs = "Ottla", f"Kafka {VERSION}"
    starts: dict[str, Start] = {}
    if arguments.calibrate:
        ours, theirs = "Kafka A", "Kafka B"
        starts[ours] = lambda data: kafka_side(data, ours)
    else:
        ottla_command()
        starts[ours] = ottla_side
    if not arguments.without_kafka:
        classpath()
        starts[theirs] = lambda data: kafka_side(data, theirs)
    wanted = set(arguments.only or MEASURES)
    quick = arguments.quick
    bench = Bench(starts, folder, rounds=2 if quick else 3, scale=0.25 if quick else 1.0)
    if "start-up" in wanted:
        _say("start-up")
        bench.start_up(2 if quick else 3)
    if "idle" in wanted:
        _say("idle")
        bench.idle(settle=3 if quick else 8, seconds=4 if quick else 10)
    passes: dict[str, Pass] = {
        "single": bench.single,
        **{f"bulk-{bulk.name}": bench.bulk(bulk) for bulk in BULKS},
        "end-to-end": bench.end_to_end,
    }
    passes = {name: measure for name, measure in passes.items() if name in wanted}
    for name, measure in passes.items():
        _say(f"{name}, second passes of fresh brokers")
        bench.second_passes(measure)
    if passes and not quick:
        with bench.brokers():
            if "single" in wanted:
                bench.many_singles()
            for name, measure in passes.items():
                _say(f"{name}, late passes")
                bench.late_passes(measure)
    table = lines(bench, ours, theirs)
    if "cleaner" in wanted and not arguments.calibrate:
        load = cleaner.Load(300, 700_000, 500, 5) if quick else cleaner.Load()
        table += cleaner.measure(load, folder, with_kafka=not arguments.without_kafka, say=_say)
    if "groups" in wanted and not arguments.calibrate:
        table += groups.measure(
            folder,
            rounds=1 if quick else 3,
            large_rounds=1 if quick else 2,
            with_kafka=not arguments.without_kafka,
            noise=bench.noise,
            say=_say,
        )
    if "transactions" in wanted and not arguments.calibrate:
        table += transactions.measure(
            folder, quick=quick, with_kafka=not arguments.without_kafka, noise=bench.noise, say=_say
        )
    if arguments.calibrate:
        table = [replace(line, budget=None) for line in table]
    return bench, table, (ours, theirs)


def _conditions(bench: Bench, seconds: float, quick: bool) -> str:
    shares, steal = bench.noise.shares or [0.0], bench.noise.steal or [0.0]
    return (
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}, "
        f"{'quick' if quick else 'whole'} run of {seconds:.0f} s, medians of {bench.rounds} rounds. "
        f"While measuring, other programs and the kernel's own threads used {sum(shares) / len(shares):.2f} "
        f"cores (at most {max(shares):.2f}) and the hypervisor took {sum(steal) / len(steal):.2f}."
    )


def main() -> int:
    arguments = _arguments()
    # Turned into SystemExit, so that the brokers are ended when this is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    # Measured as pip installs it: with its bytecode made, whatever the environment says about writing it.
    compileall.compile_dir(Path(ottla.__file__).parent, quiet=1)
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(
            prefix="ottla-bench-", dir=arguments.data, ignore_cleanup_errors=True
        ) as folder:
            bench, table, names = run(arguments, Path(folder))
            clients: list[client.Row] = []
            if "client" in (arguments.only or MEASURES) and not arguments.calibrate:
                clients = client.measure(Path(folder), quick=True, say=_say)
            rows: list[attacks.Row] = []
            if "attacks" in (arguments.only or MEASURES) and not arguments.calibrate:
                rows = attacks.measure(
                    Path(folder), with_kafka=not arguments.without_kafka, say=_say, only=arguments.attack
                )
    except PeerMissing as missing:
        _say(f"Apache Kafka cannot be measured here: {missing}")
        _say("with --without-kafka Ottla is measured alone, and no ratio is judged")
        return 2
    except (RuntimeError, KafkaException, TimeoutError, subprocess.SubprocessError) as problem:
        _say(f"could not be measured: {problem}")
        return 2
    conditions = _conditions(bench, time.monotonic() - began, arguments.quick)
    print(render(table, *names))
    print()
    if clients:
        print(client.render(clients))
        print()
    if rows:
        print(attacks.render(rows, *names))
        print()
    print(conditions)
    if arguments.json:
        report = {
            "conditions": conditions,
            "lines": [line.as_json() for line in table],
            "clients": [row.as_json() for row in clients],
            "attacks": [row.as_json() for row in rows],
            "rounds": bench.results,
            "noise": {"cores": bench.noise.shares, "steal": bench.noise.steal},
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    judged = [line.verdict for line in table if line.budget] + [row.verdict for row in clients]
    if "FAIL" not in judged:
        return 0
    print(f"{judged.count('FAIL')} of {len(judged)} budgets missed.")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
