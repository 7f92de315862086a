#!/usr/bin/env python3
"""Transactions of Ottla and of Apache Kafka side by side, on one broker and on three with three replicas.

    python -m bench.transactions [--quick] [--without-kafka] [--json FILE] [--data DIR]

Two kinds of work, each by one client of librdkafka: transactions of 100 records of 1 KB over four partitions,
and consume-transform-produce, which reads 1,000 records as a member of a group and writes them and its
offsets in one transaction. Passes are second passes of fresh brokers, as in `bench.measure`. CPU is that of
all processes of a side. A part of `make bench`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.cluster import kafka_cluster, ottla_cluster
from bench.measure import Bench, Noise, Pass, Start, quantile
from bench.peers.kafka import VERSION, classpath
from bench.sides import Side, kafka_side, ottla_side, topic_on
from bench.table import Line, render

SIZE = 1_000
PARTITIONS = 4
RECORDS, COPIED = 100, 1_000
"""Records of a transaction: of the first kind of work, and of the second."""
CPU_BUDGET, COMMIT_BUDGET = 0.5, 1.0

_KAFKA = f"Kafka {VERSION}"

_PLACES: dict[str, tuple[Start, Callable[[str], Start]]] = {
    "rf=1": (ottla_side, lambda name: lambda data: kafka_side(data, name)),
    "rf=3": (ottla_cluster, lambda name: lambda data: kafka_cluster(data, name)),
}


def measure(
    folder: Path, *, quick: bool, with_kafka: bool, noise: Noise, say: Callable[[str], None]
) -> list[Line]:
    """The lines of the table; every figure that a budget is for."""
    return [
        line for bench, place in run(folder, quick, with_kafka, noise, say) for line in lines(bench, place)
    ]


def run(
    folder: Path, quick: bool, with_kafka: bool, noise: Noise, say: Callable[[str], None]
) -> list[tuple[Bench, str]]:
    done = []
    for place, (ours, theirs) in _PLACES.items():
        starts: dict[str, Start] = {"Ottla": ours}
        if with_kafka:
            classpath()
            starts[_KAFKA] = theirs(_KAFKA)
        bench = Bench(
            starts, folder / place, rounds=1 if quick else 3, scale=0.3 if quick else 1.0, noise=noise
        )
        bench.folder.mkdir()
        for name, work in (("transactions", _transactions(bench)), ("copies", _copies(bench))):
            say(f"{name}, {place}, second passes of fresh brokers")
            bench.second_passes(work)
        done.append((bench, place))
    return done


def _transactions(bench: Bench) -> Pass:
    count = int(500 * bench.scale)

    def one_pass(side: Side) -> dict[str, float]:
        with topic_on(side, bench.topic_name(), PARTITIONS) as topic:
            spec = {"bootstrap": side.bootstrap, "pids": side.pids, "topic": topic, "size": SIZE}
            spec |= {"partitions": PARTITIONS, "portion": RECORDS, "count": count}
            plain = bench.client("plainly", **spec)
            result = bench.client("transactions", **spec)
        rates = {name: each["seconds"] for name, each in plain.items()} | {"tx": result["seconds"]}
        rate = {name: count * RECORDS / seconds for name, seconds in rates.items()}
        return _figures("transactions", result, count) | {
            "transactions records/s": rate["tx"],
            "plain in portions records/s": rate["in portions"],
            "plain records/s": rate["freely"],
            "plain in portions cpu": plain["in portions"]["cpu"] / count * 1e6,
            "transactions to portions": rate["tx"] / rate["in portions"],
            "transactions to plain": rate["tx"] / rate["freely"],
        }

    return one_pass


def _copies(bench: Bench) -> Pass:
    count = int(60 * bench.scale)

    def one_pass(side: Side) -> dict[str, float]:
        with (
            topic_on(side, bench.topic_name(), PARTITIONS) as source,
            topic_on(side, bench.topic_name(), PARTITIONS) as topic,
        ):
            result = bench.client(
                "copies",
                bootstrap=side.bootstrap,
                pids=side.pids,
                source=source,
                topic=topic,
                size=SIZE,
                partitions=PARTITIONS,
                portion=COPIED,
                count=count,
            )
        rate = count * COPIED / result["seconds"]
        return _figures("copies", result, count) | {"copies records/s": rate}

    return one_pass


def _figures(work: str, result: dict[str, Any], count: int) -> dict[str, float]:
    commits = sorted(result["commits"])
    return {
        f"{work} cpu": result["cpu"] / count * 1e6,
        f"{work} commit p50": quantile(commits, 0.5) / 1e3,
        f"{work} commit p99": quantile(commits, 0.99) / 1e3,
    }


def lines(bench: Bench, place: str) -> list[Line]:
    def line(title: str, unit: str, figure: str, budget: float | None = None) -> Line:
        ours, theirs = bench.figure("Ottla", figure), bench.figure(_KAFKA, figure)
        return Line(f"{title}, {place}", unit, ours, theirs, budget)

    found = []
    for work, title in (("transactions", "Transaction of 100 records"), ("copies", "Copy of 1,000 records")):
        found += [
            line(f"{title}, CPU", "us", f"{work} cpu", CPU_BUDGET),
            line(f"{title}, commit p50", "us", f"{work} commit p50", COMMIT_BUDGET),
            line(f"{title}, commit p99", "us", f"{work} commit p99"),
            line(f"{title}", "records/s", f"{work} records/s"),
        ]
    return [
        *found,
        line("Plain, 100 records at a time, CPU", "us", "plain in portions cpu"),
        line("Plain, 100 records at a time", "records/s", "plain in portions records/s"),
        line("Plain, without waiting", "records/s", "plain records/s"),
        line("... transactions to plain, 100 at a time", "x", "transactions to portions"),
        line("... transactions to plain without waiting", "x", "transactions to plain"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench.transactions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer transactions, one round")
    parser.add_argument("--without-kafka", action="store_true", help="only Ottla: figures, but no ratios")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of every round there")
    parser.add_argument("--data", type=Path, help="a folder on the disk to use (default: a temporary one)")
    arguments = parser.parse_args()
    noise = Noise()
    with tempfile.TemporaryDirectory(
        prefix="ottla-bench-", dir=arguments.data, ignore_cleanup_errors=True
    ) as folder:
        done = run(
            Path(folder),
            arguments.quick,
            not arguments.without_kafka,
            noise,
            lambda text: print(f"bench: {text}", file=sys.stderr, flush=True),
        )
    table = [line for bench, place in done for line in lines(bench, place)]
    print(render(table, "Ottla", _KAFKA))
    print(f"\nOther programs used {sum(noise.shares) / len(noise.shares):.2f} cores meanwhile.")
    if arguments.json:
        arguments.json.write_text(json.dumps({place: b.results for b, place in done}, indent=1) + "\n")
    return 1 if any(line.verdict == "FAIL" for line in table) else 0


if __name__ == "__main__":
    raise SystemExit(main())
